"""Instants of a request from the spans that count: small lookups shared by the joins."""

from collections.abc import Sequence
from typing import Literal

import numpy as np
import pandas as pd


class Cone:
    """Spans of the tries that count, and their events, ready for lookups by request.

    `spans`: own spans with `key`, `side`; `events`: name, time_ns, peer_rank, and the span's
    request_id, side, span, pp_rank, tp_rank. `requests`: index of ids; both frames carry
    `key`, the place of the request in it.
    Every lookup returns a nullable Int64 series over `requests` in ns.
    """

    def __init__(self, spans: pd.DataFrame, events: pd.DataFrame, requests: pd.Index) -> None:
        self.requests = requests
        self.spans = spans
        context = self.spans[["key", "request_id", "side", "name", "tp_rank", "pp_rank"]]
        self.events = events.merge(
            context.rename(columns={"name": "span"}), left_on="row", right_index=True
        )
        # Lookups are many and small: one grouping here spares a scan of all spans for each.
        self._by_name = {
            str(name): rows for name, rows in self.spans.groupby("name", observed=True)
        }
        self._by_side: dict[tuple[str, str], pd.DataFrame] = {}

    def named(self, names: str | Sequence[str], side: str = "") -> pd.DataFrame:
        """Spans with one of these names, on `side` if given."""
        if not isinstance(names, str):
            return pd.concat([self.named(name, side) for name in names])
        rows = self._by_name.get(names, self.spans.iloc[:0])
        if not side:
            return rows
        if (names, side) not in self._by_side:
            self._by_side[names, side] = rows[rows["side"] == side]
        return self._by_side[names, side]

    def start(self, names: str | Sequence[str], side: str = "") -> pd.Series:
        """Earliest start of these spans."""
        return self.reduce(self.named(names, side), "start_ns", "min")

    def end(self, names: str | Sequence[str], side: str = "") -> pd.Series:
        """Latest end of these spans."""
        return self.reduce(self.named(names, side), "end_ns", "max")

    def event(
        self, name: str, how: Literal["min", "max"], span: str = "", side: str = ""
    ) -> pd.Series:
        """Earliest or latest event of this name, on `span` and `side` if given."""
        rows = self.events[self.events["name"] == name]
        if span:
            rows = rows[rows["span"] == span]
        if side:
            rows = rows[rows["side"] == side]
        return self.reduce(rows, "time_ns", how)

    def reduce(self, rows: pd.DataFrame, column: str, how: Literal["min", "max"]) -> pd.Series:
        """min or max of an integer column by request; `rows` carry `key`, no `<NA>`."""
        key = rows["key"].to_numpy(np.int64)
        values = rows[column].to_numpy(np.int64)
        limits = np.iinfo(np.int64)
        found = np.full(len(self.requests), limits.max if how == "min" else limits.min)
        (np.minimum if how == "min" else np.maximum).at(found, key, values)
        known = np.zeros(len(self.requests), dtype=np.bool_)
        known[key] = True
        return pd.Series(pd.arrays.IntegerArray(found, ~known), index=self.requests)

    def has(self, names: str | Sequence[str], side: str = "") -> pd.Series:
        """Is there such a span? (bool)"""
        listed = [names] if isinstance(names, str) else names
        found = self.listed(self.named(listed[0], side))
        for name in listed[1:]:
            found |= self.listed(self.named(name, side))
        return found

    def listed(self, rows: pd.DataFrame) -> pd.Series:
        """Does the request occur in `rows`, which carry `key`? (bool)"""
        found = np.zeros(len(self.requests), dtype=np.bool_)
        found[rows["key"].to_numpy(np.int64)] = True
        return pd.Series(found, index=self.requests)

    def text(self, column: str, rows: pd.DataFrame) -> pd.Series:
        """The first non-empty text by time, "" where there is none."""
        said = rows[rows[column] != ""].sort_values(["start_ns", "end_ns", column])
        first = said.groupby("request_id")[column].first()
        return first.reindex(self.requests).fillna("").astype("str")


def earlier(*series: pd.Series) -> pd.Series:
    """Row-wise minimum that ignores `<NA>`; exact."""
    return _extreme(series, later_wins=False)


def later(*series: pd.Series) -> pd.Series:
    """Row-wise maximum that ignores `<NA>`; exact."""
    return _extreme(series, later_wins=True)


def _extreme(series: Sequence[pd.Series], later_wins: bool) -> pd.Series:
    best = series[0]
    for other in series[1:]:
        better = (other > best) if later_wins else (other < best)
        take = best.isna() | better.fillna(False).astype("bool")
        best = best.where(~take, other)
    return best


def first_known(*series: pd.Series) -> pd.Series:
    """Row-wise the first value that is not `<NA>`."""
    best = series[0]
    for other in series[1:]:
        best = best.where(best.notna(), other)
    return best
