"""Timelines: for a few requests, which phase was active in which lane, and which one owned it."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from pdtrace.analysis import phases, sweep
from pdtrace.analysis.handoffs import Handoffs
from pdtrace.analysis.intervals import draw
from pdtrace.analysis.split import Split, phase_segments


def slowest(split: Split, count: int) -> list[str]:
    """Ids of the `count` slowest requests that have a split, slowest first."""
    known = split.requests.loc[split.splittable, "ttft_ns"].astype("int64")
    return list(known.sort_values(ascending=False, kind="stable").index[:count])


def timeline(handoffs: Handoffs, split: Split, ids: Sequence[str]) -> pd.DataFrame:
    """Pieces to draw: request_id, lane, phase, start_ns, end_ns (from arrival), owned.

    A phase is cut where its ownership changes: `owned` pieces are exposed, the others hidden.
    """
    whole = split.requests.loc[list(ids)]
    drawn = draw(handoffs)
    drawn = drawn[drawn["request_id"].isin(ids) & (drawn["layer"] < len(phases.NAMES))]
    found = phase_segments(draw(handoffs), whole)
    cuts = _cuts(found, whole)
    pairs = cuts.merge(drawn, on=["request_id", "layer"], suffixes=("", "_drawn"))
    inside = (pairs["start_ns"] >= pairs["start_ns_drawn"]) & (
        pairs["end_ns"] <= pairs["end_ns_drawn"]
    )
    pieces = pairs[inside].drop_duplicates(["request_id", "lane", "layer", "start_ns"])
    arrival = whole["t0_ns"].reindex(pieces["request_id"]).to_numpy(np.int64)
    pieces = pieces.assign(
        phase=[phases.NAMES[layer] for layer in pieces["layer"]],
        start_ns=pieces["start_ns"] - arrival,
        end_ns=pieces["end_ns"] - arrival,
    )
    return _joined(pieces[["request_id", "lane", "phase", "start_ns", "end_ns", "owned"]])


def _cuts(found: sweep.Segments, whole: pd.DataFrame) -> pd.DataFrame:
    """One row per segment and phase active in it: request_id, layer, start_ns, end_ns, owned."""
    at, layer = np.nonzero(found.active)
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
