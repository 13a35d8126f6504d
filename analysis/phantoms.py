"""Requests that vLLM makes itself: after a request failed or was aborted on D before it could load.

Its API server then submits an empty one with a bare id of 16 hex digits and the same transfer
parameters, aborted at once, so that P's blocks are freed. Nobody asked for it: it belongs to the
request that failed. Ids of that form may also be legitimate, so evidence of the failed request is
needed: its trace, or the same peer's leg, or a failure on the same pair of engines just before.
"""

from typing import Final

import numpy as np
import pandas as pd

from pdtrace.analysis.arrays import Bools, Ints
from pdtrace.analysis.coded import codes
from pdtrace.analysis.identity import Identity
from pdtrace.tracing import semconv

JUST_BEFORE_NS: Final = 5 * 10**9
BARE: Final = r"[0-9a-f]{16}"
"""How vLLM names them."""
_TRY: Final = ["engine_id", "engine_request_id"]
_IDLE: Final = (
    semconv.SPAN_DECODE_ADMISSION,
    semconv.SPAN_HANDSHAKE,
    semconv.SPAN_READ_SUBMIT,
    semconv.SPAN_READ_COMPLETE,
)
"""What such a request may leave: it arrived, and its worker may have told P."""


def adopted(own: pd.DataFrame, found: Identity) -> tuple[Ints, Bools]:
    """For each span the row of its request in `found`, and whether it is a phantom's.

    A phantom's spans go to the request that failed.
    """
    suspects = _suspects(own)
    request = found.request.copy()
    phantom = np.zeros(len(own), dtype=np.bool_)
    if suspects.empty:
        return request, phantom
    by_code = found.requests["code"].to_numpy(np.int64)
    tied = by_code[request] != codes(own["request_id"])
    loose = suspects[~tied[suspects["place"]]]
    others = own.assign(request=request, place=np.arange(len(own))).drop(index=suspects.index)
    after = _failed_before(loose.drop_duplicates(_TRY), others)
    mine = loose.merge(after, on=_TRY, how="inner")
    request[mine["place"]] = mine["after"].to_numpy(np.int64)
    phantom[mine["place"]] = True
    phantom[suspects["place"].to_numpy()[tied[suspects["place"]]]] = True
    return request, phantom


def _suspects(own: pd.DataFrame) -> pd.DataFrame:
    """Spans of tries with a bare id on D that were aborted before anything was done for them.

    `place`: where the span is in `own`.
    """
    ids = own["engine_request_id"].cat
    bare_id = ids.categories.str.fullmatch(BARE)[ids.codes]
    place = np.flatnonzero(bare_id & (own["role"] != semconv.ROLE_PREFILL).to_numpy(np.bool_))
    bare = own.iloc[place].assign(place=place)
    tries = bare.assign(
        idle=bare["name"].isin(_IDLE), aborted=bare["error_type"] == semconv.ERROR_ABORTED
    ).groupby(_TRY)
    idle, aborted = tries["idle"].transform("all"), tries["aborted"].transform("any")
    found: pd.DataFrame = bare[idle & aborted]
    return found


def _failed_before(loose: pd.DataFrame, others: pd.DataFrame) -> pd.DataFrame:
    """engine_id, engine_request_id, after: the last failure with the same peer before each."""
    columns = ["engine_id", "peer_engine_id", "peer_engine_request_id", "request", "end_ns"]
    named = others["error"] & (others["peer_engine_id"] != "")
    failed = others.loc[named, columns].rename(columns={"request": "after"})
    pairs = loose[[*_TRY, *columns[1:3], "start_ns"]].merge(
        failed, on=["engine_id", "peer_engine_id"], suffixes=("", "_failed")
    )
    one, other = pairs["peer_engine_request_id"], pairs["peer_engine_request_id_failed"]
    before = pairs["start_ns"] - pairs["end_ns"]
    near = (before <= JUST_BEFORE_NS) & ((one == "") | (other == ""))
    same = (one == other) & (one != "")
    pairs = pairs[(before >= 0) & (near | same)].sort_values(["end_ns", "after"])
    return pairs.drop_duplicates(_TRY, keep="last")[[*_TRY, "after"]]
