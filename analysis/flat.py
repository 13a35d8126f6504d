"""One flat row per request: for other programs, as a data frame, CSV or Parquet."""

from pathlib import Path
from typing import Final

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from pdtrace.analysis import phases
from pdtrace.analysis.atomic import atomic_file
from pdtrace.analysis.split import Split

_FIRST: Final = {
    "id": "request_id",
    "instance": "instance",
    "trace_id": "trace_id",
    "t0_ns": "arrival_ns",
    "mode": "mode",
    "dispatch": "dispatch",
    "model": "model",
    "prefill_engine": "prefill_engine",
    "decode_engine": "decode_engine",
    "prefill_host": "prefill_host",
    "decode_host": "decode_host",
    "input_tokens": "input_tokens",
    "prefill_cached_tokens": "prefill_cached_tokens",
    "external_tokens": "external_tokens",
    "output_tokens": "output_tokens",
    "ttft_ns": "ttft_ns",
    "lower_bound": "lower_bound",
}
_LAST: Final = (
    "handover_ns",
    "tpot_ns",
    "transfer_ns",
    "transfer_bytes",
    "transfer_descriptors",
    "bytes_per_s",
    "wire_ratio",
    "prefill_gap_ns",
    "prefill_preemptions",
    "decode_preemptions",
    "rank_straggle_ns",
    "slowest_rank",
    "clock_halfwidth_ns",
    "outcome",
    "evidence",
)


def flat(split: Split) -> pd.DataFrame:
    """One row per request, by arrival: integers in ns, `<NA>` = not known, text "" = not said.

    `compute_ns`, … are the classes and `exposed_<phase>_ns` the phases: both sum to `ttft_ns`.
    `hidden_<phase>_ns` and `drag_<phase>_ns` stand beside them. `flags` are joined by a space.
    """
    rows = split.requests
    columns = {name: rows[column] for column, name in _FIRST.items()}
    for name in phases.CLASSES:
        columns[f"{name}_ns"] = _of(split.classes[name], rows)
    for prefix, frame in (
        ("exposed", split.exposed), ("hidden", split.hidden), ("drag", split.drag),
    ):  # fmt: skip
        for name in phases.READING_ORDER:
            columns[f"{prefix}_{name}_ns"] = _of(frame[name], rows)
    columns |= {name: rows[name] for name in _LAST}
    columns["flags"] = rows["flags"].map(" ".join).astype("str")
    return pd.DataFrame(columns).reset_index(drop=True)


def _of(values: pd.Series, rows: pd.DataFrame) -> pd.Series:
    return values.astype("Int64").reindex(rows.index)


def write_csv(target: Path, frame: pd.DataFrame) -> None:
    """UTF-8 with a header line; what is not known is empty. Raises `OSError`."""
    with atomic_file(target) as file:
        frame.to_csv(file, index=False, encoding="utf-8", lineterminator="\n")


def write_parquet(target: Path, frame: pd.DataFrame) -> None:
    """One Parquet file; what is not known is null. Raises `OSError`."""
    with atomic_file(target) as file:
        pq.write_table(pa.Table.from_pandas(frame, preserve_index=False), file)
