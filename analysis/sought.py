"""The requests that a name may mean, of sources of any size: parts without them are not read."""

from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

import numpy as np
import pandas as pd

from pdtrace.analysis.account import Account
from pdtrace.analysis.clock_notes import anchor_notes, clock_notes
from pdtrace.analysis.clocks import DRIFT_PPM
from pdtrace.analysis.coded import whole
from pdtrace.analysis.find import Names, NotFound, not_found
from pdtrace.analysis.load import Loaded, handoffs_of, loaded
from pdtrace.analysis.opened import Large, Workers, opened
from pdtrace.analysis.parallel import clocks_of_parts, read
from pdtrace.analysis.parquet import RowGroup, read_columns
from pdtrace.analysis.partitions import Part
from pdtrace.analysis.sources import DEFAULT_LIMITS, Limits
from pdtrace.analysis.tabulate import notes_of

_COLUMNS = ("request_id", "engine_request_id", "trace_id")


def load_sought(
    sources: Sequence[str | Path],
    names: Names,
    limits: Limits = DEFAULT_LIMITS,
    workers: Workers | None = None,
) -> Loaded:
    """As `load`, but of a large source only the parts that hold a request by one of the names.

    Its clocks are those of all spans, its notes those of the parts. Raises `SourceError` as `load`
    does, and `NotFound` where no part holds such a request.
    """
    source = opened(sources, limits)
    if not isinstance(source, Large):
        return loaded(source)
    with source.divided(workers) as (division, executor):
        clocks = clocks_of_parts(division, DRIFT_PPM, executor)
        # Most sources are one part, and what has no name of ours in it is never divided.
        parts = division.parts if len(division.parts) == 1 else _holding(division.parts, names)
        together = tuple(rows for part in parts for rows in part.rows)
        table, copies = read(Part(together, parts[0].anchors))
    handoffs = handoffs_of(table, clocks, source.partial)
    traces = set(table.spans["trace_id"].cat.categories)
    refused = [ids for ids in source.reading.tally.refused if ids[0] in traces]
    notes = notes_of(source.reading, Account.of(table, copies, refused))
    notes += anchor_notes(division.readings)
    notes += clock_notes(handoffs.requests, clocks)
    return Loaded(handoffs, table, clocks, notes, source.partial)


def _holding(parts: Sequence[Part], names: Names) -> list[Part]:
    """The parts with a request that is called so; if there is none, with one whose name begins
    so."""
    called, begun = [], []
    for part in parts:
        each = list(_texts(part))
        if any(names.called(texts).any() for _, texts in each):
            called.append(part)
        elif not called and any(names.begun(column, texts).any() for column, texts in each):
            begun.append(part)
    if called or begun:
        return called or begun
    ids = pd.concat([_ids(part) for part in parts]).drop_duplicates()
    raise NotFound(not_found(ids, names.wanted))


def _ids(part: Part) -> pd.Series:
    found = [texts for column, texts in _texts(part) if column == _COLUMNS[0]]
    ids: pd.Series = pd.concat(found).drop_duplicates()
    return ids[ids != ""]


def _texts(part: Part) -> Iterator[tuple[str, pd.Series]]:
    """The different texts of each column of names, row group by row group."""
    for path, places in groupby(part.rows, key=lambda one: one.path):
        mine = list(places)
        groups = [RowGroup(path, one.group, len(one.rows)) for one in mine]
        for one, table in zip(mine, read_columns(groups, _COLUMNS), strict=True):
            for column in _COLUMNS:
                array = whole(table[column])
                used = np.unique(array.indices.to_numpy()[one.rows])
                yield column, pd.Series(array.dictionary.to_pandas(), dtype="str").iloc[used]
