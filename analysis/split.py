"""The split: TTFT of every request as phases and classes that sum to it, to the nanosecond."""

from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from pdtrace.analysis import phases, sweep
from pdtrace.analysis.arrays import Ints
from pdtrace.analysis.drag import drag
from pdtrace.analysis.handoffs import Handoffs
from pdtrace.analysis.intervals import LAYERS, draw, without_handshakes
from pdtrace.tracing import semconv

WINDOW = phases.PRIORITY[phases.UNATTRIBUTED]


@dataclass(frozen=True)
class Split:
    """`requests`: the handoffs' rows, sorted by arrival, with `transfer_ns`, `bytes_per_s` and
    `wire_ratio` (transfer to handover). The others have one int64 column per phase (or class) in
    ns and one row per request that could be split, in the same order.

    `exposed` sums to TTFT along a row, and so does `classes`. `known`: of the requests without a
    TTFT what their phases took between the first and the last one known; others are not in it.
    """

    requests: pd.DataFrame
    exposed: pd.DataFrame
    hidden: pd.DataFrame
    drag: pd.DataFrame
    classes: pd.DataFrame
    known: pd.DataFrame

    @property
    def splittable(self) -> pd.Index:
        """Ids of the requests that have a split."""
        return self.exposed.index

    @property
    def places(self) -> Ints:
        """Of each row of `requests` its place among those that have a split, -1 where it has none
        (int64, shape (n,))."""
        if len(self.exposed) == len(self.requests):
            return np.arange(len(self.requests), dtype=np.int64)
        return self.splittable.get_indexer(self.requests.index).astype(np.int64)


def split(handoffs: Handoffs) -> Split:
    """Partition each request's window among the phases.

    A request without a first token, or on clocks that were not aligned, keeps its row in
    `requests` and has none in the other frames but `known`.
    """
    rows = handoffs.requests.sort_values(["t0_ns"], kind="stable", na_position="last")
    whole = rows[rows["ttft_ns"].notna() & rows["aligned"]]
    drawn, labels = draw(handoffs), handoffs.requests.index
    found = phase_segments(drawn, labels, whole)
    exposed = sweep.exposed(found, len(whole))
    union = sweep.union(found, len(whole))
    window = whole["ttft_ns"].to_numpy(np.int64)
    if not np.array_equal(exposed.sum(axis=1), window):
        raise AssertionError("the phases do not sum to TTFT")
    hidden = union - exposed
    hidden[:, WINDOW] = 0
    names = list(phases.NAMES)
    owned = pd.DataFrame(exposed, index=whole.index, columns=names)
    return Split(
        requests=rows.assign(
            **_wire(rows, whole.index, union[:, phases.PRIORITY[phases.TRANSFER]])
        ),
        exposed=owned,
        hidden=pd.DataFrame(hidden, index=whole.index, columns=names),
        drag=drag(handoffs, whole.index, union),
        classes=by_class(owned),
        known=_known(drawn, labels, rows[rows["ttft_ns"].isna() & rows["aligned"]]),
    )


def _wire(rows: pd.DataFrame, whole: pd.Index, moving: Ints) -> dict[str, pd.Series]:
    """How long data moved, at what rate, and which part of the handover that was.

    `transfer_ns`: union over ranks inside the window, an upper bound, since completion is polled;
    `bytes_per_s` is therefore a lower bound. `<NA>` where nothing moved or it is not known, and
    for the last two where P had read back from D: their transfer is one of several.
    """
    took = pd.Series(moving, index=whole, dtype="Int64").reindex(rows.index)
    took = took.where(took > 0)
    alone = rows["back_posted_ns"].isna()
    sizes = rows["transfer_bytes"].where(alone & (rows["transfer_bytes"] > 0))
    handover = rows["handover_ns"].where(alone & (rows["handover_ns"] > 0))
    return {
        "transfer_ns": took,
        "bytes_per_s": (sizes.astype("Float64") * 1e9 / took).round().astype("Int64"),
        "wire_ratio": took.astype("Float64") / handover,
    }


def _known(drawn: pd.DataFrame, labels: pd.Index, rows: pd.DataFrame) -> pd.DataFrame:
    """Exposed ns of each phase but `unattributed` between the ends of what was drawn."""
    mine = _of(drawn[drawn["layer"] < len(phases.NAMES)], labels, rows.index).groupby("key")
    window = pd.DataFrame({"t0_ns": mine["start_ns"].min(), "t1_ns": mine["end_ns"].max()})
    window = window.set_axis(rows.index[window.index])
    # An empty frame would take over the rows of what it is assigned.
    window = window.assign(mode=rows["mode"].reindex(window.index))
    exposed = sweep.exposed(phase_segments(drawn, labels, window), len(window))
    exposed[:, WINDOW] = 0
    return pd.DataFrame(exposed, index=window.index, columns=list(phases.NAMES))


def _of(drawn: pd.DataFrame, labels: pd.Index, wanted: pd.Index) -> pd.DataFrame:
    """The intervals of some requests, `key` = the place in `wanted`; `labels`: what `row` means."""
    key = wanted.get_indexer(labels).astype(np.int64)[drawn["row"]]
    keyed = drawn.assign(key=key)
    return keyed if (key >= 0).all() else keyed[key >= 0]


def phase_segments(drawn: pd.DataFrame, labels: pd.Index, whole: pd.DataFrame) -> sweep.Segments:
    """Segments of the windows of `whole` with the phases active in each, in priority order.

    `drawn`: the intervals of `pdtrace.analysis.intervals.draw`, whose `row` means a place in
    `labels`; keys are places in `whole`.
    """
    keyed = _of(drawn, labels, whole.index)
    start, end = whole["t0_ns"].to_numpy(np.int64), whole["t1_ns"].to_numpy(np.int64)
    every = np.arange(len(whole), dtype=np.int64)
    window = pd.DataFrame({"key": every, "layer": WINDOW, "start_ns": start, "end_ns": end})
    columns = ["key", "layer", "start_ns", "end_ns"]
    both = pd.concat([keyed[columns], window[columns]], ignore_index=True)
    found = sweep.segments(sweep.clip(both, start, end), LAYERS)
    push = (whole["mode"] == semconv.MODE_PUSH).to_numpy(np.bool_)
    return replace(found, active=without_handshakes(found.active, push[found.key]))


def by_class(exposed: pd.DataFrame) -> pd.DataFrame:
    """Exposed ns summed by class: int64 columns compute, coordination, edge, unattributed."""
    return pd.DataFrame(
        {name: exposed[list(members)].sum(axis=1) for name, members in phases.MEMBERS.items()}
    )
