"""Spans from files, stores, directories and globs: told by content, named when there is nothing."""

import json
from pathlib import Path

import pytest
from documents import (
    document,
    in_four_bytes,
    json_lines,
    message,
    numbers,
    spans,
    write_every_format,
    zstd,
)

from pdtrace.analysis.framing import framed
from pdtrace.analysis.store import SourceError, StoreWriter, read_spans
from pdtrace.analysis.tabulate import tabulate
from pdtrace.tracing import semconv

DATA = Path(__file__).parent / "data"


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


def test_cut_messages_with_lengths_in_four_bytes(tmp_path: Path) -> None:
    """A file of the Collector's that is cut, in a message or in a length, gives all before it."""
    whole, last = in_four_bytes(message(1), message(2)), in_four_bytes(message(3))
    source = tmp_path / "f"
    for left in range(1, len(last)):
        source.write_bytes(whole + last[:left])
        batch = read_spans([source])
        assert [int(record.span_id, 16) for record in batch.records] == [1, 2]
        assert batch.notes == [f"{source} ends inside a message, which was skipped"]


def test_messages_of_other_signals_stand_between_those_with_spans(tmp_path: Path) -> None:
    """One exporter may serve several pipelines."""
    logs, junk = b'{"resourceLogs":[]}', b"\x81\xff"
    source = tmp_path / "f"
    source.write_bytes(in_four_bytes(logs, message(1), junk, json.dumps(document(2)).encode()))
    batch = read_spans([source])
    assert [int(record.span_id, 16) for record in batch.records] == [1, 2]
    assert batch.notes == [
        f"{source}: skipped 1 message: OTLP logs, not traces",
        f"{source}: skipped 1 message: bytes that are not an ExportTraceServiceRequest",
    ]


def test_lengths_in_four_bytes_must_hold_to_the_end(tmp_path: Path) -> None:
    """Bytes whose beginning alone looks like that are something else."""
    (tmp_path / "f").write_bytes(in_four_bytes(message(1)) + b"something else")
    with pytest.raises(SourceError, match="is not OTLP"):
        tabulate([tmp_path / "f"])


@pytest.mark.parametrize("value", [{"doubleValue": False}, {"colour": 1}, {"stringValue": {}}])
def test_an_attribute_that_cannot_be_read_is_not_known(tmp_path: Path, value: object) -> None:
    """It is no 0, and it is counted."""
    said = {"key": semconv.INPUT_TOKENS, "value": value}
    (tmp_path / "f").write_bytes(json_lines(document(1, attributes=[said])))
    loaded = tabulate([tmp_path / "f"])
    assert loaded.table.spans["input_tokens"].isna().tolist() == [True]
    assert loaded.notes == [f"ignored 1 value: {semconv.INPUT_TOKENS} is not of its type"]


def test_an_array_with_an_element_a_line_is_read_line_by_line(tmp_path: Path) -> None:
    """Brackets and commas are no lines that cannot be read."""
    elements = b",\n".join(json_lines(document(n)).rstrip() for n in (1, 2, 3))
    (tmp_path / "f").write_bytes(b"[\n" + elements + b"\n]\n")
    assert (spans(tmp_path / "f"), tabulate([tmp_path / "f"]).notes) == ([1, 2, 3], [])


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


def test_partial_answer_is_marked() -> None:
    """A Tempo answer that is cut says so; a complete one does not."""
    assert read_spans([DATA / "c07_tempo_v2_partial.json"]).partial
    complete = read_spans([DATA / "c07_tempo_v1.json"])
    assert (len(complete.records), complete.partial, complete.notes) == (12, False, [])


@pytest.mark.parametrize(
    ("said", "partial"),
    [
        ({"status": "PARTIAL"}, True),
        ({"status": "partial"}, True),
        ({"status": 1}, True),
        ({"status": "PARTIAL_STATUS_PARTIAL"}, True),
        ({"traceType": "PARTIAL"}, True),
        ({"status": "COMPLETE"}, False),
        ({"status": 0}, False),
        ({"status": True}, False),
        ({"status": {"code": 1}}, False),
    ],
)
def test_partial_is_said_in_several_ways(
    tmp_path: Path, said: dict[str, object], partial: bool
) -> None:
    """By word or number, beside the trace or in it."""
    source = tmp_path / "answer.json"
    for body in ({"trace": document(1), **said}, {"trace": document(1) | said}):
        source.write_text(json.dumps(body))
        assert read_spans([source]).partial is partial


@pytest.mark.parametrize(
    "junk", [b'Id":"12"}]}]}]}\n', b"# of the night\n", b"INFO started\n", b"7\n", b"\0\0\0\n"]
)
def test_a_first_line_that_cannot_be_read_costs_only_itself(tmp_path: Path, junk: bytes) -> None:
    """As after a log that was cut at its beginning."""
    source = tmp_path / "lines"
    source.write_bytes(junk + json_lines(document(1), document(2)))
    found = read_spans([source])
    assert [int(record.span_id, 16) for record in found.records] == [1, 2]
    assert len(found.notes) == 1 and "skipped 1 " in found.notes[0]


def test_values_over_many_lines_may_follow_one_another(tmp_path: Path) -> None:
    """As a shell appends answers; what is cut at the end is not known, the rest is."""
    source = tmp_path / "answers"
    both = [json.dumps(document(number), indent=2) for number in (1, 2)]
    source.write_text("\n".join(both))
    assert numbers(source) == [1, 2]
    source.write_text("\n".join([*both, both[0][:50]]))
    assert numbers(source) == [1, 2]


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
        (b'{\n "context": {"trace_id": "0x1"}\n}\n' * 2, "the console dump of an SDK, not OTLP"),
        (b'{"resourceSpans": []}\n', "no usable span"),
        (json_lines(document(1, traceId="")), "rejected 1 span: no trace id"),
        (b"\x1f\x8bnonsense", "broken gzip"),
        (b"\x28\xb5\x2f\xfdnonsense", "broken zstd"),
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


def test_a_search_result_names_traces_and_has_no_spans(tmp_path: Path) -> None:
    """Alone it is told for what it is; beside its traces they are found, lost zeros or not."""
    search = DATA / "c07_tempo_search.json"
    with pytest.raises(SourceError, match="a search result names 1 trace and holds no spans"):
        tabulate([search])
    notes = tabulate([DATA / "c07_tempo_v1.json", search]).notes
    assert notes == ["a search result names 1 trace: all of them are in the sources"]
    notes = tabulate([DATA / "c06_split_trace.otlp.jsonl", search]).notes
    assert notes[-1].startswith("a search result names 1 trace, 1 of them in no source (071d1f")
