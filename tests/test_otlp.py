"""Reading OTLP JSON and protobuf: spans in every spelling, and those that cannot be used."""

import math
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from otlp_documents import SPAN_ID, START_NS, TRACE_ID, attribute, document, read, span

from pdtrace.analysis.otlp import OtlpError, Tally, json_to_protobuf, parse_object, parse_request
from pdtrace.analysis.records import EventRecord, SpanRecord


def rejected(spoilt: Any) -> dict[str, int]:
    """The tally after one spoilt span and a good one, which must survive it."""
    tally = Tally()
    assert len(parse_object(document(spoilt, span()), tally)) == 1
    return dict(tally.rejected)


def test_whole_record() -> None:
    """Every field of the record comes from its place in the span."""
    written = span(
        parentSpanId="026894f5a5bd6dd9",
        status={"code": 2},
        attributes=[{"key": "n", "value": {"intValue": "3"}}],
        events=[{"name": "pd.refused", "timeUnixNano": str(START_NS), "attributes": []}],
    )
    assert read(document(written)) == [
        SpanRecord(
            trace_id=TRACE_ID,
            span_id=SPAN_ID,
            parent_id="026894f5a5bd6dd9",
            name="pd.match",
            kind=1,
            start_ns=START_NS,
            end_ns=START_NS + 1,
            attributes={"n": 3},
            events=(EventRecord("pd.refused", START_NS, {}),),
            status=2,
            resource={"pd.role": "prefill"},
            scope="pdtrace",
        )
    ]


def test_spans_of_one_export_share_their_resource() -> None:
    """A million spans do not carry a million copies of the resource."""
    first, second = read(document(span(), span(spanId="00000000000000ff")))
    assert first.resource is second.resource
    data = json_to_protobuf(document(span(), span(spanId="00000000000000ff")))
    first, second = parse_request(data, Tally())
    assert first.resource is second.resource


@pytest.mark.parametrize(
    ("name", "spelling"),
    [
        ("traceId", TRACE_ID.upper()),
        ("traceId", f"0x{TRACE_ID}"),
        ("traceId", "af600850-4556-04a3-22a6-e889b87f47cb"),
        ("traceId", "r2AIUEVWBKMipuiJuH9Hyw=="),
        ("traceId", "r2AIUEVWBKMipuiJuH9Hyw"),
        ("spanId", "dWKvwewRzJU="),
        ("startTimeUnixNano", START_NS),
        ("startTimeUnixNano", f" {START_NS} "),
        ("startTimeUnixNano", {"high": START_NS >> 32, "low": START_NS & 0xFFFFFFFF}),
        ("startTimeUnixNano", {"high": str(START_NS >> 32), "low": (START_NS & (1 << 32) - 1)}),
        (
            "startTimeUnixNano",
            {"low": (START_NS & 0xFFFFFFFF) - (1 << 32), "high": START_NS >> 32, "unsigned": True},
        ),
        ("kind", "SPAN_KIND_INTERNAL"),
        ("kind", "internal"),
        ("kind", "1"),
        ("attributes", {}),
        ("attributes", None),
    ],
)
def test_other_spellings_give_the_same_record(name: str, spelling: object) -> None:
    """Ids in upper case or base64, numeric times and enum names are read."""
    assert read(document(span(**{name: spelling}))) == read(document(span()))


@pytest.mark.parametrize("digits", [1, 4, 8, 12, 15, 16])
@pytest.mark.parametrize("letters", ["71d1f1da4fde64a1", "1234567890123456"])
def test_dropped_leading_zeros_come_back(digits: int, letters: str) -> None:
    """Whatever is left of an id, also of digits alone, also where its length is base64's."""
    short = letters[:digits]
    (record,) = read(document(span(traceId=short, spanId=short, parentSpanId=short)))
    assert (record.trace_id, record.span_id) == (short.zfill(32), short.zfill(16))
    assert record.parent_id == record.span_id


@pytest.mark.parametrize("written", [float(START_NS), f"{START_NS:.18e}", str(float(START_NS))])
def test_a_time_written_as_floating_point_is_read_and_counted(written: object) -> None:
    """It is exact to 256 ns only, which the user is told."""
    tally = Tally()
    (record,) = parse_object(document(span(startTimeUnixNano=written)), tally)
    assert abs(record.start_ns - START_NS) <= 256
    assert tally.float_times == 1


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"intValue": 3}, 3),
        ({"intValue": 3.0}, 3),
        ({"intValue": {"high": 0, "low": 3}}, 3),
        ({"intValue": "9007199254740993"}, 9007199254740993),
        ({"boolValue": "false"}, False),
        ({"boolValue": "True"}, True),
        ({"doubleValue": "-Infinity"}, -math.inf),
        (7, 7),
        ("bare", "bare"),
    ],
)
def test_values_in_other_spellings(value: Any, expected: object) -> None:
    """64-bit numbers in every form, truth as text, and values without their type."""
    assert read(document(attribute(value)))[0].attributes == {"k": expected}


@pytest.mark.parametrize(
    "value", [{"intValue": "many"}, {"boolValue": "maybe"}, {"doubleValue": "x"}]
)
def test_a_value_that_is_not_of_its_type_costs_itself_only(value: dict[str, Any]) -> None:
    """The span stays, the value is absent and counted."""
    tally = Tally()
    (record,) = parse_object(document(attribute(value)), tally)
    assert (record.attributes, sum(tally.ignored.values())) == ({}, 1)


KEYLESS = "an attribute whose key is no text"
UNTYPED = "k is not of its type"


def nested(depth: int) -> dict[str, Any]:
    """A list in a list in a list."""
    value: dict[str, Any] = {"intValue": "1"}
    for _ in range(depth):
        value = {"arrayValue": {"values": [value]}}
    return value


@pytest.mark.parametrize(
    ("spoilt", "reason"),
    [
        (None, KEYLESS),
        ("k", KEYLESS),
        ({"key": 5, "value": {"stringValue": "a"}}, KEYLESS),
        ({"key": 0, "value": {"stringValue": "a"}}, KEYLESS),
        ({"key": ["k"], "value": {"stringValue": "a"}}, KEYLESS),
        ({"key": "k", "value": {"colour": "red"}}, UNTYPED),
        ({"key": "k", "value": {"stringValue": {"a": 1}}}, UNTYPED),
        ({"key": "k", "value": {"stringValue": ["a"]}}, UNTYPED),
        ({"key": "k", "value": {"boolValue": {}}}, UNTYPED),
        ({"key": "k", "value": {"boolValue": 2}}, UNTYPED),
        ({"key": "k", "value": {"intValue": False}}, UNTYPED),
        ({"key": "k", "value": {"doubleValue": False}}, UNTYPED),
        ({"key": "k", "value": {"arrayValue": 5}}, UNTYPED),
        ({"key": "k", "value": {"kvlistValue": {"values": [{"key": 5, "value": 5}]}}}, UNTYPED),
        ({"key": "k", "value": [{"a": "\ud800"}]}, UNTYPED),
        ({"key": "k", "value": nested(1000)}, UNTYPED),
    ],
)
def test_a_malformed_attribute_costs_itself_only(spoilt: Any, reason: str) -> None:
    """Of a span, of an event and of a resource: the rest is read, it is absent and counted."""
    pairs = [spoilt, {"key": "good", "value": {"intValue": "1"}}]
    event = {"name": "e", "timeUnixNano": str(START_NS), "attributes": pairs}
    written = document(span(attributes=pairs, events=[event]))
    written["resourceSpans"][0]["resource"]["attributes"] = pairs
    tally = Tally()
    (record,) = parse_object(written, tally)
    found = (record.attributes, record.events[0].attributes, record.resource)
    assert found == ({"good": 1}, {"good": 1}, {"good": 1})
    assert (tally.ignored, tally.rejected) == ({reason: 3}, {})


def test_a_span_above_the_limit_is_refused_and_counted() -> None:
    """In JSON and in protobuf; the small one beside it stays."""
    big = document(span(name="x" * 5000), span())
    as_json, as_protobuf = Tally(span_bytes=2000), Tally(span_bytes=2000)
    found = parse_object(big, as_json, size=9000)
    assert found == parse_request(json_to_protobuf(big), as_protobuf)
    assert [record.name for record in found] == ["pd.match"]
    for tally in (as_json, as_protobuf):
        assert tally.rejected == {"larger than the limit (--max-span-bytes)": 1}


def test_old_names_and_snake_case_give_the_same_record() -> None:
    """Snake case, the old library names and Tempo's `batches` are read."""
    snake = {
        "trace_id": TRACE_ID,
        "span_id": SPAN_ID,
        "name": "pd.match",
        "kind": 1,
        "start_time_unix_nano": str(START_NS),
        "end_time_unix_nano": str(START_NS + 1),
    }
    resource = {"attributes": [{"key": "pd.role", "value": {"string_value": "prefill"}}]}
    libraries = [{"instrumentation_library": {"name": "pdtrace"}, "spans": [snake]}]
    entry = {"resource": resource, "instrumentation_library_spans": libraries}
    for spelt in ({"resource_spans": [entry]}, {"batches": [entry]}):
        assert read(spelt) == read(document(span()))


def test_float_times_are_read_and_counted() -> None:
    """A time written as a float is used, and counted because it is exact to 256 ns only."""
    tally = Tally()
    (record,) = parse_object(document(span(endTimeUnixNano=1.79594640036e18)), tally)
    assert (record.end_ns, tally.float_times) == (1_795_946_400_360_000_000, 1)


@pytest.mark.parametrize(
    ("spoilt", "reason"),
    [
        (span(traceId=""), "no trace id"),
        (span(traceId="0" * 32), "no trace id"),
        (span(traceId="g" * 32), "no trace id"),
        (span(spanId=None), "no span id"),
        (span(spanId="12345678901234567"), "no span id"),
        (span(spanId="AAAAAAAAAAA="), "no span id"),
        (span(startTimeUnixNano="soon"), "no readable time"),
        (span(startTimeUnixNano=True), "no readable time"),
        (span(endTimeUnixNano=math.nan), "no readable time"),
        (span(endTimeUnixNano="0"), "no readable time"),
        (span(endTimeUnixNano=str(START_NS - 1)), "end before start"),
        (span(startTimeUnixNano="2300000000"), "time of another epoch"),
        (span(startTimeUnixNano=START_NS // 1000), "time of another epoch"),
        (span(startTimeUnixNano="123", endTimeUnixNano="124"), "time of another epoch"),
        (span(endTimeUnixNano=str(START_NS * 1000)), "time of another epoch"),
        (span(startTimeUnixNano=str(1 << 64)), "time of another epoch"),
        (span(endTimeUnixNano=str(START_NS + 86_400 * 10**9 + 1)), "longer than a day"),
        (span(attributes=7), "malformed span"),
        (span(events=7), "malformed span"),
        ("a string", "malformed span"),
    ],
)
def test_unusable_span_is_counted_with_its_reason(spoilt: Any, reason: str) -> None:
    """A span that cannot be used is refused by reason and costs no other span."""
    assert rejected(spoilt) == {reason: 1}


def test_protobuf_refuses_for_the_same_reasons() -> None:
    """Both readers judge alike."""
    tally = Tally()
    spoilt = document(span(traceId=""), span(endTimeUnixNano="1"), span())
    assert len(parse_request(json_to_protobuf(spoilt), tally)) == 1
    assert tally.rejected == {"no trace id": 1, "end before start": 1}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"stringValue": ""}, ""),
        ({"boolValue": False}, False),
        ({"intValue": "9007199254740993"}, 9007199254740993),
        ({"doubleValue": 0.5}, 0.5),
        ({"doubleValue": "-Infinity"}, -math.inf),
        ({"arrayValue": {"values": [{"intValue": 1}, {"stringValue": "b"}]}}, [1, "b"]),
        ({"kvlistValue": {"values": [{"key": "a", "value": {"boolValue": True}}]}}, '{"a":true}'),
        ({"bytesValue": "AAEC"}, "AAEC"),
    ],
)
def test_attribute_values(value: dict[str, Any], expected: object) -> None:
    """JSON and protobuf give the same value; maps become JSON text, bytes stay base64."""
    doc = document(attribute(value))
    assert read(doc)[0].attributes == {"k": expected}
    assert parse_request(json_to_protobuf(doc), Tally())[0].attributes == {"k": expected}


def test_attribute_without_value_is_absent() -> None:
    """An empty value is not a value."""
    assert read(document(attribute({})))[0].attributes == {}


def test_not_a_number_compares_equal() -> None:
    """Two readings of one span with a NaN are the same record, so its copy is a copy."""
    doc = document(attribute({"doubleValue": "NaN"}))
    assert read(doc) == parse_request(json_to_protobuf(doc), Tally())


@pytest.mark.parametrize(
    ("obj", "words"),
    [
        ({"resourceLogs": []}, "OTLP logs"),
        ({"resourceMetrics": []}, "OTLP metrics"),
        ({"name": "x", "context": {"trace_id": "0x1"}}, "console dump"),
        ({"a": 1}, "without resourceSpans"),
        ({"resourceSpans": {}}, "without resourceSpans"),
        (3, "not an object"),
    ],
)
def test_other_json_is_named(obj: object, words: str) -> None:
    """What is no trace export is refused with what it is."""
    with pytest.raises(OtlpError, match=words):
        read(obj)


json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(sorted(span() | {"attributes": 0, "events": 0, "status": 0})), json_values)
def test_no_value_in_a_span_raises(name: str, value: Any) -> None:
    """Whatever a field holds, the span is read or counted, and its neighbour is read."""
    tally = Tally()
    records = parse_object(document(span(**{name: value}), span()), tally)
    assert len(records) + sum(tally.rejected.values()) == 2
