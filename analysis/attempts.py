"""Attempts: one try of a request on one engine, and which try on each side counts.

vLLM gives every try, and every choice (`n` > 1) of one, its own internal id, so spans of one
(request, engine, internal id) belong together. A try is on D's side when it does anything only D
does; a try that computes the prompt and hands nothing over ("local") also stands on D's side,
because it makes the first token.
"""

from typing import Final

import pandas as pd

from pdtrace.analysis.identity import engine_legs, identify, peer_is_of_this_request
from pdtrace.analysis.phantoms import hosts
from pdtrace.tracing import semconv

SIDE_PREFILL: Final = "prefill"
SIDE_DECODE: Final = "decode"
SIDE_ROUTER: Final = "router"
_TRY: Final = ["key", "engine_id", "engine_request_id"]

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
    other producers' spans are left out.
    """
    own = spans[spans["name"].isin(semconv.OWN_SPANS)]
    found = identify(own)
    phantoms = hosts(own, found)
    label = phantoms.reindex(own.index).fillna(found["label"]).astype("str")
    own = own.assign(**{name: found[name] for name in ("id", "instance", "mispaired")})
    own["request_id"] = label
    own["phantom"] = own.index.isin(phantoms.index)
    own["key"] = pd.factorize(own["request_id"], sort=True)[0].astype("int64")
    own["try"] = own.groupby(_TRY).ngroup().astype("int64")
    own["leg_no"] = own.groupby(["key", "engine_id", engine_legs(own)]).ngroup().astype("int64")
    router = own["name"].isin(_ROUTER_SPANS)
    groups = _classify(own[~router])
    side = own["try"].map(groups["side"])
    own["side"] = side.where(~router, SIDE_ROUTER).astype("str")
    own["local"] = own["try"].map(groups["local"]).eq(True) & ~router
    return own


def _classify(engine: pd.DataFrame) -> pd.DataFrame:
    """One row per try: `side`, `local`."""
    marks = pd.DataFrame(
        {
            "decode": engine["name"].isin(_DECODE_SPANS),
            "loads": engine["name"].isin(_LOADING_SPANS),
            "prefill": engine["name"].isin(_PREFILL_SPANS),
            "compute": engine["name"].isin(_COMPUTE_SPANS),
            "goes_on": (engine["name"] == semconv.SPAN_DECODE)
            & (engine["role"] != semconv.ROLE_PREFILL),
            "by_role": engine["role"] == semconv.ROLE_DECODE,
            "alone": engine["mode"] == semconv.MODE_NONE,
        }
    )
    found = marks.groupby(engine["try"]).any()
    # P loads as well, when a later turn reads back what D has; it computes the rest.
    loads = found["loads"] & ~found["prefill"] & ~found["compute"]
    decode = found["decode"] | loads
    found["local"] = (
        found["compute"] & ~(decode | found["prefill"]) & (found["alone"] | found["goes_on"])
    )
    bare = ~found["prefill"] & ~found["compute"] & found["by_role"]
    on_decode = decode | found["local"] | found["goes_on"] | bare
    found["side"] = on_decode.map({True: SIDE_DECODE, False: SIDE_PREFILL})
    return found[["side", "local"]]


def attempts(own: pd.DataFrame) -> pd.DataFrame:
    """One row per try on an engine, by time, less the phantoms; the index is `try`.

    Columns: request_id, key, side, local, leg_no, start_ns (when the engine had the request),
    chosen. On each side one try is chosen, the one that the first token came from: on D of the
    last successful leg the choice whose token came first, on P the try that the chosen one loaded
    from where that is known, else the last successful one. Without a success it is the one that
    got furthest.
    """
    engine = own[(own["side"] != SIDE_ROUTER) & ~own["phantom"]]
    tries = engine.groupby("try")[["request_id", "key", "side", "local", "leg_no"]].first()
    tries = tries.assign(**_merits(engine))
    decode = _last_good(tries[tries["side"] == SIDE_DECODE])
    prefill = tries[tries["side"] == SIDE_PREFILL]
    served = prefill.index.isin(_serving(engine, decode))
    better = prefill["key"].isin(prefill.loc[served, "key"])
    chosen = decode.append(_last_good(prefill[served | ~better]))
    tries["chosen"] = tries.index.isin(chosen)
    columns = ["request_id", "key", "side", "local", "leg_no", "start_ns", "chosen"]
    return tries.sort_values(["key", "start_ns"], kind="stable")[columns]


def _merits(engine: pd.DataFrame) -> dict[str, pd.Series]:
    """By try: `start_ns`, `grade` (0 did nothing, 1 failed, 2 did its work), `end_ns` of it."""
    p_side = engine["side"] == SIDE_PREFILL
    prefill = engine["name"] == semconv.SPAN_PREFILL
    works = (engine["name"] == semconv.SPAN_FIRST_DECODE) | (prefill & (p_side | engine["local"]))
    fatal = engine["name"].isin(_FATAL_ON_P).where(p_side, engine["name"].isin(_FATAL_ON_D))
    by_try = engine["try"]
    failed = (fatal & engine["error"]).groupby(by_try).any().astype("int64")
    # A match begins with the peer's registration, which may come before P has the request.
    had_ns = engine["start_ns"].where(engine["name"] != semconv.SPAN_MATCH, engine["end_ns"])
    return {
        "start_ns": had_ns.groupby(by_try).min(),
        "grade": works.groupby(by_try).any().astype("int64") * (2 - failed),
        "end_ns": engine["end_ns"].astype("Int64").where(works).groupby(by_try).max(),
    }


def _last_good(tries: pd.DataFrame) -> pd.Index:
    """Of each key the best try of the last good leg; the index of `tries` (int64)."""
    by_leg = tries.groupby("leg_no")
    ranked = tries.assign(
        leg_grade=by_leg["grade"].transform("max"),
        leg_start=by_leg["start_ns"].transform("min"),
        # The earliest end is to stand last.
        sooner=-tries["end_ns"].fillna(0).astype("int64"),
    )
    order = ["key", "leg_grade", "leg_start", "leg_no", "grade", "sooner", "start_ns"]
    ranked = ranked.sort_values(order, kind="stable").drop_duplicates("key", keep="last")
    best: pd.Index = ranked.index
    return best


def _serving(engine: pd.DataFrame, decode: pd.Index) -> pd.Index:
    """The tries on P that the chosen tries on D (`decode`) loaded from, where a peer is named."""
    columns = ["key", "try", "engine_request_id", "peer_engine_request_id"]
    known = engine[peer_is_of_this_request(engine)]
    ours = engine.loc[engine["try"].isin(decode), columns].drop_duplicates("try")
    pulled = known.loc[known["try"].isin(decode), columns].drop_duplicates()
    p_side = engine[engine["side"] == SIDE_PREFILL]
    by_d = p_side.merge(
        pulled, left_on=["key", "engine_request_id"], right_on=["key", "peer_engine_request_id"]
    )
    pushed = known[known["side"] == SIDE_PREFILL]
    by_p = pushed[["try", "key", "peer_engine_request_id"]].merge(
        ours, left_on=["key", "peer_engine_request_id"], right_on=["key", "engine_request_id"]
    )
    both: pd.Index = pd.Index([*by_d["try_x"], *by_p["try_x"]], dtype="int64")
    return both


def in_chosen(own: pd.DataFrame, tries: pd.DataFrame) -> pd.Series:
    """For each own span: is it the router's, or of a try that counts? (bool, own's index)"""
    return (own["side"] == SIDE_ROUTER) | own["try"].map(tries["chosen"]).eq(True)
