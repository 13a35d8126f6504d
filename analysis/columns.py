"""Span records to the columns of the spans table, a batch at a time, so that no record is kept.

Text goes into dictionaries: a request's ids, an engine's names and its configuration are stored
once, however many spans carry them.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa

from pdtrace.analysis.records import Attributes, AttributeValue, EventRecord, SpanRecord
from pdtrace.analysis.schema import (
    EVENT_COLUMNS,
    FLAG,
    ID,
    NULLABLE,
    SPAN_COLUMNS,
    TEXT,
    TIME,
    Column,
)
from pdtrace.tracing import semconv

REJECT_BACKWARDS: Final = "end_before_start"
REJECT_NO_REQUEST: Final = "no_request_id"
REJECT_LONG_ID: Final = "id_too_long"
ID_CHARACTERS: Final = 1024
"""Of a request's id and of its legs' ids: more is nobody's id, and is in every row of a result."""
ID_COLUMNS: Final = ("request_id", "engine_request_id", "peer_engine_request_id")
"""Columns that such an id is in."""
BATCH: Final = 1 << 13
"""Spans that are held as Python objects at a time."""
_LARGEST: Final = (1 << 63) - 1

TEXTS: Final = pa.dictionary(pa.int32(), pa.string())
_TYPES: Final = {
    TEXT: TEXTS, ID: pa.string(), TIME: pa.int64(), NULLABLE: pa.int64(), FLAG: pa.bool_()
}  # fmt: skip


def _schema(columns: Sequence[Column]) -> pa.Schema:
    return pa.schema([(column.name, _TYPES[column.dtype]) for column in columns])


SPAN_SCHEMA: Final = _schema(SPAN_COLUMNS)
EVENT_SCHEMA: Final = _schema(EVENT_COLUMNS)

RESOURCE_ATTRIBUTES: Final = {
    semconv.ENGINE_ID: "engine_id",
    semconv.SERVICE_INSTANCE_ID: "instance_id",
    semconv.HOST_NAME: "host",
    semconv.CONFIG: "config",
    semconv.ROLE: "role",
    semconv.TP_RANK: "tp_rank",
    semconv.PP_RANK: "pp_rank",
    semconv.CLOCK_ID: "clock_id",
    semconv.CLOCK_ANCHOR_NS: "anchor_ns",
}
SPAN_ATTRIBUTES: Final = {
    semconv.ERROR_TYPE: "error_type",
    semconv.REQUEST_ID: "request_id",
    semconv.ENGINE_REQUEST_ID: "engine_request_id",
    semconv.PEER_ENGINE_REQUEST_ID: "peer_engine_request_id",
    semconv.PEER_ENGINE_ID: "peer_engine_id",
    semconv.CLOCK_ANCHOR_NS: "anchor_ns",
    semconv.MODEL: "model",
    semconv.MODE: "mode",
    semconv.DISPATCH: "dispatch",
    semconv.LEG: "leg",
    semconv.ATTEMPT: "attempt",
    semconv.MATCH_FIRST: "match_first",
    semconv.LEASE_OUTCOME: "lease_outcome",
    semconv.INPUT_TOKENS: "input_tokens",
    semconv.PREFILL_CACHED_TOKENS: "cached_tokens",
    semconv.EXTERNAL_TOKENS: "external_tokens",
    semconv.RECOMPUTED_TOKENS: "recomputed_tokens",
    semconv.OUTPUT_TOKENS: "output_tokens",
    semconv.PREEMPTIONS: "preemptions",
    semconv.TRANSFER_BYTES: "transfer_bytes",
    semconv.TRANSFER_DESCRIPTORS: "transfer_descriptors",
    semconv.CLOCK_SENT_NS: "clock_sent_ns",
    semconv.CLOCK_REMOTE_NS: "clock_remote_ns",
    semconv.CLOCK_RECEIVED_NS: "clock_received_ns",
    semconv.PREFILL_GAP_NS: "prefill_gap_ns",
    semconv.READ_ADJUSTED: "adjusted",
    semconv.READ_REASON: "reason",
}
_PLACE: Final = {column.name: place for place, column in enumerate(SPAN_COLUMNS)}
_DTYPE: Final = {column.name: column.dtype for column in SPAN_COLUMNS}
_Setters = Mapping[str, tuple[int, str]]


def _setters(names: Mapping[str, str]) -> _Setters:
    return {key: (_PLACE[name], _DTYPE[name]) for key, name in names.items()}


_OF_RESOURCE: Final = _setters(RESOURCE_ATTRIBUTES)
_OF_SPAN: Final = _setters(SPAN_ATTRIBUTES)
EMPTY: Final[list[Any]] = [
    {TEXT: "", ID: "", NULLABLE: None, TIME: 0, FLAG: False}[column.dtype]
    for column in SPAN_COLUMNS
]
"""A row in which nothing was said."""
_ERROR: Final = _PLACE["error"]
_REQUEST: Final = _PLACE["request_id"]
_HOST: Final = _PLACE["host"]
_IDS: Final = [_PLACE[name] for name in ID_COLUMNS]


class Batch(NamedTuple):
    """Rows of a spans table (`SPAN_SCHEMA`) and their events (`EVENT_SCHEMA`).

    `row` of an event is its span's place in `spans`.
    """

    spans: pa.Table
    events: pa.Table


def nothing(field: pa.Field, count: int) -> pa.Array:
    """A column of the spans table in which nothing was said."""
    value = EMPTY[SPAN_SCHEMA.get_field_index(field.name)]
    if field.type == TEXTS:
        return pa.array([value] * count, pa.string()).dictionary_encode()
    return pa.array([value] * count, type=field.type)


class Columns:
    """Grows record by record; `batch` gives what has come since as Arrow tables.

    `rejected` counts spans that were left out, by reason: of ours without a request, with an end
    before their start, with an id of more than `ID_CHARACTERS`. `ignored` counts values by
    attribute that are no whole number >= 0.
    """

    def __init__(self) -> None:
        self.rejected: Counter[str] = Counter()
        self.ignored: Counter[str] = Counter()
        self._rows: list[list[Any]] = []
        self._events: list[tuple[int, str, int, int | None]] = []
        self._resource: Attributes = {}
        self._template = EMPTY

    @property
    def full(self) -> bool:
        """Whether a batch has come together."""
        return len(self._rows) >= BATCH

    def add(self, record: SpanRecord) -> None:
        """Take over one record."""
        if record.resource is not self._resource:
            self._resource = record.resource
            self._template = self._filled(EMPTY, record.resource, _OF_RESOURCE)
            if not self._template[_HOST]:
                host_id = record.resource.get(semconv.HOST_ID, "")
                self._template[_HOST] = host_id if type(host_id) is str else _text(host_id)
        row = self._filled(self._template, record.attributes, _OF_SPAN)
        row[:6] = (
            record.trace_id,
            record.span_id,
            record.parent_id,
            record.name,
            record.start_ns,
            record.end_ns,
        )
        row[_ERROR] = record.status == 2
        if record.end_ns < record.start_ns:
            self.rejected[REJECT_BACKWARDS] += 1
        elif not row[_REQUEST] and record.name in semconv.OWN_SPANS:
            self.rejected[REJECT_NO_REQUEST] += 1
        elif any(len(row[place]) > ID_CHARACTERS for place in _IDS):
            self.rejected[REJECT_LONG_ID] += 1
        else:
            self._add_events(record.events)
            self._rows.append(row)

    def batch(self) -> Batch:
        """What has come since the last call."""
        rows, self._rows = self._rows, []
        events, self._events = self._events, []
        return Batch(_arrow(rows, SPAN_SCHEMA), _arrow(events, EVENT_SCHEMA))

    def _filled(
        self, template: Sequence[Any], attributes: Attributes, setters: _Setters
    ) -> list[Any]:
        row = list(template)
        for key, value in attributes.items():
            setter = setters.get(key)
            if setter is None:
                continue
            place, dtype = setter
            if dtype is TEXT:
                row[place] = value if type(value) is str else _text(value)
            elif dtype is FLAG:
                row[place] = value is True
            else:
                number = whole(value)
                if number is None:
                    self.ignored[key] += 1
                else:
                    row[place] = number
        return row

    def _add_events(self, events: Iterable[EventRecord]) -> None:
        row = len(self._rows)
        for event in events:
            rank = event.attributes.get(semconv.PEER_TP_RANK)
            self._events.append((row, event.name, event.time_ns, whole(rank)))


def _text(value: AttributeValue) -> str:
    """A name that an exporter wrote as a number is still a name; anything else is none."""
    return str(value) if type(value) is int else ""


def whole(value: AttributeValue | None) -> int | None:
    """A count, a size or a time: also where an exporter wrote it as text or as a whole double.

    None for anything else, below 0 and above 63 bits: nothing here can be negative.
    """
    number: int | None = None
    if type(value) is int:
        number = value
    elif type(value) is float:
        number = int(value) if value.is_integer() else None
    elif type(value) is str and value.isascii() and value.isdecimal() and len(value) < 20:
        number = int(value)
    return number if number is not None and 0 <= number <= _LARGEST else None


def _arrow(rows: Sequence[Sequence[Any]], schema: pa.Schema) -> pa.Table:
    columns: Iterable[Any] = zip(*rows, strict=True) if rows else [()] * len(schema)
    arrays = [_array(values, field.type) for values, field in zip(columns, schema, strict=True)]
    return pa.table(arrays, schema=schema)


def _array(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    if kind == TEXTS:
        return _texts(values).dictionary_encode()
    return _texts(values) if kind == pa.string() else pa.array(values, type=kind)


def _texts(values: Sequence[str]) -> pa.Array:
    try:
        return pa.array(values, type=pa.string())
    except UnicodeEncodeError:  # half of a surrogate pair, which JSON can spell
        mended = [value.encode(errors="replace").decode() for value in values]
        return pa.array(mended, type=pa.string())
