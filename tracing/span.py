"""A finished span as the recorder makes it: a tuple, and for its readers a `ReadableSpan`.

All spans of a request share their trace, parent, attributes, resource and scope; those are kept
once, with their encoding.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

from pdtrace.tracing.propagation import TraceContext
from pdtrace.tracing.semconv import ERROR_TYPE

_UNSET: Final = Status(StatusCode.UNSET)
_ERROR: Final = Status(StatusCode.ERROR)
_SAMPLED: Final = TraceFlags(TraceFlags.SAMPLED)


class Origin(NamedTuple):
    """Who made a span: one object for all spans of a recorder."""

    resource: Resource
    scope: InstrumentationScope | None


class Shared:
    """What the spans of one request have in common; not to be changed once a span has it."""

    __slots__ = ("trace", "attributes", "origin", "encoded")

    def __init__(self, trace: TraceContext, attributes: Mapping[str, Any], origin: Origin) -> None:
        self.trace = trace
        self.attributes = attributes
        self.origin = origin
        self.encoded = b""
        """Kept by `encode`."""


Point = tuple[str, int, Mapping[str, Any] | None]
"""A span event: name, Unix nanoseconds, attributes."""


class Record(NamedTuple):
    """A finished span as the recorder makes it; `own` repeats no key of what is shared."""

    name: str
    shared: Shared
    span_id: int
    """As its eight bytes are read from the lowest on, as the encoder writes them."""
    start_ns: int
    """Unix nanoseconds, as all times here."""
    end_ns: int
    own: Mapping[str, Any] | None
    points: Sequence[Point]


class RecordedSpan(ReadableSpan):
    """A record as readers of OpenTelemetry's spans want it.

    `ReadableSpan` reads its parts from attributes with a leading underscore: here they are
    properties of the same names.
    """

    def __init__(self, record: Record) -> None:
        self._name, self._shared, self._span_id, *_ = record
        self._start_time, self._end_time = record.start_ns, record.end_ns
        self._own, self._points = record.own or {}, record.points

    _kind = SpanKind.INTERNAL
    _links = ()
    _instrumentation_info = None

    @property
    def _context(self) -> SpanContext:
        span_id = int.from_bytes(self._span_id.to_bytes(8, "little"), "big")
        return SpanContext(self._shared.trace.trace_id, span_id, False, _SAMPLED)

    @property
    def _parent(self) -> SpanContext | None:
        trace = self._shared.trace
        if not trace.parent_id:
            return None
        return SpanContext(trace.trace_id, trace.parent_id, True, _SAMPLED)

    @property
    def _attributes(self) -> Mapping[str, Any]:
        return {**self._shared.attributes, **self._own}

    @property
    def _events(self) -> Sequence[Event]:
        return [Event(name, attributes, at_ns) for name, at_ns, attributes in self._points]

    @property
    def _resource(self) -> Resource:
        return self._shared.origin.resource

    @property
    def _instrumentation_scope(self) -> InstrumentationScope | None:
        return self._shared.origin.scope

    @property
    def _status(self) -> Status:
        return _ERROR if ERROR_TYPE in self._own else _UNSET


Finished = Record | ReadableSpan
"""What is sent: a recorder's records, or spans of OpenTelemetry's tracer."""


def readable(spans: Sequence[Finished]) -> list[ReadableSpan]:
    """For exporters that know nothing of records."""
    return [RecordedSpan(span) if isinstance(span, Record) else span for span in spans]
