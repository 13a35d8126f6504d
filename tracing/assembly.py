"""Events to finished spans: one open entry per request; entries and open spans are bounded.

Single-threaded and without a clock of its own; the recorder calls it from its thread.
"""

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile
from typing import Any

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from pdtrace.tracing import semconv as sc
from pdtrace.tracing.clock import Anchor
from pdtrace.tracing.events import (
    CLOSED,
    LEARNED,
    OPENED,
    Event,
    RequestContext,
)
from pdtrace.tracing.guard import Guard
from pdtrace.tracing.ids import base_request_id
from pdtrace.tracing.propagation import TraceContext, context_of, parse_traceparent
from pdtrace.tracing.sampling import Keeper, Sampler
from pdtrace.tracing.semconv import ERROR_TYPE
from pdtrace.tracing.settings import Settings
from pdtrace.tracing.span import Origin, Point, Record, Shared

_Data = Mapping[str, Any]
# A named tuple's own constructor takes three times as long.
_new_record: Callable[[type[Record], tuple[Any, ...]], Record] = tuple.__new__


class _Entry:
    """A request this process has something open of."""

    __slots__ = (
        "shared", "sampled", "offset_ns", "open", "points", "opened_ns", "last_ns", "held",
        "failed",
    )  # fmt: skip

    def __init__(self, shared: Shared, anchor: Anchor, mono_ns: int) -> None:
        self.shared = shared
        self.sampled = shared.trace.sampled
        self.offset_ns = anchor.offset_ns
        """From monotonic to Unix time, for all spans of the request."""
        self.open: dict[str, int] = {}
        """Span name to its start, Unix ns."""
        self.points: dict[str, list[Point]] | None = None
        """Span name to the events on it so far."""
        self.opened_ns = self.last_ns = mono_ns
        self.held: list[Record] | None = None
        """Spans of a request that is not sampled, until it is known whether it is kept."""
        self.failed = False


def _mark(entry: _Entry, point: tuple[str, str], at_ns: int, data: _Data | None) -> None:
    """An event on a span that is open."""
    span, name = point
    if span not in entry.open:
        return
    if entry.points is None:
        entry.points = {}
    entry.points.setdefault(span, []).append((name, at_ns, data))


class Assembler:
    """Applies events in order; finished spans collect in `finished`.

    An entry is made by `OPENED` alone. It goes when a closing event comes, when it has nothing open
    and nothing was heard of it for as long as a span may be open, or when `capacity` is reached
    (the oldest goes). What is open then ends with an `error.type`, and so does at each `expire` a
    span that is open for longer than its limit. Spans named in `absent` are never begun.

    Of a request that is not sampled, spans are held until its entry goes, and exported only if
    `Keeper` says so: by what this process knows of the request.
    """

    def __init__(
        self,
        resource: Resource,
        ids: IdGenerator,
        scope_version: str = "",
        settings: Settings | None = None,
        sampler: Sampler | None = None,
        capacity: int = 65_536,
        absent: frozenset[str] = frozenset(),
    ) -> None:
        settings = settings or Settings()
        self.finished: list[Record] = []
        self.counts: Counter[str] = Counter()
        """What befell events (`unknown_request`), requests (`table_full`), spans (`abandoned`,
        `hold_full`)."""
        self.sampled_out = 0
        """Requests without a span because they were not sampled."""
        self._origin = Origin(resource, InstrumentationScope(sc.SCOPE_NAME, scope_version))
        self._next_id = ids.generate_span_id
        self._capacity = capacity
        self._limit_ns = int(settings.span_limit_s * 1e9)
        self._limits = {sc.SPAN_DECODE: int(settings.decode_limit_s * 1e9)}
        self._absent = absent
        self._decides = (sampler or Sampler()).decides
        self._keeper = Keeper.of(settings)
        self._held = 0
        self._hold_capacity = settings.queue_spans
        self._entries: dict[str, _Entry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def apply(self, events: deque[Event], many: int, anchor: Anchor, guard: Guard) -> None:
        """Take so many events; `anchor` places a request that one of them makes known.

        An event that cannot be applied is counted by `guard`, and the next one is taken.
        """
        # All that an event takes stands in this one loop: a call costs a tenth of a span.
        take, find, absent, finish = events.popleft, self._entries.get, self._absent, self._finish
        done, next_id = self.finished.append, self._next_id
        for _ in range(many):
            try:
                event = take()
                kind, mono_ns, request_id, data = event
                entry = find(request_id)
                if entry is None or kind.tells:
                    self._know(event, entry, anchor)
                    continue
                entry.last_ns = mono_ns
                at_ns = mono_ns + entry.offset_ns
                started = entry.open
                for name in kind.ends:
                    start_ns = started.pop(name, None)
                    if start_ns is None:
                        continue
                    if not entry.sampled or start_ns > at_ns or (data and ERROR_TYPE in data):
                        finish(entry, name, start_ns, at_ns, data)
                        continue
                    points = entry.points.pop(name, ()) if entry.points else ()
                    parts = (name, entry.shared, next_id(), start_ns, at_ns, data, points)
                    done(_new_record(Record, parts))
                for name in kind.begins:
                    if name not in absent:
                        started[name] = at_ns
                if kind.point is not None:
                    _mark(entry, kind.point, at_ns, data)
                if kind.closes:
                    del self._entries[request_id]
                    if started or not entry.sampled or entry.held:
                        self._end_all(entry, mono_ns, data)
            except Exception:
                guard.failed("assembly")

    def _know(self, event: Event, entry: _Entry | None, anchor: Anchor) -> None:
        """What is known of a request, and events of one that is not known."""
        kind, mono_ns, request_id, data = event
        if kind is OPENED:
            if entry is None:
                self._open_entry(request_id, data, anchor, mono_ns)
        elif entry is not None:
            entry.last_ns = mono_ns
            entry.shared = self._learned(entry.shared, kind is LEARNED, data)
            entry.sampled = entry.shared.trace.sampled
        else:
            # Closing what is closed already, or was never opened here, loses nothing.
            self.counts["unknown_request"] += kind is not CLOSED

    def expire(self, mono_ns: int) -> None:
        """End what has outlived its limit."""
        oldest = mono_ns - min(self._limit_ns, *self._limits.values())
        # Entries lie in the order in which they were opened: nearly all are younger.
        old = takewhile(lambda item: item[1].opened_ns < oldest, self._entries.items())
        for request_id, entry in list(old):
            self._expire_spans(entry, mono_ns)
            if not entry.open and mono_ns - entry.last_ns > self._limit_ns:
                self._abandon(request_id, mono_ns)

    def _expire_spans(self, entry: _Entry, mono_ns: int) -> None:
        now_ns, limit_of = mono_ns + entry.offset_ns, self._limits.get
        for name, start_ns in list(entry.open.items()):
            if now_ns - start_ns > limit_of(name, self._limit_ns):
                del entry.open[name]
                # What it waited for may still come: the request is kept for another limit.
                entry.last_ns = mono_ns
                self.counts["abandoned"] += 1
                self._finish(entry, name, start_ns, now_ns, {ERROR_TYPE: sc.ERROR_ABANDONED})

    def close(self, mono_ns: int) -> None:
        """The process ends: so does everything that is open."""
        for request_id in list(self._entries):
            self._abandon(request_id, mono_ns)

    def _abandon(self, request_id: str, mono_ns: int) -> None:
        entry = self._entries.pop(request_id)
        self.counts["abandoned"] += len(entry.open)
        self._end_all(entry, mono_ns, None)

    def _open_entry(
        self, request_id: str, context: RequestContext, anchor: Anchor, mono_ns: int
    ) -> None:
        if len(self._entries) >= self._capacity:
            self.counts["table_full"] += 1
            self._abandon(next(iter(self._entries)), mono_ns)
        base_id = base_request_id(request_id)
        trace = self._sampled(context_of(context.traceparent, base_id))
        attributes: dict[str, Any] = {sc.REQUEST_ID: base_id, sc.ENGINE_REQUEST_ID: request_id}
        attributes.update(context.attributes)
        attributes.update(anchor.restated())
        shared = Shared(trace, attributes, self._origin)
        self._entries[request_id] = _Entry(shared, anchor, mono_ns)

    def _end_all(self, entry: _Entry, mono_ns: int, data: _Data | None) -> None:
        """End whatever is open as an error: the one that `data` names, else abandoned."""
        if entry.open:
            error = (data.get(ERROR_TYPE) if data else None) or sc.ERROR_ABANDONED
            end_ns = mono_ns + entry.offset_ns
            for name, start_ns in entry.open.items():
                self._finish(entry, name, start_ns, end_ns, {ERROR_TYPE: error})
        if entry.held or not entry.sampled:
            entry.failed |= bool(data and ERROR_TYPE in data)
            self._settle(entry, mono_ns)

    def _settle(self, entry: _Entry, mono_ns: int) -> None:
        """The request is over here: export what was held of it, or drop it."""
        held, opened_ns = entry.held or [], entry.opened_ns + entry.offset_ns
        self._held -= len(held)
        tokens = [record.start_ns for record in held if record.name == sc.SPAN_DECODE]
        answered_ns = min(tokens, default=mono_ns + entry.offset_ns)
        if self._keeper.keeps(entry.failed, answered_ns - opened_ns):
            self.finished += held
        else:
            self.sampled_out += 1

    def _finish(
        self, entry: _Entry, name: str, start_ns: int, end_ns: int, data: _Data | None
    ) -> None:
        if data and ERROR_TYPE in data:
            entry.failed = True
        if end_ns < start_ns:
            # Clocks of two processes may disagree by a reading.
            end_ns = start_ns
        points: Sequence[Point] = entry.points.pop(name, ()) if entry.points else ()
        parts = (name, entry.shared, self._next_id(), start_ns, end_ns, data, points)
        record = _new_record(Record, parts)
        if entry.sampled:
            self.finished.append(record)
        elif self._keeper.can_keep:
            self._hold(entry, record)

    def _hold(self, entry: _Entry, record: Record) -> None:
        if self._held < self._hold_capacity:
            self._held += 1
            if entry.held is None:
                entry.held = []
            entry.held.append(record)
        else:
            self.counts["hold_full"] += 1

    def _learned(self, shared: Shared, learns: bool, data: Any) -> Shared:
        """What spans that end from now on have in common: more attributes, or the peer's trace."""
        trace, attributes = shared.trace, shared.attributes
        if learns:
            attributes = {**attributes, **data}
        elif not trace.parent_id:
            adopted = parse_traceparent(data)
            trace = self._sampled(adopted) if adopted else trace
        return Shared(trace, attributes, shared.origin)

    def _sampled(self, trace: TraceContext) -> TraceContext:
        """The context with our decision in place of the caller's."""
        sampled = self._decides(trace)
        return trace if sampled == trace.sampled else trace._replace(sampled=sampled)
