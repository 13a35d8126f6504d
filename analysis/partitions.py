"""A spans table in Parquet files, divided into parts of whole requests, in order of arrival.

A request's spans share its id, its traces and the ids of its legs. What shares any of these goes
into one part, however it is spread over files and row groups, so every part can be split by
itself. Two kinds of evidence reach over requests, and are kept together: what other producers
wrote (one part, then), and requests that vLLM made itself after another one had failed.
"""

from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from itertools import groupby
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from pdtrace.analysis.anchors import Anchors, Readings, chosen
from pdtrace.analysis.arrays import Bools, Ints
from pdtrace.analysis.coded import whole
from pdtrace.analysis.files import Source
from pdtrace.analysis.grouped import lowest, present
from pdtrace.analysis.host_clock import clock_of_host
from pdtrace.analysis.identity import components
from pdtrace.analysis.keys import Keys
from pdtrace.analysis.parquet import RowGroup, read_columns
from pdtrace.analysis.phantoms import BARE
from pdtrace.tracing import semconv

ROWS: Final = 1 << 20
"""Spans of one part, about: 65,000 requests, a gigabyte of memory to split them. Half a second of a
part does not depend on its size."""
_REQUEST, _TRACE, _LEG = ("request".ljust(16), "trace".ljust(16), "leg".ljust(16))
_TIES: Final = {"trace_id": _TRACE, "engine_request_id": _LEG, "peer_engine_request_id": _LEG}
_AT_ONCE: Final = 4
"""Row groups that one process looks at before others have their turn."""
_CLOCK: Final = ("clock_id", "host", "anchor_ns")
_COLUMNS: Final = ("request_id", *_TIES, "name", "start_ns", "error", *_CLOCK)


class Rows(NamedTuple):
    """Some rows (int32, ascending) of one row group of a file."""

    path: Source
    group: int
    rows: npt.NDArray[np.int32]


class Part(NamedTuple):
    """Whole requests, and what `anchors.on_one_anchor` puts their times on."""

    rows: tuple[Rows, ...]
    anchors: Anchors


class Division(NamedTuple):
    """`clocks`: the ids of the clocks that spans name. `readings`: of `anchors`."""

    parts: list[Part]
    clocks: frozenset[str]
    readings: Readings
    spans: int


@dataclass(frozen=True)
class _Group:
    """One row group. `request`: by row, the number of its request in this group.

    By request: `id` (a hash), `spans`, `first_ns`, and `odd`: it holds a failure, or a try that
    may be of vLLM's own making. `thing`: hashes of traces and legs, each once for each request that
    has it, which is `owner` (a number of this group).
    """

    path: Source
    number: int
    request: Ints
    id: Keys
    spans: Ints
    first_ns: Ints
    odd: Bools
    owner: Ints
    thing: Keys
    whole: bool
    """Nothing but our own spans, and each names its request."""
    made: bool
    """There are tries that may be of vLLM's own making."""
    clocks: frozenset[str]
    readings: Readings


def divide(
    row_groups: Sequence[RowGroup], rows: int = ROWS, executor: Executor | None = None
) -> Division:
    """Parts of about the same size, of about `rows` spans at most, and of at least one request.

    Row groups are looked at in this process or on `executor`. Raises `ParquetError` and `OSError`.
    """
    run = map if executor is None else executor.map
    read = run(_read, _neighbours(row_groups))
    groups = [group for some in read for group in some if len(group.request)]
    if groups and all(group.whole for group in groups):
        numbers = _part_numbers(groups, rows)
    else:
        numbers = [np.zeros(len(group.id), np.int64) for group in groups]
    parts: dict[int, list[Rows]] = {}
    for group, number in zip(groups, numbers, strict=True):
        part = number[group.request]
        for wanted in np.unique(number).tolist():
            mine = np.flatnonzero(part == wanted).astype(np.int32)
            parts.setdefault(wanted, []).append(Rows(group.path, group.number, mine))
    readings = sum((group.readings for group in groups), Readings())
    anchors = chosen(readings)
    return Division(
        parts=[Part(tuple(parts[wanted]), anchors) for wanted in sorted(parts)],
        clocks=frozenset().union(*(group.clocks for group in groups)),
        readings=readings,
        spans=sum(len(group.request) for group in groups),
    )


def _neighbours(row_groups: Sequence[RowGroup]) -> list[list[RowGroup]]:
    """Some row groups of one file each, since to open a file takes as long as to read a little."""
    each = (list(groups) for _, groups in groupby(row_groups, key=lambda group: group.path))
    return [some[at : at + _AT_ONCE] for some in each for at in range(0, len(some), _AT_ONCE)]


def _read(places: Sequence[RowGroup]) -> list[_Group]:
    tables = read_columns(places, _COLUMNS)
    return [_looked_at(place, table) for place, table in zip(places, tables, strict=True)]


def _looked_at(place: RowGroup, table: pa.Table) -> _Group:
    request, ids = _coded(table["request_id"])
    count = len(ids)
    name, names = _coded(table["name"])
    ours = names.isin(semconv.OWN_SPANS).to_numpy(np.bool_)
    clocks, stated = _clocks(table, ours[name])
    owner, thing, made = [], [], np.zeros(len(table), dtype=np.bool_)
    for column, kind in _TIES.items():
        code, texts = _coded(table[column])
        said = (texts != "").to_numpy(np.bool_)[code]
        pairs = pd.unique(request[said] * len(texts) + code[said])
        owner.append(pairs // len(texts))
        thing.append(_hashes(texts, kind)[pairs % len(texts)])
        if column == "engine_request_id":
            made = texts.str.fullmatch(BARE).to_numpy(np.bool_)[code]
    return _Group(
        path=place.path,
        number=place.number,
        request=request,
        id=_hashes(ids, _REQUEST),
        spans=np.bincount(request, minlength=count),
        first_ns=lowest(table["start_ns"].to_numpy(), request, count),
        odd=present(request[made | table["error"].to_numpy()], count),
        owner=np.concatenate(owner),
        thing=np.concatenate(thing),
        whole=bool(ours.all() and (ids != "").all()),
        made=bool(made.any()),
        clocks=clocks,
        readings=stated,
    )


def _clocks(table: pa.Table, ours: Bools) -> tuple[frozenset[str], Readings]:
    """The clocks that spans name, or that are the hosts' of our spans, and their anchors."""
    code, named = _coded(table["clock_id"])
    names = named.tolist()
    nameless = (named == "").to_numpy(np.bool_)[code] & ours
    if nameless.any():
        host, hosts = _coded(table["host"])
        code = np.where(nameless, len(names) + host, code)
        names += map(clock_of_host, hosts)
    used = np.flatnonzero(present(code, len(names)))
    clocks = frozenset(names[place] for place in used.tolist()) - {""}
    return clocks, _readings(code, names, table["anchor_ns"])


def _readings(code: Ints, names: Sequence[str], column: pa.ChunkedArray) -> Readings:
    """Rows by clock (its place among `names`) and anchor, where they state one."""
    found = Readings()
    if column.null_count == len(column):
        return found
    stated = column.is_valid().to_numpy()
    place, anchors = pd.factorize(column.drop_null().to_numpy())
    both = code[stated] * len(anchors) + place
    for one, count in pd.Series(both).value_counts().items():
        clock, anchor = divmod(int(str(one)), len(anchors))
        if names[clock]:
            found[names[clock], int(anchors[anchor])] = int(count)
    return found


def _coded(column: pa.ChunkedArray) -> tuple[Ints, pd.Series]:
    """By row the place of its text, and the texts."""
    array = whole(column)
    texts = pd.Series(array.dictionary.to_pandas(), dtype="str")
    return array.indices.to_numpy().astype(np.int64), texts


def _hashes(texts: pd.Series, kind: str) -> Keys:
    """64 bits for each text; equal ones by chance only put two requests into one part."""
    values = texts.to_numpy(dtype=object)
    found: Keys = pd.util.hash_array(values, hash_key=kind, categorize=False)
    return found


def _shared(owner: Ints, owned: Keys) -> Ints:
    """What several requests have: rows of request and number of the thing (int64, shape (n, 2)).

    Most traces and legs are of one request, and tie it to no other.
    """
    if not len(owned):
        return np.zeros((0, 2), dtype=np.int64)
    order = np.argsort(owned)
    owner, owned = owner[order], owned[order]
    begins = np.ones(len(owned), dtype=np.bool_)
    begins[1:] = owned[1:] != owned[:-1]
    thing, starts = np.cumsum(begins) - 1, np.flatnonzero(begins)
    first, last = (by.reduceat(owner, starts) for by in (np.minimum, np.maximum))
    shared = (first < last)[thing]
    return np.stack([owner[shared], thing[shared]], axis=1)


def _part_numbers(groups: Sequence[_Group], rows: int) -> list[Ints]:
    """For each group the part of each of its requests."""
    node, ids = pd.factorize(np.concatenate([group.id for group in groups]))
    starts = np.cumsum([0, *(len(group.id) for group in groups)])
    owner = [node[at + group.owner] for at, group in zip(starts[:-1], groups, strict=True)]
    edges = _shared(np.concatenate(owner), np.concatenate([group.thing for group in groups]))
    edges[:, 1] += len(ids)
    if any(group.made for group in groups):
        odd = node[np.concatenate([group.odd for group in groups])]
        edges = np.concatenate([edges, np.stack([odd, np.full(len(odd), odd[0])], axis=1)])
    component = components(int(edges.max(initial=len(ids) - 1)) + 1, edges)[node]
    sizes = np.zeros(int(component.max()) + 1, dtype=np.int64)
    np.add.at(sizes, component, np.concatenate([group.spans for group in groups]))
    first = lowest(np.concatenate([g.first_ns for g in groups]), component, len(sizes))
    order = np.argsort(first, kind="stable")
    part = np.zeros(len(sizes), dtype=np.int64)
    # As many parts as are needed, each of about the same size.
    total = int(sizes.sum())
    even = -(-total // max(1, -(-total // rows)))
    part[order] = (np.cumsum(sizes[order]) - sizes[order]) // max(1, even)
    return np.split(part[component], starts[1:-1])
