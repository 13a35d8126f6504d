"""What there is to say of a spans table beside its spans; what is said of parts adds up."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final, Self

import numpy as np
import pandas as pd
import pyarrow as pa

from pdtrace.analysis.coded import among
from pdtrace.analysis.counted import plural
from pdtrace.analysis.keys import Keys, numbers
from pdtrace.analysis.table import Copies, SpansTable
from pdtrace.tracing import semconv

Refused = Sequence[tuple[str, str, str]]
"""Trace id, span id and parent of spans of ours that could not be used."""
_CONFLICTS_NAMED: Final = 10


@dataclass(frozen=True)
class Account:
    """`rejected`: spans of ours that were left out, by reason. `copies`: those dropped as such.

    `orphans` of `parents` are spans of ours whose parent is in no source. `short`, `long`: the
    last 64 bits of trace ids that have no more, and of the others (uint64).
    """

    rejected: Counter[str]
    copies: Copies
    orphans: int
    parents: int
    short: Keys
    long: Keys

    @classmethod
    def of(cls, table: SpansTable, copies: Copies, refused: Refused = ()) -> Self:
        """Of one table, in which every trace is whole."""
        spans = table.spans
        ours = among(spans["name"], semconv.OWN_SPANS)
        parent, span = (numbers(pa.array(spans[name])) for name in ("parent_id", "span_id"))
        more = [numbers(pa.array([ids[place] for ids in refused], pa.string())) for place in (1, 2)]
        children = np.concatenate([parent[ours], more[1]])
        code, parents = pd.factorize(children[children != 0])
        absent = ~np.isin(parents, np.concatenate([span, more[0]]))
        ids = spans["trace_id"].cat.categories
        ids = ids[ids != ""]
        low, short = numbers(pa.array(ids, pa.string())), ids.str.startswith("0" * 16)
        return cls(
            rejected=Counter(table.rejected),
            copies=copies,
            orphans=int(absent[code].sum()),
            parents=int(absent.sum()),
            short=low[short],
            long=low[~short],
        )

    def __add__(self, other: Self) -> Self:
        """Of both: no trace is in two parts."""
        return type(self)(
            rejected=self.rejected + other.rejected,
            copies=self.copies + other.copies,
            orphans=self.orphans + other.orphans,
            parents=self.parents + other.parents,
            short=np.concatenate([self.short, other.short]),
            long=np.concatenate([self.long, other.long]),
        )

    def without(self, trace_ids: Sequence[str]) -> list[str]:
        """Those of the trace ids (32 hex digits) of which there is no span, as far as their last 64
        bits tell."""
        low = numbers(pa.array(trace_ids, pa.string()))
        short = np.array([text.startswith("0" * 16) for text in trace_ids], dtype=np.bool_)
        here = np.where(short, np.isin(low, self.short), np.isin(low, self.long))
        return [text for text, found in zip(trace_ids, here, strict=True) if not found]

    def notes(self) -> list[str]:
        """Sentences for the user."""
        return [*self._copies(), *self._orphans(), *self._low_bits()]

    def refusals(self) -> list[str]:
        """Sentences about spans of ours that were left out."""
        return [f"rejected {count} of our spans: {why}" for why, count in self.rejected.items()]

    def _copies(self) -> list[str]:
        notes = []
        if self.copies.same:
            spans = plural(self.copies.same, "span")
            notes.append(f"dropped {spans} that came again with the same content")
        for name, trace_id, span_id, times in islice(self.copies.conflicts, _CONFLICTS_NAMED):
            notes.append(
                f"span {name} {span_id} of trace {trace_id} came again "
                f"with other content ({plural(times, 'time')}); the longest is kept"
            )
        unnamed = len(self.copies.conflicts) - _CONFLICTS_NAMED
        if unnamed > 0:
            notes.append(f"{plural(unnamed, 'more span')} came again with other content")
        return notes

    def _orphans(self) -> list[str]:
        """Spans whose parent is in no source: joined by request id."""
        if not self.orphans:
            return []
        parents = plural(self.parents, "parent")
        return [
            f"{plural(self.orphans, 'span')} of {parents} that is in no source: joined by request "
            "id, which needs no parent"
        ]

    def _low_bits(self) -> list[str]:
        """Trace ids of 64 bits beside ids of 128 bits that end alike."""
        # To look for nothing among many takes as long as to look for much.
        alike = int(np.isin(self.short, self.long).sum()) if len(self.short) else 0
        if not alike:
            return []
        traces = plural(alike, "trace id")
        return [f"{traces} of 64 bits match another only in these: taken for different traces"]
