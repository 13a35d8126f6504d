"""Attempts: one try of a request on one engine, and which try on each side counts.

vLLM gives every try its own internal id, so spans of one (request, engine, internal id) belong
together. A try is on D's side when it does anything only D does; a try that computes the prompt
and hands nothing over ("local") also stands on D's side, because it makes the first token.
"""

from typing import Final

import pandas as pd

from pdtrace.tracing import semconv

SIDE_PREFILL: Final = "prefill"
SIDE_DECODE: Final = "decode"
SIDE_ROUTER: Final = "router"
_TRY: Final = ["key", "engine_id", "engine_request_id"]

_ROUTER_SPANS: Final = (semconv.SPAN_REQUEST, semconv.SPAN_LEG)
_DECODE_SPANS: Final = (
    semconv.SPAN_DECODE_ADMISSION,
    semconv.SPAN_REGISTRATION,
    semconv.SPAN_READ_SUBMIT,
    semconv.SPAN_READ_COMPLETE,
    semconv.SPAN_KV_WAIT,
    semconv.SPAN_DECODE_START,
    semconv.SPAN_FIRST_DECODE,
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
    """Our own spans only, with `key`, `try`, `side` and `local` added; the index stays.

    `key` numbers the requests in the order of their ids, `try` the tries. Needs the columns of
    the spans table; other producers' spans are left out.
    """
    own = spans[spans["name"].isin(semconv.OWN_SPANS)].copy()
    own["key"] = pd.factorize(own["request_id"], sort=True)[0].astype("int64")
    own["try"] = own.groupby(_TRY).ngroup().astype("int64")
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
            "prefill": engine["name"].isin(_PREFILL_SPANS),
            "compute": engine["name"].isin(_COMPUTE_SPANS),
            "goes_on": (engine["name"] == semconv.SPAN_DECODE)
            & (engine["role"] != semconv.ROLE_PREFILL),
            "by_role": engine["role"] == semconv.ROLE_DECODE,
            "alone": engine["mode"] == semconv.MODE_NONE,
        }
    )
    found = marks.groupby(engine["try"]).any()
    hands_over = found["decode"] | found["prefill"]
    found["local"] = found["compute"] & ~hands_over & (found["alone"] | found["goes_on"])
    bare = ~found["prefill"] & ~found["compute"] & found["by_role"]
    on_decode = found["decode"] | found["local"] | found["goes_on"] | bare
    found["side"] = on_decode.map({True: SIDE_DECODE, False: SIDE_PREFILL})
    return found[["side", "local"]]


def attempts(own: pd.DataFrame) -> pd.DataFrame:
    """One row per try on an engine, by time: request_id, key, side, local, start_ns, chosen.

    The index is `try`. `start_ns` is when the engine had the request. On each side the last
    successful try is `chosen`; without a success the last one that got furthest.
    """
    engine = own[own["side"] != SIDE_ROUTER]
    p_side = engine["side"] == SIDE_PREFILL
    first_decode = engine["name"] == semconv.SPAN_FIRST_DECODE
    prefill = engine["name"] == semconv.SPAN_PREFILL
    works = first_decode | (prefill & (p_side | engine["local"]))
    fatal = engine["name"].isin(_FATAL_ON_P).where(p_side, engine["name"].isin(_FATAL_ON_D))
    by_try = engine["try"]
    grade = works.groupby(by_try).any().astype("int64") * (
        2 - (fatal & engine["error"]).groupby(by_try).any().astype("int64")
    )
    tries = engine.groupby("try")[["request_id", "key", "side", "local"]].first()
    # A match begins with the peer's registration, which may come before P has the request.
    had_ns = engine["start_ns"].where(engine["name"] != semconv.SPAN_MATCH, engine["end_ns"])
    tries = tries.assign(start_ns=had_ns.groupby(by_try).min(), grade=grade)
    tries = tries.sort_values(["key", "side", "grade", "start_ns"], kind="stable")
    tries["chosen"] = ~tries.duplicated(["key", "side"], keep="last")
    return tries.sort_values(["key", "start_ns"], kind="stable").drop(columns="grade")


def in_chosen(own: pd.DataFrame, tries: pd.DataFrame) -> pd.Series:
    """For each own span: is it the router's, or of a try that counts? (bool, own's index)"""
    return (own["side"] == SIDE_ROUTER) | own["try"].map(tries["chosen"]).eq(True)
