"""Quantiles are observed values, and their intervals hold the truth as often as they say."""

import math

import numpy as np
import pandas as pd
import pytest

from pdtrace.analysis.quantiles import Quantile, quantile


def of(count: int, percent: int) -> Quantile:
    """The quantile of `count` values 1, 2, …, in reverse order."""
    return quantile(pd.Series(range(count, 0, -1), dtype="int64"), percent)


@pytest.mark.parametrize(
    "count, percent, expected",
    [(1, 50, None), (2, 50, 1), (19, 95, None), (20, 95, 19), (99, 99, None), (100, 99, 99)],
)
def test_a_quantile_is_an_observed_value_or_nothing(
    count: int, percent: int, expected: int | None
) -> None:
    """The smallest value that so many do not exceed; none where no observation lies above."""
    assert of(count, percent).value == expected


@pytest.mark.parametrize(
    "count, percent, low, high",
    [(5, 50, None, None), (6, 50, 1, 6), (25, 50, 8, 18), (71, 95, 63, None), (72, 95, 64, 72)],
)
def test_an_interval_ends_where_the_binomial_says(
    count: int, percent: int, low: int | None, high: int | None
) -> None:
    """Ranks of published tables for the median; an end that no sample value bounds is open."""
    assert of(count, percent)[1:] == (low, high)


@pytest.mark.parametrize("count", [6, 30, 200, 5000])
@pytest.mark.parametrize("percent", [50, 95, 99])
def test_an_interval_covers_with_at_least_95_percent(count: int, percent: int) -> None:
    """Each end misses with at most 2.5 %, and the next rank further in would miss more often."""
    _, low, high = of(count, percent) if count * (100 - percent) >= 100 else (None, None, None)
    share = percent / 100
    below = np.cumsum([math.exp(_log_binomial(count, k, share)) for k in range(count + 1)])
    if low is not None:
        assert below[low - 1] <= 0.025 < below[low]
    if high is not None:
        assert below[high - 1] >= 0.975 > below[high - 2]


def _log_binomial(count: int, k: int, share: float) -> float:
    ways = math.lgamma(count + 1) - math.lgamma(k + 1) - math.lgamma(count - k + 1)
    return ways + k * math.log(share) + (count - k) * math.log1p(-share)


def test_a_large_sample_is_bounded_tightly() -> None:
    """A million values: the normal approximation's ranks, to within one."""
    _, low, high = of(1_000_000, 50)
    assert low is not None and high is not None
    assert abs(low - (500_000 - 980)) <= 1 and abs(high - (500_000 + 981)) <= 1
