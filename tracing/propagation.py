"""W3C trace context as text: `00-<32 hex>-<16 hex>-<2 hex>`.

vLLM carries it in `Request.trace_headers` (only when its own OTLP endpoint is set) or, always, in
the body's `kv_transfer_params`. Malformed context is no context.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from pdtrace.tracing.ids import derived_trace_id
from pdtrace.tracing.semconv import PARAM_TRACEPARENT

_TRACEPARENT: Final = re.compile(
    r"^(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?$"
)
SAMPLED: Final = 1


class TraceContext(NamedTuple):
    """Trace id (128 bit), parent span id (64 bit, 0 = none), whether the caller records."""

    trace_id: int
    parent_id: int
    sampled: bool


# A named tuple's own constructor takes three times as long.
_new_context: Callable[[type[TraceContext], tuple[int, int, bool]], TraceContext] = tuple.__new__


def parse_traceparent(text: str) -> TraceContext | None:
    """The context in a `traceparent` value; None when it is not valid."""
    return _usual(text) or _any_version(text)


def _usual(text: str) -> TraceContext | None:
    """The context of a value as nearly all are, without a pattern, which takes twice as long."""
    if len(text) != 55 or not text[2] == text[35] == text[52] == "-":
        return None
    try:
        raw = bytes.fromhex(text.replace("-", ""))
    except ValueError:
        return None
    trace_id, parent_id = int.from_bytes(raw[1:17], "big"), int.from_bytes(raw[17:25], "big")
    # Where there are more hyphens, or spaces, which `fromhex` skips, the bytes are fewer.
    if len(raw) != 26 or raw[0] == 0xFF or not trace_id or not parent_id:
        return None
    return _new_context(TraceContext, (trace_id, parent_id, bool(raw[25] & SAMPLED)))


def _any_version(text: str) -> TraceContext | None:
    found = _matched(text)
    if found is None:
        return None
    trace_id, parent_id, flags = found.groups()
    return TraceContext(int(trace_id, 16), int(parent_id, 16), bool(int(flags, 16) & SAMPLED))


def _matched(text: str) -> re.Match[str] | None:
    return _TRACEPARENT.match(text.strip().lower())


def format_traceparent(trace_id: int, span_id: int, sampled: bool = True) -> str:
    """A `traceparent` value of version 00."""
    return f"00-{trace_id:032x}-{span_id:016x}-{int(sampled):02x}"


def context_of(traceparent: str, base_id: str) -> TraceContext:
    """The caller's context, or the one derived from the base request id (which has no parent)."""
    return parse_traceparent(traceparent) or TraceContext(derived_trace_id(base_id), 0, True)


def traceparent_of(
    headers: Mapping[str, str] | None, transfer_params: Mapping[str, Any] | None
) -> str:
    """The first valid `traceparent` of headers and `kv_transfer_params`, or ""."""
    for carrier in (headers, transfer_params):
        value = carrier.get(PARAM_TRACEPARENT) if carrier else None
        if isinstance(value, str) and _matched(value):
            return value
    return ""
