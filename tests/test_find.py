"""Finding a request by its id, a part of it, vLLM's own id, or its trace id."""

from dataclasses import replace

import pytest
from generator import Shape, Writer, records

from pdtrace.analysis.find import Names, NotFound, SeveralFound, find, request_name
from pdtrace.analysis.handoffs import Handoffs, join
from pdtrace.analysis.records import SpanRecord
from pdtrace.analysis.table import build
from pdtrace.tracing import semconv as sc
from pdtrace.tracing.ids import base_request_id

TRACE = "00000000000000ab" + 13 * "0" + "0c1"


def second(span: SpanRecord) -> SpanRecord:
    """A span as the engines would write it for another request with the same id."""
    own = span.attributes.get(sc.ENGINE_REQUEST_ID)
    more = {sc.ENGINE_REQUEST_ID: f"{str(own)[:-1]}2"} if own else {}
    attributes = {**span.attributes, **more}
    return replace(span, span_id=f"2{span.span_id[1:]}", attributes=attributes)


@pytest.fixture(scope="module")
def handoffs() -> Handoffs:
    """Requests order-1, order-2 (twice), trip, and two of one trace with leading zeros."""
    late = Shape(start=10**9)
    spans = [*records(Shape(), "order-1"), *records(Shape(), "order-2"), *records(Shape(), "trip")]
    again = [second(span) for span in records(late, "order-2")]
    shared = [Writer(name, sc.MODE_PUSH, TRACE) for name in ("one", "other")]
    for place, writer in enumerate(shared):
        start = 10**18 + place
        writer.span(sc.SPAN_PREFILL, start, start + 9, sc.ROLE_PREFILL)
    return join(build([*spans, *again, *(r for w in shared for r in w.records)]))


def found(handoffs: Handoffs, wanted: str) -> str:
    label = find(handoffs.requests, handoffs.spans, Names(wanted, (base_request_id(wanted),)))
    ids, number = handoffs.requests["id"], handoffs.requests["instance"]
    again = bool(ids.duplicated(keep=False)[label])
    return request_name(ids[label], int(number[label]), again)


@pytest.mark.parametrize(
    ("wanted", "request_"),
    [
        ("order-1", "order-1"),
        ("order-2#1", "order-2#1"),
        ("order-2#2", "order-2#2"),
        ("cmpl-order-2-0-00000002", "order-2#2"),
        ("cmpl-trip-0-00000000", "trip"),
        ("cmpl-trip-0-0123abcd", "trip"),
        ("chatcmpl-trip", "trip"),
        ("tr", "trip"),
        ("on", "one"),
    ],
)
def test_a_request_is_found_by(handoffs: Handoffs, wanted: str, request_: str) -> None:
    """Its id, the number of a repeated id, vLLM's ids around it, an unambiguous beginning."""
    assert found(handoffs, wanted) == request_


def test_a_trace_of_one_request_is_found_in_any_spelling(handoffs: Handoffs) -> None:
    """Upper case and a beginning as well."""
    trace = str(handoffs.requests.loc["trip", "trace_id"])
    for wanted in (trace, trace.upper(), trace.lstrip("0"), trace[:-2]):
        assert found(handoffs, wanted) == "trip"


@pytest.mark.parametrize(
    ("wanted", "labels"),
    [
        ("order-2", ["order-2", "order-2\x1f2"]),
        (TRACE, ["one", "other"]),
        (TRACE.lstrip("0").upper(), ["one", "other"]),
        ("cmpl-order-2-0", ["order-2", "order-2\x1f2"]),
        ("order", ["order-1", "order-2", "order-2\x1f2"]),
    ],
)
def test_a_name_of_several_requests_gives_them_all(
    handoffs: Handoffs, wanted: str, labels: list[str]
) -> None:
    """Nothing is chosen silently."""
    with pytest.raises(SeveralFound) as error:
        found(handoffs, wanted)
    assert error.value.labels == labels
    assert f"{len(labels)} requests" in str(error.value)


def test_an_unknown_name_is_answered_with_the_nearest(handoffs: Handoffs) -> None:
    """A letter missing, and something that is like nothing there."""
    with pytest.raises(NotFound, match="'odrer-1'; 5 requests are there.*: order-1$"):
        found(handoffs, "odrer-1")
    for wanted in ("", "zzz", "order-2#9"):
        with pytest.raises(NotFound, match="5 requests are there, nearest by name: "):
            found(handoffs, wanted)
