"""OTLP JSON lines in their strict form to rows of the spans table, without an object for each span.

Arrow's parser reads a block of lines at once. `read_lines` gives None where anything in the block
is not exactly in that form, or not usable: the reader that knows every spelling (`otlp_json`) then
reads it, and counts what is wrong. So both give the same table, only this one sooner.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from pdtrace.analysis.arrays import Ints
from pdtrace.analysis.columns import (
    EVENT_SCHEMA,
    ID_CHARACTERS,
    ID_COLUMNS,
    RESOURCE_ATTRIBUTES,
    SPAN_ATTRIBUTES,
    SPAN_SCHEMA,
    Batch,
    nothing,
)
from pdtrace.analysis.ids import SPAN_ID_BYTES, TRACE_ID_BYTES
from pdtrace.analysis.intake import EARLIEST_NS, LATEST_NS, LONGEST_NS
from pdtrace.analysis.producers import adapter
from pdtrace.analysis.schema import EVENT_COLUMNS, FLAG, NULLABLE, SPAN_COLUMNS, TEXT, TIME
from pdtrace.tracing import semconv

BLOCK: Final = 8 << 20
"""Bytes of lines that are read at a time."""
LONGEST: Final = 1 << 28
"""Bytes of a line that is read by columns: Arrow counts them in 31 bits."""
_START: Final = b'{"resourceSpans"'
_STRING: Final = pa.string()
_SCALARS: Final = {
    "stringValue": _STRING,
    "intValue": _STRING,
    "boolValue": pa.bool_(),
    "doubleValue": pa.float64(),
}


def _struct(**fields: pa.DataType) -> pa.DataType:
    return pa.struct(list(fields.items()))


_SCALAR: Final = pa.struct(list(_SCALARS.items()))
_ATTRIBUTES: Final = pa.list_(
    _struct(
        key=_STRING,
        value=_struct(**_SCALARS, arrayValue=_struct(values=pa.list_(_SCALAR))),
    )
)
_DROPPED: Final = {"droppedAttributesCount": pa.int64()}
_EVENT: Final = _struct(name=_STRING, timeUnixNano=_STRING, attributes=_ATTRIBUTES, **_DROPPED)
_SPAN: Final = _struct(
    traceId=_STRING,
    spanId=_STRING,
    parentSpanId=_STRING,
    traceState=_STRING,
    flags=pa.int64(),
    name=_STRING,
    kind=pa.int64(),
    startTimeUnixNano=_STRING,
    endTimeUnixNano=_STRING,
    attributes=_ATTRIBUTES,
    events=pa.list_(_EVENT),
    status=_struct(code=pa.int64(), message=_STRING),
    links=pa.list_(pa.null()),
    droppedEventsCount=pa.int64(),
    droppedLinksCount=pa.int64(),
    **_DROPPED,
)
_SCOPE: Final = _struct(name=_STRING, version=_STRING, attributes=_ATTRIBUTES, **_DROPPED)
_SCOPE_SPANS: Final = _struct(scope=_SCOPE, spans=pa.list_(_SPAN), schemaUrl=_STRING)
_RESOURCE: Final = _struct(attributes=_ATTRIBUTES, **_DROPPED)
_RESOURCE_SPANS: Final = _struct(
    resource=_RESOURCE, scopeSpans=pa.list_(_SCOPE_SPANS), schemaUrl=_STRING
)
_PARSE: Final = pj.ParseOptions(
    explicit_schema=pa.schema([("resourceSpans", pa.list_(_RESOURCE_SPANS))]),
    unexpected_field_behavior="error",
)
_INTEGER: Final = r"\A-?[0-9]{1,19}\z"
_TIME: Final = r"\A[0-9]{19}\z"


class _Other(Exception):
    """The block is not in the strict form."""


def read_lines(lines: Sequence[bytes], span_bytes: int) -> Batch | None:
    """What whole lines say, each of them an export; None where another reader has to look.

    `span_bytes`: what a span may have.
    """
    told = [line for line in lines if not line.isspace()]
    if not told or not all(_looks_strict(line) for line in told):
        return None
    data, longest = b"".join(told), max(map(len, told))
    if longest > LONGEST:
        return None
    try:
        data.decode()
        options = pj.ReadOptions(use_threads=True, block_size=max(1 << 20, 2 * longest))
        table = pj.read_json(pa.BufferReader(data), read_options=options, parse_options=_PARSE)
        if len(table) != len(told):
            return None
        return _rows(table["resourceSpans"], longest > span_bytes, span_bytes)
    except (_Other, UnicodeDecodeError, pa.ArrowException):
        return None


def _looks_strict(line: bytes) -> bool:
    """One object on this line, as far as its ends say."""
    return line.startswith(_START) and line.rstrip().endswith(b"}")


def _rows(exports: pa.ChunkedArray, measure: bool, span_bytes: int) -> Batch:
    _demand(not exports.null_count)
    _, entries = _inside(pa.concat_arrays(exports.chunks))
    entry, scopes = _inside(_field(entries, "scopeSpans"))
    scope, spans = _inside(_field(scopes, "spans"))
    _inside(_field(spans, "links"))
    count = len(spans)
    said = _field(entries, "resource", "attributes")
    by_id = _attributes(said, {semconv.HOST_ID: "host"}, len(entries))
    resource = by_id | _attributes(said, RESOURCE_ATTRIBUTES, len(entries))
    if by_id:
        resource["host"] = _first_said(resource["host"], by_id["host"])
    of_entry = pa.array(entry[scope])
    columns = {name: column.take(of_entry) for name, column in resource.items()}
    _attributes(_field(scopes, "scope", "attributes"), {}, len(scopes))
    for name, column in _attributes(_field(spans, "attributes"), SPAN_ATTRIBUTES, count).items():
        # What the span says itself goes before what its resource says.
        columns[name] = pc.coalesce(column, columns[name]) if name in columns else column
    columns |= _own_fields(spans)
    if measure:
        _demand(bool((_largest(spans) <= span_bytes).all()))
    columns |= {f.name: nothing(f, count) for f in SPAN_SCHEMA if f.name not in columns}
    _demand_usable(columns)
    table = pa.table([columns[name] for name in SPAN_SCHEMA.names], schema=SPAN_SCHEMA)
    return Batch(table, _events(_field(spans, "events")))


def _first_said(texts: pa.Array, others: pa.Array) -> pa.Array:
    """The first text of each row, or the other one where it is empty."""
    one, other = (part.cast(_STRING) for part in (texts, others))
    return pc.if_else(pc.equal(one, ""), other, one).dictionary_encode()


def _own_fields(spans: pa.Array) -> dict[str, pa.Array]:
    """Columns from what every span says, attributes apart."""
    parent = pc.fill_null(_field(spans, "parentSpanId"), "")
    code = pc.fill_null(_field(spans, "status", "code"), 0)
    return {
        "trace_id": _ids(_field(spans, "traceId"), TRACE_ID_BYTES).dictionary_encode(),
        "span_id": _ids(_field(spans, "spanId"), SPAN_ID_BYTES),
        "parent_id": _ids(parent, SPAN_ID_BYTES, optional=True),
        "name": pc.fill_null(_field(spans, "name"), "").dictionary_encode(),
        "start_ns": _times(_field(spans, "startTimeUnixNano")),
        "end_ns": _times(_field(spans, "endTimeUnixNano")),
        "error": pc.equal(code, 2),
    }


def _events(lists: pa.Array) -> pa.Table:
    row, events = _inside(lists)
    rank = _attributes(
        _field(events, "attributes"), {semconv.PEER_TP_RANK: "peer_rank"}, len(events)
    )
    time = _times(_field(events, "timeUnixNano"))
    found = {
        "row": pa.array(row),
        "name": pc.fill_null(_field(events, "name"), "").dictionary_encode(),
        "time_ns": time,
        "peer_rank": rank.get("peer_rank", pa.nulls(len(events), pa.int64())),
    }
    return pa.table([found[field.name] for field in EVENT_SCHEMA], schema=EVENT_SCHEMA)


def _attributes(lists: pa.Array, names: Mapping[str, str], count: int) -> dict[str, pa.Array]:
    """Columns of `count` rows: of each row the attributes that `names` gives a column.

    Of an attribute that a row says twice the last value counts, as everywhere.
    """
    owner, pairs = _inside(lists)
    value = _field(pairs, "value")
    _demand_one_each(value)
    _demand_one_each(_inside(_field(value, "arrayValue", "values"))[1])
    keys = pc.fill_null(_field(pairs, "key"), "").dictionary_encode()
    number = keys.indices.to_numpy()
    columns = {}
    for place, key in enumerate(keys.dictionary.to_pylist()):
        if key in names:
            mine = np.flatnonzero(number == place)
            dtype = _DTYPES[names[key]]
            columns[names[key]] = _column(value.take(pa.array(mine)), owner[mine], dtype, count)
    return columns


_DTYPES: Final = {column.name: column.dtype for column in (*EVENT_COLUMNS, *SPAN_COLUMNS)}
_KINDS: Final = {
    TEXT: "stringValue", FLAG: "boolValue", NULLABLE: "intValue", TIME: "intValue"
}  # fmt: skip


def _column(values: pa.Array, rows: Ints, dtype: str, count: int) -> pa.Array:
    """A column with these values at these rows; all must be of the column's own type."""
    kind = _KINDS[dtype]
    others = (field.name for field in values.type if field.name != kind)
    _demand(all(_field(values, name).null_count == len(values) for name in others))
    mine = _field(values, kind)
    rows, mine = rows[mine.is_valid().to_numpy(zero_copy_only=False)], mine.drop_null()
    if dtype == TEXT:
        texts = pa.concat_arrays([pa.array([""], _STRING), mine]).dictionary_encode()
        code = np.zeros(count, dtype=np.int32)
        code[rows] = texts.indices.to_numpy()[1:]
        return pa.DictionaryArray.from_arrays(pa.array(code), texts.dictionary)
    if dtype == FLAG:
        flags = np.zeros(count, dtype=np.bool_)
        flags[rows] = mine.to_numpy(zero_copy_only=False)
        return pa.array(flags)
    whole = mine.cast(pa.int64()).to_numpy()
    _demand(int(whole.min(initial=0)) >= 0)
    found, unknown = np.zeros(count, dtype=np.int64), np.ones(count, dtype=np.bool_)
    found[rows], unknown[rows] = whole, False
    return pa.array(found, mask=unknown if dtype == NULLABLE else None)


def _demand(fulfilled: bool) -> None:
    if not fulfilled:
        raise _Other


def _demand_one_each(values: pa.Array) -> None:
    """No value of two types, and integers are written as such."""
    kinds = [_field(values, field.name) for field in values.type]
    said = np.zeros(len(values), dtype=np.int8)
    for kind in kinds:
        said += kind.is_valid().to_numpy(zero_copy_only=False)
    _demand(int(said.max(initial=0)) <= 1)
    _demand_match(_field(values, "intValue"), _INTEGER)


def _demand_match(texts: pa.Array, pattern: str) -> None:
    """Every text that is there is of this form."""
    _demand(pc.all(pc.match_substring_regex(texts, pattern), min_count=0).as_py())


def _demand_usable(columns: Mapping[str, pa.Array]) -> None:
    """No span would be refused, changed or counted by the readers of records.

    That its times are of this age was demanded when they were read.
    """
    start, end = columns["start_ns"].to_numpy(), columns["end_ns"].to_numpy()
    _demand(bool((end >= start).all() and (end - start <= LONGEST_NS).all()))
    names = columns["name"]
    _demand(all(adapter(name) is None for name in names.dictionary.to_pylist()))
    ours = pc.is_in(names, pa.array(sorted(semconv.OWN_SPANS)).cast(_STRING))
    unnamed = pc.equal(columns["request_id"].cast(_STRING), "")
    _demand(not pc.any(pc.and_(ours, unnamed)).as_py())
    for name in ID_COLUMNS:
        texts = columns[name].dictionary
        _demand((pc.max(pc.utf8_length(texts)).as_py() or 0) <= ID_CHARACTERS)


def _ids(texts: pa.Array, size: int, optional: bool = False) -> pa.Array:
    """Lower-case hex of so many bytes, not all zero; `optional`: or nothing."""
    _demand(not texts.null_count)
    _demand_match(texts, rf"\A(?:[0-9a-f]{{{2 * size}}}{'|' if optional else ''})\z")
    _demand(not pc.any(pc.equal(texts, "0" * (2 * size))).as_py())
    return texts


def _times(texts: pa.Array) -> pa.Array:
    """Unix time in nanoseconds, of this age."""
    _demand(not texts.null_count)
    _demand_match(texts, _TIME)
    times = texts.cast(pa.int64())
    found = times.to_numpy()
    _demand(bool(((found >= EARLIEST_NS) & (found <= LATEST_NS)).all()))
    return times


def _largest(spans: pa.Array) -> Ints:
    """Bytes that each span has at most as JSON (int64, shape (n,)).

    A byte of text takes six where it is written as an escape.
    """
    size = np.full(len(spans), 2048, dtype=np.int64)
    for name in ("name", "traceState"):
        size += _bytes(_field(spans, name))
    size += _bytes(_field(spans, "status", "message"))
    _add_attributes(size, np.arange(len(spans)), _field(spans, "attributes"))
    row, events = _inside(_field(spans, "events"))
    np.add.at(size, row, 256 + _bytes(_field(events, "name")))
    _add_attributes(size, row, _field(events, "attributes"))
    return size


def _add_attributes(size: Ints, row: Ints, lists: pa.Array) -> None:
    owner, pairs = _inside(lists)
    value = _field(pairs, "value")
    long = 128 + _bytes(_field(pairs, "key")) + _bytes(_field(value, "stringValue"))
    place, items = _inside(_field(value, "arrayValue", "values"))
    np.add.at(long, place, 64 + _bytes(_field(items, "stringValue")))
    np.add.at(size, row[owner], long)


def _bytes(texts: pa.Array) -> Ints:
    lengths = pc.fill_null(pc.binary_length(texts), 0).to_numpy(zero_copy_only=False)
    found: Ints = 6 * lengths.astype(np.int64)
    return found


def _inside(lists: pa.Array) -> tuple[Ints, pa.Array]:
    """What is in the lists, and by value the place of its list (int64); no value may be null."""
    values = lists.flatten()
    _demand(not values.null_count)
    owner: Ints = pc.list_parent_indices(lists).to_numpy().astype(np.int64)
    return owner, values


def _field(values: pa.Array, *names: str) -> pa.Array:
    """A field of structs; null where a struct around it is."""
    return pc.struct_field(values, list(names))
