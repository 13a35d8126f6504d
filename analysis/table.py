"""The spans table: built from records or from Arrow batches, each span once, in order of time.

`spans` has one row per span and `events` one row per span event; see `schema`. Of copies of one
span (same trace id and span id) the longest stays, then the earliest, then the one whose content
sorts first, so that the order of the input decides nothing.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Self

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from pdtrace.analysis.arrays import Ints
from pdtrace.analysis.coded import from_arrow, plain, whole
from pdtrace.analysis.columns import (
    EVENT_SCHEMA,
    REJECT_BACKWARDS,
    REJECT_NO_REQUEST,
    SPAN_SCHEMA,
    Batch,
    Columns,
)
from pdtrace.analysis.host_clock import with_clocks
from pdtrace.analysis.keys import fingerprints
from pdtrace.analysis.records import SpanRecord
from pdtrace.analysis.schema import (
    EVENT_COLUMNS,
    ID,
    NULLABLE,
    SPAN_COLUMNS,
    TEXT,
    Column,
    TableError,
    validate,
)

__all__ = [
    "EVENT_COLUMNS",
    "REJECT_BACKWARDS",
    "REJECT_DUPLICATE",
    "REJECT_NO_REQUEST",
    "SPAN_COLUMNS",
    "Column",
    "Conflict",
    "Copies",
    "SpansTable",
    "TableBuilder",
    "TableError",
    "build",
    "validate",
]

REJECT_DUPLICATE: Final = "duplicate"
HELD: Final = 1 << 20
"""Spans that are held before they are spilled, about: a few hundred megabytes."""
_ORDER: Final = ("start_ns", "end_ns", "name", "trace_id", "span_id")
_SPAN: Final = ["trace_id", "span_id"]
_HOUR_NS: Final = 3600 * 10**9


@dataclass(frozen=True)
class SpansTable:
    """Spans and their events; `rejected` counts what was left out, by reason."""

    spans: pd.DataFrame
    events: pd.DataFrame
    rejected: dict[str, int]


class Conflict(NamedTuple):
    """A span that came again with other content, and how often; one copy was kept."""

    name: str
    trace_id: str
    span_id: str
    times: int


@dataclass(frozen=True)
class Copies:
    """Rows that were dropped because their span was there: `same` in content, or not."""

    same: int = 0
    conflicts: Sequence[Conflict] = field(default_factory=tuple)

    def __add__(self, other: Self) -> Self:
        """Of two tables without a span in common."""
        conflicts = sorted([*self.conflicts, *other.conflicts], key=lambda one: one[1:3])
        return type(self)(self.same + other.same, tuple(conflicts))

    @property
    def dropped(self) -> int:
        """All of them."""
        return self.same + sum(conflict.times for conflict in self.conflicts)


def build(records: Iterable[SpanRecord]) -> SpansTable:
    """The spans table of `records`; the order of the records changes nothing.

    Left out and counted: spans that end before they start, spans of ours that name no request,
    and copies of a span.
    """
    builder = TableBuilder()
    builder.add_all(records)
    table, copies = builder.finish()
    if copies.dropped:
        table.rejected[REJECT_DUPLICATE] = copies.dropped
    return table


class TableBuilder:
    """Collects spans; what has come is held in columns, not as records.

    With `spill` it is handed over whenever much of it has come, and no longer held here.
    """

    def __init__(self, spill: Callable[[Batch], None] | None = None) -> None:
        self.columns = Columns()
        self._spill = spill
        self._spans: list[pa.Table] = []
        self._events: list[pa.Table] = []
        self._rows = 0

    def add_all(self, records: Iterable[SpanRecord]) -> None:
        """Take over spans."""
        add = self.columns.add
        for record in records:
            add(record)
            if self.columns.full:
                self._flush()

    def add_batch(self, batch: Batch) -> None:
        """Take over spans that are columns already."""
        self._flush()
        self._append(batch)

    def finish(self) -> tuple[SpansTable, Copies]:
        """The table of all that came, and what was dropped as copies."""
        spans, events, copies = self.finish_arrow()
        columns = _columns(spans)
        del spans
        table = SpansTable(
            with_clocks(_frame(columns, SPAN_COLUMNS)),
            _frame(_columns(events), EVENT_COLUMNS),
            dict(self.columns.rejected),
        )
        validate(table.spans, SPAN_COLUMNS)
        validate(table.events, EVENT_COLUMNS)
        pa.default_memory_pool().release_unused()
        return table, copies

    def finish_arrow(self) -> tuple[pa.Table, pa.Table, Copies]:
        """The same as Arrow: `SPAN_SCHEMA`, `EVENT_SCHEMA`, and what was dropped as copies."""
        self._flush()
        spans = _config_once(_together(self._spans, SPAN_SCHEMA))
        events = _together(self._events, EVENT_SCHEMA)
        kept, copies = _each_once(spans, events)
        order = _in_order(spans, kept)
        moved = _moved(events, order, len(spans))
        if np.array_equal(order, np.arange(len(spans))):
            return spans, moved, copies
        columns = _columns(spans)
        del spans, events
        return _taken(columns, order), moved, copies

    def spill_rest(self) -> None:
        """Hand over what is still held."""
        self._flush()
        if self._spill is None or not self._rows:
            return
        spans, events = (
            _together(parts, schema)
            for parts, schema in ((self._spans, SPAN_SCHEMA), (self._events, EVENT_SCHEMA))
        )
        self._rows = 0
        self._spill(Batch(spans, events))

    def _flush(self) -> None:
        self._append(self.columns.batch())

    def _append(self, batch: Batch) -> None:
        spans, events = batch
        if not len(spans):
            return
        self._spans.append(spans)
        if len(events):
            shifted = pc.add(events["row"], pa.scalar(self._rows, pa.int64()))
            self._events.append(events.set_column(0, EVENT_SCHEMA.field("row"), shifted))
        self._rows += len(spans)
        pa.default_memory_pool().release_unused()
        if self._spill is not None and self._rows >= HELD:
            self.spill_rest()


def _together(batches: list[pa.Table], schema: pa.Schema) -> pa.Table:
    """One table with one dictionary a column; empties the list, a column at a time."""
    parts = [[chunk for batch in batches for chunk in batch[name].chunks] for name in schema.names]
    batches.clear()
    columns = []
    for wanted, chunks in zip(schema, parts, strict=True):
        column = pa.chunked_array(chunks, type=wanted.type)
        chunks.clear()
        columns.append(whole(column))
    return pa.table(columns, schema=schema)


def _taken(columns: dict[str, pa.ChunkedArray], rows: Ints) -> pa.Table:
    """These rows; empties `columns`, one at a time."""
    wanted = pa.array(rows)
    taken = {name: columns.pop(name).take(wanted) for name in list(columns)}
    return pa.table(taken, schema=SPAN_SCHEMA)


def _config_once(spans: pa.Table) -> pa.Table:
    """The table with each process's configuration on its first span of an hour only.

    It is long, and the same on all of them.
    """
    config = whole(spans["config"])
    texts, code = config.dictionary, config.indices.to_numpy()
    said = pc.not_equal(texts, "").to_numpy(zero_copy_only=False)
    rows = np.flatnonzero(said[code])
    start = spans["start_ns"].to_numpy()[rows]
    process = [_codes(spans[name])[rows] for name in ("engine_id", "instance_id", "role")]
    keys = np.stack([start // _HOUR_NS, code[rows], *process])
    order = np.lexsort((start, *keys))
    keys = keys[:, order]
    first = np.ones(len(rows), dtype=np.bool_)
    first[1:] = (keys[:, 1:] != keys[:, :-1]).any(axis=0)
    kept = rows[order[first]]
    shown = np.full(len(spans), len(texts), dtype=np.int32)
    shown[kept] = code[kept]
    texts = pa.concat_arrays([texts, pa.array([""], pa.string())])
    column = pa.DictionaryArray.from_arrays(pa.array(shown), texts)
    return spans.set_column(spans.column_names.index("config"), SPAN_SCHEMA.field("config"), column)


def _codes(column: pa.ChunkedArray) -> Ints:
    codes: Ints = whole(column).indices.to_numpy().astype(np.int64)
    return codes


def _each_once(spans: pa.Table, events: pa.Table) -> tuple[Ints, Copies]:
    """Rows to keep (int64, ascending), and what is dropped beside them."""
    keys = fingerprints(spans["trace_id"], spans["span_id"])
    ordered = np.sort(keys)
    twice = np.unique(ordered[1:][ordered[1:] == ordered[:-1]])
    rows: Ints = np.arange(len(spans), dtype=np.int64)
    if not len(twice):
        return rows, Copies()
    suspect = rows[np.isin(keys, twice)]
    found = _frame(_columns(spans.take(pa.array(suspect))), SPAN_COLUMNS).set_index(suspect)
    found = found[found["span_id"] != ""]
    found["length_ns"] = found["start_ns"] - found["end_ns"]
    found["said"] = _events_said(events, found.index)
    content = [*(c.name for c in SPAN_COLUMNS if c.name not in (*_SPAN, "config")), "said"]
    first = ["length_ns", "start_ns"]
    ranked = found.sort_values([*_SPAN, *first, *(c for c in content if c not in first)])
    again = ranked.duplicated(_SPAN)
    other = ranked[again & ~_like_the_kept(ranked, again, content)]
    named = other.groupby(_SPAN, sort=False)["name"].agg(["first", "size"]).reset_index()
    columns = (named[name].tolist() for name in ("first", *_SPAN, "size"))
    conflicts = tuple(Conflict(*values) for values in zip(*columns, strict=True))
    dropped = int(again.sum())
    kept = np.setdiff1d(rows, ranked.index[again].to_numpy(np.int64), assume_unique=True)
    return kept, Copies(dropped - len(other), conflicts)


def _like_the_kept(ranked: pd.DataFrame, again: pd.Series, content: list[str]) -> pd.Series:
    """Is the row the same in content as the first one of its span? (bool)"""
    head = (~again).cumsum().to_numpy()
    kept = ranked.loc[~again, content].iloc[head - 1].set_axis(ranked.index)
    equal = pd.DataFrame(
        {name: (ranked[name] == kept[name]) | (ranked[name].isna() & kept[name].isna())
         for name in content}
    )  # fmt: skip
    return equal.fillna(False).astype("bool").all(axis=1)


def _events_said(events: pa.Table, rows: pd.Index) -> pd.Series:
    """The events of these rows as one text each, "" where there are none."""
    mine = events.filter(pc.is_in(events["row"], pa.array(rows.to_numpy(np.int64))))
    frame = _frame(_columns(mine), EVENT_COLUMNS)
    frame["text"] = (
        plain(frame["name"]) + "@" + frame["time_ns"].astype("str") + "/"
        + frame["peer_rank"].astype("str").fillna("")
    )  # fmt: skip
    said = frame.sort_values("text").groupby("row")["text"].agg(";".join)
    return said.reindex(rows).fillna("").astype("str")


def _in_order(spans: pa.Table, kept: Ints) -> Ints:
    """The kept rows by time, then by name and ids."""
    start, end = (spans[name].to_numpy()[kept] for name in _ORDER[:2])
    order = kept.copy()
    later = (start[1:] > start[:-1]) | ((start[1:] == start[:-1]) & (end[1:] >= end[:-1]))
    # A file of ours is in order.
    if not later.all():
        by_time = np.lexsort((end, start))
        order, start, end = kept[by_time], start[by_time], end[by_time]
    next_is_same = (start[1:] == start[:-1]) & (end[1:] == end[:-1])
    tied = np.append(next_is_same, False) | np.insert(next_is_same, 0, False)
    if next_is_same.any():
        mine = spans.select(_ORDER).take(pa.array(order[tied]))
        plain = pa.table({name: _decoded(mine[name]) for name in _ORDER})
        ranked = pc.sort_indices(plain, sort_keys=[(name, "ascending") for name in _ORDER])
        order[tied] = order[tied][ranked.to_numpy()]
    return order


def _moved(events: pa.Table, order: Ints, count: int) -> pa.Table:
    """The events of the kept spans, with their new rows, in the order of these."""
    place = np.full(count, -1, dtype=np.int64)
    place[order] = np.arange(len(order), dtype=np.int64)
    row = place[events["row"].to_numpy()]
    by_row = np.argsort(row, kind="stable")
    by_row = by_row[row[by_row] >= 0]
    moved = events.set_column(0, EVENT_SCHEMA.field("row"), pa.array(row))
    return moved.take(pa.array(by_row))


def _decoded(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return column.cast(pa.string()) if pa.types.is_dictionary(column.type) else column


def _columns(table: pa.Table) -> dict[str, pa.ChunkedArray]:
    return dict(zip(table.column_names, table.columns, strict=True))


def _frame(table: dict[str, pa.ChunkedArray], columns: Sequence[Column]) -> pd.DataFrame:
    """The same in pandas, with the dtypes of the schema; `table` is emptied as it goes over."""
    found = {}
    for column in columns:
        values = table.pop(column.name)
        if column.dtype == TEXT:
            found[column.name] = from_arrow(values)
        elif column.dtype == ID:
            text = values.cast(pa.large_string())
            found[column.name] = pd.Series(text.to_pandas(types_mapper=_TEXTS.get))
        elif column.dtype == NULLABLE:
            found[column.name] = values.to_pandas(types_mapper={pa.int64(): pd.Int64Dtype()}.get)
        else:
            found[column.name] = values.to_pandas()
    return pd.DataFrame(found, copy=False)


_TEXTS: Final = {pa.large_string(): pd.StringDtype(na_value=np.nan)}
