"""Requests as typed values, for everything that prints: `<NA>` and "" become None."""

from collections.abc import Iterator
from typing import NamedTuple

import pandas as pd


class RequestRow(NamedTuple):
    """One request; times in ns, None where not known."""

    id: str
    instance: int
    evidence: str
    trace_id: str | None
    mode: str | None
    dispatch: str | None
    prefill_engine: str | None
    decode_engine: str | None
    ttft_ns: int | None
    lower_bound: bool
    handover_ns: int | None
    tpot_ns: int | None
    output_tokens: int | None
    clock_halfwidth_ns: int | None
    rank_straggle_ns: int | None
    slowest_rank: str | None
    model: str | None
    input_tokens: int | None
    prefill_cached_tokens: int | None
    external_tokens: int | None
    transfer_bytes: int | None
    transfer_descriptors: int | None
    transfer_ns: int | None
    bytes_per_s: int | None
    wire_ratio: float | None
    outcome: str | None
    flags: tuple[str, ...]
    t1_ns: int | None
    reason: str | None

    @property
    def name(self) -> str:
        """The request id for people; an id that was used again carries its number."""
        return self.id if self.instance == 1 else f"{self.id} ({self.instance})"


def request_rows(requests: pd.DataFrame) -> Iterator[tuple[str, RequestRow]]:
    """Label and values of each row of a split's `requests`, in their order."""
    columns = [
        [None if value is pd.NA or value == "" else value for value in requests[name].tolist()]
        for name in RequestRow._fields
    ]
    ids = requests.index.tolist()
    for request_id, values in zip(ids, zip(*columns, strict=True), strict=True):
        yield request_id, RequestRow(*values)
