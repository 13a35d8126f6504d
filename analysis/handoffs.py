"""Join P's, D's and the router's spans to one row per request, also across trace ids.

The row holds the instants between which the phases of the split lie. Spans of tries that lost
are left out here, so that everything after it sees only ancestors of the first token.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from pdtrace.analysis import foreign, sides, transfers
from pdtrace.analysis.alignment import Alignment
from pdtrace.analysis.attempts import (
    SIDE_DECODE,
    SIDE_PREFILL,
    SIDE_ROUTER,
    attempts,
    in_chosen,
    own_spans,
)
from pdtrace.analysis.cone import Cone, earlier, first_known
from pdtrace.analysis.evidence import (
    BACKWARDS,
    EVIDENCE_FOREIGN,
    EVIDENCE_OWN,
    MOVED,
    clocks,
    flags,
)
from pdtrace.analysis.facts import facts
from pdtrace.analysis.grouped import LARGEST, lowest
from pdtrace.analysis.identity import ANOTHER
from pdtrace.analysis.instants import instants
from pdtrace.analysis.outcomes import outcomes
from pdtrace.analysis.row_view import RowView
from pdtrace.analysis.table import SpansTable
from pdtrace.tracing import semconv


@dataclass(frozen=True)
class Handoffs:
    """`requests`: one row per request, by label (`id` and `instance` say the same in two).
    `ranks`: one row per initiating rank. `back_ranks`: one per rank of P that read back from D.

    `handshakes`: those a request waits for. `tries`: every try on an engine, with `chosen`.
    `spans`: our spans, the losing tries' included. `at`: the requests' rows with all instants that
    phases begin or end at. All instants are nullable Int64 ns.
    """

    requests: pd.DataFrame
    ranks: pd.DataFrame
    back_ranks: pd.DataFrame
    handshakes: pd.DataFrame
    tries: pd.DataFrame
    spans: pd.DataFrame
    at: pd.DataFrame


def join(
    table: SpansTable,
    halfwidths: Alignment | pd.Series | None = None,
    partial: bool = False,
) -> Handoffs:
    """One row per request that our own spans or other producers' name.

    `halfwidths`: what `table` was aligned with, or half-widths by label (ns). A request on several
    clocks without one gets no half-width, and no split over hosts.
    `partial`: the source said that its answer was cut, so a missing side says nothing.
    """
    own = own_spans(table.spans)
    others = foreign.told(table, own)
    row = _named(own, others)
    labels, codes = row.index, own["request_id"].cat
    own["key"] = labels.get_indexer(codes.categories).astype("int64")[codes.codes]
    tries = attempts(own)
    seen = RowView(own, np.flatnonzero(in_chosen(own, tries)))
    cone = Cone(seen, table.events, labels)
    row = row.set_axis(cone.requests)
    found, back = transfers.ranks(cone), transfers.back_ranks(cone)
    row = row.assign(**sides.router(cone), **sides.prefill(cone), **sides.decode(cone))
    row = row.assign(
        **sides.starts(cone, tries),
        **sides.handoff(cone, found, row),
        **sides.read_back(cone, back),
    )
    row["mode"] = _mode(cone)
    told = foreign.complete(others, labels).set_axis(cone.requests)
    row = row.assign(**foreign.fill(row, told))
    row["adjusted"] |= cone.listed(cone.spans.where(cone.spans["adjusted"]))
    row["reason"] = row["reason"].mask(row["adjusted"] & (row["reason"] == ""), MOVED)
    found = foreign.ranks(told, found, labels)
    row = row.assign(**clocks(cone, row, halfwidths))
    row["concurrent"] = _concurrent(cone, row)
    row = row.assign(**_membership(cone, row), **_tokens(cone), **facts(cone))
    row = row.assign(**_window(row)).assign(**_ways(row))
    handshakes = transfers.handshakes(cone, row)
    row = row.assign(**_names(cone, row))
    row = row.assign(**_on_one_clock(row))
    row = row.assign(**_slowest_rank(cone, found, row))
    row["flags"] = flags(cone, row, handshakes, own, tries, partial)
    row["outcome"] = outcomes(cone, own, row)
    row = row.set_axis(labels)
    return Handoffs(row, found, back, handshakes, tries, own, instants(row, found))


def _named(own: pd.DataFrame, others: pd.DataFrame) -> pd.DataFrame:
    """By label, sorted: `id`, `instance`, and `evidence` (own, foreign: from others alone)."""
    real, key = np.flatnonzero(~own["phantom"]), own["key"].to_numpy(np.int64)
    first = lowest(real, key[real], int(key.max(initial=-1)) + 1)
    mine: pd.DataFrame = own[["request_id", "id", "instance"]].iloc[first[first != LARGEST]]
    mine = mine.astype({"request_id": "str", "id": "str"}).set_index("request_id")
    if others.empty:
        return mine.assign(evidence=pd.Series(EVIDENCE_OWN, index=mine.index, dtype="str"))
    labels = mine.index.union(others.index).sort_values()
    row = mine.reindex(labels.rename("request_id"))
    ours = row["id"].notna()
    theirs = row.index[~ours]
    parts = [label.partition(ANOTHER) for label in theirs]
    ids = pd.Series([part[0] for part in parts], index=theirs, dtype="str")
    numbers = pd.Series([int(part[2] or "1") for part in parts], index=theirs, dtype="int64")
    return row.assign(
        id=row["id"].fillna(ids),
        instance=row["instance"].fillna(numbers).astype("int64"),
        evidence=ours.map({True: EVIDENCE_OWN, False: EVIDENCE_FOREIGN}),
    )


def _mode(cone: Cone) -> pd.Series:
    """What D says, else P, else the router; "" where nobody says."""
    mode = cone.text("mode", cone.on(SIDE_DECODE))
    for side in (SIDE_PREFILL, SIDE_ROUTER):
        if (mode == "").any():
            mode = mode.where(mode != "", cone.text("mode", cone.on(side)))
    return mode


def _concurrent(cone: Cone, row: pd.DataFrame) -> pd.Series:
    """Both legs sent together: the router says so, else D surely had it before prefill ended."""
    said = cone.text("dispatch", cone.named(semconv.SPAN_REQUEST))
    latest = row["d_has_ns"] + row["clock_halfwidth_ns"].fillna(0)
    early = (latest < row["p_end_ns"]).fillna(False).astype("bool")
    inferred = (row["mode"] == semconv.MODE_PUSH) & early
    return (said == semconv.DISPATCH_CONCURRENT) | ((said == "") & inferred)


def _membership(cone: Cone, row: pd.DataFrame) -> dict[str, pd.Series]:
    """Whether P's leg is expected, and whether it is an ancestor of the first token.

    D needs nothing from P after a complete prefix hit. Its dispatch still waited for P, unless
    both legs were sent together.
    """
    waits = cone.named(semconv.SPAN_KV_WAIT, SIDE_DECODE)
    loads = cone.listed(waits.where(waits["external_tokens"].fillna(1) > 0))
    submitted, completed = (cone.listed(spans) for spans in transfers.moves(cone))
    moved = cone.has(semconv.SPAN_REGISTRATION) | row["moved_elsewhere"] | submitted | completed
    loads |= (submitted | completed) & ~cone.has(semconv.SPAN_KV_WAIT, SIDE_DECODE)
    decided = row["d_token_ns"].notna() & cone.has(semconv.SPAN_DECODE_ADMISSION, SIDE_DECODE)
    complete_hit = (decided & ~loads & ~moved) | row["local"]
    expected = row["p_known"] | row["mode"].isin((semconv.MODE_PUSH, semconv.MODE_PULL))
    return {
        "loads": loads | row["waits_elsewhere"],
        "p_expected": expected,
        "p_counts": expected & ~(complete_hit & row["concurrent"]),
    }


def _tokens(cone: Cone) -> dict[str, pd.Series]:
    """Output tokens, and the mean ns per output token after the first, rounded down."""
    decode = cone.named(semconv.SPAN_DECODE)
    tokens = cone.reduce(decode, "output_tokens", "max")
    length = cone.end(semconv.SPAN_DECODE) - cone.start(semconv.SPAN_DECODE)
    steps = (tokens - 1).where(tokens > 1)
    return {"output_tokens": tokens, "tpot_ns": length // steps}


def _window(row: pd.DataFrame) -> dict[str, pd.Series]:
    """t0 and t1 at the outermost observer; a lower bound where that is not the router."""
    arrivals = earlier(row["p_arrival_ns"], row["d_arrival_ns"])
    outside = row["router_start_ns"].notna() & row["router_token_ns"].notna()
    start = first_known(row["router_start_ns"], arrivals)
    token = first_known(row["router_token_ns"], row["d_token_ns"])
    backwards = (token < start).fillna(False).astype("bool")
    return {
        "t0_ns": start,
        "t1_ns": token,
        "ttft_ns": (token - start).mask(backwards),
        "reason": row["reason"].mask(backwards & (row["reason"] == ""), BACKWARDS),
        "lower_bound": ~outside,
    }


def _ways(row: pd.DataFrame) -> dict[str, pd.Series]:
    """The way in, and the second leg's way to D's engine."""
    push = row["mode"] == semconv.MODE_PUSH
    together = row["concurrent"] & (row["mode"] != semconv.MODE_PULL)
    after_p = first_known(row["blocks_ns"].where(push), row["p_end_ns"], row["prefill_leg_end_ns"])
    hop_from = row["dispatch_ns"].where(together, after_p).where(row["p_counts"])
    # Nothing depends on which of two hosts was first by less than their clocks can tell.
    into_p, into_d = (_stated_arrival(row, side) for side in ("p", "d"))
    latest = into_d + row["clock_halfwidth_ns"].fillna(0)
    first_in_time = (latest >= hop_from).fillna(False).astype("bool")
    after_all_of_p = row["p_counts"] & (row["p_known"] | ~row["concurrent"])
    return {
        "hop_from_ns": hop_from,
        "hop_to_ns": into_d.where(first_in_time, row["d_has_ns"]),
        "ingress_to_ns": first_known(into_p.where(row["p_counts"]), into_d.mask(after_all_of_p)),
    }


def _stated_arrival(row: pd.DataFrame, side: str) -> pd.Series:
    """When the engine had the request: not the start of whatever else is left of its spans."""
    stated = row[f"{side}_has_ns"].notna() | row[f"{side}_retried"]
    return row[f"{side}_first_ns"].where(stated)


def _names(cone: Cone, row: pd.DataFrame) -> dict[str, pd.Series]:
    decode = cone.text("engine_id", cone.on(SIDE_DECODE))
    prefill = cone.text("engine_id", cone.on(SIDE_PREFILL))
    alone = row["local"] & ~row["p_known"]
    said = cone.text("dispatch", cone.named(semconv.SPAN_REQUEST))
    proven = said.where((said != "") | ~row["concurrent"], semconv.DISPATCH_CONCURRENT)
    handover = (row["d_token_ns"] - row["p_end_ns"]).where(row["p_counts"])
    # Less than nothing: the request contradicts what its clocks were thought to be.
    handover = handover.where(handover >= 0)
    return {
        "trace_id": _trace_id(cone).where(lambda known: known != "", row["trace_elsewhere"]),
        "dispatch": proven,
        "prefill_engine": prefill.where(~alone, decode),
        "decode_engine": decode,
        "handover_ns": handover,
        "prefill_gap_ns": _gap(cone),
    }


def _slowest_rank(cone: Cone, found: pd.DataFrame, row: pd.DataFrame) -> dict[str, pd.Series]:
    """How far the last rank of the initiator was behind the median, and its name."""
    behind = transfers.straggle(cone, found)
    width = behind["rank_straggle_ns"]
    behind, row = (frame[behind["slow_tp"].notna()] for frame in (behind, row))
    push = row["mode"] == semconv.MODE_PUSH
    engine = row["prefill_engine"].where(push, row["decode_engine"])
    stage = ("/pp" + behind["slow_pp"].astype("str")).where(behind["slow_pp"] > 0, "")
    name = engine + stage + "/tp" + behind["slow_tp"].astype("str")
    slow = name.astype("str").reindex(cone.requests, fill_value="")
    return {"rank_straggle_ns": width, "slowest_rank": slow}


def _on_one_clock(row: pd.DataFrame) -> dict[str, pd.Series]:
    """Numbers between hosts are withheld where their clocks were not aligned.

    A TTFT whose two instants are the router's own stays: it lies on one clock.
    """
    return {
        "ttft_ns": row["ttft_ns"].where(row["aligned"] | ~row["lower_bound"]),
        "handover_ns": row["handover_ns"].where(row["aligned"]),
    }


def _gap(cone: Cone) -> pd.Series:
    """The part of prefill in which the request was in no batch (ns)."""
    return cone.reduce(cone.named(semconv.SPAN_PREFILL), "prefill_gap_ns", "max")


def _trace_id(cone: Cone) -> pd.Series:
    """That of the router's span, else that of the earliest span."""
    root = cone.text("trace_id", cone.named(semconv.SPAN_REQUEST))
    if (root != "").all():
        return root
    return root.where(root != "", cone.text("trace_id", cone.spans))
