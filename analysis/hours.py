"""The spans table in files of an hour each, however many spans there are.

    DIR/hour=2026-11-29T10/spans.parquet

Spans are put in order of time some at a time, so that memory holds no more than these.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, pairwise
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from pdtrace.analysis.arrays import Ints
from pdtrace.analysis.atomic import atomic_file
from pdtrace.analysis.columns import Batch
from pdtrace.analysis.files import Source
from pdtrace.analysis.parquet import (
    RowGroup,
    read_columns,
    read_rows,
    row_groups,
    with_events,
    write_tables,
)
from pdtrace.analysis.table import TableBuilder

FILE: Final = "spans.parquet"
HOUR_NS: Final = 3600 * 10**9
PART: Final = 1 << 20
"""Spans that are put in order at a time, about: a few hundred megabytes."""


class _Starts(NamedTuple):
    """When the spans of one row group begin (Unix ns, as they lie there)."""

    group: RowGroup
    start_ns: Ints


def write_hours(batches: Iterable[Batch], directory: Path) -> list[Path]:
    """One file for each hour (UTC) in which a span begins; files that are there are replaced.

    The spans of all batches are in order of time, the events of each in that of their rows.
    """
    pieces = (piece for batch in batches for piece in _by_hour(with_events(batch)))
    written = []
    for hour, mine in groupby(pieces, key=lambda piece: piece[0]):
        path = hour_file(directory, hour)
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(path) as file:
            write_tables((rows for _, rows in mine), file)
        written.append(path)
    return written


def _by_hour(rows: pa.Table) -> Iterator[tuple[int, pa.Table]]:
    hours = rows["start_ns"].to_numpy() // HOUR_NS
    cuts = [0, *(np.flatnonzero(np.diff(hours)) + 1).tolist(), len(hours)]
    for start, end in pairwise(cuts):
        if end > start:
            yield int(hours[start]), rows.slice(start, end - start)


def hour_file(directory: Path, hour: int) -> Path:
    """The file for spans that begin in this hour, counted from 1970."""
    return directory / f"hour={np.datetime64(hour, 'h')}" / FILE


def with_kept(paths: Sequence[Path], directory: Path) -> list[Path]:
    """These files, and those that hold the same hours in `directory` already."""
    starts = np.concatenate([part.start_ns for part in _starts(paths)])
    files = (hour_file(directory, int(hour)) for hour in np.unique(starts // HOUR_NS))
    return [*paths, *(file for file in files if file.exists())]


def in_order(paths: Sequence[Source]) -> Iterator[Batch]:
    """The spans of these files in order of time, each once, some at a time.

    Copies of one span are known as such where they begin at the same time.
    """
    parts = list(_starts(paths))
    every = np.sort(np.concatenate([part.start_ns for part in parts]))
    ends = np.unique([*every[PART::PART].tolist(), int(every[-1]) + 1])
    for start_ns, end_ns in pairwise([int(every[0]), *ends.tolist()]):
        builder = TableBuilder()
        for path, mine in groupby(parts, key=lambda part: part.group.path):
            rows = {
                part.group.number: np.flatnonzero(
                    (part.start_ns >= start_ns) & (part.start_ns < end_ns)
                ).astype(np.int32)
                for part in mine
            }
            wanted = {number: places for number, places in rows.items() if len(places)}
            for batch in read_rows(path, wanted) if wanted else ():
                builder.add_batch(batch)
        spans, events, _ = builder.finish_arrow()
        yield Batch(spans, events)


def _starts(paths: Sequence[Source]) -> Iterator[_Starts]:
    for _, groups in groupby(row_groups(paths), key=lambda group: group.path):
        mine = list(groups)
        for group, table in zip(mine, read_columns(mine, ("start_ns",)), strict=True):
            yield _Starts(group, table["start_ns"].to_numpy().astype(np.int64))
