"""From sources to a split, in as many parts as there are: what `pdtrace split` does."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd

from pdtrace.analysis.account import Account, Refused
from pdtrace.analysis.clock_notes import anchor_notes, clock_notes
from pdtrace.analysis.clocks import DRIFT_PPM, Clocks
from pdtrace.analysis.load import handoffs_of, loaded
from pdtrace.analysis.opened import Large, Workers, nothing_named, opened
from pdtrace.analysis.parallel import Also, nothing_more, read, split_parts
from pdtrace.analysis.sources import DEFAULT_LIMITS, Limits, SourceError
from pdtrace.analysis.spill import Spill
from pdtrace.analysis.split import Split, split
from pdtrace.analysis.table import Copies, build
from pdtrace.analysis.tabulate import notes_of
from pdtrace.analysis.timeline import COLUMNS, timeline

Timelines = Callable[[Split, Sequence[str]], pd.DataFrame]


@dataclass(frozen=True)
class Analysed:
    """`notes`: sentences for the user about what was left out or changed. `partial`: the source
    said that its answer was cut. `timelines`: pieces to draw of some requests (`timeline.pieces`).
    `clocks`: None where all is on one clock. `beside`: what else was asked for (`parallel.Also`).
    `spill`: where the spans are that timelines are drawn of, if not in the sources.
    """

    split: Split
    notes: list[str]
    partial: bool
    timelines: Timelines
    clocks: Clocks | None
    beside: pd.DataFrame
    spill: Spill | None = None


def analyse(
    sources: Sequence[str | Path],
    limits: Limits = DEFAULT_LIMITS,
    drift_ppm: float = DRIFT_PPM,
    workers: Workers | None = None,
    near: Workers | None = None,
    also: Also = nothing_more,
) -> Analysed:
    """Split the requests of `sources`; `also`: what else is needed of them.

    A spans table in Parquet is split in parts, on `workers` if there is more than one part, so it
    need not fit into memory. Any other source is read here; if it is large, its spans are kept in
    a temporary directory, and split in the same way on `near`, which are of this machine. The
    result is the same.

    Raises `SourceError`, one sentence, where nothing can be read or no span says which request
    waited for what.
    """
    source = opened(sources, limits)
    if isinstance(source, Large):
        return _in_parts(source, drift_ppm, workers if source.spill is None else near, also)
    found = loaded(source, drift_ppm)
    done = split(found.handoffs)
    return Analysed(
        done,
        found.notes,
        found.partial,
        lambda done, ids: timeline(found.handoffs, done, ids),
        found.clocks,
        also(found.handoffs, done),
    )


def _in_parts(source: Large, drift_ppm: float, workers: Workers | None, also: Also) -> Analysed:
    cut, refused = source.partial, source.reading.tally.refused
    with source.divided(workers) as (division, executor):
        found = split_parts(division, drift_ppm, executor, cut, refused, also)
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

    account = replace(found.account, rejected=found.account.rejected + source.rejected)
    if alone := _elsewhere(account, refused):
        account += Account.of(build([]), Copies(), alone)
    notes = [*notes_of(source.reading, account), *anchor_notes(division.readings)]
    notes += clock_notes(requests, found.clocks)
    beside = pd.concat(found.beside, ignore_index=True)
    return Analysed(found.split, notes, cut, timelines, found.clocks, beside, source.spill)


def _elsewhere(account: Account, refused: Refused) -> Refused:
    """What was refused of traces that have no other span."""
    if not refused:
        return ()
    traces = set(account.without([ids[0] for ids in refused]))
    return [ids for ids in refused if ids[0] in traces]
