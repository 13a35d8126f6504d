"""Which phases of a request lie between two clocks, and so are only known to a half-width."""

from collections.abc import Iterable, Sequence

from pdtrace.analysis import phases
from pdtrace.analysis.attempts import SIDE_DECODE, SIDE_PREFILL, SIDE_ROUTER
from pdtrace.analysis.charts import Piece
from pdtrace.analysis.stretches import length
from pdtrace.analysis.subject import Subject
from pdtrace.tracing import semconv

Sides = tuple[str, str]
"""The sides that saw where something begins and where it ends."""


def uncertain(one: Subject, sides: Sides) -> tuple[bool, bool]:
    """Whether start and end lie on another clock than the request's arrival.

    (False, False) for what begins and ends on one clock: its length is exact.
    """
    start, end = sides
    if not between_clocks(one, start, end):
        return False, False
    arrival = _observer(one)
    return between_clocks(one, start, arrival), between_clocks(one, end, arrival)


def between_clocks(one: Subject, side: str, other: str) -> bool:
    """Whether two sides have different clocks, compared to a half-width only."""
    nothing: frozenset[str] = frozenset()
    same = one.clocks.get(side, nothing) == one.clocks.get(other, nothing)
    return not same and bool(one.row.clock_halfwidth_ns)


def crossing(one: Subject, mine: Sequence[Piece], drawn: Sequence[Piece]) -> tuple[bool, bool]:
    """Whether the phase, and an exposed part of it, begins on one clock and ends on another."""
    whole = (_phase_sides(one, piece.phase, piece.lane) for piece in mine)
    exposed = (sides for _, sides in exposed_parts(one, mine, drawn))
    return (
        any(between_clocks(one, *sides) for sides in whole),
        any(between_clocks(one, *sides) for sides in exposed),
    )


def unresolved(one: Subject, mine: Sequence[Piece], drawn: Sequence[Piece]) -> tuple[bool, bool]:
    """Whether the phase, and what is exposed of it, cannot be told from nothing by these clocks."""
    width = one.row.clock_halfwidth_ns or 0
    whole = length((piece.start_ns, piece.end_ns) for piece in mine)
    exposed = length((piece.start_ns, piece.end_ns) for piece in mine if piece.owned)
    crosses, exposed_crosses = crossing(one, mine, drawn)
    return crosses and whole <= width, exposed_crosses and exposed <= width


def exposed_parts(
    one: Subject, mine: Iterable[Piece], drawn: Sequence[Piece]
) -> Iterable[tuple[Piece, Sides]]:
    """The exposed pieces beside which the phase is hidden.

    Such a piece begins where the phase that hid it ended, maybe on another clock: what D does
    while P computes is exposed from P's end on. So with its end.
    """
    for piece in mine:
        if piece.owned:
            before = _hider(piece, [p for p in drawn if p.end_ns == piece.start_ns])
            after = _hider(piece, [p for p in drawn if p.start_ns == piece.end_ns])
            if before or after:
                start = piece_sides(one, before, drawn)[1] if before else None
                end = piece_sides(one, after, drawn)[0] if after else None
                own = piece_sides(one, piece, drawn)
                yield piece, (start or own[0], end or own[1])


def piece_sides(one: Subject, piece: Piece, drawn: Iterable[Piece]) -> Sides:
    """As of its phase at the outer edges of that; what lies between, the lane's own side saw.

    So a rank's completion, if it is not the last one.
    """
    mine = [other for other in drawn if other.phase == piece.phase]
    start, end = _phase_sides(one, piece.phase, piece.lane)
    own = _side(piece.lane)
    first, last = min(p.start_ns for p in mine), max(p.end_ns for p in mine)
    return start if piece.start_ns == first else own, end if piece.end_ns == last else own


def landed_by(one: Subject) -> str:
    """The side with the earliest evidence that all data was there."""
    landed = one.at.get("landed_ns")
    if landed in (None, one.at.get("told_ns")):
        return SIDE_DECODE
    if landed in [rank.completed_ns for rank in one.ranks]:
        return one.initiator
    return SIDE_DECODE if one.push else SIDE_PREFILL


def _hider(piece: Piece, beside: Sequence[Piece]) -> Piece | None:
    """What owned the time beside an exposed piece, if its phase was active there as well."""
    hidden = any((other.lane, other.phase) == (piece.lane, piece.phase) for other in beside)
    return next((other for other in beside if other.owned), None) if hidden else None


def _observer(one: Subject) -> str:
    """The side whose clock says when the request arrived."""
    if SIDE_ROUTER in one.clocks:
        return SIDE_ROUTER
    p_first, d_first = one.at.get("p_first_ns"), one.at.get("d_first_ns")
    first = d_first is None or (p_first is not None and p_first <= d_first)
    return SIDE_PREFILL if first else SIDE_DECODE


def _phase_sides(one: Subject, phase: str, lane: str) -> Sides:
    """The sides that saw the two edges of a phase that is drawn in this lane."""
    own = _side(lane)
    if own == SIDE_PREFILL and not one.push:
        return own, own  # also what P reads back from D, before anything goes to D
    first = SIDE_PREFILL if one.p_counts else SIDE_DECODE
    together = one.concurrent and one.row.mode != semconv.MODE_PULL
    sender = SIDE_ROUTER if together or "p_end_ns" not in one.at else SIDE_PREFILL
    tried = SIDE_DECODE if SIDE_DECODE in one.retried else SIDE_PREFILL
    known_by = landed_by(one)
    return {
        phases.INGRESS: (SIDE_ROUTER, first),
        phases.RETRY: (tried, tried),
        phases.HOP: (sender, SIDE_DECODE),
        phases.REGISTRATION: (SIDE_DECODE, SIDE_PREFILL if one.push else SIDE_DECODE),
        phases.TRANSFER: (one.initiator, known_by),
        phases.LANDED_TO_SEEN: (known_by, SIDE_DECODE),
        phases.EGRESS: (SIDE_DECODE, SIDE_ROUTER),
    }.get(phase, (own, own))


def _side(lane: str) -> str:
    """The side of a lane, which may be one of its ranks'."""
    return lane.partition("/")[0]
