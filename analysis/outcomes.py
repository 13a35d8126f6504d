"""How each request ended: `ok`, or the `error.type` of what went wrong first."""

from typing import Final

import pandas as pd

from pdtrace.analysis.attempts import SIDE_ROUTER
from pdtrace.analysis.coded import plain
from pdtrace.analysis.cone import Cone
from pdtrace.tracing import semconv

OK: Final = "ok"
UNNAMED: Final = "error"
"""A span failed and did not say how."""
_DOUBTFUL: Final = (semconv.ERROR_LEASE_EXPIRED, semconv.ERROR_LOAD_FAILED_RECOMPUTE)
"""Flags that make an outcome although the client got its tokens."""


def outcomes(cone: Cone, own: pd.DataFrame, row: pd.DataFrame) -> pd.Series:
    """Text by request; "" where nothing says how it ended.

    With a first token only what the router or D's generation says counts, else what failed first:
    in a try that counts, then in a lost one, then what the router saw. Needs `flags` and `t1_ns`.
    """
    own = own[~own["phantom"] & (own["error"] | (own["error_type"] != ""))]
    said = own.assign(error_type=plain(own["error_type"]).replace("", UNNAMED))
    later = said["name"].isin((semconv.SPAN_REQUEST, semconv.SPAN_DECODE))
    counted = said.index.isin(cone.spans.index)
    grade = pd.Series(1, index=said.index).where(~counted, 0).where(said["side"] != SIDE_ROUTER, 2)
    first = _first(cone, said.assign(grade=grade))
    first = first.where(first != "", row["failed_elsewhere"])
    after = _first(cone, said.assign(grade=grade)[later & counted])
    kinds = {
        flags: next((flag for flag in _DOUBTFUL if flag in flags), OK)
        for flags in set(row["flags"])
    }
    doubt = row["flags"].map(kinds).astype("str")
    answered = row["t1_ns"].notna() | row["d_token_ns"].notna()
    good = after.where(after != "", doubt)
    return good.where(answered, first).astype("str")


def _first(cone: Cone, said: pd.DataFrame) -> pd.Series:
    """The error of the lowest grade that ended first, by request."""
    order = ["grade", "end_ns", "start_ns", "error_type"]
    # Of spans that end together the shortest is nearest to the cause.
    ordered = said.sort_values(order, ascending=[True, True, False, True])
    first = ordered.drop_duplicates("key").set_index("key")["error_type"]
    return first.reindex(cone.requests).fillna("")
