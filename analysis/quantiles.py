"""Quantiles as order statistics of integers, with an interval that assumes no distribution."""

import math
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np
import pandas as pd

COVERAGE: Final = 0.95


class Quantile(NamedTuple):
    """An observed value and the observed values that bound it; None where the sample cannot."""

    value: int | None
    low: int | None
    high: int | None


def quantile(values: pd.Series, percent: int) -> Quantile:
    """The smallest observed value that `percent` % of them do not exceed, and its 95 % interval.

    The value is None where fewer than one observation lies above: p50 needs 2 values, p95 20, p99
    100. The interval's ends are order statistics whose ranks enclose the quantile of the
    population with at least 95 % probability whatever the distribution (the number of values
    below it is binomial; David and Nagaraja, Order Statistics, 7.1). `values`: integers, ns.
    """
    count = len(values)
    if count * (100 - percent) < 100:
        return Quantile(None, None, None)
    place = -(-percent * count // 100) - 1
    low, high = _ranks(count, percent)
    places = sorted({place, *(at for at in (low, high) if at is not None)})
    parted = np.partition(values.to_numpy(np.int64), places)
    return Quantile(
        int(parted[place]),
        None if low is None else int(parted[low]),
        None if high is None else int(parted[high]),
    )


@lru_cache(maxsize=4096)
def _ranks(count: int, percent: int) -> tuple[int | None, int | None]:
    """Places (from 0) of the interval's ends; None where `count` is too small for that end."""
    first, below = _binomial(count, percent / 100)
    tail = (1 - COVERAGE) / 2
    # The k-th smallest (from 1) exceeds the quantile when at most k - 1 values lie below it.
    low = first + int(np.searchsorted(below, tail, side="right")) - 1
    high = first + int(np.searchsorted(below, 1 - tail, side="left"))
    return (low if low >= 0 else None), (high if high < count else None)


def _binomial(count: int, share: float) -> tuple[int, np.ndarray]:
    """P(X <= k) for X binomial and k = first, first + 1, …, over all k that are not negligible."""
    spread = 10 * math.sqrt(count * share * (1 - share)) + 10
    first, last = max(0, int(count * share - spread)), min(count, int(count * share + spread))
    k = np.arange(first + 1, last + 1, dtype=np.float64)
    steps = np.log((count - k + 1) / k * (share / (1 - share)))
    start = (
        math.lgamma(count + 1) - math.lgamma(first + 1) - math.lgamma(count - first + 1)
        + first * math.log(share) + (count - first) * math.log1p(-share)
    )  # fmt: skip
    return first, np.cumsum(np.exp(start + np.concatenate([[0.0], np.cumsum(steps)])))
