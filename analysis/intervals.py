"""The intervals of every phase, drawn from the instants of the handoffs; they may overlap."""

from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from pdtrace.analysis import phases
from pdtrace.analysis.arrays import Bools, Ints
from pdtrace.analysis.attempts import SIDE_DECODE, SIDE_PREFILL, SIDE_ROUTER
from pdtrace.analysis.grouped import SMALLEST
from pdtrace.analysis.handoffs import Handoffs
from pdtrace.analysis.instants import places
from pdtrace.tracing import semconv

# One layer per phase in priority order, then the handshakes by side: a handshake inside a
# submit or a registration is cut out of it, which only the sweep can do.
HANDSHAKE_P: Final = len(phases.NAMES)
HANDSHAKE_D: Final = HANDSHAKE_P + 1
LAYERS: Final = HANDSHAKE_D + 1


_Lane = str | npt.NDArray[np.object_]


class _Piece(NamedTuple):
    """Intervals of one layer: int64 arrays of one length, and their lanes."""

    row: Ints
    layer: int
    lane: Any
    """A pandas Categorical."""
    start_ns: Ints
    end_ns: Ints


class _Edge(NamedTuple):
    """A phase that lies between two instants of the handoffs frame, and the lane it is drawn in."""

    phase: str
    start: str
    end: str
    lane: str


EDGES: Final = (
    _Edge(phases.INGRESS, "t0_ns", "ingress_to_ns", SIDE_ROUTER),
    _Edge(phases.RETRY, "p_first_ns", "p_has_counted_ns", SIDE_ROUTER),
    _Edge(phases.RETRY, "d_first_ns", "d_has_ns", SIDE_ROUTER),
    _Edge(phases.PREFILL_QUEUE, "p_has_counted_ns", "p_queued_until_ns", SIDE_PREFILL),
    _Edge(phases.PREFILL_QUEUE, "d_queued_ns", "d_queued_until_ns", SIDE_DECODE),
    _Edge(phases.REGISTRATION, "back_allocated_ns", "back_begin_ns", SIDE_PREFILL),
    _Edge(phases.LANDED_TO_SEEN, "back_landed_ns", "back_told_ns", SIDE_PREFILL),
    _Edge(phases.REQUEUE, "back_told_ns", "back_pass_ns", SIDE_PREFILL),
    _Edge(phases.PREFILL_QUEUE, "back_refused_ns", "p_scheduled_counted_ns", SIDE_PREFILL),
    _Edge(phases.PREFILL, "p_scheduled_counted_ns", "p_end_ns", SIDE_PREFILL),
    _Edge(phases.PREFILL, "d_prefill_start_ns", "d_prefill_end_ns", SIDE_DECODE),
    _Edge(phases.MATCH, "handing_from_ns", "blocks_ns", SIDE_PREFILL),
    _Edge(phases.HOP, "hop_from_ns", "hop_to_ns", SIDE_ROUTER),
    _Edge(phases.ADMISSION, "d_has_ns", "attempted_ns", SIDE_DECODE),
    _Edge(phases.DECODE_CAPACITY, "attempted_ns", "allocated_ns", SIDE_DECODE),
    _Edge(phases.REGISTRATION, "registering_from_ns", "registered_ns", SIDE_DECODE),
    _Edge(phases.LANDED_TO_SEEN, "landed_ns", "told_ns", SIDE_DECODE),
    _Edge(phases.REQUEUE, "told_ns", "next_pass_ns", SIDE_DECODE),
    _Edge(phases.DECODE_QUEUE, "refused_ns", "d_scheduled_ns", SIDE_DECODE),
    _Edge(phases.FIRST_DECODE, "decoding_from_ns", "d_token_ns", SIDE_DECODE),
    _Edge(phases.EGRESS, "d_token_ns", "t1_ns", SIDE_ROUTER),
)


def draw(handoffs: Handoffs, by_rank: bool = False) -> pd.DataFrame:
    """All intervals: row, layer, lane, start_ns, end_ns (int64 but the lane), end after start.

    `row`: the place of the request among the handoffs'. A lane is a side; `by_rank`, what a rank
    did is in a lane of its own, `side/tp1` or `side/pp1/tp0`.
    """
    row = handoffs.at
    every = np.arange(len(row), dtype=np.int64)
    parts = [
        _piece(every, row[edge.start], row[edge.end], phases.PRIORITY[edge.phase], edge.lane)
        for edge in EDGES
    ]
    parts += [*_rank_pieces(handoffs, by_rank), *_handshake_pieces(handoffs, by_rank)]
    parts += _back_pieces(handoffs, by_rank)
    layers = [np.full(len(part.row), part.layer, dtype=np.int64) for part in parts]
    drawn = pd.DataFrame(
        {
            "row": np.concatenate([part.row for part in parts]),
            "layer": np.concatenate(layers),
            "lane": pd.api.types.union_categoricals([part.lane for part in parts]),
            "start_ns": np.concatenate([part.start_ns for part in parts]),
            "end_ns": np.concatenate([part.end_ns for part in parts]),
        }
    )
    return drawn[drawn["end_ns"] > drawn["start_ns"]].reset_index(drop=True)


def negative(handoffs: Handoffs) -> Ints:
    """By request how many phases end before they start; they count as no time (int64)."""
    count = np.zeros(len(handoffs.at), dtype=np.int64)
    for edge in EDGES:
        start, end = (
            handoffs.at[name].to_numpy(np.int64, na_value=SMALLEST)
            for name in (edge.start, edge.end)
        )
        count += (end < start) & (end != SMALLEST)
    return count


def _lanes(side: _Lane, of: pd.DataFrame, by_rank: bool) -> _Lane:
    """The lane of each row of `of`, which carries pp_rank and tp_rank."""
    if not by_rank:
        return side
    names = [
        f"/pp{pp}/tp{tp}" if pp else f"/tp{tp}"
        for pp, tp in zip(of["pp_rank"], of["tp_rank"], strict=True)
    ]
    lanes: npt.NDArray[np.object_] = np.asarray(side, dtype=object) + np.array(names, dtype=object)
    return lanes


def _capped(ranks: pd.DataFrame, landed: pd.Series) -> pd.Series:
    """When each rank was done, at most when all has landed."""
    landed = landed.set_axis(ranks.index)
    return ranks["done_ns"].where(~(landed < ranks["done_ns"]).fillna(False), landed)


def _rank_pieces(handoffs: Handoffs, by_rank: bool) -> list[_Piece]:
    """Match, submit and transfer of each rank; a transfer ends at most when all has landed."""
    row, ranks = handoffs.at, handoffs.ranks
    at = places(row, ranks)
    push = (row["mode"] == semconv.MODE_PUSH).to_numpy(np.bool_)[at]
    lane = _lanes(np.where(push, SIDE_PREFILL, SIDE_DECODE).astype(object), ranks, by_rank)
    on_p = _lanes(SIDE_PREFILL, ranks, by_rank)
    both = ranks["both_ns"].where(row["p_counts"].to_numpy(np.bool_)[at])
    done = _capped(ranks, row["landed_ns"].iloc[at])
    return [
        _piece(at, both, ranks["begin_ns"], phases.PRIORITY[phases.MATCH], on_p),
        _piece(at, ranks["begin_ns"], ranks["posted_ns"], phases.PRIORITY[phases.SUBMIT], lane),
        _piece(at, ranks["wire_ns"], done, phases.PRIORITY[phases.TRANSFER], lane),
    ]


def _back_pieces(handoffs: Handoffs, by_rank: bool) -> list[_Piece]:
    """Submit and transfer of each rank of P that reads back."""
    row, ranks = handoffs.at, handoffs.back_ranks
    at = places(row, ranks)
    counted = row["p_counts"].to_numpy(np.bool_)[at]
    begin, wire = ranks["begin_ns"].where(counted), ranks["wire_ns"].where(counted)
    done = _capped(ranks, row["back_landed_ns"].iloc[at])
    lane = _lanes(SIDE_PREFILL, ranks, by_rank)
    return [
        _piece(at, begin, ranks["posted_ns"], phases.PRIORITY[phases.SUBMIT], lane),
        _piece(at, wire, done, phases.PRIORITY[phases.TRANSFER], lane),
    ]


def _handshake_pieces(handoffs: Handoffs, by_rank: bool) -> list[_Piece]:
    found = handoffs.handshakes
    parts = []
    for side, layer in ((SIDE_PREFILL, HANDSHAKE_P), (SIDE_DECODE, HANDSHAKE_D)):
        mine = found[found["side"] == side]
        at, lane = places(handoffs.requests, mine), _lanes(side, mine, by_rank)
        for place in (layer, phases.PRIORITY[phases.HANDSHAKE]):
            parts.append(_piece(at, mine["start_ns"], mine["end_ns"], place, lane))
    return parts


def _piece(at: Ints, start: pd.Series, end: pd.Series, layer: int, lane: _Lane) -> _Piece:
    """What of one layer has both edges known; `at`: places of the requests."""
    begin, until = (one.to_numpy(np.int64, na_value=SMALLEST) for one in (start, end))
    known = (begin != SMALLEST) & (until != SMALLEST)
    if isinstance(lane, str):
        count = int(known.sum())
        lanes = pd.Categorical.from_codes(np.zeros(count, np.int8), categories=pd.Index([lane]))
    else:
        lanes = pd.Categorical(pd.Series(lane[known], dtype="str"))
    return _Piece(
        at[known],
        layer,
        lanes,
        begin[known],
        until[known],
    )


def without_handshakes(active: Bools, push: Bools) -> Bools:
    """Cut handshakes out of the submit and the registration they lie inside.

    `active`: bool, shape (LAYERS, n); `push`: bool, shape (n,): P initiates, else D does.
    Returns shape (phases, n), in priority order.
    """
    cut = active[: len(phases.NAMES)].copy()
    submit, registration = phases.PRIORITY[phases.SUBMIT], phases.PRIORITY[phases.REGISTRATION]
    # In pull P shakes hands only to read back, before D's leg, so either side's is cut there.
    by_p, by_d = active[HANDSHAKE_P], active[HANDSHAKE_D]
    cut[submit] &= ~(by_p | (by_d & ~push))
    cut[registration] &= ~(by_d | (by_p & ~push))
    return cut
