"""What a reader of a split has to know of its clocks, in sentences."""

from typing import Final

import pandas as pd

from pdtrace.analysis.anchors import Readings, chosen
from pdtrace.analysis.clocks import Clocks
from pdtrace.analysis.counted import plural
from pdtrace.analysis.handoffs import Handoffs
from pdtrace.analysis.intervals import EDGES, instants
from pdtrace.analysis.report import milliseconds
from pdtrace.analysis.split import Split

LIMITED_PERCENT: Final = 10
"""A half-width above this part of a request's coordination wait limits what its split can tell."""


_WORTH_TELLING_NS: Final = 100_000
"""Anchors that are less apart differ by how long it took to read them."""


def anchor_notes(found: Readings) -> list[str]:
    """A sentence for each clock whose wall time was stepped."""
    anchors, notes = chosen(found), []
    for clock, kept in sorted(anchors.items()):
        apart = {anchor: abs(anchor - kept) for of, anchor in found if of == clock}
        moved = [anchor for anchor in apart if apart[anchor] > _WORTH_TELLING_NS]
        if moved:
            spans = sum(found[clock, anchor] for anchor in moved)
            most = milliseconds(max(apart.values()))
            notes.append(
                f"{plural(spans, 'span')} of clock {clock[:8]} placed before or after its wall "
                f"time was set, by up to {most} ms: all are on one reading of it now"
            )
    return notes


def clipped_gaps(handoffs: Handoffs) -> pd.Series:
    """By request over several clocks: phases whose end lies before their start (int64).

    They count as taking no time. On one clock there are none by reason of a clock: 0.
    """
    several = (handoffs.requests["clock_halfwidth_ns"] > 0).fillna(False).astype("bool")
    count = pd.Series(0, index=several.index, dtype="int64")
    if not several.any():
        return count
    row = instants(handoffs)
    for edge in EDGES:
        negative = (row[edge.end] < row[edge.start]).fillna(False)
        count += negative.astype("int64")
    return count.where(several, 0)


def clock_notes(rows: pd.DataFrame, clocks: Clocks | None) -> list[str]:
    """How well the times of several clocks fit together. `rows`: requests with `clipped_gaps`."""
    if clocks is None:
        return []
    width = rows["clock_halfwidth_ns"].astype("Int64")
    several = width[(width > 0).fillna(False).astype("bool")]
    notes = []
    if len(several):
        middle, most = (int(several.quantile(q, interpolation="lower")) for q in (0.5, 1.0))
        notes.append(
            f"{plural(len(several), 'request')} over several clocks: times aligned to ± "
            f"{milliseconds(middle)} ms (median), ± {milliseconds(most)} ms at most; "
            "'pdtrace clocks' shows the evidence"
        )
    loose = int((~rows["aligned"]).sum())
    if loose:
        notes.append(
            f"{plural(loose, 'request')} over several clocks not split: nothing bounds their "
            "offset on both sides, or the evidence contradicts itself"
        )
    lost = int((~clocks.evidence["kept"]).sum())
    if lost:
        total = len(clocks.evidence)
        notes.append(f"{lost} of {total} messages between clocks contradict the others")
    clipped = int(rows["clipped_gaps"].sum())
    if clipped:
        notes.append(f"{plural(clipped, 'negative gap')} between clocks counted as no time")
    return notes


def limited(done: Split) -> list[str]:
    """A sentence where the half-width is large against the coordination wait of requests."""
    width = done.requests.loc[done.splittable, "clock_halfwidth_ns"].fillna(0).astype("int64")
    many = int((100 * width > LIMITED_PERCENT * done.classes["coordination"]).sum())
    if not many:
        return []
    return [
        f"{plural(many, 'request')} clock-limited: their clocks are known to no better than "
        f"{LIMITED_PERCENT} % of their coordination wait. Sums on one clock are exact (TTFT at "
        "the router; hop and egress together); where they part is not."
    ]
