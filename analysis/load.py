"""From sources to requests: read, tabulate, align the clocks, join. Every command begins here."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pdtrace.analysis.alignment import aligned, clocks_in
from pdtrace.analysis.anchors import chosen, on_one_anchor, readings
from pdtrace.analysis.clock_notes import anchor_notes, clock_notes
from pdtrace.analysis.clocks import DRIFT_PPM, Clocks
from pdtrace.analysis.handoffs import Handoffs, join
from pdtrace.analysis.intervals import negative
from pdtrace.analysis.opened import nothing_named
from pdtrace.analysis.sources import DEFAULT_LIMITS, Limits, SourceError
from pdtrace.analysis.table import SpansTable
from pdtrace.analysis.tabulate import Tabulated, tabulate


@dataclass(frozen=True)
class Loaded:
    """`handoffs`: the requests on aligned clocks; a column `clipped_gaps` more (`clock_notes`).

    `table`: the spans with their times as recorded, but each clock's on one anchor (`anchors`).
    `clocks`: the offsets that were estimated, None where there is one clock only.
    `notes`: sentences for the user about what was left out or changed. `partial`: the source said
    that its answer was cut.
    """

    handoffs: Handoffs
    table: SpansTable
    clocks: Clocks | None
    notes: list[str]
    partial: bool


def load(
    sources: Sequence[str | Path],
    limits: Limits = DEFAULT_LIMITS,
    drift_ppm: float = DRIFT_PPM,
) -> Loaded:
    """Read `sources` (files, stores, directories, globs), align their clocks, join their requests.

    `drift_ppm`: how fast two clocks may drift apart.

    Raises `SourceError`, one sentence, where nothing can be read or no span says which request
    waited for what.
    """
    return loaded(tabulate(sources, limits), drift_ppm)


def loaded(read: Tabulated, drift_ppm: float = DRIFT_PPM) -> Loaded:
    """The requests of a spans table; raises `SourceError` as `load` does."""
    found = readings(read.table.spans)
    table = on_one_anchor(read.table, chosen(found))
    clocks = clocks_in(table, drift_ppm)
    handoffs = handoffs_of(table, clocks, read.partial)
    notes = [*read.notes, *anchor_notes(found), *clock_notes(handoffs.requests, clocks)]
    if handoffs.requests.empty:
        raise SourceError(nothing_named(len(table.spans)))
    return Loaded(handoffs, table, clocks, notes, read.partial)


def handoffs_of(table: SpansTable, clocks: Clocks | None, partial: bool = False) -> Handoffs:
    """The requests of a table on aligned clocks; `partial`: see `join`.

    One column more: `clipped_gaps` (`intervals.negative`).
    """
    alignment = aligned(table, clocks)
    found = join(alignment.table, alignment, partial)
    return replace(found, requests=found.requests.assign(clipped_gaps=negative(found)))
