"""The graph of clocks: what the bounds between all of them say about each two.

A matrix of bounds, shape (points, n, n): entry [p, i, j] is an upper bound on clock i less clock j
at point p in time, int64 ns, `NO_BOUND` where nothing is known.
"""

from collections.abc import Sequence

import numpy as np

from pdtrace.analysis.arrays import Bools, Ints
from pdtrace.analysis.clock_drift import NO_BOUND

_KNOWN = NO_BOUND // 2
"""A sum with `NO_BOUND` in it may be a little less than that; it is never less than this."""


def closed(bounds: Ints) -> Ints:
    """All-pairs shortest paths: the tightest bound over any chain of clocks (Floyd, Warshall).

    A negative entry on the diagonal means that the bounds around some cycle contradict each other.
    """
    tight = bounds.copy()
    for via in range(bounds.shape[1]):
        through = tight[:, :, via, None] + tight[:, None, via, :]
        np.minimum(tight, through, out=tight)
        tight[tight > _KNOWN] = NO_BOUND
    return tight


def contradictory(tight: Ints) -> Bools:
    """Points at which bounds contradict each other; of a `closed` matrix. Shape (points,)."""
    around: Ints = np.diagonal(tight, axis1=1, axis2=2)
    found: Bools = np.any(around < 0, axis=1)
    return found


def negative_cycle(bounds: Ints) -> list[int]:
    """Clocks around a cycle whose bounds sum to less than 0, at one point, shape (n, n).

    Each clock is bounded by the one after it, the last by the first. Empty where there is none.
    """
    count = len(bounds)
    distance, came_from = np.zeros(count, dtype=np.int64), np.full(count, -1, dtype=np.int64)
    changed = -1
    for _ in range(count):
        # distance[i] = min over j of distance[j] + (upper bound on i less j)
        through = np.where(bounds < _KNOWN, bounds + distance[None, :], NO_BOUND)
        best = through.argmin(axis=1)
        shorter = np.flatnonzero(through[np.arange(count), best] < distance)
        distance[shorter] = through[shorter, best[shorter]]
        came_from[shorter] = best[shorter]
        changed = int(shorter[0]) if len(shorter) else -1
    if changed < 0:
        return []
    for _ in range(count):  # now surely on the cycle
        changed = int(came_from[changed])
    cycle = [changed]
    while int(came_from[cycle[-1]]) != changed:
        cycle.append(int(came_from[cycle[-1]]))
    return cycle


def components(count: int, links: Sequence[tuple[int, int]]) -> Ints:
    """For each of `count` clocks the lowest of those it is linked with, directly or not."""
    part = np.arange(count, dtype=np.int64)
    for _ in range(count):
        for one, other in links:
            part[one] = part[other] = min(part[one], part[other])
    return part
