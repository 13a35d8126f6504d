"""Comparing proportions over strata: intervals, pooled risk ratio, test, false discoveries.

Every array of counts has the shape (values, strata): `slow` of `size` requests with a value of
an attribute, and `rest_slow` of `rest` requests without it in the same stratum.
"""

from math import erfc, sqrt
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from pdtrace.analysis.arrays import Bools

Floats = npt.NDArray[np.float64]

Z: Final = 1.959963984540054
"""Two-sided 95 %."""


class Counts(NamedTuple):
    """Counts by value and stratum (float64, shape (values, strata))."""

    slow: Floats
    size: Floats
    rest_slow: Floats
    rest: Floats


def wilson(slow: Floats, size: Floats) -> tuple[Floats, Floats]:
    """The score interval of a proportion (Wilson, J. Am. Stat. Assoc. 22, 1927); 0 to 1 of none.

    Centre (p + z²/2n) / (1 + z²/n), half-width z/(1 + z²/n) sqrt(p(1 - p)/n + z²/4n²).
    """
    n = np.maximum(size, 1)
    p = slow / n
    centre = (p + Z**2 / (2 * n)) / (1 + Z**2 / n)
    half = Z / (1 + Z**2 / n) * np.sqrt(p * (1 - p) / n + Z**2 / (4 * n**2))
    low, high = np.maximum(centre - half, 0), np.minimum(centre + half, 1)
    return np.where(size > 0, low, 0.0), np.where(size > 0, high, 1.0)


def excess(counts: Counts) -> tuple[Floats, Floats, Floats]:
    """Slow requests beyond what the rest's rate in each stratum would give: (best, low, high).

    sum of size x (rate - rest's rate). The interval is Newcombe's hybrid of score intervals
    (Stat. Med. 17, 1998, method 10) carried over to a weighted sum as by Zou, Huang and Zhang
    (Comput. Stat. Data Anal. 53, 2009): squared distances to the limits add up. With one stratum
    it is Newcombe's interval times the size. A stratum without a rest says nothing: left out.
    """
    usable = (counts.size > 0) & (counts.rest > 0)
    size = np.where(usable, counts.size, 0)
    rate = counts.slow / np.maximum(counts.size, 1)
    rest = counts.rest_slow / np.maximum(counts.rest, 1)
    low, high = wilson(counts.slow, counts.size)
    rest_low, rest_high = wilson(counts.rest_slow, counts.rest)
    best = (size * (rate - rest)).sum(axis=1)
    below = (size**2 * ((rate - low) ** 2 + (rest_high - rest) ** 2)).sum(axis=1)
    above = (size**2 * ((high - rate) ** 2 + (rest - rest_low) ** 2)).sum(axis=1)
    return best, best - np.sqrt(below), best + np.sqrt(above)


def risk_ratio(counts: Counts) -> tuple[Floats, Floats, Floats]:
    """The pooled risk ratio and its 95 % interval (best, low, high); inf or NaN where undefined.

    R/S with R = sum slow x rest / all, S = sum rest_slow x size / all (Mantel and Haenszel, J.
    Natl. Cancer Inst. 22, 1959, for ratios of risks); variance of its logarithm after Greenland
    and Robins, Biometrics 41 (1985): sum (m n1 n2 - a c N) / N² over R S.
    """
    a, n1, c, n2 = counts
    everyone = np.maximum(n1 + n2, 1)
    r, s = (a * n2 / everyone).sum(axis=1), (c * n1 / everyone).sum(axis=1)
    variance = (((a + c) * n1 * n2 - a * c * everyone) / everyone**2).sum(axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = r / s
        spread = np.exp(Z * np.sqrt(np.maximum(variance, 0) / (r * s)))
        return ratio, ratio / spread, ratio * spread


def one_sided_p(counts: Counts) -> Floats:
    """How likely so many slow requests, or more, are if the value plays no role.

    The Cochran-Mantel-Haenszel statistic (Mantel and Haenszel 1959) as a normal deviate: (sum of
    slow - expected) / sqrt(sum of hypergeometric variances), half a request of continuity. Slow
    requests are few, so the sum is skewed and its tail is longer than the normal one: the
    deviate x that solves z = x + skewness/6 (x² - 1), the first term of Cornish and Fisher (Rev.
    Inst. Int. Stat. 5, 1938), with the third moments of the hypergeometric distributions.
    """
    a, n1, c, n2 = counts
    everyone, m = n1 + n2, a + c
    several = np.maximum(everyone, 3)
    expected = (n1 * m / np.maximum(everyone, 1)).sum(axis=1)
    variances = n1 * n2 * m * (everyone - m) / (several**2 * (several - 1))
    third = variances * (everyone - 2 * m) * (n2 - n1) / (several * (several - 2))
    variance = variances.sum(axis=1)
    spread = np.sqrt(np.where(variance > 0, variance, 1))
    z = np.maximum(a.sum(axis=1) - expected - 0.5, 0) / spread
    bend = np.maximum(third.sum(axis=1) / spread**3 / 6, 1e-9)
    z = (np.sqrt(1 + 4 * bend * (bend + z)) - 1) / (2 * bend)
    return np.array([0.5 * erfc(value / sqrt(2)) for value in z.tolist()])


def discoveries(p: Floats, rate: float = 0.05) -> Bools:
    """Which of these tests to believe so that at most `rate` of those believed are false.

    Benjamini and Hochberg, J. R. Stat. Soc. B 57 (1995): up to the largest k with p(k) <= k/m x
    rate.
    """
    if not len(p):
        return np.zeros(0, dtype=np.bool_)
    order = np.argsort(p, kind="stable")
    passed = p[order] <= rate * np.arange(1, len(p) + 1) / len(p)
    last = int(np.flatnonzero(passed)[-1]) + 1 if passed.any() else 0
    believed = np.zeros(len(p), dtype=np.bool_)
    believed[order[:last]] = True
    return believed
