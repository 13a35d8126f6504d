"""Spans to OTLP protobuf bytes, written field by field.

The SDK's encoder builds a message object per attribute, which holds the interpreter for about three
times as long as the whole budget of a span; this runs beside an engine's threads. Field numbers
are those of opentelemetry/proto/trace/v1/trace.proto; the tests hold the result against the SDK's
own encoder.
"""

import struct
import time
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanKind

from pdtrace.tracing.semconv import ERROR_TYPE
from pdtrace.tracing.span import Finished, Origin, Point, Record, Shared

_PACK_FIXED64: Final = struct.Struct("<Q").pack
# Span.span_id 2: tag and length, then the id.
_PACK_TAGGED_ID: Final = struct.Struct(">HQ").pack
# Two tags with their fixed64: Span.start_time_unix_nano 7, end_time_unix_nano 8.
_PACK_TIMES: Final = struct.Struct("<BQBQ").pack
_STATUS_UNSET: Final = b"\x7a\x00"
_STATUS_ERROR: Final = b"\x7a\x02\x18\x02"
_PACK_DOUBLE: Final = struct.Struct("<d").pack
_KINDS: Final = {kind: bytes([0x30, kind.value + 1]) for kind in SpanKind}
# Span.flags (fixed32, field 16): "parent is remote" is known, and whether it is.
_FLAGS_LOCAL: Final = b"\x85\x01" + struct.pack("<I", 0x100)
_FLAGS_REMOTE: Final = b"\x85\x01" + struct.pack("<I", 0x300)
_TAGS: Final = [bytes([number << 3 | 2]) for number in range(16)]
"""Of length-delimited fields, by field number."""


def varint(value: int) -> bytes:
    """Protobuf base-128 varint; negative numbers as their 64-bit two's complement."""
    if value < 0:
        value &= 0xFFFFFFFFFFFFFFFF
    if value < 0x80:
        return value.to_bytes(1, "little")
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


_VARINTS: Final = [varint(value) for value in range(1 << 14)]
"""Those of one and two bytes: lengths, counts of tokens, blocks and preemptions."""


def _field(number: int, payload: bytes) -> bytes:
    """A length-delimited field; its number is below 16."""
    length = len(payload)
    return _TAGS[number] + (_VARINTS[length] if length < 1 << 14 else varint(length)) + payload


def _any_value(value: Any) -> bytes:
    """AnyValue: string 1, bool 2, int 3, double 4, array 5, bytes 7."""
    if isinstance(value, str):
        return _field(1, value.encode(errors="replace"))
    if isinstance(value, bool):
        return b"\x10\x01" if value else b"\x10\x00"
    if isinstance(value, int):
        return b"\x18" + varint(value)
    if isinstance(value, float):
        return b"\x21" + _PACK_DOUBLE(value)
    if isinstance(value, bytes):
        return _field(7, value)
    if isinstance(value, Sequence):
        return _field(5, b"".join(_field(1, _any_value(item)) for item in value))
    return _any_value(str(value))


@lru_cache(maxsize=512)
def _key(key: str) -> bytes:
    return _field(1, key.encode())


def _key_value(key: str, value: Any) -> bytes:
    """KeyValue without its outer tag: key 1, value 2."""
    return _key(key) + _field(2, _any_value(value))


@lru_cache(maxsize=8192)
def _attribute(tag: int, key: str, kind: type, value: Any) -> bytes:
    """One attribute as field `tag`; most recur from span to span of a request.

    `kind` is part of the cache's key because True == 1 and 1.0 == 1.
    """
    return _field(tag, _key_value(key, value))


def _attributes(tag: int, attributes: Mapping[str, Any] | None) -> bytes:
    if not attributes:
        return b""
    try:
        if len(attributes) == 1:
            ((key, value),) = attributes.items()
            return _attribute(tag, key, value.__class__, value)
        return b"".join([_attribute(tag, k, v.__class__, v) for k, v in attributes.items()])
    except TypeError:  # an unhashable value: a list
        return b"".join([_field(tag, _key_value(k, v)) for k, v in attributes.items()])


@lru_cache(maxsize=256)
def _named(name: str, kind: SpanKind) -> bytes:
    """Span.name 5 and kind 6."""
    return _field(5, name.encode()) + _KINDS[kind]


def _event(name: str, at_ns: int, attributes: Mapping[str, Any] | None) -> bytes:
    """Span.Event (field 11 of the span): time 1, name 2, attributes 3."""
    encoded = b"\x09" + _PACK_FIXED64(at_ns) + _field(2, name.encode())
    return _field(11, encoded + _attributes(3, attributes) if attributes else encoded)


def _status(span: ReadableSpan) -> bytes:
    """Span.Status: message 2, code 3 (field 15 of the span); an unset status is empty."""
    status = span.status
    if status.is_unset:
        return _STATUS_UNSET
    message = _field(2, status.description.encode()) if status.description else b""
    return _field(15, message + b"\x18" + varint(status.status_code.value))


def _ancestry(trace_id: int, parent_id: int, remote: bool) -> bytes:
    """Span.trace_id 1, parent_span_id 4 and flags 16; parent id 0 is none."""
    trace = b"\x0a\x10" + trace_id.to_bytes(16, "big")
    if not parent_id:
        return trace + _FLAGS_LOCAL
    flags = _FLAGS_REMOTE if remote else _FLAGS_LOCAL
    return trace + b"\x22\x08" + parent_id.to_bytes(8, "big") + flags


def _shared(shared: Shared) -> bytes:
    """What all spans of a request have in common, encoded once."""
    if not shared.encoded:
        trace = shared.trace
        parts = [_ancestry(trace.trace_id, trace.parent_id, True)]
        for key, value in shared.attributes.items():
            _pair(parts, key, value)
        shared.encoded = b"".join(parts)
    return shared.encoded


class _IntegerKeys(dict[str, tuple[bytes, ...]]):
    """Attribute key to what precedes an integer value of it, by the bytes that the value takes.

    Only names that we spell come here, so the table is small.
    """

    def __missing__(self, key: str) -> tuple[bytes, ...]:
        name = _key(key)
        found = self[key] = tuple(
            _TAGS[9] + varint(len(name) + 3 + size) + name + bytes((0x12, 1 + size, 0x18))
            for size in range(11)
        )
        return found


class _TextKeys(dict[str, tuple[bytes, ...]]):
    """The same for a string, by its length."""

    def __missing__(self, key: str) -> tuple[bytes, ...]:
        name = _key(key)
        found = self[key] = tuple(
            _TAGS[9] + varint(len(name) + 4 + size) + name + bytes((0x12, 2 + size, 0x0A, size))
            for size in range(_SHORT)
        )
        return found


_SHORT: Final = 100
_INTEGER_KEYS: Final = _IntegerKeys()
_TEXT_KEYS: Final = _TextKeys()


def _pair(parts: list[bytes], key: str, value: Any) -> None:
    """One attribute of a record. Values of a request recur in no other one: none is cached."""
    kind = value.__class__
    if kind is int:
        digits = _VARINTS[value] if 0 <= value < 1 << 14 else varint(value)
        parts.append(_INTEGER_KEYS[key][len(digits)])
        parts.append(digits)
        return
    if kind is str:
        text = value.encode("utf-8", "replace")
        if len(text) < _SHORT:
            parts.append(_TEXT_KEYS[key][len(text)])
            parts.append(text)
            return
    parts.append(_field(9, _key_value(key, value)))


class _Internal(dict[str, bytes]):
    """Name and kind of a span of ours."""

    def __missing__(self, name: str) -> bytes:
        found = self[name] = _named(name, SpanKind.INTERNAL)
        return found


class _BarePoints(dict[str, tuple[bytes, bytes]]):
    """What stands around the time of a point without attributes."""

    def __missing__(self, name: str) -> tuple[bytes, bytes]:
        around = _event(name, 0, None)
        time_at = around.index(b"\x09") + 1
        found = self[name] = around[:time_at], around[time_at + 8 :]
        return found


_INTERNAL: Final = _Internal()
_BARE_POINTS: Final = _BarePoints()


def _record(record: Record) -> bytes:
    name, shared, span_id, start_ns, end_ns, own, points = record
    parts = [
        shared.encoded or _shared(shared),
        _PACK_TAGGED_ID(0x1208, span_id),
        _INTERNAL[name],
        _PACK_TIMES(0x39, start_ns, 0x41, end_ns),
    ]
    for point in points:
        parts.append(_point(point))
    if not own:
        parts.append(_STATUS_UNSET)
    else:
        for key, value in own.items():
            if value.__class__ is int and 0 <= value < 1 << 14:
                digits = _VARINTS[value]
                parts.append(_INTEGER_KEYS[key][len(digits)])
                parts.append(digits)
            else:
                _pair(parts, key, value)
        parts.append(_STATUS_ERROR if ERROR_TYPE in own else _STATUS_UNSET)
    return b"".join(parts)


def _point(point: Point) -> bytes:
    name, at_ns, attributes = point
    if attributes:
        return _event(name, at_ns, attributes)
    before, after = _BARE_POINTS[name]
    return before + _PACK_FIXED64(at_ns) + after


def encode_span(span: Finished) -> bytes:
    """One span as the payload of `ScopeSpans.spans`. Links are not written: we make none."""
    if isinstance(span, Record):
        return _record(span)
    context, parent = span.context, span.parent
    if context is None or span.start_time is None or span.end_time is None:
        raise ValueError(f"span {span.name!r} has no context or has not ended")
    return b"".join(
        (
            _ancestry(
                context.trace_id,
                parent.span_id if parent else 0,
                bool(parent and parent.is_remote),
            ),
            _PACK_TAGGED_ID(0x1208, context.span_id),
            _named(span.name, span.kind),
            _PACK_TIMES(0x39, span.start_time, 0x41, span.end_time),
            _attributes(9, span.attributes),
            b"".join([_event(e.name, e.timestamp, e.attributes) for e in span.events]),
            _status(span),
        )
    )


@lru_cache(maxsize=16)
def _resource(resource: Resource) -> bytes:
    payload = _attributes(1, resource.attributes)
    return _field(1, payload)


_SPANS: Final = [b"\x12" + length for length in _VARINTS[:4096]]
"""Tag and length of a span in its ScopeSpans."""
_Group = tuple[Origin, list[bytes]]


_SLICE_SPANS: Final = 32


def give_way() -> None:
    """Let another thread have the interpreter, if one waits for it."""
    time.sleep(0)


def encode_request(spans: Sequence[Finished], pause: Callable[[], object] = give_way) -> bytes:
    """`ExportTraceServiceRequest`: one ResourceSpans per resource, in it one ScopeSpans per scope.

    Both in order of first appearance, and told apart by identity: hashing a resource costs more
    than encoding a span. `pause` is called every few spans, so that an engine's thread never waits
    for a whole batch.
    """
    groups: dict[tuple[int, int], _Group] = {}
    last: Origin | None = None
    parts: list[bytes] = []
    for number, span in enumerate(spans, 1):
        if number % _SLICE_SPANS == 0:
            pause()
        if isinstance(span, Record):
            origin, data = span.shared.origin, _record(span)
        else:
            origin = Origin(span.resource, span.instrumentation_scope)
            data = encode_span(span)
        if origin is not last:
            last = origin
            parts = groups.setdefault((id(origin.resource), id(origin.scope)), (origin, []))[1]
        length = len(data)
        parts.append(_SPANS[length] if length < 4096 else b"\x12" + varint(length))
        parts.append(data)
    return b"".join(_grouped(list(groups.values())))


def _grouped(groups: Sequence[_Group]) -> list[bytes]:
    """Scopes gathered under their resources; the pieces are joined but once, they are large."""
    by_resource: dict[int, list[bytes]] = {}
    for (resource, scope), parts in groups:
        under = by_resource.setdefault(id(resource), [_resource(resource)])
        under += _framed(2, [_scope(scope), *parts])
    # ResourceSpans: resource 1, scope_spans 2.
    return [part for under in by_resource.values() for part in _framed(1, under)]


def _framed(number: int, parts: list[bytes]) -> list[bytes]:
    """A length-delimited field that is still in pieces."""
    return [_TAGS[number], varint(sum(map(len, parts))), *parts]


@lru_cache(maxsize=64)
def _scope(scope: Any) -> bytes:
    """InstrumentationScope: name 1, version 2."""
    if scope is None:
        return b""
    version = _field(2, scope.version.encode()) if scope.version else b""
    return _field(1, _field(1, scope.name.encode()) + version)
