"""What can set slow requests apart: where they ran, what they were, what happened to them."""

from typing import Final, NamedTuple

import pandas as pd

from pdtrace.analysis import phases
from pdtrace.analysis.buckets import cache_state
from pdtrace.analysis.triage_buckets import LENGTH_FROM, doubling
from pdtrace.analysis.triage_traffic import COLD_HANDSHAKE, Traffic, flagged
from pdtrace.tracing import semconv

PLACE: Final = "place"
KIND: Final = "kind of request"
SIGN: Final = "sign"
"""Something that happened to the request: says what is wrong, not where."""


class Attribute(NamedTuple):
    """An attribute: its column, its words, what sort it is, those it lies within.

    `phrase` goes after "requests" in a sentence; {} is the value.
    """

    name: str
    words: str
    sort: str
    phrase: str
    parents: tuple[str, ...] = ()


P_ENGINE: Final = "prefill_engine"
D_ENGINE: Final = "decode_engine"
P_HOST: Final = "prefill_host"
D_HOST: Final = "decode_host"
PAIR: Final = "pair"
RANK: Final = "slowest_rank"
LENGTH: Final = "prompt_length"
LATE: Final = "registration_late"
HANDSHAKE: Final = "handshake"
PREEMPTED: Final = "preempted"
RECOMPUTED: Final = "recomputed"
YES: Final = "yes"

ATTRIBUTES: Final = (
    Attribute(P_ENGINE, "P engine", PLACE, "on P engine {}", (P_HOST,)),
    Attribute(D_ENGINE, "D engine", PLACE, "on D engine {}", (D_HOST,)),
    Attribute(P_HOST, "P host", PLACE, "on P host {}"),
    Attribute(D_HOST, "D host", PLACE, "on D host {}"),
    Attribute(PAIR, "pair", PLACE, "on the pair {}", (P_ENGINE, D_ENGINE)),
    Attribute(RANK, "slowest rank", PLACE, "whose last rank was {}"),
    Attribute("model", "model or adapter", KIND, "for model {}"),
    Attribute("mode", "transfer mode", KIND, "in mode {}"),
    Attribute("dispatch", "dispatch", KIND, "with {} dispatch"),
    Attribute(LENGTH, "prompt length", KIND, "with prompts of {}"),
    Attribute("cached_tokens", "cached tokens", KIND, "with {} tokens cached on P"),
    Attribute("prefix_cache", "prefix cache", KIND, "with a prefix cache state of {}"),
    Attribute("descriptors", "descriptors", KIND, "with {} descriptors"),
    Attribute("later_turn", "P reads back from D", KIND, "for which P reads back from D"),
    Attribute(LATE, "registration after prefill end", SIGN, "whose registration came late"),
    Attribute(HANDSHAKE, "waited for a handshake", SIGN, "that waited for a handshake"),
    Attribute(PREEMPTED, "preempted before first token", SIGN, "that were preempted {}"),
    Attribute(RECOMPUTED, "prefill again on D", SIGN, "that D computed again"),
    Attribute("retried", "an earlier try was lost", SIGN, "of which an earlier try was lost"),
)
ASKED: Final = (LENGTH, "cached_tokens", "prefix_cache")
"""What a request asked for and what was cached of it: the workload, not how it was served."""
BY_NAME: Final = {attribute.name: attribute for attribute in ATTRIBUTES}


def attributes(traffic: Traffic) -> pd.DataFrame:
    """One text column per attribute, by request: "" = not so, or not said."""
    rows = traffic.requests
    push = rows["mode"] == semconv.MODE_PUSH
    exposed = traffic.exposed[phases.REGISTRATION].reindex(rows.index).fillna(0)
    read_back = rows["back_told_ns"].notna()
    found = {
        **{name: rows[name] for name in (P_ENGINE, D_ENGINE, P_HOST, D_HOST, RANK)},
        PAIR: _pair(rows),
        **{name: rows[name] for name in ("model", "mode", "dispatch")},
        LENGTH: doubling(rows["input_tokens"], LENGTH_FROM) + " tokens",
        "cached_tokens": doubling(rows["prefill_cached_tokens"], LENGTH_FROM),
        "prefix_cache": cache_state(rows).astype("str"),
        "descriptors": doubling(rows["transfer_descriptors"], 64),
        "later_turn": _yes(read_back),
        LATE: _yes(push & (exposed > 0)),
        HANDSHAKE: _yes(flagged(rows, COLD_HANDSHAKE)),
        PREEMPTED: preempted(traffic),
        RECOMPUTED: _yes(flagged(rows, semconv.ERROR_LOAD_FAILED_RECOMPUTE)),
        "retried": _yes(flagged(rows, "retried")),
    }
    return pd.DataFrame(found, index=rows.index)[[attribute.name for attribute in ATTRIBUTES]]


def preempted(traffic: Traffic) -> pd.Series:
    """`on P`, `on D`, `on P and D` where a counter says so before the first token, else ""."""
    spans = traffic.spans
    before = spans[(spans["name"] != semconv.SPAN_DECODE) & (spans["preemptions"].fillna(0) > 0)]
    index = traffic.requests.index
    on_p, on_d = (
        index.isin(before.loc[before["side"] == side, "request_id"])
        for side in (semconv.ROLE_PREFILL, semconv.ROLE_DECODE)
    )
    words = pd.Series("", index=index, dtype="str").mask(on_p, "on P").mask(on_d, "on D")
    return words.mask(on_p & on_d, "on P and D")


def _pair(rows: pd.DataFrame) -> pd.Series:
    both = (rows[P_ENGINE] != "") & (rows[D_ENGINE] != "")
    return (rows[P_ENGINE] + " → " + rows[D_ENGINE]).where(both, "")


def _yes(mask: pd.Series) -> pd.Series:
    return mask.map({True: YES, False: ""}).astype("str")


def parent_values(found: pd.DataFrame, attribute: str) -> pd.DataFrame:
    """By value of `attribute`: the value of each parent that its requests share."""
    parents = list(BY_NAME[attribute].parents)
    return found[found[attribute] != ""].groupby(attribute)[parents].first()
