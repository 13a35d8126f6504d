"""The spans table: its columns with dtype and unit, how it is built, and its validation.

Two frames. `spans` has one row per span; text columns hold "" where nothing was said, integer
columns marked nullable hold `<NA>`. `events` has one row per span event and points to its span
by `row`. Times are int64 Unix nanoseconds and stay integers throughout.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import pandas as pd

from pdtrace.analysis.records import AttributeValue, SpanRecord
from pdtrace.tracing import semconv

TEXT: Final = "str"
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
    Column("span_id", TEXT, "16 hex digits"),
    Column("parent_id", TEXT, "16 hex digits or empty"),
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
    Column("host", TEXT, "host name"),
    Column("config", TEXT, "pd.config: a JSON object of versions and sizes"),
    Column("model", TEXT, "model asked for"),
    Column("role", TEXT, "prefill, decode, both, router"),
    Column("tp_rank", TIME, "rank, 0 where absent"),
    Column("pp_rank", TIME, "rank, 0 where absent"),
    Column("clock_id", TEXT, "equal values share one clock"),
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
)
EVENT_COLUMNS: Final = (
    Column("row", TIME, "index of the span in the spans frame"),
    Column("name", TEXT, "event name"),
    Column("time_ns", TIME, "Unix nanoseconds"),
    Column("peer_rank", NULLABLE, "rank of the peer that the event speaks of"),
)
REJECT_BACKWARDS: Final = "end_before_start"
REJECT_NO_REQUEST: Final = "no_request_id"
REJECT_DUPLICATE: Final = "duplicate"


class TableError(ValueError):
    """A frame that is not a spans table; the message names the column."""


@dataclass(frozen=True)
class SpansTable:
    """Spans and their events; `rejected` counts what was left out, by reason."""

    spans: pd.DataFrame
    events: pd.DataFrame
    rejected: dict[str, int]


def build(records: Iterable[SpanRecord]) -> SpansTable:
    """The spans table of `records`; the order of the records changes nothing.

    Left out and counted: spans that end before they start, spans of ours that name no request,
    and copies of a span (of conflicting copies the longest stays, then the earliest).
    """
    rejected: dict[str, int] = {}
    usable: list[SpanRecord] = []
    for record in records:
        reason = _fault(record)
        if reason:
            rejected[reason] = rejected.get(reason, 0) + 1
        else:
            usable.append(record)
    kept = _without_copies(usable)
    if len(kept) < len(usable):
        rejected[REJECT_DUPLICATE] = len(usable) - len(kept)
    table = SpansTable(_spans_frame(kept), _events_frame(kept), rejected)
    validate(table.spans, SPAN_COLUMNS)
    validate(table.events, EVENT_COLUMNS)
    return table


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


def _fault(record: SpanRecord) -> str:
    if record.end_ns < record.start_ns:
        return REJECT_BACKWARDS
    if record.name in semconv.OWN_SPANS and not _text(record.attributes.get(semconv.REQUEST_ID)):
        return REJECT_NO_REQUEST
    return ""


def _without_copies(records: list[SpanRecord]) -> list[SpanRecord]:
    """One record per span id, sorted by content so that the input's order is forgotten."""
    kept: dict[tuple[str, str], SpanRecord] = {}
    nameless: list[SpanRecord] = []
    for record in records:
        if not record.span_id:
            nameless.append(record)
            continue
        key = (record.trace_id, record.span_id)
        if key not in kept or _preference(record) < _preference(kept[key]):
            kept[key] = record
    return sorted(
        (*kept.values(), *nameless),
        key=lambda r: (r.start_ns, r.end_ns, r.name, r.trace_id, r.span_id),
    )


def _preference(record: SpanRecord) -> tuple[int, int, str]:
    rest = repr((record.name, sorted(record.attributes.items(), key=str), record.events))
    return (record.start_ns - record.end_ns, record.start_ns, rest)


def _spans_frame(records: Sequence[SpanRecord]) -> pd.DataFrame:
    readers = {column.name: _READERS[column.name] for column in SPAN_COLUMNS}
    return pd.DataFrame(
        {
            column.name: pd.Series(
                [readers[column.name](record) for record in records], dtype=column.dtype
            )
            for column in SPAN_COLUMNS
        }
    )


def _events_frame(records: Sequence[SpanRecord]) -> pd.DataFrame:
    rows = [
        (row, event.name, event.time_ns, _integer(event.attributes.get(semconv.PEER_TP_RANK)))
        for row, record in enumerate(records)
        for event in record.events
    ]
    return pd.DataFrame(
        {
            column.name: pd.Series([values[i] for values in rows], dtype=column.dtype)
            for i, column in enumerate(EVENT_COLUMNS)
        }
    )


def _text(value: AttributeValue | None) -> str:
    return value if isinstance(value, str) else ""


def _integer(value: AttributeValue | None) -> int | None:
    """An integer attribute, also where an exporter wrote it as text or as a whole double."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    if isinstance(value, float):
        return int(value) if value.is_integer() else None
    if isinstance(value, str) and value.lstrip("-").isdecimal():
        return int(value)
    return None


_Reader = Callable[[SpanRecord], object]


def _text_of(key: str) -> _Reader:
    return lambda record: _text(record.attributes.get(key))


def _integer_of(key: str) -> _Reader:
    return lambda record: _integer(record.attributes.get(key))


def _resource_text(key: str) -> _Reader:
    return lambda record: _text(record.resource.get(key))


def _resource_rank(key: str) -> _Reader:
    return lambda record: _integer(record.resource.get(key)) or 0


_READERS: Final[dict[str, _Reader]] = {
    "trace_id": lambda record: record.trace_id,
    "span_id": lambda record: record.span_id,
    "parent_id": lambda record: record.parent_id,
    "name": lambda record: record.name,
    "start_ns": lambda record: record.start_ns,
    "end_ns": lambda record: record.end_ns,
    "error": lambda record: record.status == 2,
    "error_type": _text_of(semconv.ERROR_TYPE),
    "request_id": _text_of(semconv.REQUEST_ID),
    "engine_request_id": _text_of(semconv.ENGINE_REQUEST_ID),
    "peer_engine_request_id": _text_of(semconv.PEER_ENGINE_REQUEST_ID),
    "engine_id": _resource_text(semconv.ENGINE_ID),
    "peer_engine_id": _text_of(semconv.PEER_ENGINE_ID),
    "instance_id": _resource_text(semconv.SERVICE_INSTANCE_ID),
    "host": _resource_text(semconv.HOST_NAME),
    "config": _resource_text(semconv.CONFIG),
    "model": _text_of(semconv.MODEL),
    "role": _resource_text(semconv.ROLE),
    "tp_rank": _resource_rank(semconv.TP_RANK),
    "pp_rank": _resource_rank(semconv.PP_RANK),
    "clock_id": _resource_text(semconv.CLOCK_ID),
    "mode": _text_of(semconv.MODE),
    "dispatch": _text_of(semconv.DISPATCH),
    "leg": _text_of(semconv.LEG),
    "attempt": _integer_of(semconv.ATTEMPT),
    "match_first": _text_of(semconv.MATCH_FIRST),
    "lease_outcome": _text_of(semconv.LEASE_OUTCOME),
    "input_tokens": _integer_of(semconv.INPUT_TOKENS),
    "cached_tokens": _integer_of(semconv.PREFILL_CACHED_TOKENS),
    "external_tokens": _integer_of(semconv.EXTERNAL_TOKENS),
    "recomputed_tokens": _integer_of(semconv.RECOMPUTED_TOKENS),
    "output_tokens": _integer_of(semconv.OUTPUT_TOKENS),
    "preemptions": _integer_of(semconv.PREEMPTIONS),
    "transfer_bytes": _integer_of(semconv.TRANSFER_BYTES),
    "transfer_descriptors": _integer_of(semconv.TRANSFER_DESCRIPTORS),
    "clock_sent_ns": _integer_of(semconv.CLOCK_SENT_NS),
    "clock_remote_ns": _integer_of(semconv.CLOCK_REMOTE_NS),
    "clock_received_ns": _integer_of(semconv.CLOCK_RECEIVED_NS),
    "prefill_gap_ns": _integer_of(semconv.PREFILL_GAP_NS),
}
