"""Jaeger's JSON to span records: what its UI downloads, its query API answers, its storage dumps.

Its times are whole microseconds, its ids may have lost leading zeros, and its query service may
have moved times to hide clock skew: it then leaves a warning on the span, and the span is marked.
"""

from collections.abc import Iterable, Iterator
from sys import intern
from typing import Any, Final

import orjson

from pdtrace.analysis.ids import SPAN_ID_BYTES, TRACE_ID_BYTES, hex_id
from pdtrace.analysis.intake import (
    MALFORMED,
    TOO_LARGE,
    Tally,
    in_words,
    is_of_this_age,
    refusal,
)
from pdtrace.analysis.otlp_json import KINDS, STATUS, code, integer, number
from pdtrace.analysis.records import AttributeValue, EventRecord, SpanRecord
from pdtrace.tracing import semconv

MOVED: Final = "timestamps were adjusted by"
"""In the warning that Jaeger's clock-skew adjuster leaves on a span that it moved."""
_SHAPE_ERRORS: Final = (AttributeError, KeyError, TypeError, ValueError, OverflowError)
_SCOPE_TAGS: Final = ("otel.scope.name", "otel.library.name")
_EVENT_NAMES: Final = ("event", "name", "message")


def is_jaeger(obj: object) -> bool:
    """A list of traces under `data`, one trace, or one span of a storage dump."""
    if not isinstance(obj, dict):
        return False
    if "spans" in obj and ("traceID" in obj or "processes" in obj):
        return True
    if "operationName" in obj and "spanID" in obj:
        return True
    data = obj.get("data")
    return isinstance(data, list) and all(is_jaeger(one) for one in data[:1])


def parse_jaeger(obj: dict[str, Any], tally: Tally, size: int = 0) -> list[SpanRecord]:
    """Span records of what `is_jaeger` knows; refused spans are counted in `tally`."""
    measure = size > tally.span_bytes
    records: list[SpanRecord] = []
    for trace in _traces(obj):
        processes = trace.get("processes") if isinstance(trace.get("processes"), dict) else {}
        resources = {key: _resource(process) for key, process in (processes or {}).items()}
        for span in trace.get("spans") or ():
            if measure and len(orjson.dumps(span)) > tally.span_bytes:
                tally.refuse(TOO_LARGE)
                continue
            try:
                record = _record(span, resources, tally)
            except _SHAPE_ERRORS:
                tally.rejected[MALFORMED] += 1
                continue
            if record is not None:
                records.append(record)
    return records


def _traces(obj: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if "spans" in obj:
        yield obj
    elif "data" in obj:
        yield from (trace for one in obj["data"] if isinstance(one, dict) for trace in _traces(one))
    else:
        yield {"spans": [obj]}


def _record(
    span: dict[str, Any], resources: dict[str, dict[str, AttributeValue]], tally: Tally
) -> SpanRecord | None:
    trace_id = hex_id(span.get("traceID"), TRACE_ID_BYTES)
    span_id = hex_id(span.get("spanID"), SPAN_ID_BYTES)
    parent_id = _parent(span)
    name = intern(str(span.get("operationName") or ""))
    start_us = integer(span.get("startTime")) or 0
    length_us = integer(span.get("duration"))
    end_us = start_us + length_us if length_us is not None else 0
    reason = refusal(trace_id, span_id, start_us * 1000, end_us * 1000)
    if reason is not None:
        words = in_words(name, start_us * 1000, end_us * 1000)
        tally.refuse(reason, (trace_id, span_id, parent_id), words)
        return None
    tags = _tags(span.get("tags"), tally)
    if _moved(span):
        tags[semconv.READ_ADJUSTED] = True
        tally.adjusted += 1
    tally.micro_times += 1
    process = span.get("process")
    known = resources.get(str(span.get("processID")), {})
    return SpanRecord(
        trace_id=trace_id,
        span_id=span_id,
        parent_id=parent_id,
        name=name,
        kind=code(tags.pop("span.kind", 0), KINDS),
        start_ns=start_us * 1000,
        end_ns=end_us * 1000,
        attributes=tags,
        events=tuple(_events(span.get("logs") or (), tally)),
        status=_status(tags),
        resource=_resource(process) if isinstance(process, dict) else known,
        scope=intern(str(next((tags.pop(k) for k in _SCOPE_TAGS if k in tags), ""))),
    )


def _parent(span: dict[str, Any]) -> str:
    """The parent: the span's own field, else the first reference inside its trace."""
    own = hex_id(span.get("parentSpanID"), SPAN_ID_BYTES)
    references = [ref for ref in span.get("references") or () if isinstance(ref, dict)]
    mine = [ref for ref in references if ref.get("traceID") == span.get("traceID")]
    children = [ref for ref in mine if ref.get("refType") == "CHILD_OF"]
    parents = [hex_id(ref.get("spanID"), SPAN_ID_BYTES) for ref in children or mine]
    return own or next(iter(parents), "")


def _moved(span: dict[str, Any]) -> bool:
    warnings = span.get("warnings") or ()
    return any(isinstance(warning, str) and MOVED in warning for warning in warnings)


def _status(tags: dict[str, AttributeValue]) -> int:
    """OTLP's code; `error` = true is what older clients set."""
    said = code(tags.pop("otel.status_code", 0), STATUS)
    return 2 if said == 0 and str(tags.get("error", "")).lower() == "true" else said


def _resource(process: dict[str, Any]) -> dict[str, AttributeValue]:
    tags = _tags(process.get("tags"), Tally())
    if process.get("serviceName"):
        tags.setdefault(semconv.SERVICE_NAME, str(process["serviceName"]))
    return tags


def _tags(tags: Any, tally: Tally) -> dict[str, AttributeValue]:
    """Attributes of a list of typed tags, or of the map that some storages keep."""
    found: dict[str, AttributeValue] = {}
    for tag in _listed(tags):
        key = intern(str(tag.get("key") or ""))
        try:
            value = _READERS.get(str(tag.get("type", "")).lower(), _as_it_is)(tag.get("value"))
        except _SHAPE_ERRORS:
            tally.ignored[f"{key} is not of its type"] += 1
            continue
        if value is not None:
            found[key] = value
    return found


def _listed(tags: Any) -> Iterable[dict[str, Any]]:
    if isinstance(tags, dict):
        return [{"key": key, "value": value} for key, value in tags.items()]
    return [tag for tag in tags or () if isinstance(tag, dict)]


def _events(logs: Iterable[dict[str, Any]], tally: Tally) -> Iterator[EventRecord]:
    for log in logs:
        time_ns = (integer(log.get("timestamp")) or 0) * 1000
        if not is_of_this_age(time_ns):
            tally.dropped_events += 1
            continue
        fields = _tags(log.get("fields"), tally)
        name = next((fields.pop(key) for key in _EVENT_NAMES if key in fields), "")
        yield EventRecord(intern(str(name)), time_ns, fields)


def _truth(value: Any) -> bool:
    return {"true": True, "1": True, "false": False, "0": False}[str(value).lower()]


def _whole(value: Any) -> int:
    found = integer(value)
    if found is None:
        raise ValueError("not an integer")
    return found


def _as_it_is(value: Any) -> AttributeValue | None:
    return value if isinstance(value, (str, bool, int, float)) else None


_READERS: Final[dict[str, Any]] = {
    "string": str,
    "bool": _truth,
    "int64": _whole,
    "float64": number,
    "binary": str,
}
