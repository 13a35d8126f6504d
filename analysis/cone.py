"""Instants of a request from the spans that count: small lookups shared by the joins."""

from collections.abc import Sequence
from typing import Literal

import numpy as np
import pandas as pd

from pdtrace.analysis.coded import NO_CODE, codes
from pdtrace.analysis.grouped import LARGEST, SMALLEST, ends, highest, lowest, nullable, present
from pdtrace.analysis.row_view import RowView, together


class Cone:
    """Spans of the tries that count, and their events, ready for lookups by request.

    `spans`: own spans with `key`, `side`; `events`: name, time_ns, peer_rank, and the span's
    side, span, pp_rank, tp_rank. `labels`: the requests'; both carry `key`, the place of the
    request in them. Every lookup returns a nullable Int64 series over `requests`, which are these
    places, in ns.
    """

    def __init__(self, spans: RowView, events: pd.DataFrame, labels: pd.Index) -> None:
        self.labels = labels
        # Numbers: to compare texts again and again would take longer than all lookups.
        self.requests = pd.RangeIndex(len(labels))
        self.spans = spans
        place = spans.index.get_indexer(pd.Index(events["row"]))
        context = spans[["key", "side", "name", "tp_rank", "pp_rank"]].iloc[place[place >= 0]]
        context = context.rename(columns={"name": "span"})
        events = events[place >= 0]
        self.events = pd.concat([events, context.set_axis(events.index)], axis=1)
        # Lookups are many and small: one grouping here spares a scan of all spans for each.
        self._by_name = _apart(spans, "name")
        self._by_side = _apart(spans, "side")
        self._of_both: dict[tuple[str, str], RowView] = {}
        self._either: dict[tuple[tuple[str, str], ...], RowView] = {}
        self._nothing = RowView(spans.frame, spans.at[:0])

    def named(self, names: str | Sequence[str], side: str = "") -> RowView:
        """Spans with one of these names, on `side` if given."""
        if not isinstance(names, str):
            return self.either(*((name, side) for name in names))
        rows = self._by_name.get(names, self._nothing)
        if not side:
            return rows
        if (names, side) not in self._of_both:
            self._of_both[names, side] = rows.where(rows["side"] == side)
        return self._of_both[names, side]

    def on(self, side: str) -> RowView:
        """All spans of a side."""
        return self._by_side.get(side, self._nothing)

    def either(self, *kinds: tuple[str, str]) -> RowView:
        """Spans of one of these kinds: a name and a side, or "" for any."""
        if kinds not in self._either:
            found = [self.named(*kind) for kind in kinds]
            self._either[kinds] = together(found or [self._nothing])
        return self._either[kinds]

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

    def reduce(
        self, rows: RowView | pd.DataFrame, column: str, how: Literal["min", "max"]
    ) -> pd.Series:
        """min or max of an integer column by request; `rows` carry `key`. `<NA>` counts as none."""
        group, count = rows["key"].to_numpy(np.int64), len(self.requests)
        said = rows[column]
        known = said.notna().to_numpy(np.bool_)
        if not known.all():
            said, group = said[known], group[known]
        values = said.to_numpy(np.int64)
        found = (lowest if how == "min" else highest)(values, group, count)
        return pd.Series(pd.arrays.IntegerArray(found, ~present(group, count)), index=self.requests)

    def has(self, names: str | Sequence[str], side: str = "") -> pd.Series:
        """Is there such a span? (bool)"""
        listed = [names] if isinstance(names, str) else names
        found = self.listed(self.named(listed[0], side))
        for name in listed[1:]:
            found |= self.listed(self.named(name, side))
        return found

    def listed(self, rows: RowView | pd.DataFrame) -> pd.Series:
        """Does the request occur in `rows`, which carry `key`? (bool)"""
        found = present(rows["key"].to_numpy(np.int64), len(self.requests))
        return pd.Series(found, index=self.requests)

    def several(self, column: str) -> pd.Series:
        """Do the request's spans say different texts, "" aside? (bool)"""
        key, code = self.spans["key"].to_numpy(np.int64), codes(self.spans[column])
        said = code != NO_CODE
        first, last = ends(code[said], key[said], len(self.requests))
        return pd.Series(first < last, index=self.requests)

    def text(self, column: str, rows: RowView) -> pd.Series:
        """The first non-empty text by time, "" where there is none."""
        names = rows[column].cat.categories
        key, code, count = rows["key"].to_numpy(np.int64), codes(rows[column]), len(self.requests)
        said = code != NO_CODE
        first, last = ends(code[said], key[said], count)
        known, several = first != LARGEST, first < last
        if several.any():
            doubtful = rows[["key", "start_ns", "end_ns"]].assign(code=code)[said & several[key]]
            ordered = doubtful.sort_values(["start_ns", "end_ns", "code"]).drop_duplicates("key")
            first[ordered["key"]] = ordered["code"]
        first[~known] = NO_CODE
        return pd.Series(names[first], index=self.requests, dtype="str")


def _apart(rows: RowView, column: str) -> dict[str, RowView]:
    """The rows by what they say in a column of categories, each in order."""
    code, names = codes(rows[column]), rows[column].cat.categories
    # Where there are few different ones, numbers that small are sorted in one pass.
    order = np.argsort(code.astype(np.min_scalar_type(len(names))), kind="stable")
    ends = np.cumsum(np.bincount(code, minlength=len(names)))
    parts = np.split(rows.at[order], ends[:-1])
    return {str(name): RowView(rows.frame, at) for name, at in zip(names, parts, strict=True)}


def earlier(*series: pd.Series) -> pd.Series:
    """Row-wise minimum that ignores `<NA>`; exact."""
    return _extreme(series, np.minimum, LARGEST)


def later(*series: pd.Series) -> pd.Series:
    """Row-wise maximum that ignores `<NA>`; exact."""
    return _extreme(series, np.maximum, SMALLEST)


def _extreme(series: Sequence[pd.Series], which: np.ufunc, unknown: int) -> pd.Series:
    values = [one.to_numpy(np.int64, na_value=unknown) for one in series]
    return nullable(which.reduce(values), unknown).set_axis(series[0].index)


def first_known(*series: pd.Series) -> pd.Series:
    """Row-wise the first value that is not `<NA>`."""
    best = series[0]
    for other in series[1:]:
        gaps = best.isna().to_numpy()
        if gaps.any() and other.notna().to_numpy()[gaps].any():
            best = best.mask(gaps, other)
    return best
