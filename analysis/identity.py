"""Which spans are one request: exact ties first, then the request id and the time.

A *unit* is what one process did in one go: a router's request, one of its legs, or one leg on one
engine (with several choices, `n` > 1, vLLM runs one request each: these are one unit). Units are
tied exactly by parent spans and by the peer's own id that a leg names. What is tied to nothing
goes by its request id: to the router's request that was open, else to the next first token. So an
id that is used again makes a second request, while a router's retry stays in the first.
"""

from typing import Final

import numpy as np
import pandas as pd

from pdtrace.analysis.sweep import Bools, Ints
from pdtrace.tracing import semconv

ANOTHER: Final = "\x1f"
"""Between request id and number in the label of a second request: in no HTTP header's value."""
_ROUTER: Final = (semconv.SPAN_REQUEST, semconv.SPAN_LEG)
_TOKENS: Final = (semconv.SPAN_FIRST_DECODE, semconv.SPAN_DECODE)
_CHOICE: Final = r"^\d+_((?:chat)?cmpl-)"


def engine_legs(spans: pd.DataFrame) -> pd.Series:
    """vLLM's internal id of the leg: that of the request without the number of the choice."""
    return spans["engine_request_id"].str.replace(_CHOICE, r"\1", regex=True)


def identify(own: pd.DataFrame) -> pd.DataFrame:
    """For each of our spans the request it is of: `label` (unique), `id`, `instance` (from 1).

    `mispaired` spans are of legs whose peer is a leg of another request of the router: two with
    one id ran at once, and vLLM gave one the other's blocks. Needs the columns of the spans table;
    the index of the result is that of `own`.
    """
    own = own.assign(unit=_units(own))
    units = _facts(own)
    parents, peers = _parent_ties(own), _peer_ties(own)
    across = _across(units, parents, peers)
    ties = np.concatenate([parents, peers[~across]])
    units["part"] = _components(len(units), ties)
    parts = _parts(units)
    parts["request"] = _gathered(parts)
    requests = _numbered(parts)
    place = own["unit"].map(units["part"]).map(parts["request"])
    found = {name: place.map(requests[name]) for name in ("label", "id", "instance")}
    return pd.DataFrame(found, index=own.index).assign(
        mispaired=own["unit"].isin(peers[across].ravel())
    )


def _units(own: pd.DataFrame) -> pd.Series:
    """Number of the unit of each span."""
    router = own["name"].isin(_ROUTER)
    single = own["trace_id"] + own["span_id"]
    keys = pd.DataFrame(
        {
            "id": own["request_id"],
            "engine": own["engine_id"].where(~router, single),
            "leg": engine_legs(own).where(~router, ""),
        }
    )
    return keys.groupby(["id", "engine", "leg"]).ngroup().astype("int64")


def _facts(own: pd.DataFrame) -> pd.DataFrame:
    """One row per unit: name, order, start_ns, end_ns, first_span, token_ns (a nullable time)."""
    request = own["name"] == semconv.SPAN_REQUEST
    decode = own["name"].isin(_TOKENS)
    # Of one engine for both, and of a recompute on D: the prompt's end is the first token.
    alone = (own["name"] == semconv.SPAN_PREFILL) & (
        (own["mode"] == semconv.MODE_NONE) | (own["role"] == semconv.ROLE_DECODE)
    )
    token = own["end_ns"].where(own["name"] != semconv.SPAN_DECODE, own["start_ns"])
    works = (decode | alone) & ~own["error"]
    order = np.select([request, own["name"] == semconv.SPAN_LEG, decode], [0, 1, 2], 3)
    facts = own.assign(
        order=order,
        token_ns=token.astype("Int64").where(works),
        opened_ns=own["start_ns"].astype("Int64").where(request),
    )
    return facts.groupby("unit").agg(
        id=("request_id", "first"),
        order=("order", "min"),
        start_ns=("start_ns", "min"),
        first_span=("span_id", "min"),
        token_ns=("token_ns", "min"),
        opened_ns=("opened_ns", "min"),
    )


def _parent_ties(own: pd.DataFrame) -> Ints:
    """Pairs of units (int64, shape (n, 2)) of which one has a span under a span of the other."""
    spans = own[["trace_id", "span_id", "unit"]].drop_duplicates(["trace_id", "span_id"])
    children = own.loc[own["parent_id"] != "", ["trace_id", "parent_id", "unit"]]
    parents = children.merge(
        spans, left_on=["trace_id", "parent_id"], right_on=["trace_id", "span_id"]
    )
    return parents[["unit_x", "unit_y"]].to_numpy(np.int64)


def _peer_ties(own: pd.DataFrame) -> Ints:
    """Pairs of units (int64, shape (n, 2)) of which one names the other as its peer's leg."""
    legs = own[["engine_request_id", "unit"]].drop_duplicates()
    legs = legs[legs["engine_request_id"] != ""]
    named = own.loc[peer_is_of_this_request(own), ["peer_engine_request_id", "unit"]]
    peers = named.drop_duplicates().merge(
        legs, left_on="peer_engine_request_id", right_on="engine_request_id"
    )
    return peers[["unit_x", "unit_y"]].to_numpy(np.int64)


def _across(units: pd.DataFrame, parents: Ints, peers: Ints) -> Bools:
    """Which pairs of peers join two different requests of the router (bool, shape (n,))."""
    part = _components(len(units), parents)
    routed = np.zeros(len(units), dtype=np.bool_)
    routed[part[units["opened_ns"].notna().to_numpy(np.bool_)]] = True
    one, other = part[peers[:, 0]], part[peers[:, 1]]
    across: Bools = (one != other) & routed[one] & routed[other]
    return across


def peer_is_of_this_request(spans: pd.DataFrame) -> pd.Series:
    """Does the peer's id that a span names belong to the same request? (bool)

    D names P's leg in pull, P names D's in push. What P reads back in pull is of an earlier turn.
    """
    by_p = spans["role"] == semconv.ROLE_PREFILL
    pull = spans["mode"] == semconv.MODE_PULL
    return (spans["peer_engine_request_id"] != "") & ~(by_p & pull)


def _components(count: int, ties: Ints) -> Ints:
    """The smallest unit of each unit's component (int64, shape (count,))."""
    one, other = ties[:, 0], ties[:, 1]
    part: Ints = np.arange(count, dtype=np.int64)
    while True:
        lowest = np.minimum(part[one], part[other])
        after = part.copy()
        np.minimum.at(after, one, lowest)
        np.minimum.at(after, other, lowest)
        after = after[after]
        if np.array_equal(after, part):
            return part
        part = after


def _parts(units: pd.DataFrame) -> pd.DataFrame:
    """One row per component; its id is the router's, else D's."""
    ranked = units.sort_values(["part", "order", "start_ns", "first_span"])
    return ranked.groupby("part").agg(
        id=("id", "first"),
        start_ns=("start_ns", "min"),
        first_span=("first_span", "min"),
        token_ns=("token_ns", "min"),
        opened_ns=("opened_ns", "min"),
    )


def _gathered(parts: pd.DataFrame) -> pd.Series:
    """The component that each component belongs to: itself where it begins a request."""
    routed = parts["opened_ns"].notna().groupby(parts["id"]).transform("any")
    heads = parts["opened_ns"].notna() | (~routed & parts["token_ns"].notna())
    found = pd.Series(parts.index, index=parts.index, dtype="Int64").where(heads)
    for router in (True, False):
        column = "opened_ns" if router else "token_ns"
        mine = parts[(routed == router)].reset_index()
        head = mine[mine[column].notna()].rename(columns={"part": "head"})
        head = head[["id", column, "head"]].astype({column: "int64"}).sort_values(column)
        loose = mine[mine[column].isna()].sort_values("start_ns")
        near = pd.merge_asof(
            loose, head, left_on="start_ns", right_on=column, by="id",
            direction="backward" if router else "forward",
        )  # fmt: skip
        other = head.groupby("id")["head"].agg("first" if router else "last")
        near["head"] = near["head"].astype("Int64").fillna(near["id"].map(other).astype("Int64"))
        found = found.fillna(near.set_index("part")["head"])
    first = pd.Series(parts.index, index=parts.index).groupby(parts["id"]).transform("first")
    return found.fillna(first).astype("int64")


def _numbered(parts: pd.DataFrame) -> pd.DataFrame:
    """One row per request: id, instance (from 1, by time), label."""
    ordered = parts.sort_values(["id", "start_ns", "first_span"])
    requests = ordered.groupby("request").agg(
        id=("id", "first"), start_ns=("start_ns", "min"), first_span=("first_span", "min")
    )
    requests["id"] = parts["id"].reindex(requests.index)
    requests = requests.sort_values(["id", "start_ns", "first_span"])
    requests["instance"] = requests.groupby("id").cumcount() + 1
    more = ANOTHER + requests["instance"].astype("str")
    requests["label"] = requests["id"] + more.where(requests["instance"] > 1, "")
    return requests
