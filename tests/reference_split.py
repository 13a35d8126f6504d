"""The split again, slow and obvious: one request at a time, one instant after the other.

Written from split.md without pandas, so that it can disagree with the product.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pdtrace.analysis.records import SpanRecord
from pdtrace.tracing import semconv as sc

PRIORITY = [
    "first_decode",
    "prefill",
    "prefill_queue",
    "ingress",
    "decode_queue",
    "decode_capacity",
    "transfer",
    "submit",
    "handshake",
    "registration",
    "match",
    "admission",
    "hop",
    "landed_to_seen",
    "requeue",
    "retry",
    "egress",
]
Known = tuple[str, int, int]
Interval = tuple[str, int | None, int | None]


@dataclass
class Painted:
    """ns by phase: owned, and active while something else owned."""

    exposed: dict[str, int]
    hidden: dict[str, int]


def paint(intervals: Iterable[Interval], start: int, end: int) -> Painted:
    """Walk from boundary to boundary; at each the first active phase in `PRIORITY` owns."""
    known = [(p, a, b) for p, a, b in intervals if a is not None and b is not None]
    known = [(p, max(a, start), min(b, end)) for p, a, b in known]
    known = [(p, a, b) for p, a, b in known if a < b]
    cuts = sorted({start, end, *(a for _, a, _ in known), *(b for _, _, b in known)})
    exposed: dict[str, int] = {}
    hidden: dict[str, int] = {}
    for left, right in zip(cuts, cuts[1:], strict=False):
        active = {p for p, a, b in known if a <= left and right <= b}
        owner = next((p for p in PRIORITY if p in active), "unattributed")
        exposed[owner] = exposed.get(owner, 0) + right - left
        for other in active - {owner}:
            hidden[other] = hidden.get(other, 0) + right - left
    return Painted(exposed, hidden)


def without(intervals: Sequence[Known], inner: Sequence[Known]) -> list[Known]:
    """The intervals with every part that lies in one of `inner` cut out."""
    left = list(intervals)
    for _, a, b in inner:
        cut: list[Known] = []
        for phase, c, d in left:
            cut += [(phase, c, min(d, a)), (phase, max(c, b), d)]
        left = [(p, c, d) for p, c, d in cut if c < d]
    return left


class Request:
    """The spans of one request, and small questions about them."""

    def __init__(self, records: Sequence[SpanRecord]) -> None:
        self.all = [r for r in records if r.name in sc.OWN_SPANS]
        self.router = [r for r in self.all if r.name in (sc.SPAN_REQUEST, sc.SPAN_LEG)]
        tries: dict[tuple[str, str], list[SpanRecord]] = {}
        for record in self.all:
            if record not in self.router:
                key = (str(record.resource.get(sc.ENGINE_ID)), _attr(record, sc.ENGINE_REQUEST_ID))
                tries.setdefault(key, []).append(record)
        self.p_tries = [t for t in tries.values() if not _on_d(t)]
        self.d_tries = [t for t in tries.values() if _on_d(t)]
        self.p, self.d = _last_good(self.p_tries), _last_good(self.d_tries)

    def first_arrival(self, tries: list[list[SpanRecord]], chosen: list[SpanRecord]) -> int | None:
        starts = [min(r.start_ns for r in t) for t in tries]
        own = min((r.start_ns for r in chosen), default=None)
        return min((s for s in starts if own is None or s <= own), default=None)


def _attr(record: SpanRecord, name: str) -> str:
    return str(record.attributes.get(name, ""))


def _on_d(spans: list[SpanRecord]) -> bool:
    d_only = (sc.SPAN_DECODE_ADMISSION, sc.SPAN_FIRST_DECODE)
    alone = all(_attr(r, sc.MODE) == sc.MODE_NONE for r in spans)
    return alone or any(r.name in d_only for r in spans)


def _last_good(tries: list[list[SpanRecord]]) -> list[SpanRecord]:
    def good(spans: list[SpanRecord]) -> int:
        done = (sc.SPAN_FIRST_DECODE,) if _on_d(spans) else (sc.SPAN_PREFILL,)
        if all(_attr(r, sc.MODE) == sc.MODE_NONE for r in spans):
            done = (sc.SPAN_PREFILL,)
        return sum(2 for r in spans if r.name in done and r.status != 2) > 0

    def token(spans: list[SpanRecord]) -> int:
        return min((r.end_ns for r in spans if r.name == sc.SPAN_FIRST_DECODE), default=0)

    def leg(spans: list[SpanRecord]) -> str:
        number, found, rest = _attr(spans[0], sc.ENGINE_REQUEST_ID).partition("_")
        return rest if found and number.isdecimal() else number + found + rest

    def begun(spans: list[SpanRecord]) -> int:
        return min(r.start_ns for t in tries if leg(t) == leg(spans) for r in t)

    ordered = sorted(tries, key=lambda t: (good(t), begun(t), -token(t)))
    return ordered[-1] if ordered else []


def _start(spans: list[SpanRecord], *names: str) -> int | None:
    for name in names:
        found = [r.start_ns for r in spans if r.name == name]
        if found:
            return min(found)
    return None


def _end(spans: list[SpanRecord], *names: str) -> int | None:
    for name in names:
        found = [r.end_ns for r in spans if r.name == name]
        if found:
            return max(found)
    return None


def _events(spans: list[SpanRecord], name: str) -> list[int]:
    return [e.time_ns for r in spans for e in r.events if e.name == name]


def _rank(record: SpanRecord) -> int:
    rank = record.resource.get(sc.TP_RANK, 0)
    assert isinstance(rank, int)
    return rank


def reference(records: Sequence[SpanRecord]) -> tuple[int, Painted]:
    """TTFT in ns and its split, for the spans of one request that got a first token."""
    r = Request(records)
    mode = next((_attr(s, sc.MODE) for s in (*r.d, *r.p) if _attr(s, sc.MODE)), "none")
    push = mode == "push"
    dispatch = next((_attr(s, sc.DISPATCH) for s in r.router if _attr(s, sc.DISPATCH)), "")
    p_first, d_first = r.first_arrival(r.p_tries, r.p), r.first_arrival(r.d_tries, r.d)
    p_end = _end(r.p, sc.SPAN_PREFILL)
    d_has = _start(r.d, sc.SPAN_DECODE_ADMISSION, sc.SPAN_PREFILL_QUEUE)
    early = d_has is not None and p_end is not None and d_has < p_end
    together = dispatch == "concurrent" or (not dispatch and push and early)
    request = [s for s in r.router if s.name == sc.SPAN_REQUEST]
    decode_legs = [s.start_ns for s in r.router if _attr(s, sc.LEG) == "decode"]
    token = _end(r.d, sc.SPAN_FIRST_DECODE, sc.SPAN_PREFILL)
    t0 = min([s.start_ns for s in request] or [x for x in (p_first, d_first) if x is not None])
    t1 = min(_events(request, sc.EVENT_FIRST_TOKEN), default=token)
    assert t1 is not None
    allocated, told = _start(r.d, sc.SPAN_KV_WAIT), _end(r.d, sc.SPAN_KV_WAIT)
    handed = _end(r.p, sc.SPAN_PREFILL_END)
    hop_from = min(decode_legs, default=None) if together and push else handed if push else p_end
    if not r.p:
        hop_from = None
    after = hop_from is not None and d_first is not None and d_first >= hop_from
    attempted = min(_events(r.d, sc.EVENT_FIRST_ATTEMPT), default=None)
    scheduled = min(
        (x for x in (_start(r.d, sc.SPAN_FIRST_DECODE), _start(r.d, sc.SPAN_PREFILL)) if x),
        default=None,
    )
    refused = min(_events(r.d, sc.EVENT_REFUSED), default=None)
    d_prefill = (_start(r.d, sc.SPAN_PREFILL), _end(r.d, sc.SPAN_PREFILL))
    drawn: list[Interval] = [
        ("ingress", t0, p_first if r.p else d_first),
        ("retry", p_first, _start(r.p, sc.SPAN_PREFILL_QUEUE)),
        ("retry", d_first, d_has),
        (
            "prefill_queue",
            _start(r.p, sc.SPAN_PREFILL_QUEUE),
            _start(r.p, sc.SPAN_KV_WAIT, sc.SPAN_PREFILL),
        ),
        ("prefill_queue", _start(r.d, sc.SPAN_PREFILL_QUEUE), d_prefill[0]),
        ("prefill", _start(r.p, sc.SPAN_PREFILL), p_end),
        ("prefill", *d_prefill),
        ("hop", hop_from, d_first if after else d_has),
        ("admission", d_has, attempted),
        ("decode_capacity", attempted, allocated),
        ("egress", token, t1),
    ]
    if told is not None:
        assert scheduled is not None
        drawn += [
            ("requeue", told, scheduled if refused is None else refused),
            ("decode_queue", refused, scheduled),
            ("first_decode", max(scheduled, d_prefill[1] or scheduled), token),
        ]
    drawn += _handoff(r, push, p_end, handed, allocated, told) + _read_back(r)
    return t1 - t0, paint(drawn, t0, t1)


def _read_back(r: Request) -> list[Interval]:
    """P's wait for what it READs from D before its prefill."""
    told = _end(r.p, sc.SPAN_KV_WAIT)
    if told is None:
        return []
    submits = [s for s in r.p if s.name == sc.SPAN_READ_SUBMIT]
    wires = [s for s in r.p if s.name == sc.SPAN_READ_COMPLETE]
    begun = max(
        min(s.start_ns for s in submits if _rank(s) == rank) for rank in {_rank(s) for s in submits}
    )
    return [
        ("registration", _start(r.p, sc.SPAN_KV_WAIT), begun),
        *(("submit", s.start_ns, s.end_ns) for s in submits),
        *(("transfer", s.start_ns, s.end_ns) for s in wires),
        ("landed_to_seen", max(s.end_ns for s in wires), told),
        ("requeue", told, _start(r.p, sc.SPAN_PREFILL)),
    ]


def _handoff(
    r: Request,
    push: bool,
    p_end: int | None,
    handed: int | None,
    allocated: int | None,
    told: int | None,
) -> list[Interval]:
    """Registration, handshake, match, submit, transfer, landed to seen."""
    initiator = r.p if push else r.d
    submits = [s for s in initiator if s.name in (sc.SPAN_WRITE_SUBMIT, sc.SPAN_READ_SUBMIT)]
    wires = [s for s in initiator if s.name in (sc.SPAN_WRITE_COMPLETE, sc.SPAN_READ_COMPLETE)]
    seen = _events([s for s in r.d if s.name == sc.SPAN_KV_WAIT], sc.EVENT_NOTIFICATION_SEEN)
    ranks = {_rank(s) for s in submits}
    evidence = [max((s.end_ns for s in wires), default=None)]
    told_of = {
        e.attributes.get(sc.PEER_TP_RANK)
        for s in r.d
        for e in s.events
        if e.name == sc.EVENT_NOTIFICATION_SEEN
    }
    if push and len(told_of) >= len(ranks):
        evidence.append(max(seen, default=None))
    landed = min((x for x in (*evidence, told) if x is not None), default=None)
    received: list[int] = []
    drawn: list[Interval] = [("landed_to_seen", landed, told)]
    if push:
        drawn.append(("match", p_end, handed))
    for rank in ranks:
        begin = min(s.start_ns for s in submits if _rank(s) == rank)
        match = [s for s in r.p if s.name == sc.SPAN_MATCH and _rank(s) == rank]
        if push and match:
            left, right = min(s.start_ns for s in match), max(s.end_ns for s in match)
            received.append(left if _attr(match[0], sc.MATCH_FIRST) == "registration" else right)
            drawn.append(("match", right, begin))
        received += [] if push else [begin]
    posted = max((s.end_ns for s in submits), default=None)
    until = max(received, default=None)
    shakes: dict[bool, list[Known]] = {}
    for on_d in (True, False):
        limit = (until if push else posted) if on_d else (posted if push else 0)
        spans = [s for s in (r.d if on_d else r.p) if s.name == sc.SPAN_HANDSHAKE]
        late = bool(spans) and max(s.end_ns for s in spans) > (limit or 0)
        shakes[on_d] = [] if late else [("handshake", s.start_ns, s.end_ns) for s in spans]
    drawn += shakes[True] + shakes[False]
    if allocated is not None and until is not None:
        drawn += without([("registration", allocated, until)], shakes[True])
    drawn += without([("submit", s.start_ns, s.end_ns) for s in submits], shakes[not push])
    if landed is not None:
        drawn += [("transfer", s.start_ns, min(s.end_ns, landed)) for s in wires]
    return drawn
