"""Spans to OTLP protobuf bytes, written field by field.

The SDK's encoder builds a message object per attribute, which holds the interpreter for about three
times as long as the whole budget of a span; this runs beside an engine's threads. Field numbers
are those of opentelemetry/proto/trace/v1/trace.proto; the tests hold the result against the SDK's
own encoder.
"""

import struct
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.trace import SpanKind

_PACK_FIXED64: Final = struct.Struct("<Q").pack
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


_LENGTHS: Final = [varint(length) for length in range(1024)]


def _field(number: int, payload: bytes) -> bytes:
    """A length-delimited field; its number is below 16."""
    length = len(payload)
    return _TAGS[number] + (_LENGTHS[length] if length < 1024 else varint(length)) + payload


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


def _key_value(key: str, value: Any) -> bytes:
    """KeyValue without its outer tag: key 1, value 2."""
    return _field(1, key.encode()) + _field(2, _any_value(value))


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
        return b"".join([_attribute(tag, k, v.__class__, v) for k, v in attributes.items()])
    except TypeError:  # an unhashable value: a list
        return b"".join([_field(tag, _key_value(k, v)) for k, v in attributes.items()])


@lru_cache(maxsize=256)
def _name(name: str) -> bytes:
    return _field(5, name.encode())


@lru_cache(maxsize=1024)
def _trace_id(trace_id: int) -> bytes:
    return b"\x0a\x10" + trace_id.to_bytes(16, "big")


def _event(event: Event) -> bytes:
    """Span.Event: time 1, name 2, attributes 3."""
    return _field(
        11,
        b"\x09"
        + _PACK_FIXED64(event.timestamp)
        + _field(2, event.name.encode())
        + _attributes(3, event.attributes),
    )


def _status(span: ReadableSpan) -> bytes:
    """Span.Status: message 2, code 3 (field 15 of the span); an unset status is empty."""
    status = span.status
    if status.is_unset:
        return b"\x7a\x00"
    message = _field(2, status.description.encode()) if status.description else b""
    return _field(15, message + b"\x18" + varint(status.status_code.value))


def encode_span(span: ReadableSpan) -> bytes:
    """One span as the payload of `ScopeSpans.spans`. Links are not written: we make none."""
    context, parent = span.context, span.parent
    if context is None or span.start_time is None or span.end_time is None:
        raise ValueError(f"span {span.name!r} has no context or has not ended")
    if parent is None:
        ancestry = b""
        flags = _FLAGS_LOCAL
    else:
        ancestry = b"\x22\x08" + parent.span_id.to_bytes(8, "big")
        flags = _FLAGS_REMOTE if parent.is_remote else _FLAGS_LOCAL
    events = span.events
    return b"".join(
        (
            _trace_id(context.trace_id),
            b"\x12\x08",
            context.span_id.to_bytes(8, "big"),
            ancestry,
            _name(span.name),
            _KINDS[span.kind],
            b"\x39",
            _PACK_FIXED64(span.start_time),
            b"\x41",
            _PACK_FIXED64(span.end_time),
            _attributes(9, span.attributes),
            b"".join(map(_event, events)) if events else b"",
            _status(span),
            flags,
        )
    )


@lru_cache(maxsize=16)
def _resource(resource: Resource) -> bytes:
    payload = _attributes(1, resource.attributes)
    return _field(1, payload)


def encode_request(spans: Sequence[ReadableSpan]) -> bytes:
    """`ExportTraceServiceRequest`: one ResourceSpans per resource, in it one ScopeSpans per scope.

    Both in order of first appearance, and told apart by identity: hashing a resource costs more
    than encoding a span.
    """
    groups: dict[int, tuple[Resource, dict[int, tuple[Any, list[bytes]]]]] = {}
    for span in spans:
        resource, scope = span.resource, span.instrumentation_scope
        group = groups.get(id(resource))
        if group is None:
            group = groups[id(resource)] = (resource, {})
        of_scope = group[1].get(id(scope))
        if of_scope is None:
            of_scope = group[1][id(scope)] = (scope, [])
        of_scope[1].append(_field(2, encode_span(span)))
    return b"".join([_field(1, _resource_spans(*group)) for group in groups.values()])


def _resource_spans(resource: Resource, scopes: Mapping[int, tuple[Any, Sequence[bytes]]]) -> bytes:
    """ResourceSpans: resource 1, scope_spans 2."""
    scope_spans = [_field(2, _scope(s) + b"".join(encoded)) for s, encoded in scopes.values()]
    return _resource(resource) + b"".join(scope_spans)


@lru_cache(maxsize=64)
def _scope(scope: Any) -> bytes:
    """InstrumentationScope: name 1, version 2."""
    if scope is None:
        return b""
    version = _field(2, scope.version.encode()) if scope.version else b""
    return _field(1, _field(1, scope.name.encode()) + version)
