"""What the events of `kv_log` tell of a request.

They carry no rank, no host and hashed ids, so a request's spans of ours are found by hashing their
ids; what fits none is a request by its hash.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator
from typing import Final

import pandas as pd

from pdtrace.analysis.attempts import SIDE_DECODE, SIDE_PREFILL
from pdtrace.analysis.coded import decoded
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
    events = decoded(events[events["role"].isin((SIDE_PREFILL, SIDE_DECODE))])
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


def told(spans: pd.DataFrame, own: pd.DataFrame) -> pd.DataFrame:
    """One row per request, by label; columns of `foreign`, those that this log can tell.

    `started_ns`, `completed_ns` are the initiator's (P in push, D in pull), `seen_ns` is the other
    side's completion; of several (one a rank) the last one counts.
    """
    found = marks(spans, own)
    if found.empty:
        return pd.DataFrame(index=pd.Index([], dtype="str"))
    requests = pd.Index(found["label"].unique(), dtype="str").sort_values()
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
    heard = {
        side: requests.isin(found.loc[found["side"] == side, "label"].unique())
        for side in (SIDE_PREFILL, SIDE_DECODE)
    }
    return pd.DataFrame(
        {**table, "mode": mode, "failed": _failed(found, mode), "clockless": True, **heard}
    )


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
