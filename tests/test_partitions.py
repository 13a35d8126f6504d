"""A spans table divided into parts gives the same split as all of it at once."""

from collections.abc import Sequence
from concurrent.futures import BrokenExecutor, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
import pytest
from generator import Shape, records
from hypothesis import given, settings
from hypothesis import strategies as st
from skew import Skew, by_role, skewed, stepped
from test_identity import KNOWN, failed_load, phantom
from test_split_properties import shapes

from pdtrace.analysis import parquet
from pdtrace.analysis.analyse import analyse
from pdtrace.analysis.columns import Batch
from pdtrace.analysis.export import to_parquet
from pdtrace.analysis.hours import write_hours
from pdtrace.analysis.load import load
from pdtrace.analysis.parallel import Result, split_parts
from pdtrace.analysis.parquet import row_groups
from pdtrace.analysis.partitions import Division, divide
from pdtrace.analysis.records import SpanRecord
from pdtrace.analysis.sources import SourceError
from pdtrace.analysis.split import Split, split
from pdtrace.analysis.table import TableBuilder
from pdtrace.tracing import semconv as sc

DATA = Path(__file__).parent / "data"
CASES = sorted(path.name for path in DATA.glob("c*.otlp.jsonl"))
FRAMES = ("requests", "exposed", "hidden", "drag", "classes", "known")


@pytest.fixture(autouse=True)
def small_row_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of a test has several, as that of a busy hour has."""
    monkeypatch.setattr(parquet, "ROW_GROUP", 13)


def stored(directory: Path, spans: Sequence[SpanRecord]) -> list[Path]:
    """The spans in two exports that overlap in time."""
    files = []
    for number, half in enumerate((spans[::2], spans[1::2])):
        builder = TableBuilder()
        builder.add_all(half)
        found, events, _ = builder.finish_arrow()
        if len(found):
            files += write_hours([Batch(found, events)], directory / str(number))
    return files


def same(one: Split, other: Split) -> None:
    """Every frame, its order included."""
    for name in FRAMES:
        mine, theirs = getattr(one, name), getattr(other, name)
        if name == "requests":
            mine, theirs = (one.drop(columns="part", errors="ignore") for one in (mine, theirs))
        pd.testing.assert_frame_equal(mine, theirs)


def divided(files: Sequence[Path], rows: int) -> tuple[Division, Result]:
    division = divide(row_groups(files), rows)
    return division, split_parts(division, 50.0)


@settings(max_examples=5, deadline=None)
@given(
    batch=st.lists(shapes, min_size=1, max_size=8),
    rows=st.integers(15, 120),
    ids=st.integers(1, 8),
    clocks=st.booleans(),
    steps=st.booleans(),
    seed=st.integers(0, 99),
)
def test_parts_give_the_split_of_all(
    batch: list[Shape],
    rows: int,
    ids: int,
    clocks: bool,
    steps: bool,
    seed: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Whatever the size of a part, with ids used again, clocks that are off and that are set."""
    spans = [
        span
        for number, shape in enumerate(batch)
        for span in records(replace(shape, start=shape.start % 10**6), f"r-{number % ids}")
    ]
    Random(seed).shuffle(spans)
    if clocks:
        off = {name: Skew(name, place * 10**7) for place, name in enumerate(ROLES)}
        spans = skewed(spans, by_role(**off))
    if steps:
        spans = stepped(spans, (612_000, -(10**9)))
    files = stored(tmp_path_factory.mktemp("parts"), spans)
    loaded = load(files)
    division, found = divided(files, rows)
    same(found.split, split(loaded.handoffs))
    assert division.spans == sum(len(rows.rows) for part in division.parts for rows in part.rows)
    assert [*found.account.notes(), *found.account.refusals()] == [
        note for note in loaded.notes if "clock" not in note
    ]


ROLES = (sc.ROLE_ROUTER, sc.ROLE_PREFILL, sc.ROLE_DECODE)


@pytest.mark.parametrize("name", CASES)
def test_every_case_is_the_same_in_parts(name: str, tmp_path: Path) -> None:
    """Also with other producers' spans, retries, dirty spans and clocks that are off."""
    files, _, _ = to_parquet([DATA / name], tmp_path / "kept")
    _, found = divided(files, 1)
    same(found.split, split(load(files).handoffs))


def test_parts_follow_arrival_and_hold_whole_requests(tmp_path: Path) -> None:
    """About as many spans as asked for, every span in exactly one part."""
    spans = [
        span
        for number in range(30)
        for span in records(Shape(mode="push", start=number * 1000), f"r-{number:02}")
    ]
    division = divide(row_groups(stored(tmp_path, spans)), len(spans) // 5)
    sizes = [sum(len(rows.rows) for rows in part.rows) for part in division.parts]
    assert sum(sizes) == division.spans == len(spans)
    assert [size // (len(spans) // 30) for size in sizes] == [6, 6, 6, 6, 6]
    found = split_parts(division, 50.0).split.requests
    assert found["part"].tolist() == sorted(found["part"])


def test_spans_of_others_stay_together(tmp_path: Path) -> None:
    """What they tell of one request may follow from what they tell of another."""
    spans = [s for number in range(9) for s in records(Shape(mode="pull"), f"r-{number}")]
    other = replace(spans[0], name=sc.VLLM_SPAN, span_id="f" * 16, parent_id="")
    assert len(divide(row_groups(stored(tmp_path / "ours", spans)), 1).parts) == 9
    assert len(divide(row_groups(stored(tmp_path / "both", [*spans, other])), 1).parts) == 1


def test_a_phantom_stays_with_the_request_that_failed(tmp_path: Path) -> None:
    """vLLM frees blocks by a request of its own that shares no id with the one that failed."""
    others = [s for number in range(3) for s in records(Shape(mode="pull"), f"o-{number}")]
    spans = [*others, *failed_load(), *phantom(900, **KNOWN)]
    files = stored(tmp_path, spans)
    division, found = divided(files, 1)
    assert len(division.parts) == 4
    flagged = found.split.requests["flags"].map(lambda flags: "phantom_request" in flags)
    assert flagged.index[flagged].tolist() == ["r-1"]
    same(found.split, split(load(files).handoffs))


def test_a_spans_table_without_spans_is_one_sentence(tmp_path: Path) -> None:
    """As any source that names no request."""
    pq.write_table(parquet.SCHEMA.empty_table(), tmp_path / "spans.parquet")
    with pytest.raises(SourceError, match="^0 spans and none that names a request"):
        analyse([tmp_path / "spans.parquet"])


class FakeLostExecutor(ThreadPoolExecutor):
    """Its processes are gone, as after the kernel ran out of memory."""

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Injected loss."""
        raise BrokenExecutor("injected")


def test_a_process_that_is_lost_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And no half of a result."""
    files = stored(tmp_path, [s for n in range(4) for s in records(Shape(), f"r-{n}")])
    monkeypatch.setattr("pdtrace.analysis.opened.ROWS", 1)

    with pytest.raises(SourceError, match="^a process that split a part was lost"):
        analyse(files, workers=lambda: FakeLostExecutor(1))


def test_nothing_but_a_spans_table_is_read_in_parts(tmp_path: Path) -> None:
    """JSON lines beside Parquet are read as ever, and the requests of both are there."""
    kept, _, _ = to_parquet([DATA / "c01_handshake.otlp.jsonl"], tmp_path / "kept")
    both = [*kept, DATA / "c16_push_modes.otlp.jsonl"]
    assert "part" not in analyse(both).split.requests
    assert "part" in analyse(kept).split.requests
    same(analyse(both).split, split(load(both).handoffs))
