"""Attempts: one try of a request on one engine, and which try on each side counts.

vLLM gives every try, and every choice (`n` > 1) of one, its own internal id, so spans of one
(request, engine, internal id) belong together. A try is on D's side when it does anything only D
does; a try that computes the prompt and hands nothing over ("local") also stands on D's side,
because it makes the first token.
"""

from typing import Any, Final

import numpy as np
import pandas as pd

from pdtrace.analysis.arrays import Bools, Ints
from pdtrace.analysis.coded import among, coded, codes, dense, plain
from pdtrace.analysis.grouped import LARGEST, SMALLEST, highest, lowest, nullable, present
from pdtrace.analysis.identity import (
    NO_NAME,
    by_trace_if_zero,
    engine_legs,
    identify,
    peer_is_of_this_request,
    peers_in_own_terms,
)
from pdtrace.analysis.phantoms import adopted
from pdtrace.analysis.row_view import RowView
from pdtrace.tracing import semconv

SIDE_PREFILL: Final = "prefill"
SIDE_DECODE: Final = "decode"
SIDE_ROUTER: Final = "router"
SIDES: Final = pd.CategoricalDtype(pd.Index([SIDE_DECODE, SIDE_PREFILL, SIDE_ROUTER]), ordered=True)
_DECODE, _PREFILL, _ROUTER = range(3)

_ROUTER_SPANS: Final = (semconv.SPAN_REQUEST, semconv.SPAN_LEG)
_DECODE_SPANS: Final = (
    semconv.SPAN_DECODE_ADMISSION,
    semconv.SPAN_REGISTRATION,
    semconv.SPAN_FIRST_DECODE,
)
_LOADING_SPANS: Final = (
    semconv.SPAN_READ_SUBMIT,
    semconv.SPAN_READ_COMPLETE,
    semconv.SPAN_KV_WAIT,
    semconv.SPAN_DECODE_START,
)
_PREFILL_SPANS: Final = (
    semconv.SPAN_PREFILL_END,
    semconv.SPAN_MATCH,
    semconv.SPAN_WRITE_SUBMIT,
    semconv.SPAN_WRITE_COMPLETE,
    semconv.SPAN_LEASE,
)
_COMPUTE_SPANS: Final = (semconv.SPAN_PREFILL_QUEUE, semconv.SPAN_PREFILL)
# An error here means that the try did not do its work on that side.
_FATAL_ON_P: Final = (*_COMPUTE_SPANS, *_PREFILL_SPANS[:-1])
_FATAL_ON_D: Final = (
    semconv.SPAN_DECODE_ADMISSION,
    semconv.SPAN_DECODE_START,
    semconv.SPAN_FIRST_DECODE,
    semconv.SPAN_PREFILL,
)


def own_spans(spans: pd.DataFrame) -> pd.DataFrame:
    """Our own spans only, with `key`, `try`, `side`, `local` and more; the index stays.

    `request_id` becomes the request's label (see `identity`), `id` and `instance` say the same in
    two; `key` numbers the requests in the order of their labels, `try` the tries, `leg_no` what
    one HTTP request made of them; `phantom` spans are of requests that vLLM made itself,
    `mispaired` ones of legs that got another request's peer. Needs the columns of the spans table;
    other producers' spans are left out. Texts are categories, but for `span_id`.
    """
    mine = spans["name"].isin(semconv.OWN_SPANS)
    own = _by_trace_if_zero(spans if mine.all() else spans[mine])
    leg = engine_legs(own)
    found = identify(own, leg)
    request, phantom = adopted(own, found)
    labels = pd.CategoricalDtype(pd.Index(found.requests["label"]), ordered=True)
    ids = coded(found.requests["id"])
    engine = codes(own["engine_id"])
    try_no = dense([request, engine, codes(own["engine_request_id"])])
    legs_are_tries = np.array_equal(leg, codes(own["engine_request_id"]))
    leg_no = try_no if legs_are_tries else dense([request, engine, leg])
    router = among(own["name"], _ROUTER_SPANS)
    engine_spans = own.loc[~router, ["name", "role", "mode"]]
    side, local = _classify(engine_spans, try_no[~router], int(try_no.max(initial=-1)) + 1)
    # Of a phantom the own id stays that of the request that it was for itself.
    instance = found.requests["instance"].to_numpy(np.int64)
    found_out: dict[str, Any] = {
        "id": ids.iloc[found.request].set_axis(own.index),
        "instance": instance[found.request],
        "mispaired": found.mispaired,
        "request_id": pd.Categorical.from_codes(request, dtype=labels),
        "phantom": phantom,
        "key": request,
        "try": try_no,
        "leg_no": leg_no,
        "side": pd.Categorical.from_codes(np.where(router, _ROUTER, side[try_no]), dtype=SIDES),
        "local": local[try_no] & ~router,
    }
    return own.assign(**found_out)


def _by_trace_if_zero(own: pd.DataFrame) -> pd.DataFrame:
    if NO_NAME not in own["request_id"].cat.categories:
        return own
    said, trace = plain(own["request_id"]), plain(own["trace_id"])
    return own.assign(request_id=coded(by_trace_if_zero(said, trace)))


def _classify(engine: pd.DataFrame, try_no: Ints, count: int) -> tuple[Ints, Bools]:
    """By try: its side (code of `SIDES`), and whether it is local."""

    def any_of(rows: Bools) -> Bools:
        return present(try_no[rows], count)

    name, role = engine["name"], engine["role"]
    prefill, compute = (any_of(among(name, of)) for of in (_PREFILL_SPANS, _COMPUTE_SPANS))
    goes_on = any_of(among(name, [semconv.SPAN_DECODE]) & ~among(role, [semconv.ROLE_PREFILL]))
    # P loads as well, when a later turn reads back what D has; it computes the rest.
    loads = any_of(among(name, _LOADING_SPANS)) & ~prefill & ~compute
    decode = any_of(among(name, _DECODE_SPANS)) | loads
    alone = any_of(among(engine["mode"], [semconv.MODE_NONE]))
    local = compute & ~(decode | prefill) & (alone | goes_on)
    bare = ~prefill & ~compute & any_of(among(role, [semconv.ROLE_DECODE]))
    return np.where(decode | local | goes_on | bare, _DECODE, _PREFILL), local


def attempts(own: pd.DataFrame) -> pd.DataFrame:
    """One row per try on an engine, by time, less the phantoms; the index is `try`.

    Columns: request_id, key, side, local, leg_no, start_ns (when the engine had the request),
    chosen. On each side one try is chosen, the one that the first token came from: on D of the
    last successful leg the choice whose token came first, on P the try that the chosen one loaded
    from where that is known, else the last successful one. Without a success it is the one that
    got furthest.
    """
    columns = ["request_id", "key", "side", "local", "leg_no"]
    engine = RowView(own, np.flatnonzero((own["side"] != SIDE_ROUTER) & ~own["phantom"]))
    number = engine["try"].to_numpy(np.int64)
    first = lowest(engine.at, number, int(number.max(initial=-1)) + 1)
    there = first != LARGEST
    tries: pd.DataFrame = own[columns].iloc[first[there]]
    tries = tries.set_axis(pd.Index(np.flatnonzero(there), name="try", dtype="int64"))
    tries = tries.assign(**_merits(engine, (np.cumsum(there) - 1)[number], len(tries)))
    on_p = tries["side"] == SIDE_PREFILL
    decode, prefill = _last_good(tries[~on_p]), tries[on_p]
    # Where P tried once there is nothing to choose.
    twice = prefill.loc[prefill["key"].duplicated(), "key"]
    again = engine.where(engine["key"].isin(twice))
    served = prefill.index.isin(_serving(again[_OF_PEERS], decode) if len(again) else [])
    better = prefill["key"].isin(prefill.loc[served, "key"])
    chosen = decode.append(_last_good(prefill[served | ~better]))
    tries["chosen"] = tries.index.isin(chosen)
    return tries.sort_values(["key", "start_ns"], kind="stable")[[*columns, "start_ns", "chosen"]]


_OF_PEERS: Final = [
    "key", "try", "side", "role", "mode", "engine_request_id", "peer_engine_request_id",
]  # fmt: skip


def _merits(engine: RowView, place: Ints, count: int) -> dict[str, Any]:
    """By try: `start_ns`, `grade` (0 did nothing, 1 failed, 2 did its work), `end_ns` of it.

    `place`: for each span the place of its try among `count` ones.
    """
    name, p_side = engine["name"], (engine["side"] == SIDE_PREFILL).to_numpy(np.bool_)
    local, error = (engine[column].to_numpy(np.bool_) for column in ("local", "error"))
    prefill, decode = (
        among(name, [span]) for span in (semconv.SPAN_PREFILL, semconv.SPAN_FIRST_DECODE)
    )
    worked = decode | (prefill & (p_side | local))
    fatal = np.where(p_side, among(name, _FATAL_ON_P), among(name, _FATAL_ON_D))
    start, end = (engine[name].to_numpy(np.int64) for name in ("start_ns", "end_ns"))
    # A match begins with the peer's registration, which may come before P has the request.
    had_ns = np.where(among(name, [semconv.SPAN_MATCH]), end, start)
    failed = present(place[fatal & error], count)
    done = nullable(highest(end[worked], place[worked], count), SMALLEST)
    return {
        "start_ns": lowest(had_ns, place, count),
        "grade": present(place[worked], count).astype(np.int64) * (2 - failed),
        "end_ns": done.array,
    }


def _last_good(tries: pd.DataFrame) -> pd.Index:
    """Of each key the best try of the last good leg; the index of `tries` (int64)."""
    several = tries.duplicated("key", keep=False)
    alone, tries = tries.index[~several], tries[several]
    by_leg = tries.groupby("leg_no")
    ranked = tries.assign(
        leg_grade=by_leg["grade"].transform("max"),
        leg_start=by_leg["start_ns"].transform("min"),
        # The earliest end is to stand last.
        sooner=-tries["end_ns"].fillna(0).astype("int64"),
    )
    order = ["key", "leg_grade", "leg_start", "leg_no", "grade", "sooner", "start_ns"]
    ranked = ranked.sort_values(order, kind="stable").drop_duplicates("key", keep="last")
    best: pd.Index = alone.append(ranked.index)
    return best


def _serving(engine: pd.DataFrame, decode: pd.Index) -> pd.Index:
    """The tries on P that the chosen tries on D (`decode`) loaded from, where a peer is named."""
    engine = engine.assign(leg=codes(engine["engine_request_id"]), peer=peers_in_own_terms(engine))
    columns = ["key", "try", "leg", "peer"]
    known = engine[peer_is_of_this_request(engine)]
    ours = engine.loc[engine["try"].isin(decode), columns].drop_duplicates("try")
    pulled = known.loc[known["try"].isin(decode), columns].drop_duplicates()
    p_side = engine.loc[engine["side"] == SIDE_PREFILL, columns]
    by_d = p_side.merge(pulled, left_on=["key", "leg"], right_on=["key", "peer"])
    pushed = known.loc[known["side"] == SIDE_PREFILL, columns]
    by_p = pushed.merge(ours, left_on=["key", "peer"], right_on=["key", "leg"])
    both: pd.Index = pd.Index([*by_d["try_x"], *by_p["try_x"]], dtype="int64")
    return both


def in_chosen(own: pd.DataFrame, tries: pd.DataFrame) -> pd.Series:
    """For each own span: is it the router's, or of a try that counts? (bool, own's index)"""
    chosen = own["try"].isin(tries.index[tries["chosen"]])
    return (own["side"] == SIDE_ROUTER) | chosen
