"""Events to finished spans: one open entry per request, bounded in number and in age.

Single-threaded and without a clock of its own; the recorder calls it from its thread.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from pdtrace.tracing import semconv as sc
from pdtrace.tracing.clock import Anchor
from pdtrace.tracing.events import (
    ADOPTED,
    AT,
    CLOSED,
    LEARNED,
    OPENED,
    Event,
    EventKind,
    RequestContext,
)
from pdtrace.tracing.propagation import TraceContext, context_of, parse_traceparent
from pdtrace.tracing.sampling import Sampler
from pdtrace.tracing.settings import Settings
from pdtrace.tracing.span import Point, RecordedSpan, Shared

_Data = Mapping[str, Any]


class _Entry:
    """A request this process has something open of."""

    __slots__ = ("shared", "anchor", "open", "points", "last_ns")

    def __init__(self, shared: Shared, anchor: Anchor, mono_ns: int) -> None:
        self.shared = shared
        self.anchor = anchor
        self.open: dict[str, int] = {}
        """Span name to its start, Unix ns."""
        self.points: dict[str, list[Point]] = {}
        """Span name to the events on it so far."""
        self.last_ns = mono_ns


class Assembler:
    """Applies events in order; finished spans collect in `finished`.

    An entry is made by `OPENED` alone. It goes when a closing event comes, when nothing was heard
    of it for `limit_ns`, or when `capacity` is reached (the oldest goes); what is open then ends
    with an `error.type`.
    """

    def __init__(
        self,
        resource: Resource,
        ids: IdGenerator,
        scope_version: str = "",
        settings: Settings | None = None,
        sampler: Sampler | None = None,
        capacity: int = 65_536,
    ) -> None:
        settings = settings or Settings()
        self.finished: list[RecordedSpan] = []
        self.counts: Counter[str] = Counter()
        """`unknown_request`, `table_full`, `abandoned`: events or requests, by what befell them."""
        self._resource = resource
        self._next_id = ids.generate_span_id
        self._scope = InstrumentationScope(sc.SCOPE_NAME, scope_version)
        self._capacity = capacity
        self._limit_ns = int(settings.span_limit_s * 1e9)
        self._decides = (sampler or Sampler()).decides
        self._entries: dict[str, _Entry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def apply(self, event: Event, anchor: Anchor) -> None:
        """Take one event; `anchor` places a request that this event makes known."""
        kind, mono_ns, request_id, data = event
        if kind is OPENED:
            self._open_entry(request_id, data, anchor, mono_ns)
            return
        entry = self._entries.get(request_id)
        if entry is None:
            # Closing what is closed already, or was never opened here, loses nothing.
            self.counts["unknown_request"] += kind is not CLOSED
            return
        entry.last_ns = mono_ns
        if kind is LEARNED or kind is ADOPTED:
            entry.shared = self._learned(entry.shared, kind, data)
            return
        at_ns: int = (data.get(AT) if data else None) or entry.anchor.to_wall_ns(mono_ns)
        started = entry.open
        for name in kind.ends:
            start_ns = started.pop(name, None)
            if start_ns is not None:
                self._finish(entry, name, start_ns, at_ns, data)
        for name in kind.begins:
            started[name] = at_ns
        if kind.point is not None:
            _mark(entry, kind.point, at_ns, data)
        if kind.closes:
            del self._entries[request_id]
            self._end_all(entry, mono_ns, data)

    def expire(self, mono_ns: int) -> None:
        """End what has outlived its limit."""
        oldest = mono_ns - self._limit_ns
        for request_id in [i for i, e in self._entries.items() if e.last_ns < oldest]:
            self._abandon(request_id, mono_ns)

    def close(self, mono_ns: int) -> None:
        """The process ends: so does everything that is open."""
        for request_id in list(self._entries):
            self._abandon(request_id, mono_ns)

    def _abandon(self, request_id: str, mono_ns: int) -> None:
        entry = self._entries.pop(request_id)
        self.counts["abandoned"] += bool(entry.open)
        self._end_all(entry, mono_ns, None)

    def _open_entry(
        self, request_id: str, context: RequestContext, anchor: Anchor, mono_ns: int
    ) -> None:
        if request_id in self._entries:
            return
        if len(self._entries) >= self._capacity:
            self.counts["table_full"] += 1
            self._abandon(next(iter(self._entries)), mono_ns)
        trace = self._sampled(context_of(context.traceparent, context.base_id))
        attributes = {
            sc.REQUEST_ID: context.base_id,
            sc.ENGINE_REQUEST_ID: request_id,
            **context.attributes,
        }
        shared = Shared(trace, attributes, self._resource, self._scope)
        self._entries[request_id] = _Entry(shared, anchor, mono_ns)

    def _end_all(self, entry: _Entry, mono_ns: int, data: _Data | None) -> None:
        """End whatever is open as an error: the one that `data` names, else abandoned."""
        if not entry.open:
            return
        error = (data.get(sc.ERROR_TYPE) if data else None) or sc.ERROR_ABANDONED
        end_ns = entry.anchor.to_wall_ns(mono_ns)
        for name, start_ns in entry.open.items():
            self._finish(entry, name, start_ns, end_ns, {sc.ERROR_TYPE: error})

    def _finish(
        self, entry: _Entry, name: str, start_ns: int, end_ns: int, data: _Data | None
    ) -> None:
        shared = entry.shared
        if not shared.trace.sampled:
            return
        if data and AT in data:
            data = {key: value for key, value in data.items() if key != AT}
        if end_ns < start_ns:
            # Clocks of two processes may disagree by a reading.
            end_ns = start_ns
        points = entry.points.pop(name, ()) if entry.points else ()
        self.finished.append(
            RecordedSpan(name, shared, self._next_id(), start_ns, end_ns, data, points)
        )

    def _learned(self, shared: Shared, kind: EventKind, data: Any) -> Shared:
        """What spans that end from now on have in common: more attributes, or the peer's trace."""
        trace, attributes = shared.trace, shared.attributes
        if kind is LEARNED:
            attributes = {**attributes, **data}
        elif not trace.parent_id:
            adopted = parse_traceparent(data)
            trace = self._sampled(adopted) if adopted else trace
        return Shared(trace, attributes, shared.resource, shared.scope)

    def _sampled(self, trace: TraceContext) -> TraceContext:
        """The context with our decision in place of the caller's."""
        return trace._replace(sampled=self._decides(trace))


def _mark(entry: _Entry, point: tuple[str, str], at_ns: int, data: _Data | None) -> None:
    """Add a span event to a span while it is open."""
    name, event = point
    if name in entry.open:
        attributes = {key: value for key, value in data.items() if key != AT} if data else None
        entry.points.setdefault(name, []).append((event, at_ns, attributes))
