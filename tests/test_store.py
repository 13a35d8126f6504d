"""Stores on disk: what was appended is there, whatever happens to writer, disk and file."""

import errno
import io
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from documents import document, json_lines, message, numbers

from pdtrace.analysis.framing import framed
from pdtrace.analysis.retention import Retention
from pdtrace.analysis.segments import MARKER, segment_paths
from pdtrace.analysis.store import StoreError, StoreWriter, read_spans


class FullDisk(io.FileIO):
    """A fake that injects a failure: while `full`, a write takes half and then has no space."""

    full = False

    def write(self, data: Any, /) -> int:
        if not FullDisk.full:
            return super().write(data)
        half = bytes(data)[: len(bytes(data)) // 2]
        if len(half) > 1:
            return super().write(half)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> type[FullDisk]:
    monkeypatch.setattr(FullDisk, "full", False)
    return FullDisk


def test_messages_come_back_in_order_and_untouched(tmp_path: Path) -> None:
    """What is appended is in the segment byte for byte, with its length before it."""
    with StoreWriter(tmp_path / "s") as writer:
        writer.append(message(1))
        writer.append(message(2))
    (segment,) = segment_paths(tmp_path / "s")
    assert segment.name == "segment-000001.otlp"
    assert segment.read_bytes() == framed(message(1)) + framed(message(2))
    assert numbers(tmp_path / "s") == [1, 2]


def test_append_returns_when_the_message_is_in_the_file(tmp_path: Path) -> None:
    """Another reader sees the message while the writer is still open."""
    with StoreWriter(tmp_path) as writer:
        writer.append(message(1))
        assert numbers(tmp_path) == [1]


def test_messages_survive_a_killed_writer(tmp_path: Path) -> None:
    """A writer killed right after an append has lost nothing, and leaves no lock behind."""
    (tmp_path / "message").write_bytes(message(1))
    code = (
        "import os, pathlib, signal, sys; from pdtrace.analysis.store import StoreWriter\n"
        "here = pathlib.Path(sys.argv[1])\n"
        "StoreWriter(here / 's').append((here / 'message').read_bytes())\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    killed = subprocess.run([sys.executable, "-c", code, str(tmp_path)], timeout=60)
    assert killed.returncode == -9
    StoreWriter(tmp_path / "s").close()
    assert numbers(tmp_path / "s") == [1]


def test_cut_message_is_noted_and_the_rest_kept(tmp_path: Path) -> None:
    """A message cut anywhere costs only itself; later segments are read too."""
    whole = framed(message(1))
    for cut in (1, 2, len(whole) - 1):
        store = tmp_path / str(cut)
        with StoreWriter(store) as writer:
            writer.append(message(2))
        with open(segment_paths(store)[0], "ab") as segment:
            segment.write(whole[:cut])
        with StoreWriter(store) as writer:
            writer.append(message(3))
        batch = read_spans([store])
        assert [int(record.span_id, 16) for record in batch.records] == [2, 3]
        (note,) = batch.notes
        assert "segment-000001.otlp ends inside a message" in note


def test_segments_roll_at_their_size(tmp_path: Path) -> None:
    """A full segment is closed and the next begun; reopening begins another."""
    with StoreWriter(tmp_path, Retention(segment_bytes=1)) as writer:
        for number in (1, 2):
            writer.append(message(number))
    with StoreWriter(tmp_path) as writer:
        writer.append(message(3))
    assert [path.name for path in segment_paths(tmp_path)] == [
        "segment-000001.otlp",
        "segment-000002.otlp",
        "segment-000003.otlp",
    ]
    assert numbers(tmp_path) == [1, 2, 3]


def test_second_writer_is_refused(tmp_path: Path) -> None:
    """One store has one writer; after it closed, the next may open."""
    with StoreWriter(tmp_path), pytest.raises(StoreError, match="already has a writer"):
        StoreWriter(tmp_path)
    StoreWriter(tmp_path).close()
    assert json.loads((tmp_path / MARKER).read_text())["format"] == "pdtrace-store"


def test_closed_writer_refuses_messages(tmp_path: Path) -> None:
    """A message after `close` is an error, not a loss; closing again is none."""
    writer = StoreWriter(tmp_path)
    writer.close()
    writer.close()
    with pytest.raises(StoreError, match="closed"):
        writer.append(message(1))


def test_foreign_directory_is_not_made_a_store(tmp_path: Path) -> None:
    """A directory with other files in it is left alone."""
    (tmp_path / "thesis.txt").write_text("x")
    with pytest.raises(StoreError, match="other files"):
        StoreWriter(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_store_in_the_way_of_a_file(tmp_path: Path) -> None:
    """A store cannot be made where a file is."""
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreError, match="cannot open the store"):
        StoreWriter(tmp_path / "file")


def test_threads_append_whole_messages(tmp_path: Path) -> None:
    """Concurrent appends do not mix."""
    with StoreWriter(tmp_path, Retention(segment_bytes=2000)) as writer:

        def append(first: int) -> None:
            for number in range(first, first + 25):
                writer.append(message(number))

        threads = [threading.Thread(target=append, args=(1 + 25 * i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(numbers(tmp_path)) == list(range(1, 101))


def test_full_disk_leaves_no_half_message(tmp_path: Path, full_disk: type[FullDisk]) -> None:
    """A refused message raises, nothing of it stays, and the next one works again."""
    with StoreWriter(tmp_path, open_segment=lambda path: full_disk(path, "xb")) as writer:
        writer.append(message(1))
        full_disk.full = True
        with pytest.raises(OSError, match="No space left"):
            writer.append(message(2))
        full_disk.full = False
        writer.append(message(3))
    (segment,) = segment_paths(tmp_path)
    assert segment.read_bytes() == framed(message(1)) + framed(message(3))


def test_unreadable_bytes_in_a_segment(tmp_path: Path) -> None:
    """A segment that was overwritten gives what lies before, and a note."""
    with StoreWriter(tmp_path) as writer:
        writer.append(message(1))
    with open(segment_paths(tmp_path)[0], "ab") as segment:
        segment.write(framed(b"\xff\xff") + b"\xff" * 20)
    batch = read_spans([tmp_path])
    assert len(batch.records) == 1
    assert "unreadable bytes" in batch.notes[0]
    assert "not an ExportTraceServiceRequest" in batch.notes[1]


def test_empty_store_beside_a_full_one(tmp_path: Path) -> None:
    """A store that has received nothing yet does not spoil the others."""
    StoreWriter(tmp_path / "store").close()
    (tmp_path / "f").write_bytes(json_lines(document(1)))
    assert numbers(tmp_path / "store", tmp_path / "f") == [1]
