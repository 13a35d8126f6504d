"""What a reader of a split has to know of its clocks, in sentences."""

from typing import Final

import pandas as pd

from pdtrace.analysis.anchors import Readings, chosen
from pdtrace.analysis.clocks import Clocks
from pdtrace.analysis.counted import plural
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


def clock_notes(rows: pd.DataFrame, clocks: Clocks | None) -> list[str]:
    """How well times fit together, of several clocks and of one. `rows`: requests with
    `clipped_gaps`."""
    width = rows["clock_halfwidth_ns"].astype("Int64")
    several = (width > 0).fillna(False).astype("bool")
    notes = [] if clocks is None else _alignment_notes(rows, width[several], clocks)
    for which, where in ((several, "between clocks"), (~several, "on one clock")):
        clipped = int(rows.loc[which, "clipped_gaps"].sum())
        if clipped:
            notes.append(f"{plural(clipped, 'negative gap')} {where} counted as no time")
    return notes


def _alignment_notes(rows: pd.DataFrame, width: pd.Series, clocks: Clocks) -> list[str]:
    """`width`: the half-widths of the requests over several clocks (Int64 ns)."""
    notes = []
    if len(width):
        middle, most = (int(width.quantile(q, interpolation="lower")) for q in (0.5, 1.0))
        notes.append(
            f"{plural(len(width), 'request')} over several clocks: times aligned to ± "
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
