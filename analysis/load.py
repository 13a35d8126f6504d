"""From sources to requests: read, tabulate, align the clocks, join. Every command begins here."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pdtrace.analysis.handoffs import Handoffs, join
from pdtrace.analysis.sources import SourceError
from pdtrace.analysis.store import read_spans
from pdtrace.analysis.table import SpansTable, build


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


def load(sources: Sequence[str | Path]) -> Loaded:
    """Read `sources` and join their requests.

    Raises `SourceError`, one sentence, where nothing can be read or no span says which request
    waited for what.
    """
    batch = read_spans(sources)
    table = build(batch.records)
    handoffs = join(table, partial=batch.partial)
    if handoffs.requests.empty:
        raise SourceError(
            f"{len(batch.records)} spans and none of pdtrace's own: nothing says which request "
            "waited for what"
        )
    rejected = [f"rejected {count} of our spans: {why}" for why, count in table.rejected.items()]
    return Loaded(handoffs, table, [*batch.notes, *rejected], batch.partial)
