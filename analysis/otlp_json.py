"""OTLP JSON, in the spellings that occur, to span records.

The common spelling (camel case, hex ids) is read without copying; any other is first renamed to
it. Attribute values that the record has no type for become text: a map its JSON, bytes their
base64. An attribute without a value is absent.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from sys import intern
from typing import Any, Final, cast

import orjson

from pdtrace.analysis.ids import SPAN_ID_BYTES, TRACE_ID_BYTES, hex_id
from pdtrace.analysis.intake import (
    MALFORMED,
    TOO_LARGE,
    OtlpError,
    Tally,
    in_words,
    is_of_this_age,
    refusal,
)
from pdtrace.analysis.records import AttributeValue, EventRecord, SpanRecord

_RESOURCE_SPANS: Final = ("resourceSpans", "resource_spans", "batches")
_STATUSES: Final = ("status", "traceType", "trace_type")
"""Where Tempo says that its answer is partial."""
_OLD_NAMES: Final = {
    "instrumentationLibrarySpans": "scopeSpans",
    "instrumentationLibrary": "scope",
    "batches": "resourceSpans",
}
KINDS: Final = {
    "UNSPECIFIED": 0,
    "INTERNAL": 1,
    "SERVER": 2,
    "CLIENT": 3,
    "PRODUCER": 4,
    "CONSUMER": 5,
}
STATUS: Final = {"UNSET": 0, "OK": 1, "ERROR": 2}
_SHAPE_ERRORS: Final = (
    AttributeError, KeyError, TypeError, ValueError, OverflowError, RecursionError
)  # fmt: skip
_KEYLESS: Final = "an attribute whose key is no text"
_TRUTHS: Final[dict[Any, bool]] = {
    "true": True, "1": True, 1: True, "false": False, "0": False, 0: False
}  # fmt: skip


def parse_object(obj: object, tally: Tally, size: int = 0) -> list[SpanRecord]:
    """Span records of one decoded OTLP JSON object; refused spans are counted in `tally`.

    `size`: bytes of its text, where known; spans are only measured when it exceeds what one span
    may have. Raises `OtlpError` when the object is not a trace export.
    """
    if is_partial(obj):
        tally.partial += 1
    records: list[SpanRecord] = []
    for entry in resource_spans(obj):
        try:
            records.extend(_entry_records(entry, tally, size > tally.span_bytes))
        except _SHAPE_ERRORS:
            tally.rejected[MALFORMED] += 1
    return records


def resource_spans(obj: object) -> list[Any]:
    """The list under `resourceSpans`, whatever it is called; `OtlpError` when there is none."""
    if not isinstance(obj, dict):
        raise OtlpError("a JSON value that is not an object")
    inner = obj.get("trace") or obj.get("result") or obj
    for name in _RESOURCE_SPANS:
        if isinstance(inner, dict) and isinstance(inner.get(name), list):
            return cast(list[Any], inner[name])
    if not obj:
        return []
    raise OtlpError(_what_else(obj))


def is_partial(obj: object) -> bool:
    """True for a Tempo answer that it marks itself as cut: by word, or by the enum's number."""
    if not isinstance(obj, dict):
        return False
    inner = obj.get("trace")
    places = [obj, inner] if isinstance(inner, dict) else [obj]
    return any(_says_partial(one.get(key)) for one in places for key in _STATUSES)


def _says_partial(value: object) -> bool:
    word = str(value).upper()
    return not isinstance(value, bool) and (word == "1" or word.endswith("PARTIAL"))


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


def _entry_records(entry: dict[str, Any], tally: Tally, measure: bool) -> Iterator[SpanRecord]:
    if "scopeSpans" not in entry:
        entry = camel(entry)
    resource = _attributes((entry.get("resource") or {}).get("attributes") or (), tally)
    for group in entry.get("scopeSpans") or ():
        scope = intern(str((group.get("scope") or {}).get("name") or ""))
        for span in group.get("spans") or ():
            if measure and len(orjson.dumps(span)) > tally.span_bytes:
                tally.refuse(TOO_LARGE)
                continue
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
    parent_id = hex_id(span.get("parentSpanId"), SPAN_ID_BYTES)
    name = intern(str(span.get("name") or ""))
    start_ns = nanoseconds(span.get("startTimeUnixNano"), tally)
    end_ns = nanoseconds(span.get("endTimeUnixNano"), tally)
    reason = refusal(trace_id, span_id, start_ns, end_ns)
    if reason is not None:
        tally.refuse(reason, (trace_id, span_id, parent_id), in_words(name, start_ns, end_ns))
        return None
    return SpanRecord(
        trace_id=trace_id,
        span_id=span_id,
        parent_id=parent_id,
        name=name,
        kind=code(span.get("kind"), KINDS),
        start_ns=start_ns,
        end_ns=end_ns,
        attributes=_attributes(span.get("attributes") or (), tally),
        events=tuple(_events(span.get("events") or (), tally)),
        status=code((span.get("status") or {}).get("code"), STATUS),
        resource=resource,
        scope=scope,
    )


def _events(events: Iterable[dict[str, Any]], tally: Tally) -> Iterator[EventRecord]:
    for event in events:
        time_ns = nanoseconds(event.get("timeUnixNano", event.get("time_unix_nano")), tally)
        if not is_of_this_age(time_ns):
            tally.dropped_events += 1
            continue
        attributes = _attributes(event.get("attributes") or (), tally)
        yield EventRecord(intern(str(event.get("name") or "")), time_ns, attributes)


def nanoseconds(raw: object, tally: Tally) -> int:
    """Unix time in nanoseconds; 0 when it cannot be read."""
    value = integer(raw)
    if value is not None:
        if isinstance(raw, float):
            tally.float_times += 1
        return value
    try:
        found = 0 if isinstance(raw, bool) else int(float(cast(str, raw)))
    except _SHAPE_ERRORS:
        return 0
    tally.float_times += 1
    return found


def integer(raw: object) -> int | None:
    """A 64-bit integer as number, text, whole double, or {low, high}; None when it is none."""
    try:
        if isinstance(raw, str):
            return int(raw)
        if isinstance(raw, dict):  # as JavaScript libraries split it
            return (int(raw["high"]) << 32) | (int(raw["low"]) & 0xFFFFFFFF)
        if isinstance(raw, float):
            return int(raw) if raw.is_integer() else None
    except _SHAPE_ERRORS:
        return None
    return raw if isinstance(raw, int) and not isinstance(raw, bool) else None


def code(raw: object, names: dict[str, int]) -> int:
    """The number of an enum value that is written as number or name; 0 when it is neither."""
    if isinstance(raw, int):
        return raw
    if not isinstance(raw, str):
        return 0
    if raw.isdecimal():
        return int(raw)
    last = raw.upper().removeprefix("SPAN_KIND_").removeprefix("STATUS_CODE_")
    return names.get(last, 0)


def _attributes(pairs: Any, tally: Tally) -> dict[str, AttributeValue]:
    attributes: dict[str, AttributeValue] = {}
    if isinstance(pairs, dict):
        pairs = [{"key": key, "value": value} for key, value in pairs.items()]
    for pair in pairs:
        key = pair.get("key") if type(pair) is dict else 0
        if key is None:
            key = ""
        elif type(key) is not str:
            tally.ignored[_KEYLESS] += 1
            continue
        raw = pair.get("value")
        text = raw.get("stringValue") if type(raw) is dict else None
        if type(text) is str:  # nearly all of them
            attributes[key] = text
            continue
        try:
            value = as_attribute(_plain(raw))
        except _SHAPE_ERRORS:
            tally.ignored[f"{key} is not of its type"] += 1
            continue
        if value is not None:
            attributes[key] = value
    return attributes


def as_attribute(value: Any) -> AttributeValue:
    """A plain value in the record's types: a map becomes its JSON text."""
    if isinstance(value, dict):
        return orjson.dumps(value).decode()
    if isinstance(value, list):
        return [as_attribute(item) for item in value]
    return cast(AttributeValue, value)


def _plain(any_value: Any) -> Any:
    """The Python value of an OTLP AnyValue, or of a bare one; None when it has none."""
    if not isinstance(any_value, dict):
        return any_value
    for name, raw in any_value.items():
        reader = _READERS.get(name)
        if reader is not None and raw is not None:
            return reader(raw)
    if any_value and _READERS.keys().isdisjoint(any_value):
        raise ValueError("of no known type")
    return None


def _text(raw: Any) -> str:
    if isinstance(raw, (dict, list)):
        raise ValueError("not a text")
    return str(raw)


def _whole(raw: Any) -> int:
    value = integer(raw)
    if value is None:
        raise ValueError("not an integer")
    return value


def _truth(raw: Any) -> bool:
    return _TRUTHS[raw.lower() if isinstance(raw, str) else raw]


def number(raw: Any) -> float:
    """A double; every NaN is the same object, so that equal records compare equal."""
    if isinstance(raw, bool):
        raise ValueError("not a number")
    value = float(raw)
    return math.nan if math.isnan(value) else value


def _items(raw: dict[str, Any]) -> list[Any]:
    values = (_plain(item) for item in raw.get("values") or ())
    return [value for value in values if value is not None]


def _map(raw: dict[str, Any]) -> dict[str, Any]:
    pairs = ((pair.get("key") or "", _plain(pair.get("value"))) for pair in raw.get("values") or ())
    return {key: value for key, value in pairs if value is not None}


_CAMEL_READERS: Final[dict[str, Callable[[Any], Any]]] = {
    "stringValue": _text,
    "boolValue": _truth,
    "intValue": _whole,
    "doubleValue": number,
    "arrayValue": _items,
    "kvlistValue": _map,
    "bytesValue": _text,
}
_READERS: Final = _CAMEL_READERS | {
    name.replace("Value", "_value"): reader for name, reader in _CAMEL_READERS.items()
}
