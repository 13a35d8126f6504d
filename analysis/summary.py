"""Many requests in a few numbers: quantiles by mode, and sums whose means add up.

Quantiles are order statistics of the integers observed, never interpolated. The p95 of a class
plus the p95 of another is not the p95 of their sum; means do add up, so phases are given as sums
with their count.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd

from pdtrace.analysis import phases
from pdtrace.analysis.evidence import ABORTED, LEASE_EXPIRED, PHANTOM
from pdtrace.analysis.split import Split

PERCENTS: Final = (50, 95, 99)
TTFT: Final = "ttft"
TPOT: Final = "tpot"
MEASURES: Final = (TTFT, *phases.CLASSES, TPOT)
NOT_KNOWN: Final = "not known"


@dataclass(frozen=True)
class Summary:
    """`counts` by mode: requests, split, no_first_token, token_not_known, aborted, phantoms,
    not_split, lease_expired, lower_bounds.
    `outcomes`: mode, outcome, count, the most frequent first.
    `known`: mode, phase, count, total_ns of the requests without a TTFT.
    `quantiles`: mode, measure, count, p50_ns, p95_ns, p99_ns (`<NA>` = too few),
    at_least. `exposed_sums`, `hidden_sums`: int64 ns by mode, one column per phase.
    """

    counts: pd.DataFrame
    outcomes: pd.DataFrame
    known: pd.DataFrame
    quantiles: pd.DataFrame
    exposed_sums: pd.DataFrame
    hidden_sums: pd.DataFrame


def summarise(split: Split) -> Summary:
    """Numbers by transfer mode.

    Requests whose lease expired before the data landed are counted, and kept out of latencies:
    their answers may rest on reused blocks.
    """
    rows = split.requests.assign(shown_mode=split.requests["mode"].replace("", NOT_KNOWN))
    trusted = ~_flagged(rows, LEASE_EXPIRED)
    whole = trusted & rows.index.isin(split.splittable)
    mode = rows.loc[whole, "shown_mode"]
    ids = mode.index
    return Summary(
        counts=_counts(rows, whole),
        outcomes=_outcomes(rows),
        known=_known(rows, split),
        quantiles=_quantiles(rows[trusted], split),
        exposed_sums=split.exposed.loc[ids].groupby(mode).sum(),
        hidden_sums=split.hidden.loc[ids].groupby(mode).sum(),
    )


def order_statistic(values: pd.Series, percent: int) -> int | None:
    """The smallest observed value that `percent` % of them do not exceed.

    None where the sample cannot carry it: fewer than one observation lies above, so p50 needs
    2 values, p95 needs 20, p99 needs 100.
    """
    count = len(values)
    if count * (100 - percent) < 100:
        return None
    place = -(-percent * count // 100) - 1
    return int(np.partition(values.to_numpy(np.int64), place)[place])


def _counts(rows: pd.DataFrame, whole: pd.Series) -> pd.DataFrame:
    censored = rows["t1_ns"].isna()
    marks = pd.DataFrame(
        {
            "requests": True,
            "split": whole,
            "no_first_token": censored & (rows["outcome"] != ""),
            "token_not_known": censored & (rows["outcome"] == ""),
            "aborted": _flagged(rows, ABORTED),
            "phantoms": _flagged(rows, PHANTOM),
            "not_split": ~whole & ~censored,
            "lease_expired": _flagged(rows, LEASE_EXPIRED),
            "lower_bounds": whole & rows["lower_bound"],
        },
        index=rows.index,
    )
    return marks.astype("int64").groupby(rows["shown_mode"]).sum()


def _outcomes(rows: pd.DataFrame) -> pd.DataFrame:
    said = rows.assign(outcome=rows["outcome"].replace("", NOT_KNOWN), mode=rows["shown_mode"])
    counts = said.groupby(["mode", "outcome"]).size().rename("count").reset_index()
    order = ["mode", "count", "outcome"]
    return counts.sort_values(order, ascending=[True, False, True]).reset_index(drop=True)


def _known(rows: pd.DataFrame, split: Split) -> pd.DataFrame:
    """Phases in reading order, each over the requests in which it took time."""
    order = {name: place for place, name in enumerate(phases.READING_ORDER)}
    long = split.known.melt(var_name="phase", value_name="ns", ignore_index=False)
    long = long[long["ns"] > 0]
    long = long.assign(mode=rows["shown_mode"].reindex(long.index), place=long["phase"].map(order))
    grouped = long.groupby(["mode", "place", "phase"])["ns"].agg(["size", "sum"]).reset_index()
    return grouped.rename(columns={"size": "count", "sum": "total_ns"}).drop(columns="place")


def _quantiles(rows: pd.DataFrame, split: Split) -> pd.DataFrame:
    found: dict[str, list[object]] = {name: [] for name in _QUANTILE_DTYPES}
    for mode, mine in rows.groupby("shown_mode"):
        for measure in MEASURES:
            values = _values(mine, split, measure)
            bounded = bool(mine.loc[values.index, "lower_bound"].any())
            found["mode"].append(mode)
            found["measure"].append(measure)
            found["count"].append(len(values))
            found["at_least"].append(bounded and measure in (TTFT, phases.EDGE))
            for percent in PERCENTS:
                found[f"p{percent}_ns"].append(order_statistic(values, percent))
    return pd.DataFrame(
        {name: pd.Series(found[name], dtype=dtype) for name, dtype in _QUANTILE_DTYPES.items()}
    )


_QUANTILE_DTYPES: Final = {
    "mode": "str",
    "measure": "str",
    "count": "int64",
    **{f"p{percent}_ns": "Int64" for percent in PERCENTS},
    "at_least": "bool",
}


def _values(mine: pd.DataFrame, split: Split, measure: str) -> pd.Series:
    """Known values of a measure among these requests, ns."""
    if measure == TTFT:
        return mine["ttft_ns"].dropna()
    if measure == TPOT:
        return mine["tpot_ns"].dropna()
    return split.classes[measure][split.splittable.isin(mine.index)]


def _flagged(rows: pd.DataFrame, flag: str) -> pd.Series:
    return pd.Series([flag in flags for flags in rows["flags"]], index=rows.index, dtype="bool")
