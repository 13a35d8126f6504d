"""Which spans are one request: exact ties first, then the request id and the time.

A *unit* is what one process did in one go: a router's request, one of its legs, or one leg on one
engine (with several choices, `n` > 1, vLLM runs one request each: these are one unit). Units are
tied exactly by parent spans and by the peer's own id that a leg names; of routers behind one
another the inner's request lies in the outer's. What is tied to nothing goes by its request id: to
the router's request that was open, else to the next first token. So an id that is used again makes
a second request, while a router's retry stays in the first. What the clock of a router places
before or after its requests is of none of them.

Most ids were used once and are tied to no other id: they are one request each, without a look at
ties.
"""

from typing import Final, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa

from pdtrace.analysis.arrays import Bools, Ints
from pdtrace.analysis.coded import NO_CODE, NOTHING, among, codes, dense
from pdtrace.analysis.grouped import LARGEST, SMALLEST, ends, highest, lowest, nullable, present
from pdtrace.analysis.keys import numbers
from pdtrace.tracing import semconv

ANOTHER: Final = "\x1f"
"""Between request id and number in the label of a second request: in no HTTP header's value."""
NO_NAME: Final = "0"
"""What clients call requests that they do not name."""
_ROUTER: Final = (semconv.SPAN_REQUEST, semconv.SPAN_LEG)
_TOKENS: Final = (semconv.SPAN_FIRST_DECODE, semconv.SPAN_DECODE)
_CHOICE: Final = r"^\d+_((?:chat)?cmpl-)"


class Identity(NamedTuple):
    """`requests`: label (unique), id, instance (from 1), code; sorted by label. For each span:

    `request`, its row there (int64, shape (n,)); `mispaired` (bool): it is of a leg whose peer is
    a leg of another request of the router: two with one id ran at once, and vLLM gave one the
    other's blocks.
    """

    requests: pd.DataFrame
    request: Ints
    mispaired: Bools


def by_trace_if_zero(ids: pd.Series, traces: pd.Series) -> pd.Series:
    """Request ids (plain text), those of requests without a name told by their traces."""
    return ids.mask(ids == NO_NAME, NO_NAME + " of trace " + traces)


def engine_legs(spans: pd.DataFrame) -> Ints:
    """Number of vLLM's internal id of the leg: that of the request without the choice's number."""
    ids = spans["engine_request_id"]
    names = ids.cat.categories
    # Most requests have one choice: to look for plain text is cheap beside a pattern.
    if not any(names.str.contains(text, regex=False).any() for text in ("_cmpl-", "_chatcmpl-")):
        return codes(ids)
    legs = names.str.replace(_CHOICE, r"\1", regex=True)
    return pd.factorize(legs, sort=True)[0].astype(np.int64)[ids.cat.codes]


def identify(own: pd.DataFrame, leg: Ints) -> Identity:
    """For each of our spans the request it is of.

    `own`: the coded columns of the spans table. `leg`: its `engine_legs`.
    """
    code, names = codes(own["request_id"]), own["request_id"].cat.categories
    rest = ~_single(own, leg)[code]
    alone = np.unique(code[~rest])
    ids = pd.Series(names[alone], dtype="str")
    requests = pd.DataFrame({"code": alone, "id": ids, "instance": np.int64(1), "label": ids})
    row = np.zeros(len(names), dtype=np.int64)
    row[alone] = np.arange(len(alone))
    found, mispaired = row[code], np.zeros(len(own), dtype=np.bool_)
    if not rest.any():
        return Identity(requests, found, mispaired)
    tied = by_ties(own[_OF_TIES][rest], leg[rest])
    found[rest], mispaired[rest] = tied.request + len(alone), tied.mispaired
    both = pd.concat([requests, tied.requests], ignore_index=True).sort_values("label")
    place = np.empty(len(both), dtype=np.int64)
    place[both.index] = np.arange(len(both))
    return Identity(both.reset_index(drop=True), place[found], mispaired)


_OF_TIES: Final = [
    "request_id", "trace_id", "span_id", "parent_id", "name", "start_ns", "end_ns", "engine_id",
    "engine_request_id", "peer_engine_request_id", "mode", "role", "error", "clock_id",
]  # fmt: skip


def _single(own: pd.DataFrame, leg: Ints) -> Bools:
    """For each id (by code) whether it is surely one request, and tied to no other id's spans.

    The router had it once, or never and one leg made tokens; its traces and its legs are of no
    other id; and the peers that its legs name are its own.
    """
    code, count = codes(own["request_id"]), len(own["request_id"].cat.categories)
    trace, name = codes(own["trace_id"]), codes(own["engine_request_id"])
    said = name != NO_CODE
    legs = ends(code[said], name[said], len(own["engine_request_id"].cat.categories))
    traces = ends(code, trace, len(own["trace_id"].cat.categories))
    shared = (traces[0] < traces[1])[trace] | (legs[0] < legs[1])[name]
    peer = peers_in_own_terms(own)
    naming = peer_is_of_this_request(own) & (peer >= 0)
    # Of a leg that several ids share none is single anyway.
    named, naming_id = legs[0][peer[naming]], code[naming]
    strange = (named != naming_id) & (named != LARGEST)
    several = [code[shared | (trace == NO_CODE)], naming_id[strange], named[strange]]
    routed = np.bincount(code[(own["name"] == semconv.SPAN_REQUEST).to_numpy()], minlength=count)
    makes = _makes_tokens(own)
    legs_of, engines_of = (
        ends(part[makes], code[makes], count) for part in (leg, codes(own["engine_id"]))
    )
    alone = ~((legs_of[0] < legs_of[1]) | (engines_of[0] < engines_of[1]))
    single: Bools = ((routed == 1) & ~_outside(own, code, count)) | ((routed == 0) & alone)
    single[np.concatenate(several)] = False
    return single


def _outside(own: pd.DataFrame, code: Ints, count: int) -> Bools:
    """For each id (by code) whether a span begins after the router's request, or ends before it, by
    the router's clock (bool, shape (count,))."""
    request = (own["name"] == semconv.SPAN_REQUEST).to_numpy(np.bool_)
    start, end = (own[name].to_numpy(np.int64) for name in ("start_ns", "end_ns"))
    clock = codes(own["clock_id"])
    opened = lowest(start[request], code[request], count)[code]
    closed = highest(end[request], code[request], count)[code]
    same = clock == lowest(clock[request], code[request], count)[code]
    outside = same & (clock != NO_CODE) & ((start > closed) | (end < opened))
    return present(code[outside], count)


def by_ties(own: pd.DataFrame, leg: Ints) -> Identity:
    """The same for spans of which some share ids or ties."""
    unit, count = _units(own, leg)
    units = _facts(own, unit, count)
    parents = np.concatenate([_parent_ties(own, unit), _nested_ties(own, unit)])
    parents, peers = _of_one_request(parents, units), _peer_ties(own, unit)
    across = _across(units, parents, peers)
    ties = np.concatenate([parents, peers[~across]])
    units["part"] = components(count, ties)
    parts = _parts(units)
    parts["request"] = _gathered(parts)
    requests = _numbered(parts, own["request_id"].cat.categories)
    place = pd.Series(np.arange(len(requests)), index=requests.index)
    request = units["part"].map(parts["request"]).map(place).to_numpy(np.int64)
    return Identity(
        requests=requests.reset_index(drop=True),
        request=request[unit],
        mispaired=present(peers[across].ravel(), count)[unit],
    )


def _units(own: pd.DataFrame, leg: Ints) -> tuple[Ints, int]:
    """Number of the unit of each span, and how many there are."""
    router = among(own["name"], _ROUTER)
    # Each of the router's spans is one of its own.
    single = np.where(router, np.arange(1, len(own) + 1), 0)
    names = [codes(own["request_id"]), codes(own["engine_id"]), leg]
    engine = [np.where(router, 0, part) for part in names[1:]]
    unit = dense([names[0], *engine, single])
    return unit, int(unit.max()) + 1 if len(unit) else 0


def _facts(own: pd.DataFrame, unit: Ints, count: int) -> pd.DataFrame:
    """One row per unit: id (code), order, start_ns, end_ns, first (its first row), clock (of that
    row, a code); token_ns, and of the router's requests opened_ns and closed_ns (nullable times).
    """
    request = (own["name"] == semconv.SPAN_REQUEST).to_numpy(np.bool_)
    decode = among(own["name"], _TOKENS)
    goes_on = (own["name"] == semconv.SPAN_DECODE).to_numpy(np.bool_)
    start, end = (own[name].to_numpy(np.int64) for name in ("start_ns", "end_ns"))
    token = np.where(goes_on, start, end)
    works = _makes_tokens(own)
    order = np.select([request, (own["name"] == semconv.SPAN_LEG).to_numpy(), decode], [0, 1, 2], 3)
    first = lowest(np.arange(len(own), dtype=np.int64), unit, count)
    closed = highest(end[request], unit[request], count)
    return pd.DataFrame(
        {
            "id": lowest(codes(own["request_id"]), unit, count),
            "order": lowest(order, unit, count),
            "start_ns": lowest(start, unit, count),
            "end_ns": highest(end, unit, count),
            "first": first,
            "clock": codes(own["clock_id"])[first],
            "token_ns": nullable(lowest(token[works], unit[works], count), LARGEST),
            "opened_ns": nullable(lowest(start[request], unit[request], count), LARGEST),
            "closed_ns": nullable(closed, SMALLEST),
        }
    )


def _makes_tokens(own: pd.DataFrame) -> Bools:
    """Which spans say that tokens came (bool, shape (n,))."""
    name = own["name"]
    # Of one engine for both, and of a recompute on D: the prompt's end is the first token.
    alone = among(own["mode"], [semconv.MODE_NONE]) | among(own["role"], [semconv.ROLE_DECODE])
    tokens = among(name, _TOKENS) | (among(name, [semconv.SPAN_PREFILL]) & alone)
    makes: Bools = tokens & ~own["error"].to_numpy(np.bool_)
    return makes


def _parent_ties(own: pd.DataFrame, unit: Ints) -> Ints:
    """Pairs of units (int64, shape (n, 2)) of which one has a span under a span of the other."""
    trace = codes(own["trace_id"])
    parent, there = (numbers(pa.array(own[name])) for name in ("parent_id", "span_id"))
    child = parent != 0
    # Most parents have many children: each is looked up once.
    asked = dense([pd.factorize(parent[child])[0], trace[child], unit[child]])
    once = np.flatnonzero(child)[np.unique(asked, return_index=True)[1]]
    wanted = parent[once]
    order = np.argsort(there, kind="stable")
    first, last = (np.searchsorted(there[order], wanted, side) for side in ("left", "right"))
    # Spans of several traces may share an id.
    many = last - first
    one = np.repeat(once, many)
    place = np.repeat(first - np.cumsum(many) + many, many) + np.arange(len(one))
    other = order[place]
    same = trace[one] == trace[other]
    return np.stack([unit[one[same]], unit[other[same]]], axis=1)


def _nested_ties(own: pd.DataFrame, unit: Ints) -> Ints:
    """Pairs of units (int64, shape (n, 2)) that are requests of routers with one id, trace and
    clock, of which one lies in the other."""
    by = ["request_id", "trace_id", "clock_id"]
    router = (own["name"] == semconv.SPAN_REQUEST).to_numpy(np.bool_)
    rows = own.loc[router, [*by, "start_ns", "end_ns"]].assign(unit=unit[router])
    rows = rows.sort_values([*by, "start_ns", "end_ns"], ascending=[True] * 4 + [False])
    key = rows.groupby(by, observed=True).ngroup()
    latest = rows["end_ns"].astype("Int64").groupby(key).cummax()
    inner = (rows["end_ns"] <= latest.groupby(key).shift()).fillna(False).astype("bool")
    # Whatever is no inner one ends later than all before it.
    outer = rows["unit"].astype("Int64").mask(inner).groupby(key).ffill()
    return np.stack([rows["unit"][inner], outer[inner]], axis=1).astype(np.int64)


def _of_one_request(ties: Ints, units: pd.DataFrame) -> Ints:
    """Less the ties between ids of which each has a request of the router's: the span of another
    request was around when the second one came, and became its parent."""
    code = units["id"].to_numpy(np.int64)
    routed = np.zeros(int(code.max(initial=0)) + 1, dtype=np.bool_)
    routed[code[units["opened_ns"].notna().to_numpy(np.bool_)]] = True
    one, other = code[ties[:, 0]], code[ties[:, 1]]
    kept: Ints = ties[(one == other) | ~(routed[one] & routed[other])]
    return kept


def _peer_ties(own: pd.DataFrame, unit: Ints) -> Ints:
    """Pairs of units (int64, shape (n, 2)) of which one names the other as its peer's leg."""
    leg, told = codes(own["engine_request_id"]), peers_in_own_terms(own)
    legs = _once(leg, unit, leg != NO_CODE)
    named = _once(told, unit, peer_is_of_this_request(own) & (told >= 0))
    peers = named.merge(legs, on="leg")
    return peers[["unit_x", "unit_y"]].to_numpy(np.int64)


def _once(leg: Ints, unit: Ints, where: Bools) -> pd.DataFrame:
    return pd.DataFrame({"leg": leg[where], "unit": unit[where]}).drop_duplicates()


def peers_in_own_terms(spans: pd.DataFrame) -> Ints:
    """The code that each peer's id has among `engine_request_id`, -1 where it is not among them."""
    names = spans["engine_request_id"].cat.categories
    peers = spans["peer_engine_request_id"].cat
    place: Ints = names.get_indexer(peers.categories).astype(np.int64)
    return place[peers.codes]


def _across(units: pd.DataFrame, parents: Ints, peers: Ints) -> Bools:
    """Which pairs of peers join two different requests of the router (bool, shape (n,))."""
    part = components(len(units), parents)
    routed = present(part[units["opened_ns"].notna().to_numpy(np.bool_)], len(units))
    one, other = part[peers[:, 0]], part[peers[:, 1]]
    across: Bools = (one != other) & routed[one] & routed[other]
    return across


def peer_is_of_this_request(spans: pd.DataFrame) -> Bools:
    """Does the peer's id that a span names belong to the same request? (bool, shape (n,))

    D names P's leg in pull, P names D's in push. What P reads back in pull is of an earlier turn.
    """
    by_p = spans["role"] == semconv.ROLE_PREFILL
    pull = spans["mode"] == semconv.MODE_PULL
    named = spans["peer_engine_request_id"] != NOTHING
    of_this: Bools = (named & ~(by_p & pull)).to_numpy(np.bool_)
    return of_this


def components(count: int, ties: Ints) -> Ints:
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
    ranked = units.sort_values(["part", "order", "start_ns", "first"])
    return ranked.groupby("part").agg(
        id=("id", "first"),
        start_ns=("start_ns", "min"),
        end_ns=("end_ns", "max"),
        first=("first", "min"),
        clock=("clock", "first"),
        token_ns=("token_ns", "min"),
        opened_ns=("opened_ns", "min"),
        closed_ns=("closed_ns", "max"),
    )


def _gathered(parts: pd.DataFrame) -> pd.Series:
    """The component that each component belongs to: itself where it begins a request."""
    routed = parts["opened_ns"].notna().groupby(parts["id"]).transform("any") & ~_apart(parts)
    heads = parts["opened_ns"].notna() | (~routed & parts["token_ns"].notna())
    found = pd.Series(parts.index, index=parts.index, dtype="Int64").where(heads)
    if heads.all():
        return found.astype("int64")
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
    own = pd.Series(parts.index, index=parts.index).groupby([parts["id"], routed])
    return found.fillna(own.transform("first")).astype("int64")


def _apart(parts: pd.DataFrame) -> pd.Series:
    """Which components are not of the router's, and lie before or after each of its requests with
    their id by its own clock (bool)."""
    router = parts.loc[parts["opened_ns"].notna(), ["id", "clock", "opened_ns", "closed_ns"]]
    loose = parts[parts["opened_ns"].isna()]
    both = loose.reset_index().merge(router, on="id", suffixes=("", "_router"))
    same = (both["clock"] == both["clock_router"]) & (both["clock"] != NO_CODE)
    outside = (both["start_ns"] > both["closed_ns_router"]) | (
        both["end_ns"] < both["opened_ns_router"]
    )
    may_be = both.loc[~(same & outside), "part"]
    return parts["opened_ns"].isna() & ~parts.index.isin(may_be)


def _numbered(parts: pd.DataFrame, names: pd.Index) -> pd.DataFrame:
    """One row per request, sorted by label: id, instance (from 1, by time), label, code.

    `names`: the ids that the codes stand for.
    """
    requests = parts.groupby("request").agg(start_ns=("start_ns", "min"), first=("first", "min"))
    requests["code"] = parts["id"].reindex(requests.index)
    requests = requests.sort_values(["code", "start_ns", "first"])
    instance = requests.groupby("code").cumcount() + 1
    ids = pd.Series(names[requests["code"]], index=requests.index, dtype="str")
    more = (ANOTHER + instance.astype("str")).where(instance > 1, "")
    found = requests[["code"]].assign(id=ids, instance=instance, label=ids + more)
    return found.sort_values("label")
