"""Instants of a request from the spans that count: small lookups shared by the joins."""

from collections.abc import Sequence
from typing import Literal

import pandas as pd

from pdtrace.analysis.attempts import SIDE_DECODE, SIDE_PREFILL


class Cone:
    """Spans of the tries that count, and their events, ready for lookups by request.

    `spans`: own spans with `side`; `events`: name, time_ns, peer_rank, and the span's
    request_id, side, span, start_ns, end_ns, tp_rank, pp_rank. `requests`: index of ids.
    Every lookup returns a nullable Int64 series over `requests` in ns.
    """

    def __init__(self, spans: pd.DataFrame, events: pd.DataFrame, requests: pd.Index) -> None:
        self.spans = spans
        self.requests = requests
        context = spans[
            ["request_id", "side", "name", "start_ns", "end_ns", "tp_rank", "pp_rank"]
        ].rename(columns={"name": "span"})
        self.events = events.merge(context, left_on="row", right_index=True)
        self._by_name = dict(tuple(spans.groupby("name")))

    def named(self, names: str | Sequence[str], side: str = "") -> pd.DataFrame:
        """Spans with one of these names, on `side` if given."""
        wanted = [names] if isinstance(names, str) else names
        found = [self._by_name[name] for name in wanted if name in self._by_name]
        rows = pd.concat(found) if found else self.spans.iloc[:0]
        return rows[rows["side"] == side] if side else rows

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
        """min or max of an integer column by request."""
        grouped = rows.groupby("request_id")[column].agg(how)
        return grouped.astype("Int64").reindex(self.requests)

    def has(self, names: str | Sequence[str], side: str = "") -> pd.Series:
        """Is there such a span? (bool)"""
        return self.listed(self.named(names, side))

    def listed(self, rows: pd.DataFrame) -> pd.Series:
        """Does the request occur in `rows`? (bool)"""
        return pd.Series(self.requests.isin(rows["request_id"]), index=self.requests)

    def text(self, column: str, rows: pd.DataFrame) -> pd.Series:
        """The first non-empty text by time, "" where there is none."""
        said = rows[rows[column] != ""].sort_values(["start_ns", "end_ns", column])
        first = said.groupby("request_id")[column].first()
        return first.reindex(self.requests).fillna("").astype("str")

    def p_start(self, names: str | Sequence[str]) -> pd.Series:
        """Earliest start on P's side."""
        return self.start(names, SIDE_PREFILL)

    def d_start(self, names: str | Sequence[str]) -> pd.Series:
        """Earliest start on D's side."""
        return self.start(names, SIDE_DECODE)


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
