"""A record to OTLP protobuf bytes: what its request shares once, the rest in a few pieces.

Every call and every intermediate here is on the budget of a span; see `benchmarks/hot_path.py`.
"""

from typing import Any, Final

from opentelemetry.trace import SpanKind

from pdtrace.tracing.encode_fields import (
    PACK_FIXED64,
    PACK_TAGGED_ID,
    PACK_TIMES,
    STATUS_ERROR,
    STATUS_UNSET,
    TAGS,
    VARINTS,
    ancestry,
    event_field,
    field,
    key_of,
    key_value,
    named,
    varint,
)
from pdtrace.tracing.semconv import ERROR_TYPE
from pdtrace.tracing.span import Point, Record, Shared

_SHORT: Final = 100
"""Strings below this have a table of their own: all lengths around them are single bytes."""


def _shared(shared: Shared) -> bytes:
    """What all spans of a request have in common, encoded once."""
    if not shared.encoded:
        trace = shared.trace
        parts = [ancestry(trace.trace_id, trace.parent_id, True)]
        for key, value in shared.attributes.items():
            _pair(parts, key, value)
        shared.encoded = b"".join(parts)
    return shared.encoded


class _IntegerKeys(dict[str, tuple[bytes, ...]]):
    """Attribute key to what precedes an integer value of it, by the bytes that the value takes.

    Only names that we spell come here, so the table is small.
    """

    def __missing__(self, key: str) -> tuple[bytes, ...]:
        name = key_of(key)
        found = self[key] = tuple(
            TAGS[9] + varint(len(name) + 3 + size) + name + bytes((0x12, 1 + size, 0x18))
            for size in range(11)
        )
        return found


class _TextKeys(dict[str, tuple[bytes, ...]]):
    """The same for a string, by its length."""

    def __missing__(self, key: str) -> tuple[bytes, ...]:
        name = key_of(key)
        found = self[key] = tuple(
            TAGS[9] + varint(len(name) + 4 + size) + name + bytes((0x12, 2 + size, 0x0A, size))
            for size in range(_SHORT)
        )
        return found


_INTEGER_KEYS: Final = _IntegerKeys()
_TEXT_KEYS: Final = _TextKeys()


def _pair(parts: list[bytes], key: str, value: Any) -> None:
    """One attribute of a record. Values of a request recur in no other one: none is cached."""
    kind = value.__class__
    if kind is int:
        digits = VARINTS[value] if 0 <= value < 1 << 14 else varint(value)
        parts.append(_INTEGER_KEYS[key][len(digits)])
        parts.append(digits)
        return
    if kind is str:
        text = value.encode("utf-8", "replace")
        if len(text) < _SHORT:
            parts.append(_TEXT_KEYS[key][len(text)])
            parts.append(text)
            return
    parts.append(field(9, key_value(key, value)))


class _Internal(dict[str, bytes]):
    """Name and kind of a span of ours."""

    def __missing__(self, name: str) -> bytes:
        found = self[name] = named(name, SpanKind.INTERNAL)
        return found


class _BarePoints(dict[str, tuple[bytes, bytes]]):
    """What stands around the time of a point without attributes."""

    def __missing__(self, name: str) -> tuple[bytes, bytes]:
        around = event_field(name, 0, None)
        time_at = around.index(b"\x09") + 1
        found = self[name] = around[:time_at], around[time_at + 8 :]
        return found


_INTERNAL: Final = _Internal()
_BARE_POINTS: Final = _BarePoints()


def encode_record(record: Record) -> bytes:
    """One record as the payload of `ScopeSpans.spans`."""
    name, shared, span_id, start_ns, end_ns, own, points = record
    parts = [
        shared.encoded or _shared(shared),
        PACK_TAGGED_ID(0x1208, span_id),
        _INTERNAL[name],
        PACK_TIMES(0x39, start_ns, 0x41, end_ns),
    ]
    for point in points:
        parts.append(_point(point))
    if not own:
        parts.append(STATUS_UNSET)
    else:
        for key, value in own.items():
            if value.__class__ is int and 0 <= value < 1 << 14:
                digits = VARINTS[value]
                parts.append(_INTEGER_KEYS[key][len(digits)])
                parts.append(digits)
            else:
                _pair(parts, key, value)
        parts.append(STATUS_ERROR if ERROR_TYPE in own else STATUS_UNSET)
    return b"".join(parts)


def _point(point: Point) -> bytes:
    name, at_ns, attributes = point
    if attributes:
        return event_field(name, at_ns, attributes)
    before, after = _BARE_POINTS[name]
    return before + PACK_FIXED64(at_ns) + after
