"""Alignment: one table on one axis of time, in a copy, with how wrong it can be by request.

Each request keeps the lengths that its hosts measured: within one request a clock is moved as a
whole. It is moved to the router's clock if the request has one, else to P's; and all of it to the
reference of all clocks that have to do with each other. Moved is by the midpoint of the interval
in which the offset lies; a clock whose offset has no bound on one side is not moved.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd

from pdtrace.analysis.anchors import shifted
from pdtrace.analysis.arrays import Ints
from pdtrace.analysis.attempts import SIDE_DECODE, SIDE_PREFILL, SIDE_ROUTER, own_spans
from pdtrace.analysis.clock_drift import NO_BOUND, slack
from pdtrace.analysis.clock_evidence import messages, together
from pdtrace.analysis.clocks import DRIFT_PPM, Clocks
from pdtrace.analysis.coded import decoded, plain
from pdtrace.analysis.cone import later
from pdtrace.analysis.table import SpansTable
from pdtrace.tracing import semconv

_GO_ON: Final = (semconv.SPAN_REQUEST, semconv.SPAN_LEG, semconv.SPAN_LEASE, semconv.SPAN_DECODE)
"""Spans that go on after the first token: only their starts matter here."""
_AT_ONCE: Final = 10**7


@dataclass(frozen=True)
class Alignment:
    """`table`: a copy with moved times, and a column `shift_ns`: what was taken off each time.

    `clocks`: the offsets, None where all is on one clock. `request`: by row of the spans frame the
    number of its request here (int64). `pairs`: request, one, other (clock ids), and how wrong
    the aligned times of the two can be to each other (`halfwidth_ns`, `<NA>`: no bound is known).
    """

    table: SpansTable
    clocks: Clocks | None
    request: pd.Series
    pairs: pd.DataFrame

    def halfwidths(self, spans: pd.DataFrame) -> pd.Series:
        """By `key` of `spans` that has several clocks: the largest half-width of its pairs (Int64).

        `<NA>` where one of the pairs has none.
        """
        named = spans.loc[spans["clock_id"] != "", ["key", "clock_id"]].astype({"clock_id": "str"})
        named = named.assign(request=self.request.reindex(named.index)).drop_duplicates()
        both = named.merge(named, on="key", suffixes=("", "_other"))
        both = both[both["clock_id"] < both["clock_id_other"]]
        found = both.merge(
            self.pairs,
            how="left",
            left_on=["request", "clock_id", "clock_id_other"],
            right_on=["request", "one", "other"],
        )
        grouped = found["halfwidth_ns"].groupby(found["key"])
        widest: pd.Series = grouped.max().where(grouped.count() == grouped.size())
        return widest


_NO_PAIRS: Final = {"request": "int64", "one": "str", "other": "str", "halfwidth_ns": "Int64"}


@dataclass(frozen=True)
class Testimony:
    """What a table says of its clocks: `messages` between them (of `clock_evidence`), and by
    clock id how near to the router the first side is that uses it (`rank`)."""

    messages: pd.DataFrame
    rank: pd.Series


def align(table: SpansTable, drift_ppm: float = DRIFT_PPM) -> Alignment:
    """The spans table on one axis of time. `drift_ppm`: how fast two clocks may drift apart."""
    return aligned(table, clocks_in(table, drift_ppm))


def clocks_in(table: SpansTable, drift_ppm: float = DRIFT_PPM) -> Clocks | None:
    """The offsets between the clocks that our own spans name; None where it is one clock."""
    spans = table.spans
    ours = spans.loc[spans["name"].isin(semconv.OWN_SPANS) & (spans["clock_id"] != ""), "clock_id"]
    return clocks_of([testimony(table)], drift_ppm) if ours.nunique() > 1 else None


def testimony(table: SpansTable) -> Testimony:
    """What a table of whole requests says of its clocks."""
    own = own_spans(table.spans)
    return Testimony(messages(own, table.events), _ranks(own))


def clocks_of(parts: Sequence[Testimony], drift_ppm: float = DRIFT_PPM) -> Clocks:
    """The offsets between the clocks, from what all parts say."""
    rank = pd.concat([part.rank for part in parts])
    first = rank.groupby(level=0).min()
    names = sorted(first.index, key=lambda clock: (first[clock], clock))
    return Clocks(together([part.messages for part in parts]), names, drift_ppm)


def aligned(table: SpansTable, clocks: Clocks | None) -> Alignment:
    """The table with its clocks moved by these offsets; None: all is on one clock."""
    if clocks is None:
        moved = shifted(table, pd.Series(np.int64(0), index=table.spans.index))
        pairs = pd.DataFrame({name: pd.Series(dtype=kind) for name, kind in _NO_PAIRS.items()})
        return Alignment(moved, None, pd.Series(dtype="int64"), pairs)
    own = own_spans(table.spans)
    own = own.assign(clock_id=plain(own["clock_id"]))
    uses = _uses(own, clocks)
    uses, pairs = _offsets(uses, clocks)
    shift = own[["key", "clock_id"]].merge(
        uses[["key", "clock_id", "shift_ns"]], how="left", on=["key", "clock_id"]
    )["shift_ns"]
    by_row = pd.Series(shift.fillna(0).to_numpy(np.int64), index=own.index)
    by_row = by_row.reindex(table.spans.index, fill_value=0)
    return Alignment(shifted(table, by_row), clocks, own["key"], pairs)


def _ranks(own: pd.DataFrame) -> pd.Series:
    """By clock id: 0 if a router uses it, 1 if a prefill engine does, else 2 (int64)."""
    places = {SIDE_ROUTER: 0, SIDE_PREFILL: 1, SIDE_DECODE: 2}
    named = decoded(own.loc[own["clock_id"] != "", ["clock_id", "side"]].drop_duplicates())
    return named["side"].map(places).astype("int64").groupby(named["clock_id"]).min()


def _uses(own: pd.DataFrame, clocks: Clocks) -> pd.DataFrame:
    """One row per request and clock, sorted: key, clock_id, `clock` (its number), `local` (the
    number of the request's reference), and `start_ns`, `end_ns`: from when to when the request has
    instants on this clock, until its first token, on the common axis."""
    named = own[(own["clock_id"] != "") & ~own["phantom"]]
    until = named["end_ns"].where(~named["name"].isin(_GO_ON), named["start_ns"])
    spans = named[["key", "clock_id", "start_ns"]].assign(end_ns=until)
    uses = spans.groupby(["key", "clock_id"]).agg({"start_ns": "min", "end_ns": "max"})
    uses = uses.reset_index()
    place = clocks.number(uses["clock_id"])
    uses = uses.assign(
        clock=place,
        start_ns=clocks.axis(uses["start_ns"].to_numpy(np.int64), place),
        end_ns=clocks.axis(uses["end_ns"].to_numpy(np.int64), place),
    ).sort_values(["key", "clock"], ignore_index=True)
    return uses.assign(local=uses.groupby("key")["clock"].transform("first"))


def _offsets(uses: pd.DataFrame, clocks: Clocks) -> tuple[pd.DataFrame, pd.DataFrame]:
    """`uses` with `shift_ns` (nullable), and the pairs of `Alignment`."""
    size = max(1, _AT_ONCE // len(clocks.names) ** 2)
    # All of a request together; those that are near in time share points of a coarse grid.
    begun = uses.groupby("key")["start_ns"].transform("min")
    uses = uses.assign(begun_ns=begun).sort_values(["begun_ns", "key", "clock"], ignore_index=True)
    part = uses.groupby("key", sort=False).ngroup().to_numpy(np.int64) // size
    done = [_shifted(rows, clocks) for _, rows in uses.groupby(part)]
    return (
        pd.concat([shifted for shifted, _ in done], ignore_index=True),
        pd.concat([pairs for _, pairs in done], ignore_index=True),
    )


def _shifted(uses: pd.DataFrame, clocks: Clocks) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The same for some requests."""
    start, end, clock, local = (
        uses[name].to_numpy(np.int64) for name in ("start_ns", "end_ns", "clock", "local")
    )
    bounds, row = clocks.between(start, end), np.arange(len(uses), dtype=np.int64)
    offset = midpoint(bounds, row, clock, local)
    onward = midpoint(bounds, row, local, clocks.references[local])
    # One for the whole request: that of its reference's own row, which is its first.
    onward = onward.fillna(0).groupby(uses["key"].to_numpy()).transform("first")
    moved = uses.assign(
        row=row,
        offset_ns=offset.set_axis(uses.index),
        shift_ns=(offset + onward).set_axis(uses.index),
    )
    return moved, _errors(moved, bounds, clocks.ppb)


def _errors(uses: pd.DataFrame, bounds: Ints, ppb: int) -> pd.DataFrame:
    """How wrong each two clocks of a request can be to each other: the pairs of `Alignment`."""
    both = uses.merge(uses, on="key", suffixes=("", "_to"))
    both = both[both["clock_id"] < both["clock_id_to"]]
    one, other = both["clock"].to_numpy(np.int64), both["clock_to"].to_numpy(np.int64)
    local = both["local"].to_numpy(np.int64)
    # Against the reference, which is not moved, only the instants of the moved clock matter.
    row = both["row"].where(one != local, both["row_to"]).to_numpy(np.int64)
    used = both["offset_ns"] - both["offset_ns_to"]
    above, below = bounds[row, one, other], bounds[row, other, one]
    first = np.minimum(both["start_ns"], both["start_ns_to"])
    last = np.maximum(both["end_ns"], both["end_ns_to"])
    drift = slack((last - first).to_numpy(np.int64), ppb)
    apart = np.where((one == local) | (other == local), 0, drift)
    bounded = (above < NO_BOUND) & (below < NO_BOUND)
    error = later(above - used, used + below) + apart
    return pd.DataFrame(
        {
            "request": both["key"],
            "one": both["clock_id"],
            "other": both["clock_id_to"],
            "halfwidth_ns": error.where(bounded).astype("Int64"),
        }
    )


def midpoint(bounds: Ints, row: Ints, one: Ints, other: Ints) -> pd.Series:
    """Of clock `one` less clock `other`: the middle of its interval, rounded down (Int64 ns).

    `<NA>` where it is not bounded on both sides. All but `bounds` have shape (m,).
    """
    above, below = bounds[row, one, other], bounds[row, other, one]
    middle = (above - below) // 2
    return pd.Series(pd.arrays.IntegerArray(middle, (above >= NO_BOUND) | (below >= NO_BOUND)))
