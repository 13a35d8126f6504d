"""Sources to the spans table, without ever holding all of their records."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pdtrace.analysis.account import Account
from pdtrace.analysis.counted import plural
from pdtrace.analysis.sources import DEFAULT_LIMITS
from pdtrace.analysis.store import Batch, Limits, Reading, SourceError
from pdtrace.analysis.table import SpansTable, TableBuilder


@dataclass(frozen=True, slots=True)
class Tabulated:
    """What was read. `notes` are sentences for the user about everything that was left out.

    `partial` is true when a trace store marked its own answer as cut, so that what is missing
    says nothing about the system traced.
    """

    table: SpansTable
    notes: list[str]
    rejected: dict[str, int]
    partial: bool = False


def tabulate(sources: Sequence[str | Path], limits: Limits = DEFAULT_LIMITS) -> Tabulated:
    """The spans of stores, files, directories and globs, whatever their format, each once.

    Raises `SourceError` when a source is missing, when it holds no traces, or when there is no
    usable span in all of them.
    """
    builder, reading = collect(sources, limits)
    return finished(builder, reading, sources)


def finished(builder: TableBuilder, reading: Reading, sources: Sequence[str | Path]) -> Tabulated:
    """The table of what was collected of `sources`; raises `SourceError` as `tabulate` does."""
    table, copies = builder.finish()
    if table.spans.empty and not builder.columns.rejected:
        raise SourceError(reading.nothing(sources))
    account = Account.of(table, copies, reading.tally.refused)
    return Tabulated(
        table=table,
        notes=notes_of(reading, account),
        rejected=dict(reading.tally.rejected),
        partial=reading.tally.partial > 0,
    )


def notes_of(reading: Reading, account: Account) -> list[str]:
    """Sentences about everything that was left out of these spans."""
    return [
        *reading.notes,
        *reading.tally_notes(),
        *account.notes(),
        *_listed_notes(account, reading.tally.listed),
        *account.refusals(),
    ]


def collect(
    sources: Sequence[str | Path],
    limits: Limits = DEFAULT_LIMITS,
    spill: Callable[[Batch], None] | None = None,
) -> tuple[TableBuilder, Reading]:
    """The spans of the sources in a builder, and the account of their reading.

    `spill`: where to put them if they are many.
    """
    reading, builder = Reading(limits, as_rows=True), TableBuilder(spill)
    for found in reading.messages(sources):
        if isinstance(found, Batch):
            builder.add_batch(found)
        else:
            builder.add_all(found)
    reading.tally.ignored.update(
        {f"{key} is no whole number >= 0": n for key, n in builder.columns.ignored.items()}
    )
    return builder, reading


def _listed_notes(account: Account, listed: list[str]) -> list[str]:
    """What a search result named, against what is there."""
    if not listed:
        return []
    wanted = sorted(set(listed))
    missing = account.without(wanted)
    said = f"a search result names {plural(len(wanted), 'trace')}"
    if not missing:
        return [f"{said}: all of them are in the sources"]
    return [f"{said}, {len(missing)} of them in no source ({missing[0]})"]
