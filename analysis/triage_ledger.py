"""The ledger: by how much each phase is longer in the slow requests than in the reference.

Phases sum to TTFT, so these differences of means sum to the difference of mean TTFT exactly.
"""

from typing import Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from pdtrace.analysis.arrays import Ints

Floats = npt.NDArray[np.float64]

LEAST_BLOCKS: Final = 20
MOST_BLOCKS: Final = 50
PER_BLOCK: Final = 30
RESAMPLES: Final = 1000
SEED: Final = 20_251
CONFIDENCE: Final = (2.5, 97.5)


def ledger(slow: pd.DataFrame, reference: pd.DataFrame) -> pd.DataFrame:
    """One row per phase: `slow_sum_ns`, `reference_sum_ns` (int64), `scaled` (Python integers),
    `d_ns` (difference of the means) and `share` of the rise.

    `slow`, `reference`: exposed ns by phase, one row per request, neither empty. `scaled` =
    d x both counts, so it sums to the scaled difference of mean TTFT without any rounding.
    """
    sums = slow.sum().astype("int64"), reference.sum().astype("int64")
    scaled = [
        len(reference) * mine - len(slow) * other
        for mine, other in zip(sums[0].tolist(), sums[1].tolist(), strict=True)
    ]
    whole, counts = sum(scaled), len(slow) * len(reference)
    return pd.DataFrame(
        {
            "slow_sum_ns": sums[0],
            "reference_sum_ns": sums[1],
            "scaled": pd.Series(scaled, index=slow.columns, dtype="object"),
            "d_ns": [part / counts for part in scaled],
            "share": [part / whole if whole else 0.0 for part in scaled],
        },
        index=slow.columns,
    )


def mix_and_rate(
    slow: pd.DataFrame, reference: pd.DataFrame, slow_in: pd.Series, reference_in: pd.Series
) -> pd.DataFrame:
    """Each phase's d split in `mix_ns` (other requests) and `rate_ns` (same requests, slower).

    `slow_in`, `reference_in`: the stratum of each row. A stratum that one set lacks has no rate
    of its own to compare, so all it brings is mix. mix + rate = d (up to float rounding).
    d = sum over strata of (a - b)(mA + mB)/2 + (a + b)/2 (mA - mB), with a, b the shares of a
    stratum and mA, mB its means: the symmetric form of Kitagawa, J. Am. Stat. Assoc. 50 (1955).
    """
    names = slow_in.drop_duplicates().to_list()
    names += [name for name in reference_in.drop_duplicates().to_list() if name not in names]
    mean_a, a = _by_stratum(slow, slow_in, names)
    mean_b, b = _by_stratum(reference, reference_in, names)
    mean_a = np.where(a[:, None] > 0, mean_a, mean_b)
    mean_b = np.where(b[:, None] > 0, mean_b, mean_a)
    mix = ((a - b)[:, None] * (mean_a + mean_b) / 2).sum(axis=0)
    rate = ((a + b)[:, None] / 2 * (mean_a - mean_b)).sum(axis=0)
    return pd.DataFrame({"mix_ns": mix, "rate_ns": rate}, index=slow.columns)


def _by_stratum(
    exposed: pd.DataFrame, stratum: pd.Series, names: list[str]
) -> tuple[Floats, Floats]:
    """Mean ns by stratum and phase (0 where it has no request), and the strata's shares."""
    place = pd.Index(names).get_indexer(pd.Index(stratum))
    count = np.bincount(place, minlength=len(names)).astype(np.float64)
    sums = np.zeros((len(names), exposed.shape[1]))
    np.add.at(sums, place, exposed.to_numpy(np.float64))
    return sums / np.maximum(count, 1)[:, None], count / count.sum()


def intervals(
    slow: pd.DataFrame, reference: pd.DataFrame, slow_at: Ints, reference_at: Ints, together: bool
) -> pd.DataFrame:
    """95 % intervals of each phase: `d_low_ns`, `d_high_ns`, `share_low`, `share_high`.

    Blocks of time are drawn again, never single requests: requests that are served together are
    slow together (Künsch, Ann. Stat. 17 (1989); percentiles after Efron 1979). `slow_at`,
    `reference_at`: arrivals (ns); `together`: both sets are of one window, so that a block
    brings its requests of both. The seed is fixed: the same input gives the same interval.
    """
    edges = block_edges(slow_at)
    random = np.random.default_rng(SEED)
    drawn = _draws(random, len(edges) + 1)
    mean_a = _means(drawn, slow, np.searchsorted(edges, slow_at, side="right"))
    if not together:
        edges = block_edges(reference_at)
        drawn = _draws(random, len(edges) + 1)
    mean_b = _means(drawn, reference, np.searchsorted(edges, reference_at, side="right"))
    d = mean_a - mean_b
    d = d[np.isfinite(d).all(axis=1)]
    rise = d.sum(axis=1, keepdims=True)
    share = d[rise[:, 0] > 0] / rise[rise[:, 0] > 0]
    low, high = np.percentile(d, CONFIDENCE, axis=0)
    share_low, share_high = np.percentile(share, CONFIDENCE, axis=0) if len(share) else (low, high)
    found = {"d_low_ns": low, "d_high_ns": high, "share_low": share_low, "share_high": share_high}
    return pd.DataFrame(found, index=slow.columns)


def block_edges(at: Ints) -> Ints:
    """Where one block of time ends and the next begins: each holds as many of these arrivals.

    Between `LEAST_BLOCKS` and `MOST_BLOCKS` of them, about `PER_BLOCK` arrivals each.
    """
    blocks = min(max(LEAST_BLOCKS, len(at) // PER_BLOCK), MOST_BLOCKS)
    ordered = np.sort(at)
    places = (np.arange(1, blocks) * len(ordered)) // blocks
    edges: Ints = ordered[places]
    return edges


def _draws(random: np.random.Generator, blocks: int) -> Floats:
    """How often each block is drawn in each resample, shape (resamples, blocks)."""
    equal = np.full(blocks, 1 / blocks)
    return random.multinomial(blocks, equal, size=RESAMPLES).astype(np.float64)


def _means(drawn: Floats, exposed: pd.DataFrame, block: Ints) -> Floats:
    """Mean ns by resample and phase; NaN where no request was drawn."""
    sums = np.zeros((drawn.shape[1], exposed.shape[1]))
    np.add.at(sums, block, exposed.to_numpy(np.float64))
    counts = np.bincount(block, minlength=drawn.shape[1])
    weight = drawn @ counts
    means: Floats = (drawn @ sums) / np.where(weight > 0, weight, np.nan)[:, None]
    return means
