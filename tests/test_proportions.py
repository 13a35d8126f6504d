"""Statistics of proportions against published examples and against their own definitions."""

from math import comb

import numpy as np
import pytest

from pdtrace.analysis.proportions import (
    Counts,
    discoveries,
    excess,
    one_sided_p,
    risk_ratio,
    wilson,
)


def counts(*strata: tuple[int, int, int, int]) -> Counts:
    """One value; per stratum: slow, size, slow of the rest, size of the rest."""
    return Counts(*(np.array([column], dtype=np.float64) for column in zip(*strata, strict=True)))


@pytest.mark.parametrize(
    "slow, size, low, high",
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (0, 0, 0.0, 1.0)],
)
def test_wilsons_interval(slow: int, size: int, low: float, high: float) -> None:
    """Method 3 in the tables of Newcombe (1998); nothing observed says nothing."""
    found = wilson(np.array([slow], dtype=float), np.array([size], dtype=float))
    assert [float(bound[0]) for bound in found] == pytest.approx([low, high], abs=5e-5)


@pytest.mark.parametrize(
    "one, other, low, high",
    [((56, 70), (48, 80), 0.0524, 0.3339), ((9, 10), (3, 10), 0.1705, 0.8090)],
)
def test_newcombes_interval(
    one: tuple[int, int], other: tuple[int, int], low: float, high: float
) -> None:
    """Method 10 in the tables of Newcombe (1998), times the number of requests."""
    _, below, above = excess(counts((*one, *other)))
    assert [below[0] / one[1], above[0] / one[1]] == pytest.approx([low, high], abs=5e-5)


def test_a_stratum_without_a_rest_says_nothing() -> None:
    """It neither adds slow requests nor widens the interval."""
    alone = excess(counts((30, 40, 20, 200)))
    beside = excess(counts((30, 40, 20, 200), (9, 9, 0, 0)))
    assert np.array_equal(alone, beside)


def test_equal_rates_within_strata_leave_nothing() -> None:
    """Simpson's paradox: more often slow in all, never more often among equals."""
    best, *_ = excess(counts((90, 100, 9, 10), (1, 10, 10, 100)))
    ratio, *_ = risk_ratio(counts((90, 100, 9, 10), (1, 10, 10, 100)))
    assert best[0] == pytest.approx(0, abs=1e-9) and ratio[0] == pytest.approx(1)


def test_risk_ratio_of_one_stratum_is_the_plain_one() -> None:
    """(28/128) / (56/256 x 0.5): with its variance 1/a - 1/n1 + 1/c - 1/n2 of the logarithm."""
    ratio, low, high = risk_ratio(counts((28, 128, 28, 256)))
    spread = np.exp(1.959964 * np.sqrt(1 / 28 - 1 / 128 + 1 / 28 - 1 / 256))
    assert [ratio[0], low[0], high[0]] == pytest.approx([2, 2 / spread, 2 * spread])


@pytest.mark.parametrize(
    "table", [(10, 20, 0, 20), (16, 150, 44, 1050), (20, 150, 40, 1050), (9, 40, 51, 1160)]
)
def test_chance_is_nearly_that_of_the_exact_test(table: tuple[int, int, int, int]) -> None:
    """Fisher's: all tables with the same margins and at least as many slow; never less."""
    slow, size, rest_slow, rest = table
    every, marked = size + rest, slow + rest_slow
    ways = [comb(size, k) * comb(rest, marked - k) for k in range(slow, min(size, marked) + 1)]
    exact = sum(ways) / comb(every, marked)
    (found,) = one_sided_p(counts(table))
    assert exact < found < 3 * exact


def test_no_variance_is_no_surprise() -> None:
    """Nobody is slow, or everybody."""
    assert one_sided_p(counts((0, 20, 0, 20))).tolist() == [0.5]
    assert one_sided_p(counts((20, 20, 20, 20))).tolist() == [0.5]


def test_discoveries_follow_benjamini_and_hochberg() -> None:
    """The example of their paper: 15 tests, the first four are believed at 5 %."""
    p = [
        0.0001, 0.0004, 0.0019, 0.0095, 0.0201, 0.0278, 0.0298, 0.0344, 0.0459, 0.3240,
        0.4262, 0.5719, 0.6528, 0.7590, 1.0,
    ]  # fmt: skip
    order = np.random.default_rng(0).permutation(15)
    assert discoveries(np.array(p)[order]).tolist() == (order < 4).tolist()
    assert discoveries(np.zeros(0)).tolist() == []
