"""The few instants that phases begin or end at and that no span states by itself."""

import numpy as np
import pandas as pd

from pdtrace.analysis.arrays import Ints
from pdtrace.analysis.cone import first_known, later
from pdtrace.analysis.grouped import SMALLEST, highest, nullable
from pdtrace.tracing import semconv


def instants(row: pd.DataFrame, ranks: pd.DataFrame) -> pd.DataFrame:
    """The requests' rows (by label) with those instants (nullable ns); `ranks`: of `handoffs`."""
    counts = row["p_counts"]
    push = row["mode"] == semconv.MODE_PUSH
    begun = ranks["begin_ns"].to_numpy(np.int64, na_value=SMALLEST)
    at_worker = nullable(highest(begun, places(row, ranks), len(row)), SMALLEST)
    at_worker = at_worker.set_axis(row.index)
    back = [name for name in row.columns if name.startswith("back_")]
    if not counts.all():
        row = row.assign(**{name: row[name].where(counts) for name in back})
    loads_first = row["allocated_ns"].where(row["local"])
    scheduled = row["p_scheduled_ns"].where(row["back_told_ns"].notna())
    return row.assign(
        p_queued_until_ns=first_known(row["back_allocated_ns"], row["p_scheduled_ns"]),
        d_queued_until_ns=first_known(loads_first, row["d_prefill_start_ns"]),
        back_pass_ns=first_known(row["back_refused_ns"], scheduled),
        p_has_counted_ns=row["p_has_ns"].where(counts),
        p_scheduled_counted_ns=row["p_scheduled_ns"].where(counts),
        handing_from_ns=row["p_end_ns"].where(counts & push),
        registering_from_ns=row["allocated_ns"].where(row["loads"]),
        registered_ns=row["received_ns"].where(push, at_worker),
        next_pass_ns=first_known(row["refused_ns"], row["d_scheduled_ns"]),
        decoding_from_ns=later(row["d_scheduled_ns"], row["d_prefill_end_ns"]).where(
            row["d_scheduled_ns"].notna() & ~row["local"]
        ),
    )


def places(row: pd.DataFrame, of: pd.DataFrame) -> Ints:
    """The place of each request of `of` among the rows (int64, shape (n,))."""
    found: Ints = row.index.get_indexer(pd.Index(of["request_id"])).astype(np.int64)
    return found
