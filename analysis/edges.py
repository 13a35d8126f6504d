"""Which phases of a request lie between two clocks, and so are only known to a half-width."""

from pdtrace.analysis import phases
from pdtrace.analysis.attempts import SIDE_DECODE, SIDE_PREFILL, SIDE_ROUTER
from pdtrace.analysis.subject import Subject
from pdtrace.tracing import semconv


def uncertain(one: Subject, phase: str) -> tuple[bool, bool]:
    """Whether the phase's start, and its end, lie on another clock than the request's arrival.

    (False, False) for a phase that begins and ends on one clock: its length is exact.
    """
    start, end = _sides(one, phase)
    if not between_clocks(one, start, end):
        return False, False
    arrival = _observer(one)
    return between_clocks(one, start, arrival), between_clocks(one, end, arrival)


def between_clocks(one: Subject, side: str, other: str) -> bool:
    """Whether two sides have different clocks, compared to a half-width only."""
    nothing: frozenset[str] = frozenset()
    same = one.clocks.get(side, nothing) == one.clocks.get(other, nothing)
    return not same and bool(one.row.clock_halfwidth_ns)


def crosses(one: Subject, phase: str) -> bool:
    """Whether the phase begins on one clock and ends on another."""
    return any(uncertain(one, phase))


def resolved(one: Subject, phase: str, length_ns: int) -> bool:
    """Whether a phase of this length can be told from nothing by these clocks."""
    return not crosses(one, phase) or length_ns > (one.row.clock_halfwidth_ns or 0)


def _observer(one: Subject) -> str:
    """The side whose clock says when the request arrived."""
    if SIDE_ROUTER in one.clocks:
        return SIDE_ROUTER
    p_first, d_first = one.at.get("p_first_ns"), one.at.get("d_first_ns")
    first = d_first is None or (p_first is not None and p_first <= d_first)
    return SIDE_PREFILL if first else SIDE_DECODE


def _sides(one: Subject, phase: str) -> tuple[str, str]:
    """The sides that saw the phase's two edges."""
    first = SIDE_PREFILL if one.p_counts else SIDE_DECODE
    together = one.concurrent and one.row.mode != semconv.MODE_PULL
    sender = SIDE_ROUTER if together or "p_end_ns" not in one.at else SIDE_PREFILL
    known_by = landed_by(one)
    return {
        phases.INGRESS: (SIDE_ROUTER, first),
        phases.HOP: (sender, SIDE_DECODE),
        phases.REGISTRATION: (SIDE_DECODE, SIDE_PREFILL if one.push else SIDE_DECODE),
        phases.TRANSFER: (one.initiator, known_by),
        phases.LANDED_TO_SEEN: (known_by, SIDE_DECODE),
        phases.EGRESS: (SIDE_DECODE, SIDE_ROUTER),
    }.get(phase, (first, first))


def landed_by(one: Subject) -> str:
    """The side with the earliest evidence that all data was there."""
    landed = one.at.get("landed_ns")
    if landed in (None, one.at.get("told_ns")):
        return SIDE_DECODE
    if landed in [rank.completed_ns for rank in one.ranks]:
        return one.initiator
    return SIDE_DECODE if one.push else SIDE_PREFILL
