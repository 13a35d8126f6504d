"""The two sets that triage compares: slow requests, and a reference that shows what is usual."""

from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd

from pdtrace.analysis.arrays import Ints
from pdtrace.analysis.triage_traffic import RANKED, Traffic

LEAST_SLOW: Final = 30
LEAST_REFERENCE: Final = 100

MIDDLE: Final = "the middle half (p25 to p75) of the same window"
BASELINE: Final = "the baseline"
EARLIER: Final = "the baseline window"


@dataclass(frozen=True)
class Objective:
    """What counts as slow: more than `slo_ns`, else the slowest `share` of the window (0 to 1)."""

    slo_ns: int | None = None
    share: float | None = None

    def __post_init__(self) -> None:
        if (self.slo_ns is None) == (self.share is None):
            raise ValueError("give either an objective or a share")


@dataclass(frozen=True)
class Sets:
    """`ranked`: all comparable requests of the window; `slow`: bool over them.

    `limit_ns`: a slow request took longer;
    `limit_is_share`: it follows from a share. `reference`: the other set, `source`: where from,
    `apart`: whether that is another window or other sources than the slow ones are from.
    """

    ranked: Traffic
    slow: pd.Series
    limit_ns: int
    reference: Traffic
    source: str
    limit_is_share: bool

    @property
    def apart(self) -> bool:
        return self.source != MIDDLE

    @property
    def slow_traffic(self) -> Traffic:
        return self.ranked.pick(self.slow)

    @property
    def enough(self) -> bool:
        """Whether both sets are large enough to be compared."""
        return int(self.slow.sum()) >= LEAST_SLOW and len(self.reference) >= LEAST_REFERENCE


def divide(
    window: Traffic, objective: Objective, baseline: Traffic | None = None, source: str = BASELINE
) -> Sets:
    """The sets of a window. Without a baseline the reference is the window's own middle half."""
    ranked = window.of_standing(RANKED)
    ttft = _ttft(ranked)
    by_share = objective.share is not None
    limit = objective.slo_ns if objective.slo_ns is not None else _limit(ttft, objective.share)
    slow = pd.Series(ttft > limit, index=ranked.requests.index, dtype="bool")
    if baseline is not None:
        return Sets(ranked, slow, limit, baseline.of_standing(RANKED), source, by_share)
    low, high = _place(ttft, 0.25), _place(ttft, 0.75)
    middle = (ttft >= low) & (ttft <= high) & ~slow.to_numpy(np.bool_)
    reference = ranked.pick(pd.Series(middle, index=slow.index))
    return Sets(ranked, slow, limit, reference, MIDDLE, by_share)


def _ttft(traffic: Traffic) -> Ints:
    return traffic.requests["ttft_ns"].to_numpy(np.int64)


def _limit(ttft: Ints, share: float | None) -> int:
    """The largest TTFT that is not among the slowest `share` (ns)."""
    assert share is not None
    return _place(ttft, 1 - share)


def _place(ttft: Ints, part: float) -> int:
    """The smallest observed value that `part` of all do not exceed; 0 of nothing."""
    if not len(ttft):
        return 0
    # 1 - 0.05 is not 0.95: without rounding the place would jump by one.
    place = max(int(np.ceil(round(part * len(ttft), 6))) - 1, 0)
    return int(np.partition(ttft, place)[place])
