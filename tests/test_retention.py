"""What a store keeps, and for how long."""

import os
import time
from pathlib import Path

import pytest
from documents import message, numbers

from pdtrace.analysis.collect import Collector
from pdtrace.analysis.framing import framed
from pdtrace.analysis.retention import Retention
from pdtrace.analysis.segments import StoreWriter, segment_paths
from pdtrace.analysis.sources import Skipped, read_messages

SIZE = len(framed(message(1)))


def names(store: Path) -> list[str]:
    return [path.name for path in segment_paths(store)]


def fill(writer: StoreWriter, *found: int) -> None:
    for number in found:
        writer.append(message(number))


def test_without_a_limit_everything_stays(tmp_path: Path) -> None:
    """However old and large the store is."""
    with StoreWriter(tmp_path, Retention(segment_bytes=1)) as writer:
        fill(writer, 1, 2, 3)
        for path in segment_paths(tmp_path):
            os.utime(path, (0, 0))
        writer.tidy()
        assert writer.removed == 0
    assert numbers(tmp_path) == [1, 2, 3]


def test_a_segment_ends_when_it_is_old(tmp_path: Path) -> None:
    """The next message begins another one; a segment that is young goes on."""
    for age_s, segments in ((0.0, 2), (3600.0, 1)):
        store = tmp_path / str(age_s)
        with StoreWriter(store, Retention(segment_s=age_s)) as writer:
            fill(writer, 1)
            writer.tidy()
            fill(writer, 2)
        assert len(names(store)) == segments
        assert numbers(store) == [1, 2]


def test_the_oldest_go_until_the_store_is_small_enough(tmp_path: Path) -> None:
    """What is being written counts and stays; numbers are not used again."""
    with StoreWriter(tmp_path, Retention(segment_bytes=2 * SIZE, keep_bytes=3 * SIZE)) as writer:
        fill(writer, 1, 2, 3, 4, 5)
        writer.tidy()
        assert (numbers(tmp_path), writer.removed) == ([3, 4, 5], 1)
        fill(writer, 6)
        writer.tidy()
        assert (numbers(tmp_path), writer.removed) == ([5, 6], 2)
        fill(writer, 7)
        writer.tidy()
        assert numbers(tmp_path) == [5, 6, 7]
        assert names(tmp_path) == ["segment-000003.otlp", "segment-000004.otlp"]


def test_the_open_segment_stays_though_it_is_too_large(tmp_path: Path) -> None:
    """It goes when it is closed."""
    with StoreWriter(tmp_path, Retention(keep_bytes=0, keep_s=0.0)) as writer:
        fill(writer, 1)
        writer.tidy()
        assert numbers(tmp_path) == [1]
    with StoreWriter(tmp_path, Retention(keep_bytes=0)) as writer:
        writer.tidy()
    assert names(tmp_path) == []


def test_what_was_written_long_ago_goes(tmp_path: Path) -> None:
    """The last message of a segment counts, and younger segments stay."""
    with StoreWriter(tmp_path, Retention(segment_bytes=1, keep_s=60.0)) as writer:
        fill(writer, 1, 2, 3)
        for path, age_s in zip(segment_paths(tmp_path), (120, 61, 30), strict=True):
            at_s = time.time() - age_s
            os.utime(path, (at_s, at_s))
        writer.tidy()
        assert (numbers(tmp_path), writer.removed) == ([3], 2)


def test_a_segment_that_goes_while_it_is_read_is_said(tmp_path: Path) -> None:
    """The others are read."""
    with StoreWriter(tmp_path, Retention(segment_bytes=1)) as writer:
        fill(writer, 1, 2, 3)
    second = segment_paths(tmp_path)[1]
    skipped = Skipped()
    reading = read_messages(tmp_path, skipped)
    found = [next(reading)]
    second.unlink()
    found += reading
    assert found == [message(1), message(3)]
    assert skipped.sentences(tmp_path) == [
        f"{second} was removed by the store's retention while it was read"
    ]


def test_what_the_disk_refuses_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """And tried again: the collector goes on."""
    with StoreWriter(tmp_path, Retention(segment_bytes=1)) as writer:
        fill(writer, 1, 2)
    writer = StoreWriter(tmp_path, Retention(keep_bytes=0))
    with Collector(writer, grpc_port=0, http_port=0) as collector:
        with monkeypatch.context() as refusing:
            refusing.setattr(Path, "unlink", fake_unlink_on_a_read_only_disk)
            collector.tidy()
            collector.tidy()
        assert caplog.messages == ["pdtrace: the store cannot be tidied: read-only"]
        collector.tidy()
        assert (names(tmp_path), writer.removed) == ([], 2)


def fake_unlink_on_a_read_only_disk(*_: object, **__: object) -> None:
    raise OSError("read-only")
