"""What other producers know of a request: instants that fill what our own spans leave open.

Read so far: the events of `kv_log`. They carry no rank, no host and hashed ids, so a request's
spans of ours are found by hashing their ids; what fits none is a request by its hash.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator
from typing import Final

import pandas as pd

from pdtrace.analysis.attempts import SIDE_DECODE, SIDE_PREFILL
from pdtrace.analysis.cone import earlier, first_known
from pdtrace.analysis.identity import peer_is_of_this_request
from pdtrace.tracing import semconv

_SUFFIX: Final = re.compile(r"-[0-9a-f]{8}$")
_FAILURES: Final = ("registration_failed", "transfer_failed")
_BY_INITIATOR: Final = ("transfer_started", "transfer_completed")


def marks(spans: pd.DataFrame, own: pd.DataFrame) -> pd.DataFrame:
    """One row per event of another producer: label, event, side, mode, time_ns.

    `label` is that of our own request where its hash fits one, else the hash itself. Of several
    requests with one hash on a side (a retry, a choice) the last one's events are kept.
    """
    events = spans[spans["name"].str.startswith(semconv.KV_LOG_SPAN)]
    events = events[events["role"].isin((SIDE_PREFILL, SIDE_DECODE))]
    known = dict(_hashes(own)) if len(events) else {}
    legs, groups = events["engine_request_id"].tolist(), events["request_id"].tolist()
    label = [
        known.get(leg) or known.get(group) or group for leg, group in zip(legs, groups, strict=True)
    ]
    found = pd.DataFrame(
        {
            "label": pd.Series(label, index=events.index, dtype="str"),
            "event": events["name"].str.removeprefix(semconv.KV_LOG_SPAN),
            "side": events["role"],
            "mode": events["mode"],
            "time_ns": events["start_ns"],
            "leg": events["engine_request_id"],
        }
    )
    last = found.sort_values(["time_ns", "leg"]).groupby(["label", "side"])["leg"].transform("last")
    return found[found["leg"] == last].drop(columns="leg")


def _hashes(own: pd.DataFrame) -> Iterator[tuple[str, str]]:
    """Hashes by which an event may name a request of ours, each with the request's label.

    Of the internal ids that our spans name, and of those that vLLM makes of a caller's id.
    """
    for label, request_id in _pairs(own, "id"):
        for made in (f"cmpl-{request_id}-0", f"chatcmpl-{request_id}"):
            yield _hash(made), label
    peers = own[peer_is_of_this_request(own)]
    for spans, column in ((peers, "peer_engine_request_id"), (own, "engine_request_id")):
        for label, engine_id in _pairs(spans[spans[column] != ""], column):
            yield _hash(_SUFFIX.sub("", engine_id)), label
            yield _hash(engine_id), label


def _pairs(own: pd.DataFrame, column: str) -> Iterable[tuple[str, str]]:
    found = own[["request_id", column]].drop_duplicates()
    return zip(found["request_id"], found[column], strict=True)


def _hash(text: str) -> str:
    key = semconv.KV_LOG_HASH_KEY.encode()
    return hashlib.blake2b(text.encode(), digest_size=8, person=key).hexdigest()


def instants(found: pd.DataFrame, requests: pd.Index) -> pd.DataFrame:
    """One row per request: nullable ns, `mode`, `failed`, and `prefill`, `decode` (bool: heard of).

    `started_ns`, `completed_ns` are the initiator's (P in push, D in pull), `seen_ns` is the other
    side's completion; of several (one a rank) the last one counts.
    """
    mode = found.groupby("label")["mode"].first().reindex(requests).fillna("").astype("str")
    push = mode == semconv.MODE_PUSH

    def at(event: str, side: str, last: bool = False) -> pd.Series:
        rows = found[(found["event"] == event) & (found["side"] == side)].groupby("label")
        times = rows["time_ns"].max() if last else rows["time_ns"].min()
        return times.astype("Int64").reindex(requests)

    by_p, by_d = (
        [at(event, side, last=True) for event in _BY_INITIATOR]
        for side in (SIDE_PREFILL, SIDE_DECODE)
    )
    staged = at("registration_staged", SIDE_DECODE)
    table = {
        "p_end_ns": at("transfer_staged", SIDE_PREFILL),
        "allocated_ns": staged.where(push, at("transfer_staged", SIDE_DECODE)),
        "received_ns": at("registration_received", SIDE_PREFILL),
        "matched_ns": at("blocks_matched", SIDE_PREFILL),
        "started_ns": by_p[0].where(push, by_d[0]),
        "completed_ns": by_p[1].where(push, by_d[1]),
        "seen_ns": by_d[1].where(push, by_p[1]),
    }
    sides = {
        side: found.loc[found["side"] == side, "label"] for side in (SIDE_PREFILL, SIDE_DECODE)
    }
    heard = {side: requests.isin(labels.unique()) for side, labels in sides.items()}
    return pd.DataFrame({**table, "mode": mode, "failed": _failed(found, mode), **heard})


def _failed(found: pd.DataFrame, mode: pd.Series) -> pd.Series:
    """The `error.type` of a failure that an event tells of, "" where none does."""
    moving = mode.map(
        {
            semconv.MODE_PUSH: semconv.ERROR_WRITE_FAILED,
            semconv.MODE_PULL: semconv.ERROR_READ_FAILED,
        }
    ).fillna("")
    labels = {event: found.loc[found["event"] == event, "label"] for event in _FAILURES}
    registration, transfer = (mode.index.isin(labels[event].unique()) for event in _FAILURES)
    failed = moving.where(transfer, "").mask(registration, semconv.ERROR_REGISTRATION_FAILED)
    return failed.astype("str")


def fill(row: pd.DataFrame, told: pd.DataFrame) -> dict[str, pd.Series]:
    """Columns of the handoffs' rows with the gaps filled; what our own spans say stays.

    `elsewhere`: something was missing and others knew it. `one_clock`: all is from one process
    group at most, so that nothing is between two clocks that were never compared.
    """
    landed = earlier(told["completed_ns"], told["seen_ns"])
    by_p, by_d = told[SIDE_PREFILL] & ~row["p_known"], told[SIDE_DECODE] & ~row["d_known"]
    others = row["p_known"] | row["d_known"] | row["router_start_ns"].notna()
    # P has blocks and registration when it matches them; which of the two was last is seen
    # by whether the registration came after prefill ended.
    in_time = (told["received_ns"] <= told["p_end_ns"]).fillna(True).astype("bool")
    return {
        "p_end_ns": first_known(row["p_end_ns"], told["p_end_ns"]),
        "p_known": row["p_known"] | told[SIDE_PREFILL],
        "d_known": row["d_known"] | told[SIDE_DECODE],
        "allocated_ns": first_known(row["allocated_ns"], told["allocated_ns"]),
        "blocks_ns": first_known(row["blocks_ns"], told["matched_ns"].where(in_time)),
        "received_ns": first_known(row["received_ns"], told["received_ns"]),
        "posted_ns": first_known(row["posted_ns"], told["started_ns"]),
        "landed_ns": first_known(row["landed_ns"], landed),
        "mode": row["mode"].where(row["mode"] != "", told["mode"]),
        "waits_elsewhere": by_d & told["allocated_ns"].notna(),
        "moved_elsewhere": told["started_ns"].notna() & told["completed_ns"].notna(),
        "failed_elsewhere": told["failed"],
        "elsewhere": by_p | by_d,
        "one_clock": ~((by_p & by_d) | ((by_p | by_d) & others)),
    }


def ranks(told: pd.DataFrame, known: pd.DataFrame, requests: pd.Index) -> pd.DataFrame:
    """`known` (the ranks of `transfers.ranks`) with one row more for each request without any.

    Between match and start lies the submit; in pull, where nothing else is said, it begins when
    D's blocks are allocated, and so contains the way to the worker and a handshake.
    """
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
    more = more[(told["started_ns"].notna() | told["matched_ns"].notna()).to_numpy()]
    more = more[~more["request_id"].isin(known["request_id"])]
    return pd.concat([known, more], ignore_index=True) if len(more) else known
