"""Random requests with known truth: instants are drawn first, spans are written from them.

    router  |-leg P------|  |-leg D-----------------------------------|
    P       ingress (retry) queue prefill handing . match . submit transfer
    D       hop (retry) admission capacity registration . . . seen requeue first_decode

`Shape` holds the lengths (ns), `instants` says when everything happens, `records` gives the spans;
what their split must be is in `generated_truth`.
"""

from dataclasses import dataclass, field, replace
from itertools import count

from pdtrace.analysis.records import AttributeValue, EventRecord, SpanRecord
from pdtrace.tracing import semconv as sc

EPOCH_NS = 1_795_946_400_000_000_000
CLOCK = "5a0f3c1e-7d52-4c7e-9d30-6f1b2a9c0a01"
LOST = "dead0000"
"""The attempt of a try that failed."""

Event = tuple[str, int, *tuple[int, ...]]
"""Its name, its time, and where it speaks of one the rank of the peer."""


@dataclass(frozen=True)
class Rank:
    """One initiating rank: lengths in ns; `notified` is relative to its completion."""

    wait: int = 0
    submit: int = 2
    transfer: int = 15
    notified: int = 0


@dataclass(frozen=True)
class Shape:
    """A request to draw: what kind, and how long each step takes (ns)."""

    mode: str = "push"
    dispatch: str = "concurrent"
    start: int = 0
    ingress: int = 5
    p_retry: int = 0
    queue: int = 20
    prefill: int = 300
    handing: int = 4
    dispatched: int = 1
    hop: int = 2
    d_retry: int = 0
    admission: int = 1
    capacity: int = 1
    registration: int = 8
    handshake: int = 0
    ranks: tuple[Rank, ...] = (Rank(),)
    seen: int = 5
    requeue: int = 1
    queue_d: int = 0
    recompute: int = 0
    first_decode: int = 9
    egress: int = 3
    decode: int = 90
    tokens: int = 10
    router: bool = True
    peers: bool = False
    """Whether legs name the peer's leg."""
    back: tuple[Rank, ...] = ()
    """Ranks of P that read back what D has from an earlier turn (pull)."""
    back_wait: int = 3
    back_seen: int = 4
    back_requeue: int = 2
    choices: int = 1
    """Requests that D runs for one leg; the first choice has the first token."""

    @property
    def push(self) -> bool:
        return self.mode == sc.MODE_PUSH

    @property
    def together(self) -> bool:
        return self.push and self.dispatch == sc.DISPATCH_CONCURRENT


@dataclass
class Instants:
    """Where everything happens, Unix ns."""

    t0: int
    p_first: int
    p_has: int
    back: list[tuple[int, int, int]]
    back_allocated: int
    back_landed: int
    back_told: int
    p_scheduled: int
    p_end: int
    handed: int
    leg_d: int
    d_first: int
    d_has: int
    attempted: int
    allocated: int
    received: int
    shaken: tuple[int, int]
    both: int
    ranks: list[tuple[int, int, int, int]]
    landed: int
    told: int
    refused: int | None
    scheduled: int
    computed: int
    token: int
    t1: int
    wires: list[tuple[int, int]] = field(default_factory=list)


def instants(shape: Shape) -> Instants:
    """The instants of a shape: two legs that meet where blocks and registration are there."""
    t0 = EPOCH_NS + shape.start
    p_first = t0 + shape.ingress
    p_has = p_first + shape.p_retry
    back_allocated = p_has + shape.queue
    begun = back_allocated + shape.back_wait
    back = [(begun, begun + r.submit, begun + r.submit + r.transfer) for r in shape.back]
    back_landed = max((done for *_, done in back), default=back_allocated)
    back_told = back_landed + (shape.back_seen if back else 0)
    p_scheduled = back_told + (shape.back_requeue if back else 0)
    p_end = p_scheduled + shape.prefill
    handed = p_end + (shape.handing if shape.push else 0)
    leg_d = t0 + shape.dispatched if shape.together else handed
    d_first = leg_d + shape.hop
    d_has = d_first + shape.d_retry
    attempted = d_has + shape.admission
    allocated = attempted + shape.capacity
    shaken = (allocated + shape.registration // 2,) * 2
    shaken = (shaken[0], shaken[1] + shape.handshake)
    received = allocated + shape.registration + shape.handshake
    both = max(received, handed) if shape.push else received
    ranks = []
    for rank in shape.ranks:
        begin = both + (rank.wait if shape.push else 0)
        posted = begin + rank.submit
        done = posted + rank.transfer
        ranks.append((begin, posted, done, max(done + rank.notified, posted)))
    landed = max(done for _, _, done, _ in ranks)
    if shape.push:
        landed = min(landed, max(seen for *_, seen in ranks))
    told = landed + shape.seen
    refused = told + shape.requeue if shape.queue_d else None
    scheduled = told + shape.requeue + shape.queue_d
    computed = scheduled + shape.recompute
    token = computed + shape.first_decode
    t1 = token + shape.egress
    return Instants(
        t0=t0 if shape.router else min(p_first, d_first),
        p_first=p_first,
        p_has=p_has,
        back=back,
        back_allocated=back_allocated,
        back_landed=back_landed,
        back_told=back_told,
        p_scheduled=p_scheduled,
        p_end=p_end,
        handed=handed,
        leg_d=leg_d,
        d_first=d_first,
        d_has=d_has,
        attempted=attempted,
        allocated=allocated,
        received=received,
        shaken=shaken,
        both=both,
        ranks=ranks,
        landed=landed,
        told=told,
        refused=refused,
        scheduled=scheduled,
        computed=computed,
        token=token,
        t1=t1 if shape.router else token,
    )


class Writer:
    """Writes spans of one request; ids count up, so that records are reproducible."""

    def __init__(self, request_id: str, mode: str, trace_id: str = "") -> None:
        self.request_id, self.mode = request_id, mode
        self.trace_id = trace_id or f"{abs(hash_text(request_id)):032x}"
        self.records: list[SpanRecord] = []
        self._ids = count(1)

    def span(
        self,
        name: str,
        start: int,
        end: int,
        side: str = "router",
        rank: int = 0,
        *,
        attempt: str = "00000000",
        events: tuple[Event, ...] = (),
        status: int = 0,
        clock: str = CLOCK,
        engine: str = "",
        mode: str = "",
        choice: str = "",
        **attributes: AttributeValue,
    ) -> None:
        """Add one span; attribute names are written with `__` for dots."""
        resource: dict[str, AttributeValue] = {
            sc.ROLE: side,
            sc.CLOCK_ID: clock,
            sc.TP_RANK: rank,
        }
        said: dict[str, AttributeValue] = {
            sc.REQUEST_ID: self.request_id,
            sc.MODE: mode or self.mode,
        }
        if side != sc.ROLE_ROUTER:
            resource[sc.ENGINE_ID] = engine or f"{side[0]}-engine-0"
            said[sc.ENGINE_REQUEST_ID] = f"{choice}cmpl-{self.request_id}-0-{attempt}"
        said |= {key.replace("__", "."): value for key, value in attributes.items()}
        self.records.append(
            SpanRecord(
                trace_id=self.trace_id,
                span_id=f"{abs(hash_text(self.request_id)) % 10**8:08x}{next(self._ids):08x}",
                parent_id="",
                name=name,
                kind=1,
                start_ns=start,
                end_ns=end,
                attributes=said,
                events=tuple(
                    EventRecord(event, at, {sc.PEER_TP_RANK: peer[0]} if peer else {})
                    for event, at, *peer in events
                ),
                status=status,
                resource=resource,
                scope=sc.SCOPE_NAME,
            )
        )


def hash_text(text: str) -> int:
    """A small stable number for a text (Python's own hash changes between runs)."""
    value = 17
    for character in text:
        value = (value * 131 + ord(character)) % (2**61 - 1)
    return value


def records(shape: Shape, request_id: str = "r-1") -> list[SpanRecord]:
    """The spans that engines and router would write for this shape."""
    at, writer = instants(shape), Writer(request_id, shape.mode)
    if shape.router:
        _router(shape, at, writer)
    _prefill_side(shape, at, writer)
    _decode_side(shape, at, writer)
    _transfers(shape, at, writer)
    _other_choices(shape, at, writer)
    return _named_peers(writer.records) if shape.peers else writer.records


def _other_choices(shape: Shape, at: Instants, writer: Writer) -> None:
    """D's further requests for the same leg: everything of theirs comes later."""
    side = sc.ROLE_DECODE
    for number in range(1, shape.choices):
        choice, late = f"{number}_", 3 * number
        has, token = at.d_has + late, at.token + late
        writer.span(sc.SPAN_DECODE_ADMISSION, at.d_has, has, side, choice=choice)
        writer.span(sc.SPAN_KV_WAIT, has, at.told + late, side, choice=choice)
        writer.span(sc.SPAN_FIRST_DECODE, at.told + late, token, side, choice=choice)
        writer.span(sc.SPAN_DECODE, token, token + shape.decode, side, choice=choice)


def _named_peers(spans: list[SpanRecord]) -> list[SpanRecord]:
    """Each leg names the peer's: D in pull, P in push; a try that was lost served nobody."""
    changed = []
    for span in spans:
        own, mode = str(span.attributes.get(sc.ENGINE_REQUEST_ID, "")), span.attributes[sc.MODE]
        role = sc.ROLE_PREFILL if mode == sc.MODE_PUSH else sc.ROLE_DECODE
        attributes = dict(span.attributes)
        if span.resource[sc.ROLE] == role and not own.endswith(LOST):
            attributes[sc.PEER_ENGINE_REQUEST_ID] = own.partition("_")[2] or own
        changed.append(replace(span, attributes=attributes))
    return changed


def _router(shape: Shape, at: Instants, writer: Writer) -> None:
    token = ((sc.EVENT_FIRST_TOKEN, at.t1),)
    end = at.t1 + shape.decode
    writer.span(sc.SPAN_REQUEST, at.t0, end, events=token, pd__dispatch=shape.dispatch)
    legs = {"prefill": (at.t0, at.handed), "decode": (at.leg_d, end)}
    for leg, (start, stop) in legs.items():
        writer.span(sc.SPAN_LEG, start, stop, pd__leg=leg, pd__attempt=1)


def _prefill_side(shape: Shape, at: Instants, writer: Writer) -> None:
    side = sc.ROLE_PREFILL
    if shape.p_retry:
        begun, failed = at.p_first + 1, at.p_first + 3
        writer.span(sc.SPAN_PREFILL_QUEUE, at.p_first, begun, side, attempt=LOST)
        writer.span(sc.SPAN_PREFILL, begun, failed, side, attempt=LOST, status=2)
    middle = (at.p_scheduled + at.p_end) // 2
    writer.span(sc.SPAN_PREFILL_QUEUE, at.p_has, at.back_allocated, side)
    if shape.back:
        writer.span(sc.SPAN_KV_WAIT, at.back_allocated, at.back_told, side)
        writer.span(sc.SPAN_DECODE_START, at.back_told, at.p_scheduled, side)
    for rank, (begin, posted, done) in enumerate(at.back):
        writer.span(sc.SPAN_READ_SUBMIT, begin, posted, side, rank)
        writer.span(sc.SPAN_READ_COMPLETE, posted, done, side, rank)
    writer.span(sc.SPAN_PREFILL, at.p_scheduled, middle, side)
    writer.span(sc.SPAN_PREFILL, middle, at.p_end, side)
    writer.span(sc.SPAN_PREFILL_END, at.p_end, at.handed, side)
    outcome = "written" if shape.push else "read"
    writer.span(sc.SPAN_LEASE, at.p_end, at.told, side, pd__lease__outcome=outcome)
    if shape.push:
        early = at.received <= at.handed
        first = sc.MATCH_REGISTRATION if early else sc.MATCH_BLOCKS
        for rank in range(len(shape.ranks)):
            event = ((sc.EVENT_REGISTRATION_RECEIVED, at.received),)
            span = (min(at.received, at.handed), at.both)
            writer.span(sc.SPAN_MATCH, *span, side, rank, events=event, pd__match__first=first)


def _decode_side(shape: Shape, at: Instants, writer: Writer) -> None:
    side = sc.ROLE_DECODE
    if shape.d_retry:
        event = ((sc.EVENT_FIRST_ATTEMPT, at.d_first + 1),)
        span = (at.d_first, at.d_first + 2)
        writer.span(sc.SPAN_DECODE_ADMISSION, *span, side, events=event, attempt=LOST, status=2)
    tried = ((sc.EVENT_FIRST_ATTEMPT, at.attempted),)
    writer.span(sc.SPAN_DECODE_ADMISSION, at.d_has, at.allocated, side, events=tried)
    if shape.push:
        writer.span(sc.SPAN_REGISTRATION, at.allocated, at.received, side)
    if shape.handshake:
        writer.span(sc.SPAN_HANDSHAKE, *at.shaken, side)
    seen = tuple((sc.EVENT_NOTIFICATION_SEEN, at_d, r) for r, (*_, at_d) in enumerate(at.ranks))
    writer.span(sc.SPAN_KV_WAIT, at.allocated, at.told, side, events=seen if shape.push else ())
    refused = ((sc.EVENT_REFUSED, at.refused),) if at.refused else ()
    writer.span(sc.SPAN_DECODE_START, at.told, at.scheduled, side, events=refused)
    if shape.recompute:
        writer.span(sc.SPAN_PREFILL, at.scheduled, at.computed, side)
    writer.span(sc.SPAN_FIRST_DECODE, at.scheduled, at.token, side)
    end = at.token + shape.decode
    writer.span(sc.SPAN_DECODE, at.token, end, side, gen_ai__usage__output_tokens=shape.tokens)


def _transfers(shape: Shape, at: Instants, writer: Writer) -> None:
    side = sc.ROLE_PREFILL if shape.push else sc.ROLE_DECODE
    submit = sc.SPAN_WRITE_SUBMIT if shape.push else sc.SPAN_READ_SUBMIT
    complete = sc.SPAN_WRITE_COMPLETE if shape.push else sc.SPAN_READ_COMPLETE
    for rank, (begin, posted, done, _) in enumerate(at.ranks):
        writer.span(submit, begin, posted, side, rank)
        writer.span(complete, posted, done, side, rank)
