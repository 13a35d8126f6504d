"""The router's spans: `pd.request` and its `pd.leg` children, with explicit times.

Every instant is a monotonic one, placed by one anchor per request, so that a stepped wall clock
cannot bend a span and the router's spans lie on the same axis as the engines'.
"""

from collections.abc import Mapping
from contextvars import ContextVar
from typing import Final

from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, StatusCode, Tracer, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

from pdtrace.connector.router_engines import Engine
from pdtrace.tracing import semconv
from pdtrace.tracing.clock import Anchor, Clock
from pdtrace.tracing.ids import derived_trace_id
from pdtrace.tracing.provider import OwnRandomIds

_PROPAGATOR: Final = TraceContextTextMapPropagator()
_root_trace_id: ContextVar[int] = ContextVar("pdtrace_root_trace_id", default=0)


class DerivedIdGenerator(OwnRandomIds):
    """A root's trace id is the one derived from its request id; all else is random."""

    def generate_trace_id(self) -> int:
        """The chosen id while a `pd.request` begins."""
        return _root_trace_id.get() or super().generate_trace_id()


class Timeline:
    """One request's place in time: monotonic readings on one anchor."""

    def __init__(self, clock: Clock) -> None:
        clock.refresh()
        self._clock = clock
        self.anchor: Anchor = clock.anchor()
        self.began_ns = clock.mono_ns()

    def wall_ns(self, mono_ns: int | None = None) -> int:
        """Unix time of a monotonic instant; of now when none is given."""
        return self.anchor.to_wall_ns(self._clock.mono_ns() if mono_ns is None else mono_ns)


class _TimedSpan:
    """A span that ends once and records each event once."""

    def __init__(self, span: Span, timeline: Timeline) -> None:
        self.span = span
        self.timeline = timeline
        self._events: set[str] = set()
        self._ended = False

    def set(self, name: str, value: AttributeValue) -> None:
        self.span.set_attribute(name, value)

    def has(self, event: str) -> bool:
        return event in self._events

    def mark(self, event: str, at_ns: int | None = None) -> None:
        """The event, at its first occurrence only; now, or at a Unix time already read."""
        if event not in self._events:
            self._events.add(event)
            at_ns = self.timeline.wall_ns() if at_ns is None else at_ns
            self.span.add_event(event, timestamp=at_ns)

    def end(self, error_type: str | None = None, at_ns: int | None = None) -> None:
        """Now, or at a Unix time already read."""
        if self._ended:
            return
        self._ended = True
        if error_type is not None:
            self.span.set_attribute(semconv.ERROR_TYPE, error_type)
            self.span.set_status(StatusCode.ERROR)
        self.span.end(end_time=self.timeline.wall_ns() if at_ns is None else at_ns)


class LegSpan(_TimedSpan):
    """One HTTP request to an engine, as the router sees it."""

    def carrier(self) -> dict[str, str]:
        """`traceparent` (and `tracestate`) that make the engine's spans children of this leg."""
        headers: dict[str, str] = {}
        _PROPAGATOR.inject(headers, context=set_span_in_context(self.span, Context()))
        return headers


class RequestSpan(_TimedSpan):
    """One user request; makes the spans of its legs."""

    def __init__(
        self,
        tracer: Tracer,
        timeline: Timeline,
        common: Mapping[str, AttributeValue],
        own: Mapping[str, AttributeValue],
        headers: Mapping[str, str],
    ) -> None:
        self._tracer = tracer
        self._common = {**common, **timeline.anchor.restated()}
        # An explicit empty context: never the ambient one of the process.
        parent = _PROPAGATOR.extract(headers, context=Context())
        token = _root_trace_id.set(derived_trace_id(str(common[semconv.REQUEST_ID])))
        try:
            span = tracer.start_span(
                semconv.SPAN_REQUEST,
                context=parent,
                kind=SpanKind.SERVER,
                attributes={**self._common, **own},
                start_time=timeline.wall_ns(timeline.began_ns),
            )
        finally:
            _root_trace_id.reset(token)
        super().__init__(span, timeline)

    def set_common(self, name: str, value: AttributeValue) -> None:
        """An attribute of this span and of every leg begun from now on."""
        self._common[name] = value
        self.set(name, value)

    def leg(self, engine: Engine, attempt: int) -> LegSpan:
        """Begins now."""
        span = self._tracer.start_span(
            semconv.SPAN_LEG,
            context=set_span_in_context(self.span, Context()),
            kind=SpanKind.CLIENT,
            attributes={
                **self._common,
                semconv.LEG: engine.role,
                semconv.SERVER_ADDRESS: engine.host,
                semconv.SERVER_PORT: engine.port,
                semconv.ATTEMPT: attempt,
            },
            start_time=self.timeline.wall_ns(),
        )
        return LegSpan(span, self.timeline)
