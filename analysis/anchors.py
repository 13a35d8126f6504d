"""Times of one clock on one reading of its wall time.

Durations are monotonic, and each process of ours places them by a reading of the wall clock of its
own, its anchor (`pd.clock.anchor_ns`). Where the wall clock is stepped, processes have different
ones for a while, and what happened at once lies apart by the step. Processes of one host share the
monotonic clock, so nothing need be estimated: every time is put on the anchor that most spans of
its clock have.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import numpy as np
import pandas as pd

from pdtrace.analysis.arrays import Ints
from pdtrace.analysis.coded import codes
from pdtrace.analysis.table import SpansTable

Readings = Counter[tuple[str, int]]
"""Spans by clock id and anchor (ns)."""
Anchors = Mapping[str, int]
"""By clock id the anchor that all its times are put on (ns)."""
_SAMPLES: Final = ["clock_sent_ns", "clock_received_ns"]
"""Times by the clock of the span that has them."""


def readings(spans: pd.DataFrame) -> Readings:
    """Those of a spans table."""
    stated = spans[spans["anchor_ns"].notna()]
    counts = (
        stated.groupby(["clock_id", "anchor_ns"], observed=True).size().reset_index(name="spans")
    )
    each = (counts[name].tolist() for name in ("clock_id", "anchor_ns", "spans"))
    return Readings({(clock, at): spans for clock, at, spans in zip(*each, strict=True) if clock})


def chosen(found: Readings) -> Anchors:
    """Of each clock the anchor of most spans; of equals the smallest."""
    best: dict[str, int] = {}
    for clock, anchor in sorted(found, key=lambda one: (-found[one], one)):
        best.setdefault(clock, anchor)
    return best


def on_one_anchor(table: SpansTable, anchors: Anchors) -> SpansTable:
    """The table with all times on these anchors, and `shift_ns`; the same where they are on them
    already."""
    spans = table.spans
    stated = spans["anchor_ns"].notna().to_numpy(np.bool_)
    clocks = spans["clock_id"].cat.categories
    known = np.array([clock in anchors for clock in clocks])
    if not known.any():
        return table
    wanted = np.array([anchors.get(clock, 0) for clock in clocks], dtype=np.int64)
    code = codes(spans["clock_id"])
    anchor = spans["anchor_ns"].to_numpy(np.int64, na_value=0)
    shift = np.where(stated & known[code], anchor - wanted[code], 0)
    if not shift.any():
        return table
    moved = shifted(table, pd.Series(shift, index=spans.index))
    samples = {name: moved.spans[name] - shift for name in _SAMPLES}
    return replace(moved, spans=moved.spans.assign(**samples))


def shifted(table: SpansTable, shift: pd.Series) -> SpansTable:
    """The table with so much taken off the times of each span (int64 ns, by row of its spans).

    `shift_ns` of the result: what was taken off in all.
    """
    spans, events = table.spans, table.events
    of_event: Ints = shift.reindex(events["row"]).to_numpy(np.int64)
    return replace(
        table,
        spans=spans.assign(
            start_ns=spans["start_ns"] - shift,
            end_ns=spans["end_ns"] - shift,
            shift_ns=shift + spans["shift_ns"] if "shift_ns" in spans else shift,
        ),
        events=events.assign(time_ns=events["time_ns"] - of_event),
    )
