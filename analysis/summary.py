"""Many requests in a few numbers: quantiles by kind of request, and sums whose means add up.

Quantiles are order statistics of the integers observed, never interpolated, and each has its
count and a 95 % interval. The p95 of a class plus the p95 of another is not the p95 of their sum;
means do add up, so phases are given as sums with their count.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

import numpy as np
import pandas as pd

from pdtrace.analysis import buckets, phases
from pdtrace.analysis.arrays import Bools, Ints
from pdtrace.analysis.evidence import ABORTED, LEASE_EXPIRED, PHANTOM
from pdtrace.analysis.grouped import SMALLEST
from pdtrace.analysis.quantiles import quantile
from pdtrace.analysis.split import Split

PERCENTS: Final = (50, 95, 99)
TTFT: Final = "ttft"
TPOT: Final = "tpot"
MEASURES: Final = (TTFT, *phases.CLASSES, TPOT)
IN_KINDS: Final = (TTFT, phases.COMPUTE, phases.COORDINATION)
NOT_KNOWN: Final = buckets.NOT_KNOWN
PAIR: Final = "P → D"
LENGTH: Final = "prompt"
CACHE: Final = "prefix cache"
_LOOKED_AT: Final = (
    "mode", "flags", "outcome", "t1_ns", "d_token_ns", "ttft_ns", "tpot_ns", "lower_bound",
    "prefill_engine", "decode_engine", "input_tokens", "prefill_cached_tokens", "external_tokens",
    "loads", "local",
)  # fmt: skip
"""Columns of the requests; to choose rows of all of them would copy all of them."""


@dataclass(frozen=True)
class Summary:
    """`counts` by mode: requests, split, no_first_token, token_not_known, aborted, phantoms,
    not_split, lease_expired, lower_bounds.
    `outcomes`: mode, outcome, count, the most frequent first.
    `known`: mode, phase, count, total_ns of the requests without a TTFT.
    `quantiles`: mode, measure, count, p50_ns, p50_low_ns, p50_high_ns, the same for p95 and p99
    (`<NA>` = too few), at_least. `kinds`: the same by `by` and `kind` within a mode: pair of
    engines, prompt length, prefix cache. `exposed_sums`, `hidden_sums`: int64 ns by mode, one
    column per phase.
    """

    counts: pd.DataFrame
    outcomes: pd.DataFrame
    known: pd.DataFrame
    quantiles: pd.DataFrame
    kinds: pd.DataFrame
    exposed_sums: pd.DataFrame
    hidden_sums: pd.DataFrame


def summarise(split: Split) -> Summary:
    """Numbers by transfer mode.

    Requests whose lease expired before the data landed are counted, and kept out of latencies:
    their answers may rest on reused blocks.
    """
    rows = split.requests[list(_LOOKED_AT)]
    rows = rows.assign(
        shown_mode=rows["mode"].replace("", NOT_KNOWN),
        **_flagged(rows["flags"], (LEASE_EXPIRED, ABORTED, PHANTOM)),
    )
    place = split.places
    trusted = ~rows[LEASE_EXPIRED]
    whole = trusted & (place >= 0)
    mode, at = rows.loc[whole, "shown_mode"].to_numpy(), place[whole]
    kept = rows if trusted.all() else rows[trusted]
    measured = _Measured.of(kept, split, place[trusted])
    return Summary(
        counts=_counts(rows, whole),
        outcomes=_outcomes(rows),
        known=_known(rows, split),
        quantiles=_quantiles(kept, measured),
        kinds=_kinds(kept, measured),
        exposed_sums=split.exposed.iloc[at].groupby(mode).sum().rename_axis("shown_mode"),
        hidden_sums=split.hidden.iloc[at].groupby(mode).sum().rename_axis("shown_mode"),
    )


def _counts(rows: pd.DataFrame, whole: pd.Series) -> pd.DataFrame:
    censored = rows["t1_ns"].isna()
    marks = pd.DataFrame(
        {
            "requests": True,
            "split": whole,
            "no_first_token": censored & (rows["outcome"] != ""),
            "token_not_known": censored & (rows["outcome"] == ""),
            "aborted": rows[ABORTED],
            "phantoms": rows[PHANTOM],
            "not_split": ~whole & ~censored,
            "lease_expired": rows[LEASE_EXPIRED],
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


@dataclass(frozen=True)
class _Measured:
    """By measure what each request took (ns, `SMALLEST`: not known), and whose TTFT is a bound."""

    values: dict[str, Ints]
    lower_bound: Bools

    @classmethod
    def of(cls, rows: pd.DataFrame, split: Split, place: Ints) -> Self:
        """`place`: of each row among the requests that have a split, -1 where it has none."""
        values = {
            name: rows[f"{name}_ns"].to_numpy(np.int64, na_value=SMALLEST) for name in (TTFT, TPOT)
        }
        for name in phases.CLASSES:
            known = split.classes[name].to_numpy(np.int64)
            values[name] = np.append(known, SMALLEST)[place]
        return cls(values, rows["lower_bound"].to_numpy(np.bool_))

    def quantiles(self, rows: Ints, measure: str) -> dict[str, object]:
        """Of some rows, by their places."""
        every = self.values[measure][rows]
        values = pd.Series(every[every != SMALLEST])
        bounded = bool(self.lower_bound[rows][every != SMALLEST].any())
        found: dict[str, object] = {
            "measure": measure,
            "count": len(values),
            "at_least": bounded and measure in (TTFT, phases.EDGE),
        }
        for percent in PERCENTS:
            one = quantile(values, percent)
            found |= {
                f"p{percent}_ns": one.value,
                f"p{percent}_low_ns": one.low,
                f"p{percent}_high_ns": one.high,
            }
        return found


def _quantiles(rows: pd.DataFrame, measured: _Measured) -> pd.DataFrame:
    """By mode, of every measure."""
    found = [
        {"mode": mode, **measured.quantiles(mine, measure)}
        for mode, mine in _places(rows["shown_mode"])
        for measure in MEASURES
    ]
    return _typed(found, ("mode",))


def _kinds(rows: pd.DataFrame, measured: _Measured) -> pd.DataFrame:
    """By mode and by each way of sorting requests, kinds in their natural order."""
    ends = [rows[name].replace("", NOT_KNOWN) for name in ("prefill_engine", "decode_engine")]
    sorted_by: dict[str, pd.Series] = {
        PAIR: ends[0] + " → " + ends[1],
        LENGTH: buckets.prompt_length(rows),
        CACHE: buckets.cache_state(rows),
    }
    found = [
        {"mode": mode, "by": by, "kind": str(kind), **measured.quantiles(mine, measure)}
        for by, kinds in sorted_by.items()
        for (mode, kind), mine in _places(rows["shown_mode"], kinds)
        for measure in IN_KINDS
    ]
    return _typed(found, ("mode", "by", "kind"))


def _places(*keys: pd.Series) -> Iterator[tuple[Any, Ints]]:
    """The places of the rows of each group, in the order of the groups."""
    kinds = [pd.Categorical(key) for key in keys]
    shape = [len(kind.categories) for kind in kinds]
    number = np.ravel_multi_index([kind.codes for kind in kinds], shape)
    order = np.argsort(number, kind="stable")
    each, first = np.unique(number[order], return_index=True)
    for one, places in zip(each, np.split(order, first[1:]), strict=True):
        at = np.unravel_index(one, shape)
        names = [kind.categories[place] for kind, place in zip(kinds, at, strict=True)]
        yield names[0] if len(names) == 1 else tuple(names), places


def _typed(found: list[dict[str, object]], keys: tuple[str, ...]) -> pd.DataFrame:
    dtypes = {
        **dict.fromkeys((*keys, "measure"), "str"),
        "count": "int64",
        **{f"p{p}{end}_ns": "Int64" for p in PERCENTS for end in ("", "_low", "_high")},
        "at_least": "bool",
    }
    return pd.DataFrame(
        {name: pd.Series([one[name] for one in found], dtype=as_) for name, as_ in dtypes.items()}
    )


def _flagged(held: pd.Series, flags: Sequence[str]) -> dict[str, Bools]:
    """By flag, whether each request holds it; `held`: a tuple of flags each."""
    code, kinds = pd.factorize(held.to_numpy())
    return {flag: np.array([flag in kind for kind in kinds], np.bool_)[code] for flag in flags}
