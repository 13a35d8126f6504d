"""From sources to a split, in as many parts as there are: what `pdtrace split` does."""

from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import BrokenExecutor, Executor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd

from pdtrace.analysis.account import Account, Refused
from pdtrace.analysis.clock_notes import clock_notes
from pdtrace.analysis.clocks import DRIFT_PPM
from pdtrace.analysis.files import RemoteError, Source, is_store_address
from pdtrace.analysis.load import handoffs_of, loaded, nothing_named
from pdtrace.analysis.parallel import read, split_parts
from pdtrace.analysis.parquet import ParquetError, is_spans_table, row_groups
from pdtrace.analysis.partitions import ROWS, divide
from pdtrace.analysis.sources import DEFAULT_LIMITS, Limits, SourceError, expand
from pdtrace.analysis.spill import Spill
from pdtrace.analysis.split import Split, split
from pdtrace.analysis.store import Reading
from pdtrace.analysis.table import Copies, build
from pdtrace.analysis.tabulate import collect, finished, notes_of
from pdtrace.analysis.timeline import COLUMNS, timeline

Workers = Callable[[], AbstractContextManager[Executor]]
Timelines = Callable[[Split, Sequence[str]], pd.DataFrame]


@dataclass(frozen=True)
class Analysed:
    """`notes`: sentences for the user about what was left out or changed. `partial`: the source
    said that its answer was cut. `timelines`: pieces to draw of some requests (`timeline.pieces`).
    `spill`: where the spans are that they are drawn of, if not in the sources.
    """

    split: Split
    notes: list[str]
    partial: bool
    timelines: Timelines
    spill: Spill | None = None


def analyse(
    sources: Sequence[str | Path],
    limits: Limits = DEFAULT_LIMITS,
    drift_ppm: float = DRIFT_PPM,
    workers: Workers | None = None,
    near: Workers | None = None,
) -> Analysed:
    """Split the requests of `sources`.

    A spans table in Parquet is split in parts, on `workers` if there is more than one part, so it
    need not fit into memory. Any other source is read here; if it is large, its spans are kept in
    a temporary directory, and split in the same way on `near`, which are of this machine. The
    result is the same.

    Raises `SourceError`, one sentence, where nothing can be read or no span says which request
    waited for what.
    """
    paths = _tables(sources)
    if paths:
        return _in_parts(paths, drift_ppm, workers, Reading(), Counter())
    spill = Spill()
    builder, reading = collect(sources, limits, spill)
    if spill.paths:
        builder.spill_rest()
        parts = _in_parts(spill.paths, drift_ppm, near, reading, builder.columns.rejected)
        return replace(parts, spill=spill)
    found = loaded(finished(builder, reading, sources), drift_ppm)
    return Analysed(
        split(found.handoffs),
        found.notes,
        found.partial,
        lambda done, ids: timeline(found.handoffs, done, ids),
    )


def _tables(sources: Sequence[str | Path]) -> list[Source]:
    """The files of the sources, if all of them are spans tables."""
    paths = [place.path for place in expand(sources)]
    every = all(not is_store_address(path) and is_spans_table(path) for path in paths)
    return paths if every else []


def _in_parts(
    paths: Sequence[Source],
    drift_ppm: float,
    workers: Workers | None,
    reading: Reading,
    rejected: Counter[str],
) -> Analysed:
    """`reading`: how the files came about, if not by an export; `rejected`: what they lack."""
    cut, refused = reading.tally.partial > 0, reading.tally.refused
    try:
        groups = row_groups(paths)
        several = sum(group.size for group in groups) > ROWS
        with workers() if workers is not None and several else nullcontext() as executor:
            division = divide(groups, ROWS, executor)
            if not division.parts:
                raise SourceError(nothing_named(division.spans))
            found = split_parts(division, drift_ppm, executor, cut, refused)
    except (OSError, ParquetError, RemoteError) as error:
        raise SourceError(f"cannot read the spans table: {error}") from error
    except BrokenExecutor as error:
        raise SourceError(
            "a process that split a part was lost, perhaps for want of memory: fewer --processes "
            "need less"
        ) from error
    requests = found.split.requests
    if requests.empty:
        raise SourceError(nothing_named(division.spans))

    def timelines(done: Split, ids: Sequence[str]) -> pd.DataFrame:
        part = done.requests.loc[list(ids), "part"]
        drawn = [pd.DataFrame(columns=COLUMNS)] if part.empty else []
        for number in part.unique().tolist():
            handoffs = handoffs_of(read(division.parts[number])[0], found.clocks, cut)
            drawn.append(timeline(handoffs, done, part.index[part == number].tolist()))
        return pd.concat(drawn, ignore_index=True)

    account = replace(found.account, rejected=found.account.rejected + rejected)
    if alone := _elsewhere(account, refused):
        account += Account.of(build([]), Copies(), alone)
    notes = [*notes_of(reading, account), *clock_notes(requests, found.clocks)]
    return Analysed(found.split, notes, cut, timelines)


def _elsewhere(account: Account, refused: Refused) -> Refused:
    """What was refused of traces that have no other span."""
    traces = set(account.without([ids[0] for ids in refused]))
    return [ids for ids in refused if ids[0] in traces]
