"""From sources to requests: read, tabulate, align the clocks, join. Every command begins here."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pdtrace.analysis.handoffs import Handoffs, join
from pdtrace.analysis.sources import DEFAULT_LIMITS, Limits, SourceError, plural
from pdtrace.analysis.table import SpansTable
from pdtrace.analysis.tabulate import tabulate


@dataclass(frozen=True)
class Loaded:
    """`handoffs`: the requests, on aligned clocks. `table`: the spans with their times as recorded.

    `notes`: sentences for the user about what was left out or changed. `partial`: the source said
    that its answer was cut.
    """

    handoffs: Handoffs
    table: SpansTable
    notes: list[str]
    partial: bool


def load(sources: Sequence[str | Path], limits: Limits = DEFAULT_LIMITS) -> Loaded:
    """Read `sources` (files, stores, directories, globs) and join their requests.

    Raises `SourceError`, one sentence, where nothing can be read or no span says which request
    waited for what.
    """
    read = tabulate(sources, limits)
    handoffs = join(read.table, partial=read.partial)
    if handoffs.requests.empty:
        raise SourceError(
            f"{plural(len(read.table.spans), 'span')} and none that names a request: nothing says "
            "which request waited for what"
        )
    rejected = [
        f"rejected {count} of our spans: {why}" for why, count in read.table.rejected.items()
    ]
    return Loaded(handoffs, read.table, [*read.notes, *rejected], read.partial)
