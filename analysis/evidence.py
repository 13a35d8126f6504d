"""What is known about a request beside its times: flags, and whether its clocks are one."""

from typing import Final

import numpy as np
import pandas as pd

from pdtrace.analysis import transfers
from pdtrace.analysis.alignment import Alignment
from pdtrace.analysis.attempts import SIDE_DECODE, SIDE_PREFILL
from pdtrace.analysis.cone import Cone
from pdtrace.tracing import semconv

CLOCKS_NOT_ALIGNED: Final = "clocks_not_aligned"
"""Spans on several clocks without an estimate of their offsets: nothing over hosts is exact."""
CLOCKS_NOT_KNOWN: Final = "clocks_not_known"
"""Some instants are of producers that name no clock: between hosts they may be off."""
LEASE_EXPIRED: Final = "lease_expired"
"""The lease ran out before the last rank landed: the answer may rest on reused blocks."""
ABORTED: Final = "aborted"
ADJUSTED: Final = "adjusted_by_backend"
"""The trace store moved times of this request: nothing between processes is known."""
MOVED: Final = "the trace store moved times of this request, so nothing between processes is known"
BACKWARDS: Final = "the first token is said to be earlier than the request"
EVIDENCE_OWN: Final = "own"
EVIDENCE_FOREIGN: Final = "foreign"
MISPAIRED: Final = "mispaired"
"""The blocks moved between this request and another one with the same id: the answer is wrong."""
PHANTOM: Final = "phantom_request"
"""vLLM made an empty request of its own after this one had failed on D."""


def clocks(
    cone: Cone, row: pd.DataFrame, halfwidths: Alignment | pd.Series | None
) -> dict[str, pd.Series]:
    """`one_clock`, `clock_halfwidth_ns` (0 on one clock, `<NA>` when not known) and `aligned`.

    Not `one_clock`: instants of others, who name no clock, or of processes of ours that name
    neither clock nor host, stand beside those of other processes.
    They are taken as they are, with a flag. Times that the trace store moved are on no clock.
    """
    several = cone.several("clock_id")
    unnamed = cone.listed(cone.spans.where(cone.spans["clock_id"] == ""))
    one_clock = row["one_clock"]
    if unnamed.any():
        one_clock = one_clock & ~(unnamed & cone.several("instance_id"))
    width = pd.Series(0, index=cone.requests, dtype="Int64")
    if several.any():
        width = width.where(~several, _estimate(cone, halfwidths))
    width = width.mask(row["adjusted"])
    return {
        "one_clock": one_clock,
        "clock_halfwidth_ns": width.where(one_clock),
        "aligned": width.notna(),
    }


def _estimate(cone: Cone, halfwidths: Alignment | pd.Series | None) -> pd.Series:
    """The half-width of each request as an alignment knows it, or as it is given by label."""
    if isinstance(halfwidths, pd.Series):
        return halfwidths.astype("Int64").reindex(cone.labels).set_axis(cone.requests)
    if halfwidths is None:
        return pd.Series(pd.NA, index=cone.requests, dtype="Int64")
    named = cone.spans[["key", "clock_id"]].set_axis(cone.spans.index)
    return halfwidths.halfwidths(named).reindex(cone.requests)


def flags(
    cone: Cone,
    row: pd.DataFrame,
    handshakes: pd.DataFrame,
    own: pd.DataFrame,
    tries: pd.DataFrame,
    partial: bool = False,
) -> pd.Series:
    """Tuple of the flags that hold for each request, in alphabetical order."""
    missing = _missing(cone, row)
    holds = {
        "cold_handshake": cone.listed(handshakes),
        "joined_by_request_id": cone.several("trace_id") | _other_trace(row),
        LEASE_EXPIRED: _expired_early(cone, row),
        "load_failed_recompute": _recomputed(cone, row),
        "second_registration": _second_registration(cone),
        "retried": row["p_retried"] | row["d_retried"],
        "several_choices": _several_choices(cone, tries),
        MISPAIRED: cone.listed(cone.spans.where(cone.spans["mispaired"])),
        PHANTOM: cone.listed(own[own["phantom"]]),
        ABORTED: row["t1_ns"].isna()
        & (_aborted(cone, own) | (row["failed_elsewhere"] == semconv.ERROR_ABORTED)),
        ADJUSTED: row["adjusted"],
        "partial_trace": (
            pd.DataFrame(missing).any(axis=1) | _gaps(row)
            if partial
            else pd.Series(False, index=row.index)
        ),
        **missing,
        CLOCKS_NOT_ALIGNED: ~row["aligned"] & ~row["adjusted"],
        CLOCKS_NOT_KNOWN: row["aligned"] & ~row["one_clock"],
        "foreign_evidence": row["elsewhere"] & (row["evidence"] == EVIDENCE_OWN),
    }
    names = sorted(holds)
    bits = np.zeros(len(row), dtype=np.int64)
    for bit, name in enumerate(names):
        bits |= holds[name].to_numpy(np.int64) << bit
    kinds, place = np.unique(bits, return_inverse=True)
    each = np.empty(len(kinds), dtype=object)
    for number, kind in enumerate(kinds):
        each[number] = tuple(name for bit, name in enumerate(names) if kind >> bit & 1)
    return pd.Series(each[place], index=row.index, dtype="object")


def _other_trace(row: pd.DataFrame) -> pd.Series:
    """Legs of others that were used are of another trace, or of several."""
    named = (row["trace_elsewhere"] != "") & (row["trace_id"] != row["trace_elsewhere"])
    return (named | row["several_traces"]) & row["elsewhere"]


def _expired_early(cone: Cone, row: pd.DataFrame) -> pd.Series:
    """The lease ran out although D went on to make a token of what it got later."""
    lease = cone.named(semconv.SPAN_LEASE, SIDE_PREFILL)
    ran_out = cone.reduce(
        lease.where(lease["lease_outcome"] == semconv.LEASE_EXPIRED), "end_ns", "min"
    )
    late = (ran_out < row["landed_ns"]).fillna(False).astype("bool")
    return late & row["d_token_ns"].notna() & row["loads"]


def _recomputed(cone: Cone, row: pd.DataFrame) -> pd.Series:
    said = cone.spans.where(cone.spans["error_type"] == semconv.ERROR_LOAD_FAILED_RECOMPUTE)
    again = cone.has(semconv.SPAN_PREFILL, SIDE_DECODE) & ~row["local"]
    return cone.listed(said) | again


def _second_registration(cone: Cone) -> pd.Series:
    """One P rank heard the same rank of D twice; without names, more often than D has ranks."""
    events = cone.events[cone.events["name"] == semconv.EVENT_REGISTRATION_RECEIVED]
    # A single one is no second one.
    events = events[events.duplicated("key", keep=False)]
    keys = [*transfers.RANK, "peer_rank"]
    times = events.groupby(keys, dropna=False)["time_ns"].nunique().rename("times").reset_index()
    registrations = cone.named(semconv.SPAN_REGISTRATION, SIDE_DECODE)
    sent = registrations[["key", "tp_rank"]].groupby("key")["tp_rank"].nunique()
    ranks = times["key"].map(sent).fillna(1).where(times["peer_rank"].isna(), 1)
    return cone.listed(times[times["times"] > ranks])


def _aborted(cone: Cone, own: pd.DataFrame) -> pd.Series:
    lease = own["lease_outcome"] == semconv.LEASE_ABORTED
    said = (own["error_type"] == semconv.ERROR_ABORTED) | lease
    return cone.listed(own[said & ~own["phantom"]])


def _several_choices(cone: Cone, tries: pd.DataFrame) -> pd.Series:
    """A leg on D ran several engine requests at once (`n` > 1); the first token's one counts."""
    decode = tries.loc[tries["side"] == SIDE_DECODE, ["key", "leg_no"]]
    return cone.listed(decode[decode.duplicated()])


def _gaps(row: pd.DataFrame) -> pd.Series:
    """A side that is there left out when it had the request, went on, or had what it waited for."""
    on_p = row[["p_has_ns", "p_scheduled_ns", "p_end_ns"]].isna().any(axis=1)
    on_d = row[["d_has_ns", "d_scheduled_ns", "d_token_ns"]].isna().any(axis=1)
    waited = row[["allocated_ns", "told_ns"]].isna().any(axis=1) & row["loads"]
    return (row["p_known"] & row["p_counts"] & on_p) | (row["d_known"] & (on_d | waited))


def _missing(cone: Cone, row: pd.DataFrame) -> dict[str, pd.Series]:
    """Sides that must have been there and left no span."""
    submit, complete = transfers.moves(cone)
    moved = cone.listed(submit) & cone.listed(complete) | row["moved_elsewhere"]
    push = row["mode"] == semconv.MODE_PUSH
    initiator = row["p_known"].where(push, row["d_known"])
    wanted = row["loads"] & row["p_expected"] & row["t1_ns"].notna()
    return {
        "missing_router": ~row["router_known"],
        "missing_prefill": row["p_counts"] & ~row["p_known"],
        "missing_decode": ~row["d_known"],
        "missing_transfer": wanted & initiator & ~moved,
    }
