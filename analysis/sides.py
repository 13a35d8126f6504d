"""The instants of a request as each side's spans tell them: columns of the handoffs' rows, in ns.

Only spans of the tries that count are looked at, but for the starts of the lost ones.
"""

import numpy as np
import pandas as pd

from pdtrace.analysis import transfers
from pdtrace.analysis.attempts import SIDE_DECODE, SIDE_PREFILL
from pdtrace.analysis.cone import Cone, earlier, first_known
from pdtrace.analysis.grouped import LARGEST, SMALLEST, lowest, nullable
from pdtrace.tracing import semconv


def router(cone: Cone) -> dict[str, pd.Series]:
    """What the router says: when it had the request, when its legs went out, its first token."""
    legs = cone.named(semconv.SPAN_LEG)
    first, second = (legs.where(legs["leg"] == side) for side in (SIDE_PREFILL, SIDE_DECODE))
    return {
        "router_start_ns": cone.start(semconv.SPAN_REQUEST),
        # Of routers behind one another the outermost has it last.
        "router_token_ns": cone.event(semconv.EVENT_FIRST_TOKEN, "max", semconv.SPAN_REQUEST),
        "prefill_leg_end_ns": cone.reduce(first, "end_ns", "max"),
        "dispatch_ns": cone.reduce(second, "start_ns", "min"),
    }


def prefill(cone: Cone) -> dict[str, pd.Series]:
    """What P says: when it had the request, when it computed, and whether it says anything."""
    side = SIDE_PREFILL
    queue, prefill = semconv.SPAN_PREFILL_QUEUE, semconv.SPAN_PREFILL
    return {
        "p_has_ns": cone.start(queue, side),
        "p_scheduled_ns": first_known(cone.start(prefill, side), cone.end(queue, side)),
        "p_end_ns": first_known(
            cone.end(prefill, side),
            cone.start(semconv.SPAN_PREFILL_END, side),
            cone.start(semconv.SPAN_LEASE, side),
        ),
        "p_known": cone.listed(cone.on(side)),
    }


def decode(cone: Cone) -> dict[str, pd.Series]:
    """What D says, from its arrival there to the first token."""
    side = SIDE_DECODE
    kv_wait, start = semconv.SPAN_KV_WAIT, semconv.SPAN_DECODE_START
    first, prefill = (
        cone.named(semconv.SPAN_FIRST_DECODE, side),
        cone.named(semconv.SPAN_PREFILL, side),
    )
    made = cone.reduce(first.where(~first["error"]), "end_ns", "max")
    computed = cone.reduce(prefill.where(~prefill["error"]), "end_ns", "max")
    local = cone.listed(cone.spans.where(cone.spans["local"]))
    admission = semconv.SPAN_DECODE_ADMISSION
    return {
        "d_has_ns": first_known(
            cone.start(admission, side), cone.start(semconv.SPAN_PREFILL_QUEUE, side)
        ),
        "attempted_ns": cone.event(semconv.EVENT_FIRST_ATTEMPT, "min", admission),
        "allocated_ns": first_known(
            cone.start(kv_wait, side),
            cone.end(admission, side),
            cone.start(semconv.SPAN_REGISTRATION, side),
        ),
        "told_ns": first_known(cone.end(kv_wait, side), cone.start(start, side)),
        "refused_ns": cone.event(semconv.EVENT_REFUSED, "min", start, side),
        "d_scheduled_ns": first_known(
            earlier(
                cone.start(semconv.SPAN_FIRST_DECODE, side), cone.start(semconv.SPAN_PREFILL, side)
            ),
            cone.end(start, side),
        ),
        "d_queued_ns": cone.start(semconv.SPAN_PREFILL_QUEUE, side),
        "d_prefill_start_ns": cone.start(semconv.SPAN_PREFILL, side),
        "d_prefill_end_ns": cone.end(semconv.SPAN_PREFILL, side),
        "d_token_ns": first_known(
            made, computed.where(local), cone.start(semconv.SPAN_DECODE, side)
        ),
        "d_known": cone.listed(cone.on(side)),
        "local": local,
    }


def starts(cone: Cone, tries: pd.DataFrame) -> dict[str, pd.Series]:
    """Start of the first try on each side: its arrival, or its leg if it never arrived."""
    legs = _numbered_legs(cone)
    found = {}
    for side, name in ((SIDE_PREFILL, "p_first_ns"), (SIDE_DECODE, "d_first_ns")):
        mine = legs[legs["leg"] == side]
        arrival, start = _arrivals(cone, tries[tries["side"] == side])
        leg = [cone.reduce(mine[mine["place"] == place], "start_ns", "min") for place in (0, 1)]
        lost_on_the_way = (arrival >= leg[1]).fillna(False).astype("bool")
        found[name] = arrival.where(~lost_on_the_way, leg[0])
        again = (found[name] < start).fillna(False).astype("bool")
        found[name.replace("first_ns", "retried")] = again | cone.listed(mine[mine["place"] > 0])
    return found


def _arrivals(cone: Cone, tries: pd.DataFrame) -> tuple[pd.Series, pd.Series]:
    """Start of the first of these tries by request, and of the one that counts (at most one)."""
    key, start, leg = (tries[name].to_numpy(np.int64) for name in ("key", "start_ns", "leg_no"))
    chosen = tries["chosen"].to_numpy(np.bool_)
    counted = np.full(len(cone.requests), SMALLEST, dtype=np.int64)
    counted_leg = counted.copy()
    counted[key[chosen]], counted_leg[key[chosen]] = start[chosen], leg[chosen]
    # Another choice of the same leg is no earlier try.
    other = (leg != counted_leg[key]) | chosen
    before = other & (start <= counted[key])
    first = nullable(lowest(start[before], key[before], len(cone.requests)), LARGEST)
    return first, nullable(counted, SMALLEST)


def _numbered_legs(cone: Cone) -> pd.DataFrame:
    """The router's legs by side in order of time: key, leg, start_ns, place (0 = first)."""
    keys = ["key", "leg", "attempt"]
    legs = cone.named(semconv.SPAN_LEG)[[*keys, "start_ns"]]
    if not legs.duplicated(keys[:2]).any():
        return legs.assign(place=0)
    starts = legs.groupby(keys, dropna=False)["start_ns"].min()
    legs = starts.to_frame().reset_index().sort_values(["key", "leg", "start_ns"])
    legs["place"] = legs.groupby(["key", "leg"]).cumcount()
    return legs


def handoff(cone: Cone, found: pd.DataFrame, row: pd.DataFrame) -> dict[str, pd.Series]:
    """What the transfer's ranks say together: blocks and registration there, posted, landed."""
    handed = cone.end(semconv.SPAN_PREFILL_END, SIDE_PREFILL)
    return {
        "blocks_ns": first_known(handed, transfers.by_request(cone, found, "blocks_ns")),
        "received_ns": transfers.sent_or_received(cone, found),
        "posted_ns": transfers.by_request(cone, found, "posted_ns"),
        "landed_ns": transfers.landed(cone, found, row["told_ns"]),
    }


def read_back(cone: Cone, back: pd.DataFrame) -> dict[str, pd.Series]:
    """P waits for what a later turn reads back from D, before it computes the rest."""
    side, start = SIDE_PREFILL, semconv.SPAN_DECODE_START
    told = cone.end(semconv.SPAN_KV_WAIT, side)
    return {
        "back_allocated_ns": cone.start(semconv.SPAN_KV_WAIT, side),
        "back_begin_ns": transfers.by_request(cone, back, "begin_ns"),
        "back_posted_ns": transfers.by_request(cone, back, "posted_ns"),
        "back_landed_ns": transfers.back_landed(cone, back, told),
        "back_told_ns": told,
        "back_refused_ns": cone.event(semconv.EVENT_REFUSED, "min", start, side),
    }
