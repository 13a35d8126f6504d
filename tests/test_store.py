"""Stores on disk, and spans read from stores and files of every format."""

import errno
import gzip
import io
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pdtrace.analysis.framing import framed
from pdtrace.analysis.otlp import json_to_protobuf
from pdtrace.analysis.segments import MARKER, segment_paths
from pdtrace.analysis.store import Limits, SourceError, StoreError, StoreWriter, read_spans
from pdtrace.analysis.tabulate import tabulate

DATA = Path(__file__).parent / "data"
START_NS = 1_795_946_400_000_000_000


def document(number: int, **changes: Any) -> dict[str, Any]:
    span = {
        "traceId": f"{number:032x}",
        "spanId": f"{number:016x}",
        "name": "a.step",
        "startTimeUnixNano": str(START_NS),
        "endTimeUnixNano": str(START_NS + number),
    }
    return {"resourceSpans": [{"scopeSpans": [{"spans": [span | changes]}]}]}


def message(number: int, **changes: Any) -> bytes:
    return json_to_protobuf(document(number, **changes))


def json_lines(*documents: dict[str, Any]) -> bytes:
    return b"".join(json.dumps(doc).encode() + b"\n" for doc in documents)


def numbers(*sources: Path) -> list[int]:
    """Which spans are read, by the number that `document` gave them."""
    return [int(record.span_id, 16) for record in read_spans(sources).records]


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
    with StoreWriter(tmp_path, segment_bytes=1) as writer:
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
    with StoreWriter(tmp_path, segment_bytes=2000) as writer:

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


def write_every_format(where: Path) -> list[Path]:
    """The same two spans as every kind of source."""
    one, two = document(1), document(2)
    both = {"resourceSpans": one["resourceSpans"] + two["resourceSpans"]}
    with StoreWriter(where / "store") as writer:
        writer.append(message(1))
        writer.append(message(2))
    contents = {
        "lines": json_lines(one, two),
        "blank-lines": b"\n\r\n" + json_lines(one) + b"\n" + json_lines(two) + b"\n",
        "no-last-line-end": json_lines(one, two).rstrip(),
        "byte-order-mark": b"\xef\xbb\xbf" + json_lines(one, two),
        "object": json.dumps(both, indent=1).encode(),
        "array": json.dumps([one, two], indent=1).encode(),
        "message": json_to_protobuf(both),
        "framed": framed(message(1)) + framed(message(2)),
    }
    contents |= {f"{name}-gz": gzip.compress(data) for name, data in contents.items()}
    contents["lines-gz-members"] = gzip.compress(json_lines(one)) + gzip.compress(json_lines(two))
    for name, data in contents.items():
        (where / name).write_bytes(data)
    return [where / "store", *(where / name for name in contents)]


def test_every_format_is_told_by_its_content(tmp_path: Path) -> None:
    """Stores, JSON and protobuf, also gzip, give the same spans whatever they are called."""
    for source in write_every_format(tmp_path):
        batch = read_spans([source])
        assert [int(record.span_id, 16) for record in batch.records] == [1, 2], source.name
        assert (batch.notes, batch.rejected) == ([], {}), source.name


@pytest.mark.parametrize("length", [0x7B, 0x5B, 0x0A + 0x80])
def test_framed_message_whose_length_looks_like_text(tmp_path: Path, length: int) -> None:
    """A length byte that happens to be `{` or `[` does not make it JSON."""
    padding = 0
    while len(message(1, name="x" * padding)) < length:
        padding += 1
    data = framed(message(1, name="x" * padding))
    assert data[0] in (length, length & 0x7F | 0x80)
    (tmp_path / "f").write_bytes(data)
    assert numbers(tmp_path / "f") == [1]


def spans(*sources: Path) -> list[int]:
    """Which spans the table has, by the number that `document` gave them."""
    return [int(text, 16) for text in tabulate(sources).table.spans["span_id"]]


def test_sources_mix(tmp_path: Path) -> None:
    """Several sources of several formats make one table, each span once."""
    sources = write_every_format(tmp_path)
    (tmp_path / "more").write_bytes(json_lines(document(3)))
    assert spans(*sources, tmp_path / "more") == [1, 2, 3]
    copies = 2 * (len(sources) - 1)
    assert tabulate(sources).notes == [
        f"dropped {copies} spans that came again with the same content"
    ]


def test_conflicting_copy_keeps_the_longest(tmp_path: Path) -> None:
    """Spans with the same ids and other content: in any order the longest stays, and it is said."""
    changed = document(1, endTimeUnixNano=str(START_NS + 99))
    for order in ([document(1), changed, document(1)], [changed, document(1), document(1)]):
        (tmp_path / "f").write_bytes(json_lines(*order))
        loaded = tabulate([tmp_path / "f"])
        assert (loaded.table.spans["end_ns"] - START_NS).tolist() == [99]
        (note,) = loaded.notes
        assert "other content (2 times); the longest is kept" in note


def test_copies_that_differ_in_an_event_are_in_conflict(tmp_path: Path) -> None:
    """What a span carries is its content too; whichever comes first, one and the same stays."""
    event = [{"name": "pd.refused", "timeUnixNano": str(START_NS)}]
    found = []
    for order in (
        [document(1), document(1, events=event)],
        [document(1, events=event), document(1)],
    ):
        (tmp_path / "f").write_bytes(json_lines(*order))
        loaded = tabulate([tmp_path / "f"])
        found.append(loaded.table.events["name"].tolist())
        assert "other content (1 time)" in loaded.notes[0]
    assert found[0] == found[1]


def test_many_conflicts_make_few_notes(tmp_path: Path) -> None:
    """Ten conflicts are named, the others counted."""
    changed = [document(n, name="other") for n in range(1, 21)]
    (tmp_path / "f").write_bytes(json_lines(*(document(n) for n in range(1, 21)), *changed))
    notes = tabulate([tmp_path / "f"]).notes
    assert (len(notes), notes[-1]) == (11, "10 more spans came again with other content")


def test_bad_lines_are_counted_and_the_rest_kept(tmp_path: Path) -> None:
    """Junk, logs and a cut last line cost only themselves."""
    lines = [b"{junk}\n", json_lines(document(1)), b'{"resourceLogs": []}\n']
    (tmp_path / "f").write_bytes(b"".join(lines) + json_lines(document(2))[:50])
    batch = read_spans([tmp_path / "f"])
    assert len(batch.records) == 1
    assert [note.removeprefix(str(tmp_path / "f")) for note in batch.notes] == [
        " ends inside a message, which was skipped",
        ": skipped 1 line that cannot be read",
        ": skipped 1 message: OTLP logs, not traces",
    ]


def test_cut_gzip_keeps_what_came_before(tmp_path: Path) -> None:
    """A gzip file without its end gives the lines before the cut."""
    lines = json_lines(*(document(n, name=os.urandom(200).hex()) for n in range(1, 200)))
    (tmp_path / "f").write_bytes(gzip.compress(lines)[:-2000])
    batch = read_spans([tmp_path / "f"])
    assert 1 < len(batch.records) < 199
    assert "ends inside a message" in batch.notes[0]


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


def test_quirks_case_reads_alike_from_plain_and_gzip() -> None:
    """Nine spans spelt nine ways, with exact times, from both files."""
    expected = json.loads((DATA / "c09_otlp_quirks.expected.json").read_text())
    plain = read_spans([DATA / "c09_otlp_quirks.jsonl"])
    zipped = read_spans([DATA / "c09_otlp_quirks.jsonl.gz"])
    assert plain.records == zipped.records
    lengths = {record.name: record.end_ns - record.start_ns for record in plain.records}
    assert lengths == expected["durations_ns"]
    assert any("floating point" in note for note in plain.notes)
    values = {name: v for record in plain.records for name, v in record.attributes.items()}
    assert values["test.big"] == expected["attributes"]["test.big"]
    assert values["test.list"] == expected["attributes"]["test.list"]
    assert json.loads(str(values["test.map"])) == expected["attributes"]["test.map"]
    assert values["test.bytes"] == expected["attributes"]["test.bytes_base64"]


def test_dirty_case_counts_what_it_leaves_out() -> None:
    """Copies, a conflict, another epoch, a negative span, orphans, bad values: each counted."""
    expected = json.loads((DATA / "c06_dirty_spans.expected.json").read_text())
    loaded = tabulate([DATA / "c06_dirty_spans.otlp.jsonl"])
    assert loaded.rejected == {"time of another epoch": 1, "end before start": 1}
    table = loaded.table.spans
    assert len(table) == expected["span_ids_unique"] - 2
    assert table["name"].str.startswith("pd.").sum() == expected["own_spans_used"]
    assert loaded.notes == [
        "rejected 1 span: time of another epoch (the first: bytecode transform, 56.9 years long)",
        "rejected 1 span: end before start (the first: pd.handshake, -1000000 ns long)",
        "ignored 1 value: gen_ai.latency.time_in_queue is negative",
        "ignored 1 value: gen_ai.latency.time_to_first_token is not a number",
        "dropped 3 spans that came again with the same content",
        "span pd.request c3a3380ad1557e1e of trace da9c50b823a1b266212cbfa62de039e8 came again "
        "with other content (1 time); the longest is kept",
        "7 spans of 1 parent that is in no source: joined by request id, which needs no parent",
    ]


def test_partial_answer_is_marked() -> None:
    """A Tempo answer that is cut says so; a complete one does not."""
    assert read_spans([DATA / "c07_tempo_v2_partial.json"]).partial
    complete = read_spans([DATA / "c07_tempo_v1.json"])
    assert (len(complete.records), complete.partial, complete.notes) == (12, False, [])


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (b"hello\n", "is not OTLP"),
        (b"\n\n", "is not OTLP"),
        (b"\x81\xff" * 200, "is not OTLP"),
        (b"{not json\n", "no line of it is JSON"),
        (b'{"a": 1}\n', "without resourceSpans"),
        (b"[1, 2]\n", "without resourceSpans"),
        (b'{"resourceLogs": []}\n', "OTLP logs"),
        (b'{"resourceSpans": []}\n', "no usable span"),
        (json_lines(document(1, traceId="")), "rejected 1 span: no trace id"),
        (b"\x1f\x8bnonsense", "broken gzip"),
        (b"[" * 100_000, "is not OTLP"),
    ],
)
def test_source_without_spans_is_named(tmp_path: Path, content: bytes, words: str) -> None:
    """Input that gives nothing raises one sentence with the file's name."""
    source = tmp_path / "input"
    source.write_bytes(content)
    with pytest.raises(SourceError, match=words) as caught:
        tabulate([source])
    assert str(source) in str(caught.value) and "\n" not in str(caught.value)


def test_missing_and_empty_places(tmp_path: Path) -> None:
    """A missing path, an empty directory, one without traces, an empty store: all are named."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.txt").write_text("x")
    StoreWriter(tmp_path / "store").close()
    for name, words in (
        ("missing", "does not exist"),
        ("*.jsonl", "nothing matches"),
        ("empty", "is an empty directory"),
        ("other", "no traces in .*thesis.txt is not OTLP"),
        ("store", "no usable span"),
    ):
        with pytest.raises(SourceError, match=words):
            tabulate([tmp_path / name])


def test_directories_and_globs_are_searched(tmp_path: Path) -> None:
    """A directory to its depths, stores inside it too; the rest is passed over, and said."""
    deep = tmp_path / "runs" / "a" / "b"
    deep.mkdir(parents=True)
    (deep / "one.jsonl").write_bytes(json_lines(document(1)))
    (tmp_path / "runs" / "two.json.zst").write_bytes(zstd(json_lines(document(2))))
    (tmp_path / "runs" / "README.md").write_text("# what this is")
    (tmp_path / "runs" / ".hidden").write_bytes(json_lines(document(9)))
    with StoreWriter(tmp_path / "runs" / "store") as writer:
        writer.append(message(3))
    assert spans(tmp_path / "runs") == [1, 2, 3]
    assert spans(Path(f"{tmp_path}/runs/**/*.json*")) == [1, 2]
    (note,) = tabulate([tmp_path / "runs"]).notes
    assert note.startswith("passed over 1 file without traces (") and "README.md" in note


def zstd(data: bytes) -> bytes:
    return bytes(pa.compress(data, "zstd", asbytes=True))


def test_cut_and_broken_zstd(tmp_path: Path) -> None:
    """As with gzip: what comes before the cut is kept, and a file that is none is named."""
    lines = json_lines(*(document(n, name=os.urandom(200).hex()) for n in range(1, 2000)))
    (tmp_path / "f").write_bytes(zstd(lines)[:-2000])
    loaded = tabulate([tmp_path / "f"])
    assert 1 < len(loaded.table.spans) < 1999
    assert "ends inside a message" in loaded.notes[0]
    (tmp_path / "g").write_bytes(b"\x28\xb5\x2f\xfdnonsense")
    with pytest.raises(SourceError, match="broken zstd"):
        tabulate([tmp_path / "g"])


@pytest.mark.parametrize("squeeze", [gzip.compress, zstd])
def test_decompression_stops_at_its_limit(tmp_path: Path, squeeze: Any) -> None:
    """A few bytes that become many cost no more than the limit, and it is said."""
    lines = json_lines(*(document(n) for n in range(1, 5000)))
    (tmp_path / "f").write_bytes(squeeze(lines))
    loaded = tabulate([tmp_path / "f"], Limits(plain_bytes=100_000))
    assert 1 < len(loaded.table.spans) < 100_000 / len(json_lines(document(1)))
    assert any("more than 100000 bytes when it is decompressed" in note for note in loaded.notes)


def test_an_array_with_an_element_a_line_is_read_line_by_line(tmp_path: Path) -> None:
    """Brackets and commas are no lines that cannot be read."""
    elements = b",\n".join(json_lines(document(n)).rstrip() for n in (1, 2, 3))
    (tmp_path / "f").write_bytes(b"[\n" + elements + b"\n]\n")
    assert (spans(tmp_path / "f"), tabulate([tmp_path / "f"]).notes) == ([1, 2, 3], [])


def test_a_search_result_names_traces_and_has_no_spans(tmp_path: Path) -> None:
    """Alone it is told for what it is; beside its traces they are found, lost zeros or not."""
    search = DATA / "c07_tempo_search.json"
    with pytest.raises(SourceError, match="a search result names 1 trace and holds no spans"):
        tabulate([search])
    notes = tabulate([DATA / "c07_tempo_v1.json", search]).notes
    assert notes == ["a search result names 1 trace: all of them are in the sources"]
    notes = tabulate([DATA / "c06_split_trace.otlp.jsonl", search]).notes
    assert notes[-1].startswith("a search result names 1 trace, 1 of them in no source (071d1f")


def test_empty_store_beside_a_full_one(tmp_path: Path) -> None:
    """A store that has received nothing yet does not spoil the others."""
    StoreWriter(tmp_path / "store").close()
    (tmp_path / "f").write_bytes(json_lines(document(1)))
    assert numbers(tmp_path / "store", tmp_path / "f") == [1]
