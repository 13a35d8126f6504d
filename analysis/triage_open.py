"""Requests that have not ended: how old each one is, and the last thing that is known of it."""

from typing import Final

import pandas as pd

from pdtrace.analysis.triage_traffic import OPEN, Traffic

COLUMNS: Final = {
    "request": "str",
    "mode": "str",
    "prefill_engine": "str",
    "decode_engine": "str",
    "age_ns": "int64",
    "last_event": "str",
    "last_engine": "str",
    "silent_ns": "int64",
}


def open_requests(traffic: Traffic) -> pd.DataFrame:
    """One row per request without a first token and without an outcome, the oldest first.

    `age_ns`: from the first thing known of it to the latest instant in all spans; `last_event`:
    the span of it that ended last, `last_engine`: where; `silent_ns`: since that.
    """
    rows = traffic.requests[traffic.requests["standing"] == OPEN]
    mine = traffic.spans[traffic.spans["request_id"].isin(rows.index)]
    if not len(mine):
        return pd.DataFrame({name: pd.Series(dtype=kind) for name, kind in COLUMNS.items()})
    now = int(traffic.spans["end_ns"].max())
    first = mine.groupby("request_id")["start_ns"].min()
    last = mine.sort_values(["end_ns", "start_ns"]).groupby("request_id").last()
    rows = rows.loc[last.index]
    engine = last["engine_id"].where(last["engine_id"] != "", last["role"])
    found = pd.DataFrame(
        {
            "request": last["id"],
            "mode": rows["mode"],
            "prefill_engine": rows["prefill_engine"],
            "decode_engine": rows["decode_engine"],
            "age_ns": now - first,
            "last_event": last["name"],
            "last_engine": engine,
            "silent_ns": now - last["end_ns"],
        }
    )
    ordered = found.sort_values(["age_ns", "request"], ascending=[False, True])
    return ordered.reset_index(drop=True).astype(COLUMNS)
