"""The spans table as Parquet: for keeping, and for scale.

A row is a span with its events in it. Text is stored once a file, and reading hands columns on as
they are. A file is complete or not there at all.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple, TypeGuard

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pdtrace.analysis.atomic import atomic_file
from pdtrace.analysis.coded import combined, whole
from pdtrace.analysis.columns import EVENT_SCHEMA, SPAN_SCHEMA, TEXTS, Batch, nothing
from pdtrace.analysis.files import RemoteError, Source, opened
from pdtrace.analysis.schema import EVENT_COLUMNS

MAGIC: Final = b"PAR1"
ROW_GROUP: Final = 1 << 17
"""Rows that are read at a time: about 15 MB."""
_TEXTS: Final = [field.name for field in SPAN_SCHEMA if field.type == TEXTS]
_KEY: Final = b"pdtrace.spans"
_VERSION: Final = b"1"
_EVENTS: Final = "events"
_EVENT: Final = pa.struct([EVENT_SCHEMA.field(c.name) for c in EVENT_COLUMNS[1:]])
_STORED_EVENT: Final = pa.struct(
    [(f.name, pa.string() if f.type == TEXTS else f.type) for f in _EVENT]
)
SCHEMA: Final = SPAN_SCHEMA.append(pa.field(_EVENTS, pa.list_(_STORED_EVENT))).with_metadata(
    {_KEY: _VERSION}
)


class ParquetError(Exception):
    """A Parquet file that holds no spans table; what is wrong, to be said after its name."""


class RowGroup(NamedTuple):
    """One row group of a file, and how many rows it has."""

    path: Source
    number: int
    size: int


def is_parquet(path: Source) -> bool:
    """Whether the file begins as Parquet does; false also when it cannot be opened."""
    try:
        with opened(path) as file:
            return file.read(4) == MAGIC
    except (OSError, RemoteError):
        return False


def read_batches(path: Source) -> Iterator[Batch]:
    """Its rows, row group by row group.

    Columns that the file lacks, since it was written before there were any, are empty.
    """
    with _opened(path) as file:
        for group in range(file.num_row_groups):
            yield _apart(file.read_row_group(group))


def read_rows(path: Source, rows: Mapping[int, npt.NDArray[np.int32]]) -> Iterator[Batch]:
    """The same of some row groups (by number), of each only these rows (int32, ascending)."""
    with _opened(path) as file:
        for group, wanted in rows.items():
            found = file.read_row_group(group)
            yield _apart(found if len(wanted) == len(found) else found.take(pa.array(wanted)))


def read_columns(groups: Sequence[RowGroup], names: Sequence[str]) -> Iterator[pa.Table]:
    """These columns only of row groups of one file; those that the file lacks are empty."""
    with _opened(groups[0].path) as file:
        known = [name for name in names if name in file.schema_arrow.names]
        for group in groups:
            rows = file.read_row_group(group.number, columns=known)
            yield pa.table({name: _column(rows, SPAN_SCHEMA.field(name)) for name in names})


def row_groups(paths: Sequence[Source]) -> list[RowGroup]:
    """Those of all files, in order."""
    found = []
    for path in paths:
        with _opened(path) as file:
            sizes = [file.metadata.row_group(at).num_rows for at in range(file.num_row_groups)]
        found += [RowGroup(path, number, size) for number, size in enumerate(sizes)]
    return found


@contextmanager
def _opened(path: Source) -> Iterator[pq.ParquetFile]:
    """The file, if it is a spans table; raises `ParquetError` whatever is wrong with it."""
    with ExitStack() as stack:
        # Arrow reads a file of this machine by itself, which is faster.
        source = path if _is_text(path) else stack.enter_context(opened(path))
        try:
            end = pq.read_metadata(source)
            if (end.metadata or {}).get(_KEY) != _VERSION:
                raise ParquetError("is Parquet, but not a spans table of `pdtrace export`")
            known = end.schema.to_arrow_schema().names
            texts = [name for name in _TEXTS if name in known]
            file = pq.ParquetFile(source, metadata=end, read_dictionary=texts)
            yield stack.enter_context(file)
        except pa.ArrowInvalid as error:
            raise ParquetError(f"is broken Parquet: {str(error).splitlines()[0]}") from error


def _is_text(path: Source) -> TypeGuard[Path]:
    """Whether it is a path of this machine that Arrow can take: it wants text, the system bytes."""
    try:
        return isinstance(path, Path) and bool(str(path).encode())
    except UnicodeEncodeError:
        return False


def is_spans_table(path: Source) -> bool:
    """Whether the file is Parquet of `pdtrace export`, as far as its end says so."""
    try:
        with _opened(path):
            return True
    except (ParquetError, OSError, RemoteError):
        return False


def _apart(rows: pa.Table) -> Batch:
    """Spans and events of one row group."""
    spans = [_column(rows, field) for field in SPAN_SCHEMA]
    lists = combined(rows[_EVENTS])
    flat = lists.flatten()
    events = [pc.cast(pc.list_parent_indices(lists), pa.int64())]
    events += [pc.struct_field(flat, field.name).cast(field.type) for field in _EVENT]
    return Batch(pa.table(spans, schema=SPAN_SCHEMA), pa.table(events, schema=EVENT_SCHEMA))


def _column(rows: pa.Table, field: pa.Field) -> pa.ChunkedArray | pa.Array:
    if field.name in rows.column_names:
        return rows[field.name].cast(field.type)
    return nothing(field, len(rows))


def write_spans(batch: Batch, path: Path) -> None:
    """One file of these spans, in the order in which they are."""
    with atomic_file(path) as file:
        write_tables([with_events(batch)], file)


def write_tables(tables: Iterable[pa.Table], file: BinaryIO) -> None:
    """A file of all these rows (`SCHEMA`), in row groups.

    Each has the texts that it needs: Arrow would repeat those of all of them.
    """
    with pq.ParquetWriter(file, SCHEMA, compression="zstd", use_dictionary=_TEXTS) as writer:
        for rows in tables:
            for start in range(0, len(rows), ROW_GROUP):
                group = rows.slice(start, ROW_GROUP)
                for name in _TEXTS:
                    place = group.column_names.index(name)
                    group = group.set_column(place, SCHEMA.field(name), _needed(group[name]))
                writer.write_table(group)


def _needed(column: pa.ChunkedArray) -> pa.DictionaryArray:
    """The same texts with a dictionary of no others."""
    array = whole(column)
    used, code = np.unique(array.indices.to_numpy(), return_inverse=True)
    texts = array.dictionary.take(pa.array(used))
    return pa.DictionaryArray.from_arrays(pa.array(code.astype(np.int32)), texts)


def with_events(batch: Batch) -> pa.Table:
    """Spans with the list of their events as one more column (`SCHEMA`)."""
    spans, events = batch
    counts = np.bincount(events["row"].to_numpy(), minlength=len(spans))
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    columns = [combined(events[field.name].cast(field.type)) for field in _STORED_EVENT]
    structs = pa.StructArray.from_arrays(columns, fields=list(_STORED_EVENT))
    lists = pa.ListArray.from_arrays(pa.array(offsets), structs)
    return pa.table([*(spans[name] for name in SPAN_SCHEMA.names), lists], schema=SCHEMA)
