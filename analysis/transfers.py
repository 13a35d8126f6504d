"""What each rank did for the handoff: matched, submitted, posted, completed; and handshakes.

The initiator is P in push (it WRITEs) and D in pull (it READs); the spans say which by name.
"""

from typing import Final

import numpy as np
import pandas as pd

from pdtrace.analysis.attempts import SIDE_DECODE, SIDE_PREFILL
from pdtrace.analysis.coded import dense
from pdtrace.analysis.cone import Cone, earlier, first_known
from pdtrace.analysis.grouped import LARGEST, SMALLEST, highest, lowest, nullable, present
from pdtrace.analysis.row_view import RowView
from pdtrace.tracing import semconv

RANK: Final = ["key", "pp_rank", "tp_rank"]


def ranks(cone: Cone) -> pd.DataFrame:
    """One row per rank of the initiator, all instants nullable ns.

    `blocks_ns`, `received_ns`, `both_ns` (push: blocks ready, registration received, the later
    one), `begin_ns`, `posted_ns` (submit), `wire_ns`, `done_ns` (completion span).
    """
    return _by_rank(cone, cone.named(semconv.SPAN_MATCH, SIDE_PREFILL), *moves(cone))


def moves(cone: Cone) -> tuple[RowView, RowView]:
    """The spans of the handoff's submits and completions: P's WRITEs or D's READs."""
    submit = cone.either((semconv.SPAN_WRITE_SUBMIT, ""), (semconv.SPAN_READ_SUBMIT, SIDE_DECODE))
    complete = cone.either(
        (semconv.SPAN_WRITE_COMPLETE, ""), (semconv.SPAN_READ_COMPLETE, SIDE_DECODE)
    )
    return submit, complete


def back_ranks(cone: Cone) -> pd.DataFrame:
    """The same as `ranks` for what P READs back from D before its prefill (a later turn)."""
    submit = cone.named(semconv.SPAN_READ_SUBMIT, SIDE_PREFILL)
    complete = cone.named(semconv.SPAN_READ_COMPLETE, SIDE_PREFILL)
    return _by_rank(cone, cone.either(), submit, complete)


def back_landed(cone: Cone, found: pd.DataFrame, told: pd.Series) -> pd.Series:
    """When P's worker saw that all was read back, at the latest when its scheduler knew (ns)."""
    open_ended = found[found["begin_ns"].notna() & found["done_ns"].isna()]
    return earlier(by_request(cone, found, "done_ns").mask(cone.listed(open_ended)), told)


def _by_rank(cone: Cone, match: RowView, submit: RowView, complete: RowView) -> pd.DataFrame:
    """The instants of each rank from its spans; of match and registration the first is recorded."""
    every = pd.concat([part[RANK] for part in (match, submit, complete)])
    number = dense([every[name].to_numpy(np.int64) for name in RANK])
    first = np.unique(number, return_index=True)[1]
    rank = np.split(number, np.cumsum([len(match), len(submit)]))

    def earliest(place: int, rows: RowView, column: str = "start_ns") -> pd.Series:
        values = rows[column].to_numpy(np.int64)
        return nullable(lowest(values, rank[place], len(first)), LARGEST)

    def latest(place: int, rows: RowView, column: str = "end_ns") -> pd.Series:
        values = rows[column].to_numpy(np.int64)
        return nullable(highest(values, rank[place], len(first)), SMALLEST)

    by_registration = (match["match_first"] == semconv.MATCH_REGISTRATION).to_numpy(np.bool_)
    registration_first = present(rank[0][by_registration], len(first))
    begun, met = earliest(0, match), latest(0, match)
    key = every["key"].to_numpy(np.int64)[first]
    return pd.DataFrame(
        {
            **{name: every[name].to_numpy(np.int64)[first] for name in RANK},
            "blocks_ns": met.where(registration_first, begun),
            "received_ns": begun.where(registration_first, met),
            "both_ns": met,
            "begin_ns": earliest(1, submit),
            "posted_ns": latest(1, submit),
            "wire_ns": earliest(2, complete),
            "done_ns": latest(2, complete),
            "request_id": cone.labels[key],
        }
    )


def by_request(cone: Cone, rows: pd.DataFrame, column: str) -> pd.Series:
    """The last rank's instant by request: the last one decides."""
    return cone.reduce(rows, column, "max")


def landed(cone: Cone, found: pd.DataFrame, told: pd.Series) -> pd.Series:
    """Earliest evidence that the last rank's data is there, ns.

    The last completion seen by the initiators, or the last notification drained by the
    receiver, or (at the latest) that D's scheduler was told. A set of completions or
    notifications that lacks a rank is no evidence for the last one.
    """
    submitted = found[found["begin_ns"].notna()]
    open_ended = submitted[submitted["done_ns"].isna()]
    completions = by_request(cone, found, "done_ns").mask(cone.listed(open_ended))
    return earlier(completions, _notifications(cone, found), told)


def _notifications(cone: Cone, found: pd.DataFrame) -> pd.Series:
    """Last notification by request, `<NA>` where fewer came than ranks took part."""
    events = cone.events[cone.events["name"] == semconv.EVENT_NOTIFICATION_SEEN]
    from_push = (events["side"] == SIDE_DECODE) & (events["span"] == semconv.SPAN_KV_WAIT)
    from_pull = (events["side"] == SIDE_PREFILL) & (events["span"] == semconv.SPAN_LEASE)
    events = events[from_push | from_pull].drop_duplicates(["key", "peer_rank", "time_ns"])
    by_key = events.groupby("key")
    known = by_key["peer_rank"].nunique()
    seen = known.where(known > 0, by_key["time_ns"].size())
    expected = found.dropna(subset=["begin_ns"]).groupby("key").size()
    enough = seen.reindex(cone.requests).fillna(0) >= expected.reindex(cone.requests).fillna(0)
    return cone.reduce(events, "time_ns", "max").where(enough)


def handshakes(cone: Cone, requests: pd.DataFrame) -> pd.DataFrame:
    """The handshakes that a request waits for: request_id, side, ranks, start_ns, end_ns.

    D's counts until the registration is sent (push) or the READs are posted (pull), P's until
    the WRITEs are posted (push) or what it reads back. One that became usable only afterwards was
    waited for by nobody. Needs `mode`, `received_ns`, `posted_ns`, `back_posted_ns`, `told_ns` of
    `requests`.
    """
    columns = ["request_id", *RANK, "side", "start_ns", "end_ns"]
    shaken = cone.named(semconv.SPAN_HANDSHAKE)
    rows = shaken.where(~shaken["error"])[columns]
    push = requests["mode"] == semconv.MODE_PUSH
    # Sent, by D's own clock: when P had it is known by another one only.
    sent = cone.end(semconv.SPAN_REGISTRATION, SIDE_DECODE)
    limit_d = first_known(sent, requests["received_ns"]).where(push, requests["posted_ns"])
    limits = {
        SIDE_DECODE: first_known(limit_d, requests["told_ns"]),
        SIDE_PREFILL: first_known(requests["posted_ns"], requests["told_ns"]).where(
            push, requests["back_posted_ns"].fillna(0)
        ),
    }
    kept = []
    for side, limit in limits.items():
        mine = rows[rows["side"] == side]
        usable = mine.groupby(RANK)["end_ns"].transform("max")
        latest = limit.iloc[mine["key"]].set_axis(mine.index)
        kept.append(mine[(usable <= latest).fillna(True).astype("bool")])
    return pd.concat(kept, ignore_index=True)


def sent_or_received(cone: Cone, found: pd.DataFrame) -> pd.Series:
    """When the last P rank had the registration; without P's word, when D had sent it (ns)."""
    heard = by_request(cone, found, "received_ns")
    return first_known(heard, cone.end(semconv.SPAN_REGISTRATION, SIDE_DECODE))


def straggle(cone: Cone, found: pd.DataFrame) -> pd.DataFrame:
    """By request, where two or more ranks took part and all are known to be done:

    `rank_straggle_ns` (the last one's completion less the lower median of all), and `slow_pp`,
    `slow_tp`: which rank it was (`<NA>` when none was later than the median).
    """
    part = found[found["begin_ns"].notna()]
    # Most requests have one rank, and nobody to be behind.
    part = part[part["key"].duplicated(keep=False)]
    part = part.sort_values(["key", "done_ns", "pp_rank", "tp_rank"])
    size = part.groupby("key")["key"].transform("size")
    known = part.groupby("key")["done_ns"].transform("count")
    place = part.groupby("key").cumcount()
    usable = known == size
    last = part[usable & (place == size - 1)].set_index("key")
    median = part[usable & (place == (size - 1) // 2)].set_index("key")
    behind = last["done_ns"] - median["done_ns"]
    slow = last[["pp_rank", "tp_rank"]].astype("Int64").where(behind > 0)
    columns = {"rank_straggle_ns": behind, "slow_pp": slow["pp_rank"], "slow_tp": slow["tp_rank"]}
    return pd.DataFrame(columns).astype("Int64").reindex(cone.requests)
