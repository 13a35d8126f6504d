"""OTLP from JSON to protobuf and back, and the strict JSON that is written."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from otlp_documents import SPAN_ID, START_NS, TRACE_ID, document, read, span

from pdtrace.analysis.otlp import (
    OtlpError,
    Tally,
    json_to_protobuf,
    parse_request,
    protobuf_to_json,
    span_count,
    status_message,
)

DATA = Path(__file__).parent / "data"


scalars = st.one_of(
    st.text().map(lambda text: {"stringValue": text}),
    st.booleans().map(lambda flag: {"boolValue": flag}),
    st.integers(-(2**63), 2**63 - 1).map(lambda number: {"intValue": str(number)}),
    st.floats(allow_nan=False, allow_infinity=False).map(lambda real: {"doubleValue": real}),
)


values = st.one_of(
    scalars, st.lists(scalars, max_size=3).map(lambda items: {"arrayValue": {"values": items}})
)


attributes = st.dictionaries(st.text(), values, max_size=4).map(
    lambda pairs: [{"key": key, "value": value} for key, value in pairs.items()]
)


spans = st.builds(
    span,
    traceId=st.binary(min_size=16, max_size=16).filter(any).map(bytes.hex),
    spanId=st.binary(min_size=8, max_size=8).filter(any).map(bytes.hex),
    name=st.text(),
    kind=st.integers(0, 5),
    endTimeUnixNano=st.integers(START_NS, START_NS + 10**12).map(str),
    attributes=attributes,
    status=st.fixed_dictionaries({"code": st.integers(0, 2)}),
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(spans, max_size=4))
def test_any_span_survives_the_round_trip(written: list[dict[str, Any]]) -> None:
    """No value is changed on the way JSON, protobuf, strict JSON."""
    obj = document(*written)
    data = json_to_protobuf(obj)
    expected = read(obj)
    assert len(expected) == len(written)
    assert parse_request(data, Tally()) == expected
    assert read(json.loads(protobuf_to_json(data))) == expected


@pytest.mark.parametrize("case", ["c01_handshake", "c03_step_boundary", "c16_push_modes"])
def test_cases_survive_both_conversions(case: str) -> None:
    """JSON, its protobuf and the JSON made from that give the same records."""
    for line in (DATA / f"{case}.otlp.jsonl").read_text().splitlines():
        obj = json.loads(line)
        data = json_to_protobuf(obj)
        expected = read(obj)
        assert parse_request(data, Tally()) == expected
        assert read(json.loads(protobuf_to_json(data))) == expected


def test_written_json_is_strict() -> None:
    """Ids are lower-case hex, 64-bit integers strings, enums numbers; also in links."""
    link = {"traceId": TRACE_ID, "spanId": SPAN_ID}
    written = span(kind="SPAN_KIND_SERVER", links=[link], status={"code": "STATUS_CODE_ERROR"})
    written["attributes"] = [{"key": "n", "value": {"intValue": 3}}]
    line = protobuf_to_json(json_to_protobuf(document(written)))
    (out,) = json.loads(line)["resourceSpans"][0]["scopeSpans"][0]["spans"]
    assert b"\n" not in line
    assert out == span(
        kind=2,
        links=[link],
        status={"code": 2},
        attributes=[{"key": "n", "value": {"intValue": "3"}}],
    )


@pytest.mark.parametrize(
    "obj",
    [
        document(span(traceId="xyz")),
        document(span(startTimeUnixNano="soon")),
        document("a string"),
        {"resourceSpans": [3]},
        {"a": 1},
    ],
)
def test_json_that_does_not_fit_protobuf(obj: object) -> None:
    """Conversion refuses what it cannot carry over whole."""
    with pytest.raises(OtlpError):
        json_to_protobuf(obj)


def test_bytes_that_are_no_request() -> None:
    """Undecodable protobuf is an OtlpError, for the check as for the reading."""
    for use in (span_count, protobuf_to_json, lambda data: parse_request(data, Tally())):
        with pytest.raises(OtlpError):
            use(b"\xff\xff\xff")


def test_status_message_is_a_google_rpc_status() -> None:
    """The hand-written error body decodes with the real class."""
    from google.rpc import status_pb2

    status = status_pb2.Status.FromString(status_message(3, "ü" * 100))
    assert (status.code, status.message) == (3, "ü" * 60)
