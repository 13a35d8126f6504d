"""Lift: which values of which attributes slow requests have more often than chance allows."""

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from pdtrace.analysis.arrays import Bools, Ints
from pdtrace.analysis.proportions import (
    Counts,
    discoveries,
    excess,
    one_sided_p,
    risk_ratio,
)
from pdtrace.analysis.triage_attributes import ATTRIBUTES, BY_NAME, LENGTH, parent_values

LEAST: Final = 20
"""Values that fewer requests have are not tested."""
SEED: Final = 7
MOST_TIMES: Final = 6
PER_TIME: Final = 30
"""Stretches of time within which rates are compared: at most so many, of so many slow requests."""
COLUMNS: Final = {
    "attribute": "str",
    "value": "str",
    "requests": "int64",
    "slow": "int64",
    "rate": "float64",
    "rest_rate": "float64",
    "risk_ratio": "float64",
    "risk_ratio_low": "float64",
    "risk_ratio_high": "float64",
    "coverage": "float64",
    "coverage_low": "float64",
    "coverage_high": "float64",
    "difference_low": "float64",
    "difference_high": "float64",
    "p": "float64",
    "found": "bool",
    "same_as": "int64",
    "yields_to": "str",
}


def lift(attributes: pd.DataFrame, slow: pd.Series, at_ns: Ints) -> pd.DataFrame:
    """One row per tested value (columns: `COLUMNS`), by the lower bound of coverage, descending.

    `attributes`: of every comparable request, slow or not; `slow`: bool over them; `at_ns`:
    their arrivals.
    `coverage`: slow requests beyond the rest's rate over all slow ones; `difference_*`: the same
    per request with the value. All rates are compared within buckets of prompt length and
    stretches of time: an engine that only served while all were slow is not to blame.
    `found`: believed at a false-discovery rate of 5 %. `same_as`: equal numbers mark values that
    exactly the same requests have. `yields_to`: a related value that explains it, see there.
    """
    hit = slow.to_numpy(np.bool_)
    length = pd.factorize(attributes[LENGTH])[0]
    times = _times(at_ns, int(hit.sum()))
    both = length * MOST_TIMES + times
    strata = int(both.max(initial=0)) + 1
    tables = [
        # Within one bucket of length there is nothing to compare lengths with.
        _tested(attributes[one.name], one.name, times if one.name == LENGTH else both, strata, hit)
        for one in ATTRIBUTES
    ]
    known = [table for table in tables if len(table.values)]
    if not known:
        return pd.DataFrame({name: pd.Series(dtype=kind) for name, kind in COLUMNS.items()})
    counts = Counts(
        *(np.concatenate(part) for part in zip(*(t.counts for t in known), strict=True))
    )
    every = _numbers(counts, int(hit.sum())).assign(
        attribute=np.repeat([t.name for t in known], [len(t.values) for t in known]),
        value=np.concatenate([t.values for t in known]),
        same_as=np.concatenate([t.same_as for t in known]),
    )
    every["found"] = discoveries(every["p"].to_numpy(np.float64))
    every["yields_to"] = _yields_to(every, attributes)
    ordered = every.sort_values(["coverage_low", "coverage"], ascending=False, kind="stable")
    return ordered[list(COLUMNS)].reset_index(drop=True).astype(COLUMNS)


def _times(at_ns: Ints, slow: int) -> Ints:
    """Each request's stretch of time; each holds as many requests, small sets have only one."""
    count = min(max(slow // PER_TIME, 1), MOST_TIMES)
    rank = np.empty(len(at_ns), dtype=np.int64)
    rank[np.argsort(at_ns, kind="stable")] = np.arange(len(at_ns))
    times: Ints = rank * count // max(len(at_ns), 1)
    return times


class _Tested(NamedTuple):
    """The tested values of one attribute: their counts, and marks of who has them."""

    name: str
    values: npt.NDArray[np.object_]
    counts: Counts
    same_as: Ints


def _tested(values: pd.Series, name: str, stratum: Ints, strata: int, slow: Bools) -> _Tested:
    """No value where all requests agree. `stratum`: within which of `strata` each one lies."""
    code, names = pd.factorize(values)
    sizes = np.bincount(code, minlength=len(names))
    tested = (sizes >= LEAST) & (sizes < len(code)) & np.asarray(names != "")
    shape = (len(names), strata)
    cell = code * strata + stratum
    size, hit = (
        np.bincount(cells, minlength=len(names) * strata).reshape(shape)
        for cells in (cell, cell[slow])
    )
    rest, rest_hit = size.sum(axis=0) - size, hit.sum(axis=0) - hit
    parts = (part[tested].astype(np.float64) for part in (hit, size, rest_hit, rest))
    same = np.zeros(len(names), dtype=np.int64)
    np.add.at(same, code, np.random.default_rng(SEED).integers(1, 2**62, len(code)))
    return _Tested(name, np.asarray(names)[tested], Counts(*parts), same[tested])


def _numbers(counts: Counts, slow: int) -> pd.DataFrame:
    size, hit = counts.size.sum(axis=1), counts.slow.sum(axis=1)
    rest, rest_hit = counts.rest.sum(axis=1), counts.rest_slow.sum(axis=1)
    best, low, high = excess(counts)
    ratio, ratio_low, ratio_high = risk_ratio(counts)
    return pd.DataFrame(
        {
            "requests": size.astype(np.int64),
            "slow": hit.astype(np.int64),
            "rate": hit / size,
            "rest_rate": rest_hit / rest,
            "risk_ratio": ratio,
            "risk_ratio_low": ratio_low,
            "risk_ratio_high": ratio_high,
            "coverage": best / max(slow, 1),
            "coverage_low": low / max(slow, 1),
            "coverage_high": np.minimum(high / max(slow, 1), 1),
            "difference_low": low / size,
            "difference_high": high / size,
            "p": one_sided_p(counts),
        }
    )


def _related(attributes: pd.DataFrame, tested: pd.DataFrame) -> pd.DataFrame:
    """Tested values and their tested parents as places: child, parent; equal sets left out."""
    at = {
        key: place
        for place, key in enumerate(zip(tested["attribute"], tested["value"], strict=True))
    }
    owners = {
        name: parent_values(attributes, name)
        for name in tested["attribute"].unique()
        if BY_NAME[name].parents
    }
    pairs = [
        (place, at[parent, owner])
        for (name, value), place in at.items()
        if name in owners
        for parent, owner in owners[name].loc[value].items()
        if (parent, owner) in at
    ]
    same = tested["same_as"].to_list()
    kept = [(child, parent) for child, parent in pairs if same[child] != same[parent]]
    return pd.DataFrame(kept, columns=["child", "parent"], dtype="int64")


def _yields_to(tested: pd.DataFrame, attributes: pd.DataFrame) -> list[str]:
    """The related value to prefer, as `attribute=value`; "" where a value stands for itself.

    A fault of one pair also raises the rates of its two engines, the less the more pairs they
    are in, and covers as many slow requests in all three. So rates decide: a child stands if its
    difference of rates beats every parent's (lower bound against upper bound), else it yields.
    A parent yields to a child that beats it and covers as much.
    """
    related = _related(attributes, tested)
    low, high = tested["difference_low"].to_numpy(), tested["difference_high"].to_numpy()
    child, parent = related["child"].to_numpy(), related["parent"].to_numpy()
    beats = low[child] > high[parent]
    covers = tested["coverage"].to_numpy()[child] >= tested["coverage_low"].to_numpy()[parent]
    names = (tested["attribute"] + "=" + tested["value"]).to_list()
    to = [""] * len(tested)
    for one, other, wins in zip(child.tolist(), parent.tolist(), beats.tolist(), strict=True):
        if not wins:
            to[one] = names[other]
    standing = beats & covers & np.array([not to[one] for one in child.tolist()], dtype=np.bool_)
    same = tested["same_as"].to_list()
    for one, other in zip(child[standing].tolist(), parent[standing].tolist(), strict=True):
        for place in range(len(tested)):
            if same[place] == same[other]:
                to[place] = to[place] or names[one]
    return to
