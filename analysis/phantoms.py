"""Requests that vLLM makes itself: after a request failed or was aborted on D before it could load.

Its API server then submits an empty one with a bare id of 16 hex digits and the same transfer
parameters, aborted at once, so that P's blocks are freed. Nobody asked for it: it belongs to the
request that failed. Ids of that form may also be legitimate, so evidence of the failed request is
needed: its trace, or the same peer's leg, or a failure on the same pair of engines just before.
"""

from typing import Final

import pandas as pd

from pdtrace.tracing import semconv

JUST_BEFORE_NS: Final = 5 * 10**9
_BARE: Final = r"[0-9a-f]{16}"
_TRY: Final = ["engine_id", "engine_request_id"]
_IDLE: Final = (
    semconv.SPAN_DECODE_ADMISSION,
    semconv.SPAN_HANDSHAKE,
    semconv.SPAN_READ_SUBMIT,
    semconv.SPAN_READ_COMPLETE,
)
"""What such a request may leave: it arrived, and its worker may have told P."""


def hosts(own: pd.DataFrame, requests: pd.DataFrame) -> pd.Series:
    """Label of the request that failed, for each span of a phantom; index within that of `own`.

    `requests`: label and id of each span, by the index of `own`.
    """
    spans = own.assign(label=requests["label"], id=requests["id"])
    suspects = _suspects(spans)
    if suspects.empty:
        return pd.Series(dtype="str")
    tied = suspects.loc[suspects["id"] != suspects["request_id"], "label"]
    loose = suspects.drop(index=tied.index).drop_duplicates(_TRY)
    found = _failed_before(loose, spans.drop(index=suspects.index))
    mine = suspects.drop(index=tied.index).merge(found, on=_TRY, how="inner")
    found_hosts: pd.Series = pd.concat([tied, mine.set_index("row")["after"]])
    return found_hosts


def _suspects(spans: pd.DataFrame) -> pd.DataFrame:
    """Spans of tries with a bare id on D that were aborted before anything was done for them."""
    bare = spans[
        spans["engine_request_id"].str.fullmatch(_BARE) & (spans["role"] != semconv.ROLE_PREFILL)
    ]
    tries = bare.assign(
        idle=bare["name"].isin(_IDLE), aborted=bare["error_type"] == semconv.ERROR_ABORTED
    ).groupby(_TRY)
    idle, aborted = tries["idle"].transform("all"), tries["aborted"].transform("any")
    found: pd.DataFrame = bare[idle & aborted]
    return found.assign(row=found.index)


def _failed_before(loose: pd.DataFrame, others: pd.DataFrame) -> pd.DataFrame:
    """engine_id, engine_request_id, after: the last failure with the same peer before each."""
    columns = ["engine_id", "peer_engine_id", "peer_engine_request_id", "label", "end_ns"]
    named = others["error"] & (others["peer_engine_id"] != "")
    failed = others.loc[named, columns].rename(columns={"label": "after"})
    pairs = loose[[*_TRY, *columns[1:3], "start_ns"]].merge(
        failed, on=["engine_id", "peer_engine_id"], suffixes=("", "_failed")
    )
    one, other = pairs["peer_engine_request_id"], pairs["peer_engine_request_id_failed"]
    before = pairs["start_ns"] - pairs["end_ns"]
    near = (before <= JUST_BEFORE_NS) & ((one == "") | (other == ""))
    same = (one == other) & (one != "")
    pairs = pairs[(before >= 0) & (near | same)].sort_values(["end_ns", "after"])
    return pairs.drop_duplicates(_TRY, keep="last")[[*_TRY, "after"]]
