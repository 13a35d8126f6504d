"""Spans of other producers that name a request: its legs joined, each put on its side.

The instants are events that the producer's own file wrote when the span was read. Legs belong to
one request by its id and by time; which side a leg is on is said by its process, else follows from
what a router asks of P (one token), from what its process is in other requests, or from the legs
following each other. Where nothing says it, nothing is assumed.
"""

from typing import Final, Literal

import numpy as np
import pandas as pd

from pdtrace.analysis.attempts import SIDE_DECODE, SIDE_PREFILL, SIDE_ROUTER
from pdtrace.analysis.coded import decoded
from pdtrace.analysis.cone import first_known
from pdtrace.analysis.foreign_vllm import spellings
from pdtrace.analysis.identity import ANOTHER, by_trace_if_zero
from pdtrace.analysis.table import SpansTable
from pdtrace.tracing import semconv

SIDE_UNKNOWN: Final = "nothing says whether this leg is prefill or decode"
_EVENTS: Final = {
    semconv.READ_QUEUED: "queued_ns",
    semconv.READ_SCHEDULED: "scheduled_ns",
    semconv.READ_COMPUTED: "computed_ns",
    semconv.READ_LEG_END: "leg_end_ns",
    semconv.READ_FIRST_TOKEN: "token_ns",
}
_TIMES: Final = ["start_ns", *_EVENTS.values()]
_NAMES: Final = (semconv.VLLM_SPAN, semconv.DYNAMO_SPAN, semconv.DYNAMO_TRACE_SCHEMA)
_COLUMNS: Final = [
    "trace_id", "span_id", "start_ns", "end_ns", "engine_request_id", "peer_engine_request_id",
    "role", "leg", "host", "instance_id", "error_type", "reason", "adjusted",
]  # fmt: skip


def told(table: SpansTable, own: pd.DataFrame) -> pd.DataFrame:
    """One row per request, by label: columns of `foreign`."""
    spans = table.spans
    mine = spans["name"].isin(_NAMES) | spans["name"].str.startswith(semconv.LLMD_PREFIX)
    if not mine.any():
        return pd.DataFrame(index=pd.Index([], dtype="str"))
    own = decoded(own)
    legs = decoded(spans.loc[mine, _COLUMNS])
    events = table.events[table.events["row"].isin(legs.index)]
    for event, column in _EVENTS.items():
        at = events[events["name"] == event].groupby("row")["time_ns"].min()
        legs[column] = at.astype("Int64").reindex(legs.index)
    legs["id"] = _request_ids(legs, own)
    legs = legs[legs["id"] != ""]
    legs["label"] = _labels(legs, own)
    legs["side"] = _sides(legs, own)
    return _by_request(legs)


def _request_ids(legs: pd.DataFrame, own: pd.DataFrame) -> pd.Series:
    """The base request id of each leg.

    A random suffix is removed unless the id is known with it: from our own spans, or because two
    legs share it, which no two random suffixes do.
    """
    raw = legs["engine_request_id"]
    pairs = pd.DataFrame([spellings(text) for text in raw], columns=["whole", "bare"], dtype="str")
    pairs = pairs.set_axis(legs.index)
    ours = set(own["id"].unique())
    shared = pairs["whole"].duplicated(keep=False)
    whole = pairs["whole"].isin(ours) | (
        shared & ~pairs["bare"].isin(ours) & ~pairs["bare"].isin(set(pairs["whole"]) - {""})
    )
    found = pairs["whole"].where(whole | (pairs["whole"] == pairs["bare"]), pairs["bare"])
    caller = legs["peer_engine_request_id"]
    named = found.mask(caller.isin(ours), caller).astype("str")
    return by_trace_if_zero(named, legs["trace_id"])


def _labels(legs: pd.DataFrame, own: pd.DataFrame) -> pd.Series:
    """The request of each leg: one of ours that overlaps in time, else one of their own.

    Legs of one id that do not reach each other are requests of their own once each has had a leg
    that made the answer: the id was used again.
    """
    ordered = legs.sort_values(["id", "end_ns", "start_ns", "span_id"])
    answers = (ordered["leg"] == SIDE_DECODE) & (ordered["role"] != SIDE_PREFILL)
    done = ordered["end_ns"].where(answers)
    last = done.groupby(ordered["id"]).transform(lambda ends: ends.cummax().shift()).fillna(0)
    begins = (ordered["start_ns"] > last) & (last > 0)
    number = begins.astype("int64").groupby(ordered["id"]).cumsum() + 1
    group = ordered["id"] + ANOTHER + number.astype("str")
    spans = ordered.groupby(group).agg(
        id=("id", "first"), start=("start_ns", "min"), end=("end_ns", "max")
    )
    ours = _ours(spans, own).reindex(group).set_axis(group.index)
    label = ours.where(ours.notna(), group)
    # The first request of an id that is not ours goes by the id alone.
    alone = ~ordered["id"].isin(own["id"])
    first = alone & (number == 1)
    return label.where(~first, ordered["id"]).reindex(legs.index).astype("str")


def _ours(groups: pd.DataFrame, own: pd.DataFrame) -> pd.Series:
    """Label of the request of ours that each group shares its id and the most time with."""
    if own.empty:
        return pd.Series(dtype="str")
    windows = own.groupby("request_id").agg(
        id=("id", "first"), start=("start_ns", "min"), end=("end_ns", "max")
    )
    pairs = groups.reset_index(names="group").merge(
        windows.reset_index(names="label"), on="id", suffixes=("", "_own")
    )
    shared = np.minimum(pairs["end"], pairs["end_own"]) - np.maximum(
        pairs["start"], pairs["start_own"]
    )
    best = pairs.assign(shared=shared)[shared >= 0].sort_values(["group", "shared", "label"])
    found: pd.Series = best.drop_duplicates("group", keep="last").set_index("group")["label"]
    return found


def _sides(legs: pd.DataFrame, own: pd.DataFrame) -> pd.Series:
    """prefill, decode, router, or "" where nothing says it."""
    known = legs["role"].where(legs["role"].isin((SIDE_PREFILL, SIDE_DECODE, SIDE_ROUTER)), "")
    engine = known != SIDE_ROUTER
    one_token = legs["leg"] == SIDE_PREFILL
    side = known.where((known != "") | one_token, SIDE_DECODE)
    answered = (side == SIDE_DECODE).groupby(legs["label"]).transform("any")
    answered |= legs["label"].isin(own.loc[own["side"] == SIDE_DECODE, "request_id"])
    side = side.where((side != "") | ~answered, SIDE_PREFILL)
    paired = legs.assign(side=side)[engine & (side != "") & answered & (legs["instance_id"] != "")]
    sides = paired.groupby("instance_id")["side"].agg(["first", "nunique"])
    proven = sides.loc[sides["nunique"] == 1, "first"]
    elsewhere = proven.reindex(legs["instance_id"]).set_axis(legs.index).fillna("")
    side = side.where(side != "", elsewhere.astype("str"))
    return side.where(side != "", _by_sequence(legs, side)).astype("str")


def _by_sequence(legs: pd.DataFrame, side: pd.Series) -> pd.Series:
    """Of two legs of which one ended before the other began the first is P's."""
    open_ = legs[side == ""].sort_values(["label", "start_ns"])
    by_label = open_.groupby("label")
    size, place = by_label["start_ns"].transform("size"), by_label.cumcount()
    gap = by_label["start_ns"].transform("max") - by_label["end_ns"].transform("min")
    apart = (size == 2) & (gap >= 0)
    found = place.map({0: SIDE_PREFILL, 1: SIDE_DECODE}).where(apart, "")
    return found.reindex(legs.index).fillna("")


def _by_request(legs: pd.DataFrame) -> pd.DataFrame:
    """The legs of a request in one row: of several on a side the one with the first token."""
    labels = pd.Index(legs["label"].unique(), dtype="str").sort_values()
    by_label = legs.groupby("label")
    chosen = legs.assign(open=legs["token_ns"].isna()).sort_values(
        ["label", "side", "open", "token_ns", "start_ns", "span_id"]
    )
    # A router tries P again until one answers: the last one is what D loads from.
    decode = _one(chosen[chosen["side"] == SIDE_DECODE], "first", labels)
    prefill = chosen[chosen["side"] == SIDE_PREFILL]
    prefill = prefill.sort_values("open", ascending=False, kind="stable")
    prefill = _one(prefill, "last", labels)
    router = _earliest(legs[legs["side"] == SIDE_ROUTER], labels)
    earliest = legs.sort_values(["start_ns", "span_id"]).groupby("label")["trace_id"].first()
    frame = {
        "router_start_ns": router["start_ns"],
        "router_token_ns": router["token_ns"],
        "prefill_leg_end_ns": router["leg_end_ns"],
        "p_arrival_ns": prefill["start_ns"],
        "p_has_ns": prefill["queued_ns"],
        "p_scheduled_ns": first_known(prefill["scheduled_ns"], router["scheduled_ns"]),
        "p_end_ns": first_known(prefill["token_ns"], router["computed_ns"]),
        "d_arrival_ns": decode["start_ns"],
        "d_has_ns": decode["queued_ns"],
        "d_scheduled_ns": decode["scheduled_ns"],
        "d_token_ns": decode["token_ns"],
        "p_host": prefill["host"].fillna(""),
        "d_host": decode["host"].fillna(""),
        "failed": by_label["error_type"].max().reindex(labels).fillna(""),
        "trace_id": earliest.reindex(labels).fillna(""),
        "reason": _reasons(legs).reindex(labels).fillna(""),
        "several_traces": by_label["trace_id"].nunique().reindex(labels) > 1,
        "adjusted": by_label["adjusted"].any().reindex(labels),
        "clockless": False,
        **{
            side: labels.isin(legs.loc[legs["side"] == side, "label"].unique())
            for side in (SIDE_PREFILL, SIDE_DECODE, SIDE_ROUTER)
        },
    }
    frame[SIDE_PREFILL] |= router["computed_ns"].notna()
    return pd.DataFrame(frame, index=labels)


def _one(rows: pd.DataFrame, keep: Literal["first", "last"], labels: pd.Index) -> pd.DataFrame:
    found = rows.drop_duplicates("label", keep=keep).astype({"start_ns": "Int64"})
    return found.set_index("label")[[*_TIMES, "host"]].reindex(labels)


def _earliest(rows: pd.DataFrame, labels: pd.Index) -> pd.DataFrame:
    found = rows.astype({"start_ns": "Int64"}).groupby("label")[_TIMES].min()
    return found.reindex(labels)


def _reasons(legs: pd.DataFrame) -> pd.Series:
    """What is not used, and why, by request; each reason once."""
    unknown = legs["side"] == ""
    said = legs["reason"].mask(unknown & (legs["reason"] == ""), SIDE_UNKNOWN)
    pairs = legs.assign(said=said)[said != ""].sort_values(["label", "start_ns", "said"])
    pairs = pairs.drop_duplicates(["label", "said"])
    return pairs.groupby("label")["said"].agg("; ".join)
