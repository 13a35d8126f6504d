"""A finished span as the recorder makes it: cheap to make, and everything a `ReadableSpan` is.

All spans of a request share their trace, parent, attributes, resource and scope; those are kept
once, with their encoding. What only some reader of spans asks for is made when it asks.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

from pdtrace.tracing.propagation import TraceContext
from pdtrace.tracing.semconv import ERROR_TYPE

_UNSET: Final = Status(StatusCode.UNSET)
_ERROR: Final = Status(StatusCode.ERROR)
_SAMPLED: Final = TraceFlags(TraceFlags.SAMPLED)


class Shared:
    """What the spans of one request have in common; not to be changed once a span has it."""

    __slots__ = ("trace", "attributes", "resource", "scope", "encoded")

    def __init__(
        self,
        trace: TraceContext,
        attributes: Mapping[str, Any],
        resource: Resource,
        scope: InstrumentationScope,
    ) -> None:
        self.trace = trace
        self.attributes = attributes
        self.resource = resource
        self.scope = scope
        self.encoded = b""
        """Kept by `encode`."""


Point = tuple[str, int, Mapping[str, Any] | None]
"""A span event: name, Unix nanoseconds, attributes."""


class RecordedSpan(ReadableSpan):
    """A span of ours; times are Unix nanoseconds. `own` repeats no key of what is shared.

    `ReadableSpan` reads its parts from attributes with a leading underscore: here those that are
    not simply stored are properties of the same names.
    """

    __slots__ = ("shared", "span_id", "own", "points", "_name", "_start_time", "_end_time")

    def __init__(
        self,
        name: str,
        shared: Shared,
        span_id: int,
        start_ns: int,
        end_ns: int,
        own: Mapping[str, Any] | None,
        points: Sequence[Point],
    ) -> None:
        self._name = name
        self.shared = shared
        self.span_id = span_id
        self._start_time: int = start_ns
        self._end_time: int = end_ns
        self.own = own
        self.points = points

    _kind = SpanKind.INTERNAL
    _links = ()
    _instrumentation_info = None

    @property
    def _context(self) -> SpanContext:
        return SpanContext(self.shared.trace.trace_id, self.span_id, False, _SAMPLED)

    @property
    def _parent(self) -> SpanContext | None:
        trace = self.shared.trace
        if not trace.parent_id:
            return None
        return SpanContext(trace.trace_id, trace.parent_id, True, _SAMPLED)

    @property
    def _attributes(self) -> Mapping[str, Any]:
        return {**self.shared.attributes, **(self.own or {})}

    @property
    def _events(self) -> Sequence[Event]:
        return [Event(name, attributes, at_ns) for name, at_ns, attributes in self.points]

    @property
    def _resource(self) -> Resource:
        return self.shared.resource

    @property
    def _instrumentation_scope(self) -> InstrumentationScope:
        return self.shared.scope

    @property
    def _status(self) -> Status:
        return _ERROR if self.own and ERROR_TYPE in self.own else _UNSET
