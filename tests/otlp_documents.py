"""OTLP JSON documents with spans spelt in any way."""

from typing import Any

from pdtrace.analysis.otlp import Tally, parse_object
from pdtrace.analysis.records import SpanRecord

START_NS = 1_795_946_400_000_000_000


TRACE_ID = "af600850455604a322a6e889b87f47cb"


SPAN_ID = "7562afc1ec11cc95"


def span(**changes: Any) -> dict[str, Any]:
    plain = {
        "traceId": TRACE_ID,
        "spanId": SPAN_ID,
        "name": "pd.match",
        "kind": 1,
        "startTimeUnixNano": str(START_NS),
        "endTimeUnixNano": str(START_NS + 1),
    }
    return plain | changes


def document(*spans: Any) -> dict[str, Any]:
    resource = {"attributes": [{"key": "pd.role", "value": {"stringValue": "prefill"}}]}
    scopes = [{"scope": {"name": "pdtrace"}, "spans": list(spans)}]
    return {"resourceSpans": [{"resource": resource, "scopeSpans": scopes}]}


def attribute(value: dict[str, Any]) -> dict[str, Any]:
    return span(attributes=[{"key": "k", "value": value}])


def read(obj: object) -> list[SpanRecord]:
    return parse_object(obj, Tally())
