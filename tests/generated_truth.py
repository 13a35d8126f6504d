"""The split of a generated request, by construction."""

from generator import Instants, Shape, instants
from reference_split import Interval, Known, Painted, paint, without


def truth(shape: Shape) -> tuple[int, Painted]:
    """TTFT and its split as drawn (ns)."""
    at = instants(shape)
    shakes: list[Known] = [("handshake", *at.shaken)]
    drawn: list[Interval] = [
        ("ingress", at.t0, at.p_first),
        ("retry", at.p_first, at.p_has),
        ("prefill_queue", at.p_has, at.back_allocated),
        ("landed_to_seen", at.back_landed, at.back_told),
        ("requeue", at.back_told, at.p_scheduled),
        ("prefill", at.p_scheduled, at.p_end),
        ("match", at.p_end, at.handed),
        *_hop(shape, at),
        ("retry", at.d_first, at.d_has),
        ("admission", at.d_has, at.attempted),
        ("decode_capacity", at.attempted, at.allocated),
        *without([("registration", at.allocated, at.received)], shakes),
        *shakes,
        ("landed_to_seen", at.landed, at.told),
        ("requeue", at.told, at.refused or at.scheduled),
        ("decode_queue", at.refused, at.scheduled),
        ("prefill", at.scheduled, at.computed),
        ("first_decode", at.computed, at.token),
        ("egress", at.token, at.t1),
    ]
    for begin, posted, done in at.back:
        drawn += [("registration", at.back_allocated, begin)]
        drawn += [("submit", begin, posted), ("transfer", posted, done)]
    for begin, posted, done, _ in at.ranks:
        drawn += [("submit", begin, posted), ("transfer", posted, min(done, at.landed))]
        drawn += [("match", at.both, begin)] if shape.push else []
    return at.t1 - at.t0, paint(drawn, at.t0, at.t1)


def _hop(shape: Shape, at: Instants) -> list[Interval]:
    """The second leg's way to D.

    Without the router nobody says when it left. Legs are then sent together if and only if D has
    the request before prefill ends, and else after the blocks were handed over (split.md).
    """
    if shape.router or not shape.together:
        return [("hop", at.leg_d, at.d_first)]
    if at.d_has < at.p_end:
        return []
    return [("hop", at.handed, at.d_first if at.d_first >= at.handed else at.d_has)]
