"""The columns of the spans table with dtype and unit, and the check that a frame has them.

Two frames. `spans` has one row per span; text columns hold "" where nothing was said, and their
texts are categories in sorted order (`coded`), but for `span_id` and `parent_id`, of which there
are about as many as spans; integer columns marked nullable hold `<NA>`. `events` has one row per
span event and points to its span by `row`. Times are int64 Unix nanoseconds and stay integers
throughout.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

import pandas as pd

TEXT: Final = "category"
ID: Final = "str"
TIME: Final = "int64"
NULLABLE: Final = "Int64"
FLAG: Final = "bool"


class Column(NamedTuple):
    """A column: its name, its pandas dtype, its unit or meaning."""

    name: str
    dtype: str
    unit: str


SPAN_COLUMNS: Final = (
    Column("trace_id", TEXT, "32 hex digits"),
    Column("span_id", ID, "16 hex digits"),
    Column("parent_id", ID, "16 hex digits or empty"),
    Column("name", TEXT, "span name"),
    Column("start_ns", TIME, "Unix nanoseconds"),
    Column("end_ns", TIME, "Unix nanoseconds, never before start_ns"),
    Column("error", FLAG, "status is ERROR"),
    Column("error_type", TEXT, "value of error.type"),
    Column("request_id", TEXT, "base request id; of other producers' spans a hash of it or empty"),
    Column("engine_request_id", TEXT, "vLLM's internal id: one per attempt on an engine"),
    Column("peer_engine_request_id", TEXT, "the peer leg's engine_request_id"),
    Column("engine_id", TEXT, "engine instance"),
    Column("peer_engine_id", TEXT, "the peer's engine instance"),
    Column("instance_id", TEXT, "service.instance.id: one per start of a process"),
    Column("host", TEXT, "host name, or its id where there is no name"),
    Column("config", TEXT, "pd.config, a JSON object: on a process's first span of each hour"),
    Column("model", TEXT, "model asked for"),
    Column("role", TEXT, "prefill, decode, both, router"),
    Column("tp_rank", TIME, "rank, 0 where absent"),
    Column("pp_rank", TIME, "rank, 0 where absent"),
    Column("clock_id", TEXT, "equal values share one clock"),
    Column("anchor_ns", NULLABLE, "Unix less monotonic time by which the times were placed, ns"),
    Column("mode", TEXT, "push, pull, none"),
    Column("dispatch", TEXT, "concurrent, sequential"),
    Column("leg", TEXT, "prefill, decode"),
    Column("attempt", NULLABLE, "number of the router's try"),
    Column("match_first", TEXT, "registration, blocks"),
    Column("lease_outcome", TEXT, "written, read, expired, aborted"),
    Column("input_tokens", NULLABLE, "tokens of the prompt"),
    Column("cached_tokens", NULLABLE, "tokens of the prompt that P's prefix cache had"),
    Column("external_tokens", NULLABLE, "tokens D loads"),
    Column("recomputed_tokens", NULLABLE, "tokens that D computed again"),
    Column("output_tokens", NULLABLE, "tokens of the answer"),
    Column("preemptions", NULLABLE, "times the request lost its place on this engine"),
    Column("transfer_bytes", NULLABLE, "bytes that one rank moves"),
    Column("transfer_descriptors", NULLABLE, "descriptors that one rank posts"),
    Column("clock_sent_ns", NULLABLE, "handshake sent, by the asking side's clock, Unix ns"),
    Column("clock_remote_ns", NULLABLE, "handshake served, by the peer's clock, Unix ns"),
    Column("clock_received_ns", NULLABLE, "reply received, by the asking side's clock, Unix ns"),
    Column("prefill_gap_ns", NULLABLE, "nanoseconds running but in no batch"),
    Column("adjusted", FLAG, "the trace store moved its times and says so"),
    Column("reason", TEXT, "why a value of this span is not used"),
)
EVENT_COLUMNS: Final = (
    Column("row", TIME, "index of the span in the spans frame"),
    Column("name", TEXT, "event name"),
    Column("time_ns", TIME, "Unix nanoseconds"),
    Column("peer_rank", NULLABLE, "rank of the peer that the event speaks of"),
)


class TableError(ValueError):
    """A frame that is not a spans table; the message names the column."""


def validate(frame: pd.DataFrame, columns: Sequence[Column]) -> None:
    """Raise `TableError` unless `frame` has exactly these columns with these dtypes."""
    for column in columns:
        if column.name not in frame.columns:
            raise TableError(f"column {column.name!r} is missing")
        found = str(frame[column.name].dtype)
        if found != column.dtype:
            raise TableError(f"column {column.name!r} is {found}, not {column.dtype}")
    if "end_ns" in frame.columns and bool((frame["end_ns"] < frame["start_ns"]).any()):
        raise TableError("column 'end_ns' is before 'start_ns'")
