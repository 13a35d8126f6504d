"""Our encoder against the SDK's, span for span."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

from pdtrace.tracing import semconv as sc
from pdtrace.tracing.encode import encode_request, encode_span
from pdtrace.tracing.propagation import TraceContext
from pdtrace.tracing.span import Finished, Origin, Record, Shared, readable

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
SCALAR = st.one_of(
    TEXT,
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
    st.binary(max_size=5),
)
VALUE = st.one_of(SCALAR, st.lists(TEXT, max_size=3), st.lists(st.integers(0, 9), max_size=3))
ATTRIBUTES = st.dictionaries(TEXT, VALUE, max_size=4)
TIME = st.integers(0, 2**63 - 1)
ID64 = st.integers(1, 2**64 - 1)
ID128 = st.integers(1, 2**128 - 1)
RESOURCES = st.sampled_from([Resource({"service.name": "a", "n": 1}), Resource({"n": True})])
SCOPES = st.sampled_from([InstrumentationScope("pdtrace", "1"), InstrumentationScope("x")])


@st.composite
def spans(draw: st.DrawFn) -> ReadableSpan:
    """Any span that our recorder or router could make, and more."""
    trace, flags = draw(ID128), TraceFlags(1)
    parent = draw(st.none() | st.builds(SpanContext, st.just(trace), ID64, st.booleans()))
    events = [Event(name, attributes, time) for name, attributes, time in draw(
        st.lists(st.tuples(TEXT, ATTRIBUTES, TIME), max_size=3)
    )]  # fmt: skip
    status = draw(
        st.sampled_from(
            [Status(StatusCode.UNSET), Status(StatusCode.OK), Status(StatusCode.ERROR, "why")]
        )
    )
    return ReadableSpan(
        draw(TEXT),
        SpanContext(trace, draw(ID64), False, flags),
        parent,
        draw(RESOURCES),
        draw(ATTRIBUTES),
        events,
        (),
        draw(st.sampled_from(SpanKind)),
        None,
        status,
        draw(TIME),
        draw(TIME),
        draw(SCOPES),
    )


@given(st.lists(spans(), max_size=5))
def test_our_bytes_mean_what_the_sdks_mean(batch: list[ReadableSpan]) -> None:
    """Decoded, both requests are the same message, whatever the spans carry."""
    assert ExportTraceServiceRequest.FromString(encode_request(batch)) == encode_spans(batch)


CONTEXT = st.builds(TraceContext, ID128, st.one_of(st.just(0), ID64), st.just(True))
# A record's own attributes have names of ours, and one of them makes it an error.
OWN = st.dictionaries(st.sampled_from([sc.ERROR_TYPE, sc.PREEMPTIONS, "k", "é"]), SCALAR)
RECORDS = st.builds(
    Record,
    TEXT,
    st.builds(Shared, CONTEXT, ATTRIBUTES, st.builds(Origin, RESOURCES, SCOPES)),
    ID64,
    TIME,
    TIME,
    st.none() | OWN,
    st.lists(st.tuples(TEXT, TIME, st.none() | ATTRIBUTES), max_size=3),
)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.one_of(RECORDS, spans()), max_size=3))
def test_a_records_bytes_mean_what_the_sdks_mean_of_its_span(batch: list[Finished]) -> None:
    """Also when both kinds are in one request."""
    for record in batch:
        if isinstance(record, Record) and record.own:
            for key in record.own.keys() & record.shared.attributes.keys():
                record.shared.attributes.pop(key)  # type: ignore[attr-defined]
    ours = ExportTraceServiceRequest.FromString(encode_request(batch))
    assert ours == encode_spans(readable(batch))


def test_an_engines_thread_never_waits_for_a_whole_batch() -> None:
    """The encoder pauses every 32 spans."""
    pauses: list[int] = []
    shared = Shared(TraceContext(1, 0, True), {}, Origin(Resource({}), None))
    batch = [Record("n", shared, number + 1, 1, 2, None, ()) for number in range(100)]
    encode_request(batch, pause=lambda: pauses.append(1))
    assert len(pauses) == 3


def test_values_that_compare_equal_stay_apart() -> None:
    """True, 1 and 1.0 are three different attributes, although Python's cache keys are equal."""
    values: list[Any] = [True, 1, 1.0]
    resource = Resource({})
    batch = [
        ReadableSpan(
            "n",
            SpanContext(1, 2 + i, False),
            None,
            resource,
            {"k": value},
            start_time=1,
            end_time=2,
        )
        for i, value in enumerate(values)
    ]
    decoded = ExportTraceServiceRequest.FromString(encode_request(batch))
    kinds = [
        span.attributes[0].value.WhichOneof("value")
        for span in decoded.resource_spans[0].scope_spans[0].spans
    ]
    assert kinds == ["bool_value", "int_value", "double_value"]


def test_a_span_that_has_not_ended_is_refused() -> None:
    """It has no place in an export; the error names it."""
    with pytest.raises(ValueError, match="'open'"):
        encode_span(ReadableSpan("open", SpanContext(1, 2, False), start_time=1))
