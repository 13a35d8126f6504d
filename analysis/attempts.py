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
KEY: Final = ["request_id", "engine_id", "engine_request_id"]

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
    """Our own spans only, with `side` and `local` added; other producers' spans are left out.

    Needs the columns of the spans table; the index stays that of the table.
    """
    own = spans[spans["name"].isin(semconv.OWN_SPANS)].copy()
    engine = own[~own["name"].isin(_ROUTER_SPANS)]
    groups = _classify(engine)
    placed = own[KEY].merge(groups, how="left", left_on=KEY, right_index=True)
    placed.index = own.index
    router = own["name"].isin(_ROUTER_SPANS)
    own["side"] = placed["side"].where(~router, SIDE_ROUTER).astype("str")
    own["local"] = placed["local"].where(~router, False).astype("bool")
    return own


def _classify(engine: pd.DataFrame) -> pd.DataFrame:
    """One row per try: `side`, `local`."""
    marks = pd.DataFrame(
        {
            **{column: engine[column] for column in KEY},
            "decode": engine["name"].isin(_DECODE_SPANS),
            "prefill": engine["name"].isin(_PREFILL_SPANS),
            "compute": engine["name"].isin(_COMPUTE_SPANS),
            "goes_on": engine["name"] == semconv.SPAN_DECODE,
            "by_role": engine["role"] == semconv.ROLE_DECODE,
            "alone": engine["mode"] == semconv.MODE_NONE,
        }
    )
    found = marks.groupby(KEY)[list(marks.columns[len(KEY) :])].any()
    hands_over = found["decode"] | found["prefill"]
    found["local"] = found["compute"] & ~hands_over & (found["alone"] | found["goes_on"])
    bare = ~found["prefill"] & ~found["compute"] & found["by_role"]
    on_decode = found["decode"] | found["local"] | found["goes_on"] | bare
    found["side"] = on_decode.map({True: SIDE_DECODE, False: SIDE_PREFILL})
    return found[["side", "local"]]


def attempts(own: pd.DataFrame) -> pd.DataFrame:
    """One row per try on an engine, sorted by time: request_id, side, local, start_ns, chosen.

    `start_ns` is when the engine had the request. On each side the last successful try is
    `chosen`; without a success the last one that got furthest.
    """
    engine = own[own["side"] != SIDE_ROUTER]
    p_side = engine["side"] == SIDE_PREFILL
    works = engine["name"].isin((semconv.SPAN_FIRST_DECODE, semconv.SPAN_PREFILL))
    fatal = engine["name"].isin(_FATAL_ON_P).where(p_side, engine["name"].isin(_FATAL_ON_D))
    # A match begins with the peer's registration, which may come before P has the request.
    since = engine["start_ns"].where(engine["name"] != semconv.SPAN_MATCH, engine["end_ns"])
    marked = engine.assign(
        had_ns=since,
        works=works & (p_side | engine["local"] | (engine["name"] == semconv.SPAN_FIRST_DECODE)),
        failed=fatal & engine["error"],
    )
    tries = (
        marked.groupby(KEY)
        .agg(
            side=("side", "first"),
            local=("local", "first"),
            start_ns=("had_ns", "min"),
            works=("works", "any"),
            failed=("failed", "any"),
        )
        .reset_index()
    )
    tries["grade"] = tries["works"].astype("int64") * (2 - tries["failed"].astype("int64"))
    tries = tries.sort_values(["request_id", "side", "grade", "start_ns", *KEY[1:]])
    tries["chosen"] = ~tries.duplicated(["request_id", "side"], keep="last")
    columns = [*KEY, "side", "local", "start_ns", "chosen"]
    return tries.sort_values(["request_id", "start_ns", *KEY[1:]])[columns].reset_index(drop=True)


def in_chosen(own: pd.DataFrame, tries: pd.DataFrame) -> pd.Series:
    """For each own span: is it the router's, or of a try that counts? (bool, own's index)"""
    chosen = tries.loc[tries["chosen"], KEY].assign(chosen=True)
    marked = own[KEY].merge(chosen, how="left", on=KEY)
    marked.index = own.index
    return (own["side"] == SIDE_ROUTER) | marked["chosen"].eq(True)
