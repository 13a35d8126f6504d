"""What other producers know of a request: instants that fill what our own spans leave open.

Each producer has a file that tells what it knows in the columns below, one row per request. Here
they are laid over each other and under our own spans: for every instant the best evidence counts.
"""

from functools import reduce
from typing import Final

import pandas as pd

from pdtrace.analysis import foreign_kv_log, foreign_spans
from pdtrace.analysis.attempts import SIDE_DECODE, SIDE_PREFILL, SIDE_ROUTER
from pdtrace.analysis.cone import earlier, first_known
from pdtrace.analysis.table import SpansTable
from pdtrace.tracing import semconv

INSTANTS: Final = (
    "router_start_ns",
    "router_token_ns",
    "prefill_leg_end_ns",
    "p_arrival_ns",
    "p_has_ns",
    "p_scheduled_ns",
    "p_end_ns",
    "d_arrival_ns",
    "d_has_ns",
    "d_scheduled_ns",
    "d_token_ns",
    "allocated_ns",
    "received_ns",
    "matched_ns",
    "started_ns",
    "completed_ns",
    "seen_ns",
)
"""`*_arrival_ns`: an API server has the request, which is before its engine has it."""
TEXTS: Final = ("mode", "failed", "trace_id", "reason", "p_host", "d_host")
TRUTHS: Final = (
    SIDE_PREFILL,
    SIDE_DECODE,
    SIDE_ROUTER,
    "clockless",
    "several_traces",
    "adjusted",
)
"""Heard of on that side; names no clock at all; found in several traces; times moved."""


def told(table: SpansTable, own: pd.DataFrame) -> pd.DataFrame:
    """One row per request that another producer names, by label, with all columns.

    `own`: our spans as `attempts.own_spans` gives them.
    """
    if len(own) == len(table.spans):
        nobody = pd.DataFrame(index=pd.Index([], dtype="str"))
        return complete(nobody, nobody.index)
    each = [foreign_spans.told(table, own), foreign_kv_log.told(table.spans, own)]
    known = [frame for frame in each if len(frame)] or each[:1]
    labels = reduce(lambda one, other: one.union(other), (frame.index for frame in known))
    return over_each_other([complete(frame, labels) for frame in known])


def complete(frame: pd.DataFrame, labels: pd.Index) -> pd.DataFrame:
    """The frame for exactly these requests, with every column."""
    found = frame.reindex(labels)
    never = pd.Series(pd.NA, index=labels, dtype="Int64")
    silent, no = pd.Series("", index=labels, dtype="str"), pd.Series(False, index=labels)
    columns = {name: found[name].astype("Int64") if name in found else never for name in INSTANTS}
    for name in TEXTS:
        columns[name] = found[name].fillna("").astype("str") if name in found else silent
    for name in TRUTHS:
        columns[name] = found[name].eq(True) if name in found else no
    return pd.DataFrame(columns)


def over_each_other(frames: list[pd.DataFrame]) -> pd.DataFrame:
    """For each value the first frame that knows it."""
    best = frames[0]
    for other in frames[1:]:
        best = pd.DataFrame(
            {name: first_known(best[name], other[name]) for name in INSTANTS}
            | {name: best[name].where(best[name] != "", other[name]) for name in TEXTS}
            | {name: best[name] | other[name] for name in TRUTHS}
        )
    return best


def fill(row: pd.DataFrame, told: pd.DataFrame) -> dict[str, pd.Series]:
    """Columns of the handoffs' rows with the gaps filled; what our own spans say stays.

    `elsewhere`: something was missing and others knew it. `one_clock`: nothing is between two
    clocks that were never compared.
    """
    landed = earlier(told["completed_ns"], told["seen_ns"])
    # P has blocks and registration when it matches them; which of the two was last is seen
    # by whether the registration came after prefill ended.
    in_time = (told["received_ns"] <= told["p_end_ns"]).fillna(True).astype("bool")
    by_p, by_d = told[SIDE_PREFILL] & ~row["p_known"], told[SIDE_DECODE] & ~row["d_known"]
    by_router = told[SIDE_ROUTER] & row["router_start_ns"].isna()
    same = (
        *("router_start_ns", "router_token_ns", "prefill_leg_end_ns"),
        *("p_has_ns", "p_scheduled_ns", "p_end_ns", "d_has_ns", "d_scheduled_ns", "d_token_ns"),
        *("allocated_ns", "received_ns"),
    )
    return {
        **{name: first_known(row[name], told[name]) for name in same},
        "p_arrival_ns": first_known(row["p_first_ns"], told["p_arrival_ns"], told["p_has_ns"]),
        "d_arrival_ns": first_known(row["d_first_ns"], told["d_arrival_ns"], told["d_has_ns"]),
        "p_first_ns": first_known(row["p_first_ns"], told["p_has_ns"]),
        "d_first_ns": first_known(row["d_first_ns"], told["d_has_ns"]),
        "p_known": row["p_known"] | told[SIDE_PREFILL],
        "d_known": row["d_known"] | told[SIDE_DECODE],
        "router_known": row["router_start_ns"].notna() | told[SIDE_ROUTER],
        "blocks_ns": first_known(row["blocks_ns"], told["matched_ns"].where(in_time)),
        "posted_ns": first_known(row["posted_ns"], told["started_ns"]),
        "landed_ns": first_known(row["landed_ns"], landed),
        "mode": row["mode"].where(row["mode"] != "", told["mode"]),
        "waits_elsewhere": by_d & told["allocated_ns"].notna(),
        "moved_elsewhere": told["started_ns"].notna() & told["completed_ns"].notna(),
        "failed_elsewhere": told["failed"],
        "trace_elsewhere": told["trace_id"],
        "several_traces": told["several_traces"],
        "adjusted": told["adjusted"] & (by_p | by_d | by_router),
        "reason": _reasons(told, by_p | by_d | by_router | (row["evidence"] != "own"), by_d),
        "elsewhere": by_p | by_d | by_router,
        "one_clock": _one_clock(row, told, by_p, by_d, by_router),
    }


def _reasons(told: pd.DataFrame, used: pd.Series, by_d: pd.Series) -> pd.Series:
    """Why something is not known of a request that others tell of; "" where nothing is to say."""
    reasons = told["reason"].where(used, "")
    wait = (told["d_scheduled_ns"] - told["d_has_ns"]).where(by_d)
    wait = wait[(wait != 0).fillna(False).astype("bool")]
    named = pd.Series(
        [f"D's time_in_queue of {ns / 1e6:g} ms {_CONTAINS}" for ns in wait],
        index=wait.index,
        dtype="str",
    )
    both = reasons.reindex(wait.index)
    return reasons.mask(reasons.index.isin(wait.index), (both + "; ").where(both != "", "") + named)


_CONTAINS: Final = "contains the whole KV wait, so it is no phase"


def _one_clock(
    row: pd.DataFrame, told: pd.DataFrame, by_p: pd.Series, by_d: pd.Series, by_router: pd.Series
) -> pd.Series:
    """False where instants of others, who name no clock, stand beside another process's.

    Other producers' spans alone are taken to share one clock unless they name different hosts.
    """
    ours = row["p_known"] | row["d_known"] | row["router_start_ns"].notna()
    apart = (told["p_host"] != told["d_host"]) & (told["p_host"] != "") & (told["d_host"] != "")
    between = by_p & by_d & (told["clockless"] | apart)
    return ~(between | ((by_p | by_d | by_router) & ours))


def ranks(told: pd.DataFrame, known: pd.DataFrame, requests: pd.Index) -> pd.DataFrame:
    """`known` (the ranks of `transfers.ranks`) with one row more for each request without any.

    Between match and start lies the submit; in pull, where nothing else is said, it begins when
    D's blocks are allocated, and so contains the way to the worker and a handshake.
    """
    mine = told["started_ns"].notna() | told["matched_ns"].notna()
    if not mine.any():
        return known
    push = told["mode"] == semconv.MODE_PUSH
    late = (told["received_ns"] > told["p_end_ns"]).fillna(False).astype("bool")
    more = pd.DataFrame(
        {
            "key": range(len(requests)),
            "pp_rank": 0,
            "tp_rank": 0,
            "received_ns": told["received_ns"],
            "both_ns": told["received_ns"].where(late, told["matched_ns"]),
            "begin_ns": told["matched_ns"].where(push, told["allocated_ns"]),
            "posted_ns": told["started_ns"],
            "wire_ns": told["started_ns"],
            "done_ns": told["completed_ns"],
            "request_id": requests,
        }
    )
    more = more[mine.to_numpy()]
    more = more[~more["request_id"].isin(known["request_id"])]
    return pd.concat([known, more], ignore_index=True) if len(more) else known
