"""Protobuf by hand: what the parts of an OTLP span are made of.

Field numbers are those of opentelemetry/proto/trace/v1/trace.proto.
"""

import struct
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

from opentelemetry.trace import SpanKind

PACK_FIXED64: Final = struct.Struct("<Q").pack
# Span.span_id 2: tag and length, then the id.
PACK_TAGGED_ID: Final = struct.Struct(">HQ").pack
# Two tags with their fixed64: Span.start_time_unix_nano 7, end_time_unix_nano 8.
PACK_TIMES: Final = struct.Struct("<BQBQ").pack
STATUS_UNSET: Final = b"\x7a\x00"
STATUS_ERROR: Final = b"\x7a\x02\x18\x02"
_PACK_DOUBLE: Final = struct.Struct("<d").pack
_KINDS: Final = {kind: bytes([0x30, kind.value + 1]) for kind in SpanKind}
# Span.flags (fixed32, field 16): "parent is remote" is known, and whether it is.
_FLAGS_LOCAL: Final = b"\x85\x01" + struct.pack("<I", 0x100)
_FLAGS_REMOTE: Final = b"\x85\x01" + struct.pack("<I", 0x300)
TAGS: Final = [bytes([number << 3 | 2]) for number in range(16)]
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


VARINTS: Final = [varint(value) for value in range(1 << 14)]
"""Those of one and two bytes: lengths, counts of tokens, blocks and preemptions."""


def field(number: int, payload: bytes) -> bytes:
    """A length-delimited field; its number is below 16."""
    length = len(payload)
    return TAGS[number] + (VARINTS[length] if length < 1 << 14 else varint(length)) + payload


def _any_value(value: Any) -> bytes:
    """AnyValue: string 1, bool 2, int 3, double 4, array 5, bytes 7."""
    if isinstance(value, str):
        return field(1, value.encode(errors="replace"))
    if isinstance(value, bool):
        return b"\x10\x01" if value else b"\x10\x00"
    if isinstance(value, int):
        return b"\x18" + varint(value)
    if isinstance(value, float):
        return b"\x21" + _PACK_DOUBLE(value)
    if isinstance(value, bytes):
        return field(7, value)
    if isinstance(value, Sequence):
        return field(5, b"".join(field(1, _any_value(item)) for item in value))
    return _any_value(str(value))


@lru_cache(maxsize=512)
def key_of(key: str) -> bytes:
    """KeyValue.key 1."""
    return field(1, key.encode())


def key_value(key: str, value: Any) -> bytes:
    """KeyValue without its outer tag: key 1, value 2."""
    return key_of(key) + field(2, _any_value(value))


@lru_cache(maxsize=8192)
def _attribute(tag: int, key: str, kind: type, value: Any) -> bytes:
    """One attribute as field `tag`; most recur from span to span of a request.

    `kind` is part of the cache's key because True == 1 and 1.0 == 1.
    """
    return field(tag, key_value(key, value))


def attributes_in(tag: int, attributes: Mapping[str, Any] | None) -> bytes:
    """Each attribute as field `tag`."""
    if not attributes:
        return b""
    try:
        if len(attributes) == 1:
            ((key, value),) = attributes.items()
            return _attribute(tag, key, value.__class__, value)
        return b"".join([_attribute(tag, k, v.__class__, v) for k, v in attributes.items()])
    except TypeError:  # an unhashable value: a list
        return b"".join([field(tag, key_value(k, v)) for k, v in attributes.items()])


@lru_cache(maxsize=256)
def named(name: str, kind: SpanKind) -> bytes:
    """Span.name 5 and kind 6."""
    return field(5, name.encode()) + _KINDS[kind]


def event_field(name: str, at_ns: int, attributes: Mapping[str, Any] | None) -> bytes:
    """Span.Event (field 11 of the span): time 1, name 2, attributes 3."""
    encoded = b"\x09" + PACK_FIXED64(at_ns) + field(2, name.encode())
    return field(11, encoded + attributes_in(3, attributes) if attributes else encoded)


def ancestry(trace_id: int, parent_id: int, remote: bool) -> bytes:
    """Span.trace_id 1, parent_span_id 4 and flags 16; parent id 0 is none."""
    trace = b"\x0a\x10" + trace_id.to_bytes(16, "big")
    if not parent_id:
        return trace + _FLAGS_LOCAL
    flags = _FLAGS_REMOTE if remote else _FLAGS_LOCAL
    return trace + b"\x22\x08" + parent_id.to_bytes(8, "big") + flags
