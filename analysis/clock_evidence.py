"""Evidence on clocks: pairs of instants of which one must lie before the other.

Whatever was sent from one host was received on another later. So each row is a message, and it
bounds the offset: receiver's clock less sender's clock is at most `received_ns - sent_ns`. In the
words of the design, for a pair P, D: what D sent gives a lower bound, what P sent an upper one.

"The WRITE was complete on P, then D saw its notification" is not among them: P polls, and may look
later than D does. Spans of different requests are never paired, nor tries that may not belong
together.
"""

from collections.abc import Iterator, Sequence
from typing import Final

import pandas as pd

from pdtrace.analysis.attempts import SIDE_DECODE, SIDE_PREFILL
from pdtrace.analysis.coded import decoded
from pdtrace.analysis.identity import peer_is_of_this_request
from pdtrace.tracing import semconv

LEG_TO_PREFILL: Final = "prefill leg sent → P has it"
LEG_TO_DECODE: Final = "decode leg sent → D has it"
PREFILL_ANSWER: Final = "prefill ended on P → prefill leg ended"
PREFILL_RESPONSE: Final = "prefill ended on P → D has it"
REGISTRATION: Final = "registration sent on D → received on P"
WRITE_NOTIFICATION: Final = "WRITE submitted on P → notification seen on D"
READ_NOTIFICATION: Final = "READ submitted on D → notification seen on P"
FIRST_TOKEN: Final = "first token on D → first token at the router"
HANDSHAKE_REQUEST: Final = "handshake sent → served by the peer"
HANDSHAKE_REPLY: Final = "handshake served by the peer → reply received"
KINDS: Final = (
    LEG_TO_PREFILL,
    LEG_TO_DECODE,
    PREFILL_ANSWER,
    PREFILL_RESPONSE,
    REGISTRATION,
    WRITE_NOTIFICATION,
    READ_NOTIFICATION,
    FIRST_TOKEN,
    HANDSHAKE_REQUEST,
    HANDSHAKE_REPLY,
)
COLUMNS: Final = ("kind", "request_id", "sender", "receiver", "sent_ns", "received_ns")


def messages(own: pd.DataFrame, events: pd.DataFrame) -> pd.DataFrame:
    """One row per message between two known clocks, with `COLUMNS`; times int64 ns.

    `sender`, `receiver`: values of `pd.clock.id`; `sent_ns` is a time on the sender's clock,
    `received_ns` on the receiver's. `request_id` is the label. `own`: of `attempts.own_spans`;
    `events`: of the spans table.
    """
    own, events = decoded(own), decoded(events)
    certain = _certain(own)
    found = pd.concat(
        [*_router(certain, events), *_engines(certain, events), *_handshakes(own)],
        ignore_index=True,
    )
    named = (found["sender"] != "") & (found["receiver"] != "")
    found = found[named & (found["sender"] != found["receiver"])]
    labels = certain.drop_duplicates("key").set_index("key")["request_id"]
    found = found.assign(request_id=found["key"].map(labels).fillna("").astype("str"))
    return together([found[list(COLUMNS)]])


def together(parts: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """The messages of all parts, in one order whichever part each came from."""
    order = ["sent_ns", "received_ns", "kind", "sender", "receiver", "request_id"]
    return pd.concat(parts, ignore_index=True).sort_values(order).reset_index(drop=True)


def _certain(own: pd.DataFrame) -> pd.DataFrame:
    """Spans of which it is certain whose request they are of, and whose times are their own.

    An id that was used twice is left out, and what a trace store has moved.
    """
    again = own.loc[own["instance"] > 1, "id"].unique()
    usual = ~own["phantom"] & ~own["mispaired"] & ~own["adjusted"]
    return own[usual & ~own["id"].isin(again)]


def _one(rows: pd.DataFrame, by: str, column: str, how: str) -> pd.DataFrame:
    """By `by`: `clock` and `at_ns`, the first or last instant, where all rows are on one clock."""
    grouped = rows.groupby(by)
    found = grouped.agg(
        key=("key", "first"), clock=("clock_id", "first"), other=("clock_id", "last"),
        at_ns=(column, how),
    )  # fmt: skip
    clocks = rows[[by, "clock_id"]].drop_duplicates().groupby(by).size()
    one: pd.DataFrame = found[clocks.reindex(found.index) == 1]
    return one[["key", "clock", "at_ns"]]


def _between(kind: str, sent: pd.DataFrame, received: pd.DataFrame, on: str) -> pd.DataFrame:
    """Messages from rows of `sent` to those of `received` (key, clock, at_ns) that share `on`."""
    both = sent.reset_index().merge(received.reset_index(), on=on, suffixes=("", "_to"))
    return pd.DataFrame(
        {
            "kind": pd.Series(kind, index=both.index, dtype="str"),
            "key": both["key"].astype("int64"),
            "sender": both["clock"].astype("str"),
            "receiver": both["clock_to"].astype("str"),
            "sent_ns": both["at_ns"].astype("int64"),
            "received_ns": both["at_ns_to"].astype("int64"),
        }
    )


def _arrivals(own: pd.DataFrame, side: str) -> pd.DataFrame:
    """By try of a side: when its engine had the request."""
    names = (semconv.SPAN_PREFILL_QUEUE, semconv.SPAN_DECODE_ADMISSION)
    mine = own[(own["side"] == side) & own["name"].isin(names)]
    return _one(mine, "try", "start_ns", "min")


def _ends(own: pd.DataFrame) -> pd.DataFrame:
    """By try of P that did not fail: when its prefill ended."""
    mine = own[(own["side"] == SIDE_PREFILL) & (own["name"] == semconv.SPAN_PREFILL)]
    failed = mine.loc[mine["error"], "try"]
    return _one(mine[~mine["try"].isin(failed)], "try", "end_ns", "max")


def _alone(rows: pd.DataFrame) -> pd.DataFrame:
    """Those rows whose request has no other among them."""
    return rows[~rows.duplicated("key", keep=False)]


def _router(own: pd.DataFrame, events: pd.DataFrame) -> Iterator[pd.DataFrame]:
    """Messages between the router and the engines."""
    request = own[own["name"] == semconv.SPAN_REQUEST]
    legs = own[own["name"] == semconv.SPAN_LEG]
    received = _one(request, "key", "start_ns", "min").drop(columns="key")
    for side, kind in ((SIDE_PREFILL, LEG_TO_PREFILL), (SIDE_DECODE, LEG_TO_DECODE)):
        mine = legs[(legs["leg"] == side) & ~_without_handoff(own, legs)]
        # The first leg of a kind was sent before any engine had one; none is known: the request.
        sent = _one(mine, "key", "start_ns", "min").drop(columns="key")
        sent = pd.concat([sent, received[~received.index.isin(sent.index)]])
        yield _between(kind, sent, _arrivals(own, side), "key")
    first = _alone(legs[legs["leg"] == SIDE_PREFILL])
    answered = _one(first[~first["error"]], "key", "end_ns", "max").drop(columns="key")
    p_tries = own[own["side"] == SIDE_PREFILL].drop_duplicates("try")
    ends = _ends(own)
    yield _between(PREFILL_ANSWER, ends[ends["key"].isin(_alone(p_tries)["key"])], answered, "key")
    yield _between(FIRST_TOKEN, _tokens(own), _tokens_at_router(request, events), "key")


def _without_handoff(own: pd.DataFrame, rows: pd.DataFrame) -> pd.Series:
    """Of which requests an engine did all: which of the router's legs went there is not known."""
    return rows["key"].isin(own.loc[own["local"], "key"])


def _tokens(own: pd.DataFrame) -> pd.DataFrame:
    """By request: the first token made on D, of whatever try; all tries on one clock."""
    good = own[(own["side"] == SIDE_DECODE) & ~own["error"]]
    made = good[
        (good["name"] == semconv.SPAN_FIRST_DECODE)
        | (good["local"] & (good["name"] == semconv.SPAN_PREFILL))
    ]
    return _one(made, "key", "end_ns", "min").drop(columns="key")


def _tokens_at_router(request: pd.DataFrame, events: pd.DataFrame) -> pd.DataFrame:
    first = events[events["name"] == semconv.EVENT_FIRST_TOKEN]
    at = first.merge(request[["key", "clock_id"]], left_on="row", right_index=True)
    return _one(at, "key", "time_ns", "min").drop(columns="key")


def _engines(own: pd.DataFrame, events: pd.DataFrame) -> Iterator[pd.DataFrame]:
    """Messages between the prefill and the decode engine of one request."""
    pairs = _pairs(own)
    sequential = _sequential(own, pairs)
    ends = _ends(own).rename_axis("p")
    arrivals = _arrivals(own, SIDE_DECODE).rename_axis("d").drop(columns="key")
    ends = ends.reset_index().merge(pairs[sequential][["p", "d"]], on="p").set_index("p")
    yield _between(PREFILL_RESPONSE, ends, arrivals, "d")
    yield _registrations(own, events, pairs)
    push, pull = own[own["mode"] == semconv.MODE_PUSH], own[own["mode"] == semconv.MODE_PULL]
    writes = push[push["name"] == semconv.SPAN_WRITE_SUBMIT]
    told = _seen(push[push["name"] == semconv.SPAN_KV_WAIT], events)
    yield _notifications(WRITE_NOTIFICATION, writes, told, pairs, "p", "d")
    reads = pull[pull["name"] == semconv.SPAN_READ_SUBMIT]
    told = _seen(pull[pull["name"] == semconv.SPAN_LEASE], events)
    yield _notifications(READ_NOTIFICATION, reads, told, pairs, "d", "p")


def _pairs(own: pd.DataFrame) -> pd.DataFrame:
    """Tries `p` and `d` of one request that certainly served each other: key, p, d (int64).

    One names the other's internal id, or the request has no other try on either side.
    """
    columns = ["key", "try", "engine_request_id", "peer_engine_request_id"]
    engine = own[own["side"].isin((SIDE_PREFILL, SIDE_DECODE))]
    told = engine.loc[peer_is_of_this_request(engine), [*columns, "side"]].drop_duplicates()
    tries = engine[[*columns[:3], "side"]].drop_duplicates("try")
    named = told.merge(
        tries,
        left_on=["key", "peer_engine_request_id"],
        right_on=["key", "engine_request_id"],
        suffixes=("", "_peer"),
    )
    by_p = named["side"] == SIDE_PREFILL
    named = named[named["side"] != named["side_peer"]].assign(
        p=named["try"].where(by_p, named["try_peer"]), d=named["try_peer"].where(by_p, named["try"])
    )
    single = [
        _alone(tries[tries["side"] == side])[["key", "try"]].rename(columns={"try": name})
        for side, name in ((SIDE_PREFILL, "p"), (SIDE_DECODE, "d"))
    ]
    alone = single[0].merge(single[1], on="key")
    alone = alone[~alone["key"].isin(named["key"])]
    found = pd.concat([named[["key", "p", "d"]], alone[["key", "p", "d"]]])
    return found.drop_duplicates().astype("int64").reset_index(drop=True)


def _sequential(own: pd.DataFrame, pairs: pd.DataFrame) -> pd.Series:
    """Was D's leg sent after P's answer? The router says so, or D READs what P's answer names."""
    request = own[own["name"] == semconv.SPAN_REQUEST]
    said = pairs["key"].map(request.drop_duplicates("key").set_index("key")["dispatch"])
    pull = own.loc[own["mode"] == semconv.MODE_PULL, "try"]
    in_turn = said == semconv.DISPATCH_SEQUENTIAL
    return in_turn | (pairs["d"].isin(pull) & (said != semconv.DISPATCH_CONCURRENT))


def _registrations(own: pd.DataFrame, events: pd.DataFrame, pairs: pd.DataFrame) -> pd.DataFrame:
    """A rank of D is done sending when every rank of P was sent to: the last one's time counts.

    Which rank of D a registration came from is not always told, so of several the first counts.
    """
    sent = own[(own["name"] == semconv.SPAN_REGISTRATION) & ~own["error"]]
    sent = _one(sent[sent["try"].isin(pairs["d"])], "try", "end_ns", "min")
    sent = sent.rename_axis("d").reset_index().merge(pairs[["p", "d"]], on="d").set_index("d")
    match = own[(own["name"] == semconv.SPAN_MATCH) & own["try"].isin(pairs["p"])]
    first = match["match_first"] == semconv.MATCH_REGISTRATION
    made = match.assign(at_ns=match["end_ns"].where(~first, match["start_ns"]))
    told = events[events["name"] == semconv.EVENT_REGISTRATION_RECEIVED]
    later = told.merge(match[["key", "try", "clock_id"]], left_on="row", right_index=True)
    columns = ["key", "try", "clock_id", "at_ns"]
    every = pd.concat([made[columns], later.rename(columns={"time_ns": "at_ns"})[columns]])
    received = _one(every, "try", "at_ns", "max").rename_axis("p").drop(columns="key")
    return _between(REGISTRATION, sent, received, "p")


def _seen(waiting: pd.DataFrame, events: pd.DataFrame) -> pd.DataFrame:
    """Notifications on these spans: key, try, clock_id, peer_rank, time_ns."""
    seen = events[events["name"] == semconv.EVENT_NOTIFICATION_SEEN]
    return seen.merge(waiting[["key", "try", "clock_id"]], left_on="row", right_index=True)


def _notifications(
    kind: str,
    posted: pd.DataFrame,
    seen: pd.DataFrame,
    pairs: pd.DataFrame,
    sender: str,
    receiver: str,
) -> pd.DataFrame:
    """What a rank began to post → its last notification on the other side.

    Not the end of posting: on real engines the other side was seen to be told up to 30 ms before
    that, as the call that posts may return long after the data is there.
    """
    ranks = posted[["try", "tp_rank"]].drop_duplicates().groupby("try").size()
    last = seen.groupby(["try", "peer_rank"], dropna=False).agg(
        key=("key", "first"), clock=("clock_id", "first"), at_ns=("time_ns", "max")
    )  # fmt: skip
    last = last.reset_index().rename(
        columns={"try": receiver, "key": "key_to", "clock": "clock_to"}
    )
    rows = posted.loc[~posted["error"], ["key", "try", "tp_rank", "clock_id", "start_ns"]]
    rows = rows.rename(columns={"try": sender, "clock_id": "clock"})
    both = rows.merge(pairs[["p", "d"]], on=sender).merge(last, on=receiver, suffixes=("", "_to"))
    alone = both[sender].map(ranks) == 1
    mine = (both["peer_rank"] == both["tp_rank"]).fillna(False) | (both["peer_rank"].isna() & alone)
    both = both[mine.astype("bool")]
    return pd.DataFrame(
        {
            "kind": pd.Series(kind, index=both.index, dtype="str"),
            "key": both["key"].astype("int64"),
            "sender": both["clock"].astype("str"),
            "receiver": both["clock_to"].astype("str"),
            "sent_ns": both["start_ns"].astype("int64"),
            "received_ns": both["at_ns"].astype("int64"),
        }
    )


def _handshakes(own: pd.DataFrame) -> Iterator[pd.DataFrame]:
    """The samples that vLLM takes in a handshake, between an engine and a peer on one clock."""
    names = ["clock_sent_ns", "clock_remote_ns", "clock_received_ns"]
    rows = own[(own["name"] == semconv.SPAN_HANDSHAKE) & ~own["adjusted"]].dropna(subset=names)
    engines = own.loc[own["clock_id"] != "", ["engine_id", "clock_id"]].drop_duplicates()
    known = engines[~engines.duplicated("engine_id", keep=False)].set_index("engine_id")
    peer = rows["peer_engine_id"].map(known["clock_id"]).fillna("").astype("str")
    sent, served, received = (rows[name].astype("int64") for name in names)
    ends = ((HANDSHAKE_REQUEST, rows["clock_id"], peer, sent, served),
            (HANDSHAKE_REPLY, peer, rows["clock_id"], served, received))  # fmt: skip
    for kind, sender, receiver, sent_ns, received_ns in ends:
        yield pd.DataFrame(
            {
                "kind": pd.Series(kind, index=rows.index, dtype="str"),
                "key": rows["key"],
                "sender": sender,
                "receiver": receiver,
                "sent_ns": sent_ns,
                "received_ns": received_ns,
            }
        )
