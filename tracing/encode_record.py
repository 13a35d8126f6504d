"""A record to OTLP protobuf bytes: what its request shares once, the rest in a few pieces.

Every call and every intermediate here is on the budget of a span; see `benchmarks/hot_path.py`.
"""

import struct
from collections.abc import Callable
from typing import Any, Final

from opentelemetry.trace import SpanKind

from pdtrace.tracing.encode_fields import (
    PACK_FIXED64,
    STATUS_ERROR,
    STATUS_UNSET,
    TAGS,
    VARINTS,
    ancestry,
    attributes_in,
    event_field,
    field,
    key_of,
    key_value,
    named,
    varint,
)
from pdtrace.tracing.semconv import (
    ENGINE_REQUEST_ID,
    ERROR_TYPE,
    PEER_ENGINE_REQUEST_ID,
    REQUEST_ID,
)
from pdtrace.tracing.span import Point, Record, Shared

_SHORT: Final = 100
"""Strings below this have a table of their own: all lengths around them are single bytes."""
_KEPT: Final = 256
"""Values of one key that are kept as they are encoded; most recur from request to request."""
_UNIQUE: Final = (REQUEST_ID, ENGINE_REQUEST_ID, PEER_ENGINE_REQUEST_ID)


class _Values(dict[Any, bytes]):
    """The attributes of one key by their values, which are of one type."""

    def __init__(self, key: str) -> None:
        name = key_of(key)
        self._key = key
        self._most = 0 if key in _UNIQUE else _KEPT
        # What precedes an integer by the bytes that it takes, and a string by its length.
        self._before_integer = [
            TAGS[9] + varint(len(name) + 3 + size) + name + bytes((0x12, 1 + size, 0x18))
            for size in range(11)
        ]
        self._before_text = [
            TAGS[9] + varint(len(name) + 4 + size) + name + bytes((0x12, 2 + size, 0x0A, size))
            for size in range(_SHORT)
        ]

    def __missing__(self, value: Any) -> bytes:
        found = b""
        if type(value) is int:
            digits = VARINTS[value] if 0 <= value < 1 << 14 else varint(value)
            found = self._before_integer[len(digits)] + digits
        elif type(value) is str:
            text = value.encode("utf-8", "replace")
            if len(text) < _SHORT:
                found = self._before_text[len(text)] + text
        found = found or field(9, key_value(self._key, value))
        if len(self) < self._most:
            self[value] = found
        return found


class _Keys(dict[str, _Values]):
    """By attribute key. Only names that we spell come here, so the table is small."""

    def __missing__(self, key: str) -> _Values:
        found = self[key] = _Values(key)
        return found


_ATTRIBUTES: Final = _Keys()


def _shared(shared: Shared) -> bytes:
    """What all spans of a request have in common, encoded once."""
    if not shared.encoded:
        trace = shared.trace
        parts = [ancestry(trace.trace_id, trace.parent_id, True)]
        try:
            for key, value in shared.attributes.items():
                parts.append(_ATTRIBUTES[key][value])
        except TypeError:  # an unhashable value: a list
            parts[1:] = [attributes_in(9, shared.attributes)]
        # Where a span says that it failed, that goes before this, which stands earlier.
        parts.append(STATUS_UNSET)
        shared.encoded = b"".join(parts)
    return shared.encoded


class _Heads(dict[str, tuple[Callable[..., bytes], bytes]]):
    """By the name of a span of ours: what packs its id, its name and kind, and its times; and the
    bytes of name and kind."""

    def __missing__(self, name: str) -> tuple[Callable[..., bytes], bytes]:
        text = named(name, SpanKind.INTERNAL)
        found = self[name] = struct.Struct(f"<HQ{len(text)}sBQBQ").pack, text
        return found


class _Points(dict[tuple[str, str, int], tuple[bytes, bytes]]):
    """What stands around the time of a point with one small number (-1: without attributes)."""

    def __missing__(self, point: tuple[str, str, int]) -> tuple[bytes, bytes]:
        name, key, value = point
        around = event_field(name, 0, None if value < 0 else {key: value})
        time_at = around.index(b"\x09") + 1
        found = self[point] = around[:time_at], around[time_at + 8 :]
        return found


_HEADS: Final = _Heads()
_POINTS: Final = _Points()


def encode_record(record: Record) -> bytes:
    """One record as the payload of `ScopeSpans.spans`."""
    name, shared, span_id, start_ns, end_ns, own, points = record
    pack, text = _HEADS[name]
    # Span.span_id 2, name 5 and kind 6, start_time_unix_nano 7, end_time_unix_nano 8.
    head = pack(0x0812, span_id, text, 0x39, start_ns, 0x41, end_ns)
    parts = [shared.encoded or _shared(shared), head]
    for point in points:
        parts.append(_point(point))
    if own:
        try:
            for key in own:
                parts.append(_ATTRIBUTES[key][own[key]])
        except TypeError:  # an unhashable value: a list
            parts[2 + len(points) :] = [attributes_in(9, own)]
        if ERROR_TYPE in own:
            parts.append(STATUS_ERROR)
    return b"".join(parts)


def _point(point: Point) -> bytes:
    name, at_ns, attributes = point
    key, value = "", -1
    if attributes:
        key, value = next(iter(attributes.items()))
        if len(attributes) > 1 or value.__class__ is not int or not 0 <= value < _KEPT:
            return event_field(name, at_ns, attributes)
    before, after = _POINTS[name, key, value]
    return before + PACK_FIXED64(at_ns) + after
