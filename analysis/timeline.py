"""Timelines: for a few requests, which phase was active in which lane, and which one owned it."""

from collections.abc import Sequence
from typing import Final

import numpy as np
import pandas as pd

from pdtrace.analysis import phases, sweep
from pdtrace.analysis.handoffs import Handoffs
from pdtrace.analysis.intervals import draw
from pdtrace.analysis.split import WINDOW, Split, phase_segments

COLUMNS: Final = ["request_id", "lane", "phase", "start_ns", "end_ns", "owned"]


def slowest(split: Split, count: int) -> list[str]:
    """Ids of the `count` slowest requests that have a split, slowest first."""
    known = split.requests.loc[split.splittable, "ttft_ns"].astype("int64")
    return list(known.sort_values(ascending=False, kind="stable").index[:count])


def timeline(handoffs: Handoffs, split: Split, ids: Sequence[str]) -> pd.DataFrame:
    """Pieces of requests that have a split, see `pieces`; ranks share their side's lane."""
    return pieces(handoffs, split.requests.loc[list(ids)])


def pieces(handoffs: Handoffs, whole: pd.DataFrame, by_rank: bool = False) -> pd.DataFrame:
    """Pieces to draw: request_id, lane, phase, start_ns, end_ns (from arrival), owned.

    `whole`: rows of the handoffs' requests, which say the window by `t0_ns` and `t1_ns`. A phase
    is cut where its ownership changes: `owned` pieces are exposed, the others hidden. Time that
    nothing explains is owned by `unattributed` in a lane of that name. `by_rank`: where several
    ranks of a side took part, what each did is in a lane of its own (see `intervals.draw`).
    """
    if whole.empty:
        return pd.DataFrame(columns=COLUMNS)
    drawn, labels = draw(handoffs, by_rank), handoffs.requests.index
    cuts = _cuts(phase_segments(drawn, labels, whole), whole)
    drawn = drawn.assign(request_id=labels[drawn["row"]], lane=drawn["lane"].astype("str"))
    drawn = drawn[drawn["request_id"].isin(whole.index) & (drawn["layer"] < len(phases.NAMES))]
    pairs = cuts.merge(drawn, on=["request_id", "layer"], suffixes=("", "_drawn"))
    inside = (pairs["start_ns"] >= pairs["start_ns_drawn"]) & (
        pairs["end_ns"] <= pairs["end_ns_drawn"]
    )
    blank = cuts[cuts["owned"] & (cuts["layer"] == WINDOW)].assign(lane=phases.UNATTRIBUTED)
    columns = ["request_id", "lane", "layer", "start_ns", "end_ns", "owned"]
    both = pd.concat([pairs.loc[inside, columns], blank[columns]], ignore_index=True)
    both = both.drop_duplicates(columns[:4])
    both["lane"] = _shared_lanes(both)
    arrival = whole["t0_ns"].reindex(both["request_id"]).to_numpy(np.int64)
    both = both.assign(
        phase=[phases.NAMES[layer] for layer in both["layer"]],
        start_ns=both["start_ns"] - arrival,
        end_ns=both["end_ns"] - arrival,
    )
    return _joined(both[COLUMNS])


def _shared_lanes(both: pd.DataFrame) -> pd.Series:
    """The lane of each piece; that of an only rank is its side's."""
    side = both["lane"].str.partition("/")[0]
    ranks = both["lane"].where(both["lane"] != side)
    several = ranks.groupby([both["request_id"], side]).transform("nunique") > 1
    return both["lane"].where(several, side)


def _cuts(found: sweep.Segments, whole: pd.DataFrame) -> pd.DataFrame:
    """One row per segment and phase active in it: request_id, layer, start_ns, end_ns, owned."""
    at, layer = np.nonzero(found.active.T)
    return pd.DataFrame(
        {
            "request_id": whole.index.to_numpy()[found.key[at]],
            "layer": layer.astype(np.int64),
            "start_ns": found.start_ns[at],
            "end_ns": found.end_ns[at],
            "owned": sweep.owners(found)[at] == layer,
        }
    )


def _joined(pieces: pd.DataFrame) -> pd.DataFrame:
    """Neighbouring pieces of one phase, lane and ownership become one."""
    keys = ["request_id", "lane", "phase"]
    rows = pieces.sort_values([*keys, "start_ns"]).reset_index(drop=True)
    before = rows.shift()
    same = (rows[keys] == before[keys]).all(axis=1) & (rows["owned"] == before["owned"])
    group = (~(same & (rows["start_ns"] == before["end_ns"]))).cumsum()
    merged = rows.groupby(group).agg(
        **{name: (name, "first") for name in [*keys, "start_ns"]},
        end_ns=("end_ns", "last"),
        owned=("owned", "first"),
    )
    return merged.reset_index(drop=True)
