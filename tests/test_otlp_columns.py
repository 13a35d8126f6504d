"""Lines of OTLP JSON as rows: the same table, tally and notes as from a record for each span."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.json_format import ParseDict
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from otlp_documents import SPAN_ID, START_NS, TRACE_ID, document, span

from pdtrace.analysis.account import Account
from pdtrace.analysis.intake import SPAN_BYTES
from pdtrace.analysis.otlp import protobuf_to_json
from pdtrace.analysis.otlp_columns import read_lines
from pdtrace.analysis.sources import Limits
from pdtrace.analysis.store import Batch, Reading, SourceError
from pdtrace.analysis.table import TableBuilder
from pdtrace.tracing import semconv as sc


def lines_of(*documents: object) -> bytes:
    return b"".join(json.dumps(one).encode() + b"\n" for one in documents)


def attributes(**values: Any) -> list[dict[str, Any]]:
    """Attributes of our own by the names of their constants."""
    return [{"key": getattr(sc, name), "value": value} for name, value in values.items()]


def full(number: int = 1, **changes: Any) -> dict[str, Any]:
    """A span with all that the strict form has."""
    plain = span(
        spanId=f"{number:016x}",
        parentSpanId=SPAN_ID,
        flags=257,
        traceState="",
        attributes=attributes(
            REQUEST_ID={"stringValue": "r"},
            ENGINE_REQUEST_ID={"stringValue": "cmpl-r-0"},
            INPUT_TOKENS={"intValue": "7"},
            CLOCK_SENT_NS={"intValue": str(START_NS)},
            READ_ADJUSTED={"boolValue": True},
            ERROR_TYPE={"stringValue": ""},
        )
        + [
            {"key": "d", "value": {"doubleValue": 0.5}},
            {"key": "a", "value": {"arrayValue": {"values": [{"intValue": "-1"}]}}},
            {"key": "nothing", "value": {}},
        ],
        events=[
            {"name": "e", "timeUnixNano": str(START_NS)},
            {
                "name": "f",
                "timeUnixNano": str(START_NS + number),
                "attributes": attributes(PEER_TP_RANK={"intValue": "3"}),
            },
        ],
        status={"code": 2, "message": "no"},
        links=[],
        droppedAttributesCount=0,
    )
    return plain | changes


def outcome(path: Path, limits: Limits, as_rows: bool) -> Any:
    """Everything that reading a file gives, but how soon."""
    reading, builder = Reading(limits, as_rows=as_rows), TableBuilder()
    try:
        for found in reading.messages([path]):
            if isinstance(found, Batch):
                builder.add_batch(found)
            else:
                builder.add_all(found)
    except SourceError as error:
        return str(error)
    table, copies = builder.finish()
    said = Account.of(table, copies, reading.tally.refused).notes()
    counted = (builder.columns.rejected, builder.columns.ignored)
    frames = [frame.astype(object).to_dict("list") for frame in (table.spans, table.events)]
    return (frames, said, counted, reading.tally, reading.notes, reading.tally_notes())


def compared(path: Path, data: bytes, span_bytes: int = SPAN_BYTES) -> None:
    path.write_bytes(data)
    limits = replace(Limits(), span_bytes=span_bytes)
    by_record, by_row = (outcome(path, limits, as_rows) for as_rows in (False, True))
    assert repr(by_row) == repr(by_record)


def is_strict(data: bytes, span_bytes: int = SPAN_BYTES) -> bool:
    return read_lines(data.splitlines(keepends=True), span_bytes) is not None


STRICT: dict[str, dict[str, Any]] = {
    "all there is": full(),
    "no attribute, no event": span(name="GET", attributes=[], events=[], status={}),
    "another producer, known to nobody": span(name="GET /", kind=2),
    "no parent": full(parentSpanId=""),
    "parent not said": {k: v for k, v in full().items() if k != "parentSpanId"},
    "null where a list may be": full(events=None, links=None, status=None),
    "text that is escaped": full(status={"code": 0, "message": 'a "b" \u00e9 \U0001f600 \\'}),
    "said twice": full(
        attributes=attributes(REQUEST_ID={"stringValue": "r"}, INPUT_TOKENS={"intValue": "1"})
        + attributes(INPUT_TOKENS={"intValue": "2"}, REQUEST_ID={"stringValue": "s"})
    ),
}


def test_what_a_resource_says_goes_before_or_after(tmp_path: Path) -> None:
    """A span's own anchor before its resource's; a host's name before its id."""
    anchored = attributes(CLOCK_ANCHOR_NS={"intValue": "7"}, REQUEST_ID={"stringValue": "r"})
    host, by_id = ({"stringValue": text} for text in ("node", "0a1b"))
    first = {"CLOCK_ANCHOR_NS": {"intValue": "5"}}
    documents = []
    for number, said in enumerate(
        ({}, first, first | {"HOST_ID": by_id}, {"HOST_NAME": host, "HOST_ID": by_id})
    ):
        spans = (full(2 * number + 1), full(2 * number + 2, attributes=anchored))
        one = document(*spans)
        one["resourceSpans"][0]["resource"] = {"attributes": attributes(**said)}
        documents.append(one)
    data = lines_of(*documents)
    assert is_strict(data)
    compared(tmp_path / "x.jsonl", data)
    frames = outcome(tmp_path / "x.jsonl", Limits(), as_rows=True)[0]
    columns = (frames[0][name] for name in ("span_id", "anchor_ns", "host"))
    found = {int(number, 16): [anchor, host] for number, anchor, host in zip(*columns, strict=True)}
    assert found == {
        1: [None, ""], 2: [7, ""], 3: [5, ""], 4: [7, ""],
        5: [5, "0a1b"], 6: [7, "0a1b"], 7: [None, "node"], 8: [7, "node"],
    }  # fmt: skip


@pytest.mark.parametrize("name", STRICT)
def test_the_strict_form_is_read_as_rows(name: str, tmp_path: Path) -> None:
    """Several exports of several spans, with what is absent in one and there in the other."""
    one = document(STRICT[name], full(2), span(spanId=f"{3:016x}", attributes=full()["attributes"]))
    other = document(full(4, attributes=attributes(REQUEST_ID={"stringValue": "other"})))
    data = lines_of(one, {"resourceSpans": []}, other, document())
    assert is_strict(data)
    compared(tmp_path / "x.jsonl", data)
    compared(tmp_path / "x.jsonl", b"\n" + data.replace(b"\n", b" \r\n") + b"  \n")


def test_what_export_writes_is_of_the_strict_form() -> None:
    """So what is kept as lines is read soon."""
    exported = ExportTraceServiceRequest()
    ParseDict(document(full()), exported)
    for group in exported.resource_spans[0].scope_spans:
        for one in group.spans:
            one.trace_id, one.span_id = bytes.fromhex(TRACE_ID), bytes.fromhex(SPAN_ID)
            one.parent_span_id = bytes.fromhex(SPAN_ID)
    assert is_strict(protobuf_to_json(exported.SerializeToString()) + b"\n")


OTHER: dict[str, Any] = {
    "ids in capitals": full(traceId=TRACE_ID.upper()),
    "an id of zeros": full(spanId="0" * 16),
    "a parent of zeros": full(parentSpanId="0" * 16),
    "base64": full(traceId="r2AIUEVWBKMipuiJuH9Hyw=="),
    "no id": full(traceId=None),
    "a time as a number": full(startTimeUnixNano=START_NS),
    "a time as a double": full(startTimeUnixNano=float(START_NS)),
    "no time": full(endTimeUnixNano="0"),
    "another epoch": full(startTimeUnixNano="1" * 18, endTimeUnixNano="1" * 18),
    "an end before the start": full(endTimeUnixNano=str(START_NS - 1)),
    "too long": full(endTimeUnixNano=str(START_NS + 90_000 * 10**9)),
    "beyond 64 bits": full(endTimeUnixNano="9" * 19),
    "snake case": {"trace_id" if k == "traceId" else k: v for k, v in full().items()},
    "kind by name": full(kind="SPAN_KIND_CLIENT"),
    "status by name": full(status={"code": "STATUS_CODE_ERROR"}),
    "a link": full(links=[{"traceId": TRACE_ID, "spanId": SPAN_ID}]),
    "attributes as a map": full(attributes={"pd.request.id": "r"}),
    "an integer as a number": full(attributes=attributes(INPUT_TOKENS={"intValue": 7})),
    "below zero": full(
        attributes=attributes(INPUT_TOKENS={"intValue": "-7"}, REQUEST_ID={"stringValue": "r"})
    ),
    "text for a number": full(
        attributes=attributes(INPUT_TOKENS={"stringValue": "7"}, REQUEST_ID={"stringValue": "r"})
    ),
    "a number for text": full(attributes=attributes(REQUEST_ID={"intValue": "7"})),
    "no integer": full(
        attributes=[{"key": "x", "value": {"intValue": "7.5"}}]
        + attributes(REQUEST_ID={"stringValue": "r"})
    ),
    "two types": full(
        attributes=[{"key": "x", "value": {"intValue": "7", "stringValue": "a"}}]
        + attributes(REQUEST_ID={"stringValue": "r"})
    ),
    "no integer in a list": full(
        attributes=[{"key": "x", "value": {"arrayValue": {"values": [{"intValue": "a"}]}}}]
        + attributes(REQUEST_ID={"stringValue": "r"})
    ),
    "no request": span(),
    "an id too long": full(attributes=attributes(REQUEST_ID={"stringValue": "r" * 1025})),
    "an attribute that is null": full(attributes=[None]),
    "a key that is a number": full(
        attributes=[{"key": 5, "value": {"stringValue": "a"}}]
        + attributes(REQUEST_ID={"stringValue": "r"})
    ),
    "a value of no type": full(
        attributes=attributes(INPUT_TOKENS={"colour": 7}, REQUEST_ID={"stringValue": "r"})
    ),
    "text that is an object": full(attributes=attributes(REQUEST_ID={"stringValue": {"a": 1}})),
    "an event without a time": full(events=[{"name": "e"}]),
    "an event of another epoch": full(events=[{"name": "e", "timeUnixNano": "1" * 19}]),
    "a field nobody knows": full(colour="red"),
    "vLLM's own": span(name=sc.VLLM_SPAN),
    "of llm-d": span(name=sc.LLMD_PREFIX + "x"),
    "null": None,
    "half of a surrogate pair": full(name="\ud800"),
}


@pytest.mark.parametrize("name", OTHER)
def test_whatever_else_there_is_is_read_as_before(name: str, tmp_path: Path) -> None:
    """A single span of another kind leaves its block to the reader of records."""
    data = lines_of(document(full(2)), document(full(3), OTHER[name]), document(full(4)))
    assert not is_strict(data)
    compared(tmp_path / "x.jsonl", data)


BROKEN: dict[str, bytes] = {
    "cut": lines_of(document(full()), document(full(2)))[:-40],
    "two on a line": lines_of(document(full())).strip() + lines_of(document(full(2))),
    "one on two lines": lines_of(document(full())).replace(b', "spans"', b'\n, "spans"'),
    "not UTF-8": lines_of(document(full())).replace(b"pdtrace", b"pd\xfftrace"),
    "a control character": lines_of(document(full())).replace(b"pdtrace", b"pd\x01trace"),
    "a key twice": lines_of(document(full())).replace(b'"kind": 1', b'"kind": 1, "kind": 2'),
    "NaN": lines_of(document(full())).replace(b'"kind": 1', b'"kind": NaN'),
    "an array": b"[\n" + lines_of(document(full())).strip() + b",\n{}]\n",
    "other words": lines_of(document(full())) + b"no JSON\n",
    "no list": b'{"resourceSpans": null}\n' + lines_of(document(full())),
    "logs": lines_of({"resourceLogs": []}, document(full())),
    "cut by the store": lines_of({**document(full()), "status": "PARTIAL"}),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_no_line_of_its_own_is_read_as_before(name: str, tmp_path: Path) -> None:
    """Broken lines are counted in the same words."""
    data = lines_of(document(full(9))) + BROKEN[name]
    assert not is_strict(data)
    compared(tmp_path / "x.jsonl", data)


def test_a_span_above_the_limit_is_refused_also_among_rows(tmp_path: Path) -> None:
    """A long line of small spans is no reason to look at each of them."""
    many = document(*(full(number) for number in range(1, 9)))
    data = lines_of(many)
    assert len(data) > 6000
    assert is_strict(data, 6000)
    compared(tmp_path / "x.jsonl", data, 6000)
    for where in (
        {"attributes": [*full()["attributes"], {"key": "x", "value": {"stringValue": "y" * 6000}}]},
        {"attributes": [*full()["attributes"], {"key": "x" * 6000, "value": {}}]},
        {"events": [{"name": "e" * 6000, "timeUnixNano": str(START_NS)}]},
        {"status": {"message": "m" * 6000}},
        {"name": "n" * 6000},
    ):
        data = lines_of(document(full(), full(2, **where)))
        assert not is_strict(data, 6000)
        compared(tmp_path / "x.jsonl", data, 6000)


def test_a_very_long_line_is_left_to_the_other_reader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Arrow could not count its bytes."""
    data = lines_of(document(full()))
    monkeypatch.setattr("pdtrace.analysis.otlp_columns.LONGEST", len(data))
    assert is_strict(data)
    monkeypatch.setattr("pdtrace.analysis.otlp_columns.LONGEST", len(data) - 1)
    assert not is_strict(data)
    compared(tmp_path / "x.jsonl", data)


def test_after_blocks_of_another_kind_rows_are_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a block of another kind among strict ones costs the others nothing."""
    asked: list[int] = []

    def counting(lines: list[bytes], span_bytes: int) -> Any:
        asked.append(len(lines))
        return read_lines(lines, span_bytes)

    monkeypatch.setattr("pdtrace.analysis.messages.BLOCK", 1)
    monkeypatch.setattr("pdtrace.analysis.messages.read_lines", counting)
    strict, other = document(full()), document(full(kind="SPAN_KIND_CLIENT"))
    compared(tmp_path / "x.jsonl", lines_of(*[other] * 9, strict))
    assert len(asked) == 3
    asked.clear()
    compared(tmp_path / "x.jsonl", lines_of(*[strict, other] * 5))
    assert len(asked) == 10


texts = st.builds(lambda text: {"stringValue": text}, st.text(max_size=3))
numbers = st.builds(lambda n: {"intValue": str(n)}, st.integers(0, 2**63 - 1))
truths = st.builds(lambda truth: {"boolValue": truth}, st.booleans())
doubles = st.just({"doubleValue": 0.1})
values = st.one_of(texts, numbers, truths, doubles, st.just({}), st.none())
own_values = {
    sc.REQUEST_ID: texts,
    sc.MODE: texts,
    sc.INPUT_TOKENS: numbers,
    sc.TP_RANK: numbers,
    sc.CLOCK_SENT_NS: numbers,
    sc.READ_ADJUSTED: truths,
    "x": values,
}
fitting = st.one_of(
    *(st.fixed_dictionaries({"key": st.just(k), "value": v}) for k, v in own_values.items())
)
anything = st.fixed_dictionaries({"key": st.sampled_from(sorted(own_values)), "value": values})


@st.composite
def spans(draw: st.DrawFn) -> dict[str, Any]:
    """Mostly of the strict form."""
    said = draw(st.lists(fitting, max_size=5)) + draw(st.lists(anything, max_size=1))
    found = full(
        draw(st.integers(0, 40)),
        attributes=attributes(REQUEST_ID={"stringValue": draw(st.sampled_from("rs"))}) + said,
        endTimeUnixNano=str(START_NS + draw(st.integers(-1, 9))),
        status={"code": draw(st.integers(0, 2))},
    )
    for name in draw(st.sets(st.sampled_from(sorted(found)), max_size=1)):
        if name not in ("traceId", "spanId", "startTimeUnixNano", "endTimeUnixNano"):
            del found[name]
    return found


@settings(deadline=None, max_examples=40)
@given(st.lists(st.lists(spans(), max_size=4), min_size=1, max_size=4))
def test_rows_are_what_records_would_be(
    tmp_path_factory: pytest.TempPathFactory, exports: list[list[dict[str, Any]]]
) -> None:
    """Whatever is said, and however often."""
    data = lines_of(*(document(*export) for export in exports))
    compared(tmp_path_factory.getbasetemp() / "any.jsonl", data)
