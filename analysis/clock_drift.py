"""Drift: a bound on an offset at one time, and what is left of it at another.

Two clocks drift apart by at most `ppb` ns a second, so a bound seen at t holds at q with
ppb * |q - t| added to it. All times and bounds are int64 ns, and rounding is always outward.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from pdtrace.analysis.arrays import Ints

NO_BOUND: Final = 2**60
"""More than any offset; two of them, and a real offset, still add up within int64."""
SECOND: Final = 10**9


def slack(between_ns: Ints, ppb: int) -> Ints:
    """How far clocks may drift apart in `between_ns` ≥ 0, rounded up; never overflows."""
    seconds, rest = between_ns // SECOND, between_ns % SECOND
    grown: Ints = seconds * ppb - (-rest * ppb // SECOND)
    return grown


@dataclass(frozen=True)
class DriftCone:
    """The tightest of many upper bounds, each seen at one time, at any other time.

    `time_ns` ascending, `bound_ns`; `before`, `after`: the place of the bound that is the tightest
    of all up to (all from) each of them, whatever is asked for later (earlier). Shape (n,).
    """

    time_ns: Ints
    bound_ns: Ints
    before: Ints
    after: Ints
    ppb: int

    @classmethod
    def of(cls, time_ns: Ints, bound_ns: Ints, ppb: int) -> "DriftCone":
        """Of bounds sorted by time; `time_ns` ≥ 0."""
        grown = slack(time_ns, ppb)
        before = _tightest(bound_ns - grown)
        last = len(time_ns) - 1
        after = last - _tightest((bound_ns + grown)[::-1])[::-1]
        return cls(time_ns, bound_ns, before, after, ppb)

    def at(self, query_ns: Ints) -> Ints:
        """The bound at each of `query_ns` (int64, any shape); `NO_BOUND` where there is none."""
        return self.look(query_ns)[0]

    def look(self, query_ns: Ints) -> tuple[Ints, Ints]:
        """The bound at each of `query_ns`, and the place of the row it comes from (or -1)."""
        none = np.full(query_ns.shape, NO_BOUND, dtype=np.int64)
        if not len(self.time_ns):
            return none, np.full(query_ns.shape, -1, dtype=np.int64)
        past = np.searchsorted(self.time_ns, query_ns, side="right") - 1
        coming = np.minimum(past + 1, len(self.time_ns) - 1)
        left, right = self.before[np.maximum(past, 0)], self.after[coming]
        by_left, by_right = (
            self.bound_ns[row] + slack(np.abs(query_ns - self.time_ns[row]), self.ppb)
            for row in (left, right)
        )
        nearer = by_left <= by_right
        return np.where(nearer, by_left, by_right), np.where(nearer, left, right)


def _tightest(values: Ints) -> Ints:
    """Of each place the place of the smallest value up to it (the last such one)."""
    place = np.arange(len(values), dtype=np.int64)
    lowest = np.minimum.accumulate(values)
    found: Ints = np.maximum.accumulate(np.where(values == lowest, place, 0))
    return found
