"""What a request was, beside its times: model, sizes, caches, hosts, what was moved."""

import numpy as np
import pandas as pd

from pdtrace.analysis import transfers
from pdtrace.analysis.attempts import SIDE_DECODE, SIDE_PREFILL
from pdtrace.analysis.coded import dense
from pdtrace.analysis.cone import Cone, first_known
from pdtrace.analysis.grouped import SMALLEST, highest, present
from pdtrace.analysis.row_view import RowView
from pdtrace.tracing import semconv


def facts(cone: Cone) -> dict[str, pd.Series]:
    """Columns of the handoffs' rows: text ("" = not said) or nullable Int64.

    `model`, `prefill_host`, `decode_host`; `input_tokens`; `prefill_cached_tokens` (P's prefix
    cache), `external_tokens` (what D loaded: the rest of the prompt it had); `prefill_preemptions`,
    `decode_preemptions`; `transfer_bytes`, `transfer_descriptors` over all ranks of the handoff.
    """
    spans = cone.spans
    on = {side: cone.on(side) for side in (SIDE_PREFILL, SIDE_DECODE)}
    submit, complete = transfers.moves(cone)
    return {
        "model": cone.text("model", spans),
        "prefill_host": cone.text("host", on[SIDE_PREFILL]),
        "decode_host": cone.text("host", on[SIDE_DECODE]),
        "input_tokens": cone.reduce(spans, "input_tokens", "max"),
        "prefill_cached_tokens": cone.reduce(on[SIDE_PREFILL], "cached_tokens", "max"),
        "external_tokens": cone.reduce(
            cone.named(semconv.SPAN_KV_WAIT, SIDE_DECODE), "external_tokens", "max"
        ),
        "prefill_preemptions": cone.reduce(on[SIDE_PREFILL], "preemptions", "max"),
        "decode_preemptions": cone.reduce(on[SIDE_DECODE], "preemptions", "max"),
        **{
            name: first_known(_over_ranks(cone, submit, name), _over_ranks(cone, complete, name))
            for name in ("transfer_bytes", "transfer_descriptors")
        },
    }


def _over_ranks(cone: Cone, rows: RowView, column: str) -> pd.Series:
    """The sum over ranks, `<NA>` where one rank did not say."""
    rank = dense([rows[name].to_numpy(np.int64) for name in transfers.RANK])
    count = len(cone.requests)
    first = np.unique(rank, return_index=True)[1]
    size = highest(rows[column].to_numpy(np.int64, na_value=SMALLEST), rank, len(first))
    key, said = rows["key"].to_numpy(np.int64)[first], size != SMALLEST
    total = np.zeros(count, dtype=np.int64)
    np.add.at(total, key[said], size[said])
    known = present(key, count) & ~present(key[~said], count)
    return pd.Series(pd.arrays.IntegerArray(total, ~known), index=cone.requests)
