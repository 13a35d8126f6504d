"""Sources to the spans table, without ever holding all of their records."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from pdtrace.analysis.keys import numbers
from pdtrace.analysis.sources import DEFAULT_LIMITS, plural
from pdtrace.analysis.store import Batch, Limits, Reading, SourceError
from pdtrace.analysis.table import Copies, SpansTable, TableBuilder
from pdtrace.tracing import semconv

_CONFLICTS_NAMED: Final = 10


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
    table, copies = builder.finish()
    if table.spans.empty and not builder.columns.rejected:
        raise SourceError(reading.nothing(sources))
    return Tabulated(
        table=table,
        notes=[
            *reading.notes,
            *reading.tally_notes(),
            *_copy_notes(copies),
            *_orphan_notes(table.spans, reading.tally.refused),
            *_low_bits_notes(table.spans),
            *_listed_notes(table.spans, reading.tally.listed),
        ],
        rejected=dict(reading.tally.rejected),
        partial=reading.tally.partial > 0,
    )


def collect(
    sources: Sequence[str | Path], limits: Limits = DEFAULT_LIMITS
) -> tuple[TableBuilder, Reading]:
    """The spans of the sources in a builder, and the account of their reading."""
    reading, builder = Reading(limits), TableBuilder()
    for found in reading.messages(sources):
        if isinstance(found, Batch):
            builder.add_batch(found.spans, found.events)
        else:
            builder.add_all(found)
    reading.tally.ignored.update(
        {f"{key} is no whole number >= 0": n for key, n in builder.columns.ignored.items()}
    )
    return builder, reading


def _copy_notes(copies: Copies) -> list[str]:
    notes = []
    if copies.same:
        spans = plural(copies.same, "span")
        notes.append(f"dropped {spans} that came again with the same content")
    for name, trace_id, span_id, times in islice(copies.conflicts, _CONFLICTS_NAMED):
        notes.append(
            f"span {name} {span_id} of trace {trace_id} came again "
            f"with other content ({plural(times, 'time')}); the longest is kept"
        )
    unnamed = len(copies.conflicts) - _CONFLICTS_NAMED
    if unnamed > 0:
        notes.append(f"{plural(unnamed, 'more span')} came again with other content")
    return notes


def _orphan_notes(spans: pd.DataFrame, refused: list[tuple[str, str, str]]) -> list[str]:
    """Spans of ours, also refused ones, whose parent is in no source: joined by request id."""
    name, parent, span = (pa.array(spans[c]) for c in ("name", "parent_id", "span_id"))
    ours = pc.is_in(name, pa.array(semconv.OWN_SPANS, name.type)).to_numpy(zero_copy_only=False)
    more = [numbers(pa.array([ids[place] for ids in refused], pa.string())) for place in (1, 2)]
    children = np.concatenate([numbers(parent)[ours], more[1]])
    children = children[children != 0]
    lost = children[~np.isin(children, np.concatenate([numbers(span), more[0]]))]
    if not len(lost):
        return []
    parents = plural(len(np.unique(lost)), "parent")
    return [
        f"{plural(len(lost), 'span')} of {parents} that is in no source: joined by request id, "
        "which needs no parent"
    ]


def _low_bits_notes(spans: pd.DataFrame) -> list[str]:
    """Trace ids of 64 bits beside ids of 128 bits that end alike."""
    ids = pd.Series(spans["trace_id"].unique(), dtype="str")
    short = ids.str.startswith("0" * 16)
    alike = ids[short].str[16:].isin(ids[~short & (ids != "")].str[16:])
    if not alike.any():
        return []
    traces = plural(int(alike.sum()), "trace id")
    return [f"{traces} of 64 bits match another only in these: taken for different traces"]


def _listed_notes(spans: pd.DataFrame, listed: list[str]) -> list[str]:
    """What a search result named, against what is there."""
    if not listed:
        return []
    wanted = pd.Series(sorted(set(listed)), dtype="str")
    missing = wanted[~wanted.isin(spans["trace_id"])]
    said = f"a search result names {plural(len(wanted), 'trace')}"
    if missing.empty:
        return [f"{said}: all of them are in the sources"]
    return [f"{said}, {len(missing)} of them in no source ({missing.iloc[0]})"]
