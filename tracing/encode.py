"""Spans to OTLP protobuf bytes, written field by field.

The SDK's encoder builds a message object per attribute, which holds the interpreter for about three
times as long as the whole budget of a span; this runs beside an engine's threads. The tests hold
the result against the SDK's own encoder.
"""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Final

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan

from pdtrace.tracing.encode_fields import (
    PACK_TAGGED_ID,
    PACK_TIMES,
    STATUS_UNSET,
    TAGS,
    VARINTS,
    ancestry,
    attributes_in,
    event_field,
    field,
    named,
    varint,
)
from pdtrace.tracing.encode_record import encode_record
from pdtrace.tracing.span import Finished, Origin, Record


def _status(span: ReadableSpan) -> bytes:
    """Span.Status: message 2, code 3 (field 15 of the span); an unset status is empty."""
    status = span.status
    if status.is_unset:
        return STATUS_UNSET
    message = field(2, status.description.encode()) if status.description else b""
    return field(15, message + b"\x18" + varint(status.status_code.value))


def encode_span(span: Finished) -> bytes:
    """One span as the payload of `ScopeSpans.spans`. Links are not written: we make none."""
    if isinstance(span, Record):
        return encode_record(span)
    context, parent = span.context, span.parent
    if context is None or span.start_time is None or span.end_time is None:
        raise ValueError(f"span {span.name!r} has no context or has not ended")
    return b"".join(
        (
            ancestry(
                context.trace_id,
                parent.span_id if parent else 0,
                bool(parent and parent.is_remote),
            ),
            PACK_TAGGED_ID(0x1208, context.span_id),
            named(span.name, span.kind),
            PACK_TIMES(0x39, span.start_time, 0x41, span.end_time),
            attributes_in(9, span.attributes),
            b"".join([event_field(e.name, e.timestamp, e.attributes) for e in span.events]),
            _status(span),
        )
    )


@lru_cache(maxsize=16)
def _resource(resource: Resource) -> bytes:
    payload = attributes_in(1, resource.attributes)
    return field(1, payload)


_SPANS: Final = [b"\x12" + length for length in VARINTS[:4096]]
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
    for start in range(0, len(spans), _SLICE_SPANS):
        if start:
            pause()
        for span in spans[start : start + _SLICE_SPANS]:
            if isinstance(span, Record):
                origin, data = span[1].origin, encode_record(span)
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
    sizes: Counter[int] = Counter()
    for (resource, scope), parts in groups:
        under = by_resource.setdefault(id(resource), [_resource(resource)])
        parts.insert(0, _scope(scope))
        size = sum(map(len, parts))
        # ResourceSpans: resource 1, scope_spans 2.
        head = TAGS[2] + varint(size)
        under += head, *parts
        sizes[id(resource)] += len(head) + size
    whole = []
    for resource_id, under in by_resource.items():
        whole.append(TAGS[1] + varint(len(under[0]) + sizes[resource_id]))
        whole += under
    return whole


@lru_cache(maxsize=64)
def _scope(scope: Any) -> bytes:
    """InstrumentationScope: name 1, version 2."""
    if scope is None:
        return b""
    version = field(2, scope.version.encode()) if scope.version else b""
    return field(1, field(1, scope.name.encode()) + version)
