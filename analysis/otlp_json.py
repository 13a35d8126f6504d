"""OTLP JSON, in the spellings that occur, to span records.

The common spelling (camel case, hex ids) is read without copying; any other is first renamed to
it. Attribute values that the record has no type for become text: a map its JSON, bytes their
base64. An attribute without a value is absent.
"""

import base64
import math
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from sys import intern
from typing import Any, Final, cast

import orjson

from pdtrace.analysis.intake import MALFORMED, OtlpError, Tally, refusal
from pdtrace.analysis.records import AttributeValue, EventRecord, SpanRecord

TRACE_ID_BYTES: Final = 16
SPAN_ID_BYTES: Final = 8

_RESOURCE_SPANS: Final = ("resourceSpans", "resource_spans", "batches")
_OLD_NAMES: Final = {
    "instrumentationLibrarySpans": "scopeSpans",
    "instrumentationLibrary": "scope",
    "batches": "resourceSpans",
}
_KINDS: Final = {
    "SPAN_KIND_UNSPECIFIED": 0,
    "SPAN_KIND_INTERNAL": 1,
    "SPAN_KIND_SERVER": 2,
    "SPAN_KIND_CLIENT": 3,
    "SPAN_KIND_PRODUCER": 4,
    "SPAN_KIND_CONSUMER": 5,
}
_STATUS: Final = {"STATUS_CODE_UNSET": 0, "STATUS_CODE_OK": 1, "STATUS_CODE_ERROR": 2}
_SHAPE_ERRORS: Final = (AttributeError, KeyError, TypeError, ValueError, OverflowError)


def parse_object(obj: object, tally: Tally) -> list[SpanRecord]:
    """Span records of one decoded OTLP JSON object; refused spans are counted in `tally`.

    Raises `OtlpError` when the object is not a trace export.
    """
    if is_partial(obj):
        tally.partial += 1
    records: list[SpanRecord] = []
    for entry in resource_spans(obj):
        try:
            records.extend(_entry_records(entry, tally))
        except _SHAPE_ERRORS:
            tally.rejected[MALFORMED] += 1
    return records


def resource_spans(obj: object) -> list[Any]:
    """The list under `resourceSpans`, whatever it is called; `OtlpError` when there is none."""
    if not isinstance(obj, dict):
        raise OtlpError("a JSON value that is not an object")
    inner = obj.get("trace", obj)
    for name in _RESOURCE_SPANS:
        if isinstance(inner, dict) and isinstance(inner.get(name), list):
            return cast(list[Any], inner[name])
    if not obj:
        return []
    raise OtlpError(_what_else(obj))


def is_partial(obj: object) -> bool:
    """True for a Tempo answer that its own status marks as cut."""
    return isinstance(obj, dict) and obj.get("status") == "PARTIAL"


def _what_else(obj: dict[str, Any]) -> str:
    for signal in ("logs", "metrics"):
        if f"resource{signal.title()}" in obj or f"resource_{signal}" in obj:
            return f"OTLP {signal}, not traces"
    if isinstance(obj.get("context"), dict) and "trace_id" in obj["context"]:
        return "the console dump of an SDK, not OTLP"
    return "JSON without resourceSpans"


def camel(value: Any) -> Any:
    """The same JSON with OTLP's present camel-case names. Attribute keys are values: untouched."""
    if isinstance(value, dict):
        return {_camel_name(name): camel(inner) for name, inner in value.items()}
    return [camel(inner) for inner in value] if isinstance(value, list) else value


@lru_cache(maxsize=512)
def _camel_name(name: str) -> str:
    head, *rest = name.split("_")
    joined = head + "".join(word[:1].upper() + word[1:] for word in rest)
    return _OLD_NAMES.get(joined, joined)


def _entry_records(entry: dict[str, Any], tally: Tally) -> Iterator[SpanRecord]:
    if "scopeSpans" not in entry:
        entry = camel(entry)
    resource = _attributes((entry.get("resource") or {}).get("attributes") or ())
    for group in entry.get("scopeSpans") or ():
        scope = intern(str((group.get("scope") or {}).get("name") or ""))
        for span in group.get("spans") or ():
            try:
                record = _record(span, resource, scope, tally)
            except _SHAPE_ERRORS:
                tally.rejected[MALFORMED] += 1
                continue
            if record is not None:
                yield record


def _record(
    span: dict[str, Any], resource: dict[str, AttributeValue], scope: str, tally: Tally
) -> SpanRecord | None:
    if "trace_id" in span:
        span = camel(span)
    trace_id = hex_id(span.get("traceId"), TRACE_ID_BYTES)
    span_id = hex_id(span.get("spanId"), SPAN_ID_BYTES)
    start_ns = _nanoseconds(span.get("startTimeUnixNano"), tally)
    end_ns = _nanoseconds(span.get("endTimeUnixNano"), tally)
    reason = refusal(trace_id, span_id, start_ns, end_ns)
    if reason is not None:
        tally.rejected[reason] += 1
        return None
    return SpanRecord(
        trace_id=trace_id,
        span_id=span_id,
        parent_id=hex_id(span.get("parentSpanId"), SPAN_ID_BYTES),
        name=intern(str(span.get("name") or "")),
        kind=_code(span.get("kind"), _KINDS),
        start_ns=start_ns,
        end_ns=end_ns,
        attributes=_attributes(span.get("attributes") or ()),
        events=tuple(_events(span.get("events") or (), tally)),
        status=_code((span.get("status") or {}).get("code"), _STATUS),
        resource=resource,
        scope=scope,
    )


def _events(events: Iterable[dict[str, Any]], tally: Tally) -> Iterator[EventRecord]:
    for event in events:
        time_ns = _nanoseconds(event.get("timeUnixNano", event.get("time_unix_nano")), tally)
        if time_ns <= 0:
            tally.dropped_events += 1
            continue
        attributes = _attributes(event.get("attributes") or ())
        yield EventRecord(intern(str(event.get("name") or "")), time_ns, attributes)


def hex_id(text: object, size: int) -> str:
    """Lower-case hex of an id of `size` bytes in hex or base64; "" when unreadable or zero."""
    if not isinstance(text, str) or not text:
        return ""
    try:
        if len(text) == 2 * size:
            raw = bytes.fromhex(text)
        else:
            raw = base64.b64decode(text, validate=True)
    except ValueError:
        return ""
    return raw.hex() if len(raw) == size and any(raw) else ""


def _nanoseconds(raw: object, tally: Tally) -> int:
    """Unix time in nanoseconds; 0 when it cannot be read."""
    try:
        if isinstance(raw, str):
            return int(raw)
        if isinstance(raw, dict):  # a 64-bit integer as JavaScript libraries split it
            return (int(raw["high"]) << 32) | (int(raw["low"]) & 0xFFFFFFFF)
        if isinstance(raw, float):
            tally.float_times += 1
            return int(raw)
    except _SHAPE_ERRORS:
        return 0
    return raw if isinstance(raw, int) and not isinstance(raw, bool) else 0


def _code(raw: object, names: dict[str, int]) -> int:
    if isinstance(raw, str):
        return names[raw] if raw in names else int(raw)
    return raw if isinstance(raw, int) else 0


def _attributes(pairs: Iterable[dict[str, Any]]) -> dict[str, AttributeValue]:
    attributes: dict[str, AttributeValue] = {}
    for pair in pairs:
        value = _plain(pair.get("value"))
        if value is not None:
            attributes[intern(pair.get("key") or "")] = (
                as_attribute(value) if isinstance(value, (dict, list)) else value
            )
    return attributes


def as_attribute(value: Any) -> AttributeValue:
    """A plain value in the record's types: a map becomes its JSON text."""
    if isinstance(value, dict):
        return orjson.dumps(value).decode()
    if isinstance(value, list):
        return [as_attribute(item) for item in value]
    return cast(AttributeValue, value)


def _plain(any_value: dict[str, Any] | None) -> Any:
    """The Python value of an OTLP AnyValue; None when it has none."""
    for name, raw in (any_value or {}).items():
        reader = _READERS.get(name)
        if reader is not None and raw is not None:
            return reader(raw)
    return None


def number(raw: Any) -> float:
    """A double; every NaN is the same object, so that equal records compare equal."""
    value = float(raw)
    return math.nan if math.isnan(value) else value


def _items(raw: dict[str, Any]) -> list[Any]:
    values = (_plain(item) for item in raw.get("values") or ())
    return [value for value in values if value is not None]


def _map(raw: dict[str, Any]) -> dict[str, Any]:
    pairs = ((pair.get("key") or "", _plain(pair.get("value"))) for pair in raw.get("values") or ())
    return {key: value for key, value in pairs if value is not None}


_CAMEL_READERS: Final[dict[str, Callable[[Any], Any]]] = {
    "stringValue": str,
    "boolValue": bool,
    "intValue": int,
    "doubleValue": number,
    "arrayValue": _items,
    "kvlistValue": _map,
    "bytesValue": str,
}
_READERS: Final = _CAMEL_READERS | {
    name.replace("Value", "_value"): reader for name, reader in _CAMEL_READERS.items()
}
