"""The spans table as Parquet by hour: written whole, read back exactly, exported again."""

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
import pytest
from generator import Shape, records
from hypothesis import given, settings
from hypothesis import strategies as st

from pdtrace.analysis.columns import Batch, Columns
from pdtrace.analysis.export import to_parquet
from pdtrace.analysis.handoffs import join
from pdtrace.analysis.hours import HOUR_NS, write_hours
from pdtrace.analysis.parquet import SCHEMA, read_batches, write_spans
from pdtrace.analysis.records import EventRecord, SpanRecord
from pdtrace.analysis.report import request_records
from pdtrace.analysis.schema import SPAN_COLUMNS, TEXT
from pdtrace.analysis.sources import SourceError
from pdtrace.analysis.split import split
from pdtrace.analysis.table import SpansTable, TableBuilder, build
from pdtrace.analysis.tabulate import tabulate
from pdtrace.cli.main import main

DATA = Path(__file__).parent / "data"


def same(one: SpansTable, other: SpansTable) -> None:
    pd.testing.assert_frame_equal(one.spans, other.spans)
    pd.testing.assert_frame_equal(one.events, other.events)


def written(directory: Path, spans: list[SpanRecord]) -> list[Path]:
    builder = TableBuilder()
    builder.add_all(spans)
    found, events, _ = builder.finish_arrow()
    return write_hours([Batch(found, events)], directory)


@pytest.mark.parametrize(
    "name", ["c01_handshake.otlp.jsonl", "c06_split_trace.otlp.jsonl", "c16_push_modes.otlp.jsonl"]
)
def test_what_is_exported_reads_back_exactly(name: str, tmp_path: Path) -> None:
    """Spans, events and the split, other producers' spans included."""
    files, notes, partial = to_parquet([DATA / name], tmp_path / "kept")
    assert ([file.parent.name for file in files], notes, partial) == (
        ["hour=2026-11-29T10"], [], False,
    )  # fmt: skip
    plain, kept = tabulate([DATA / name]).table, tabulate([tmp_path / "kept"]).table
    same(plain, kept)
    assert list(request_records(split(join(plain)))) == list(request_records(split(join(kept))))


@settings(max_examples=15, deadline=None)
@given(
    hours=st.lists(st.integers(0, 2), min_size=1, max_size=12),
    events=st.integers(0, 3),
    text=st.text(max_size=5),
)
def test_any_spans_read_back_exactly(
    hours: list[int], events: int, text: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Hours, numbers of events, text of any kind, and nothing said at all."""
    (span, *_) = records(Shape())
    spans = [
        replace(
            span,
            span_id=f"{number + 1:016x}",
            name=text,
            start_ns=span.start_ns + hour * HOUR_NS,
            end_ns=span.start_ns + hour * HOUR_NS + number,
            attributes={} if number % 2 else span.attributes,
            events=tuple(EventRecord(text, span.start_ns + i, {}) for i in range(events)),
        )
        for number, hour in enumerate(hours)
    ]
    directory = tmp_path_factory.mktemp("kept")
    assert len(written(directory, spans)) == len(set(hours))
    same(tabulate([directory]).table, build(spans))


def test_exporting_again_adds_what_is_new_and_nothing_twice(tmp_path: Path) -> None:
    """The same sources change nothing; others join the hour's file."""
    first, second = DATA / "c01_handshake.otlp.jsonl", DATA / "c16_push_modes.otlp.jsonl"
    to_parquet([first], tmp_path)
    once = tabulate([tmp_path])
    to_parquet([first], tmp_path)
    same(tabulate([tmp_path]).table, once.table)
    to_parquet([second], tmp_path)
    same(tabulate([tmp_path]).table, tabulate([first, second]).table)
    assert tabulate([tmp_path]).notes == []


def test_more_spans_than_memory_holds_are_put_in_order_some_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of several files, in any order, with copies, over three hours, and with what was kept."""
    monkeypatch.setattr("pdtrace.analysis.hours.PART", 7)
    monkeypatch.setattr("pdtrace.analysis.table.HELD", 5)
    monkeypatch.setattr("pdtrace.analysis.columns.BATCH", 4)
    monkeypatch.setattr("pdtrace.analysis.parquet.ROW_GROUP", 3)
    spans = [s for hour in range(3) for s in records(Shape(start=hour * HOUR_NS), f"r-{hour}")]
    for some in (spans[1::2], [*reversed(spans)], spans[:9]):
        unordered = Columns()
        for span in some:
            unordered.add(span)
        write_spans(unordered.batch(), tmp_path / "came.parquet")
        files, _, _ = to_parquet([tmp_path / "came.parquet"], tmp_path / "kept")
    assert [file.parent.name for file in files] == ["hour=2026-11-29T10"]
    kept = sorted((tmp_path / "kept").rglob("*.parquet"))
    assert len(kept) == 3
    same(tabulate(kept).table, build(spans))
    for file in kept:
        rows = pq.read_table(file)
        starts = rows["start_ns"].to_pylist()
        assert starts == sorted(starts) and len(set(rows["span_id"].to_pylist())) == len(rows)


def test_a_file_of_an_older_schema_has_empty_columns(tmp_path: Path) -> None:
    """A column that came later says nothing in what was written before."""
    (path,) = written(tmp_path, records(Shape()))
    whole = tabulate([path]).table
    rows = pq.read_table(path).drop_columns(["reason", "attempt", "tp_rank"])
    pq.write_table(rows, path)
    found = tabulate([path]).table.spans
    assert found["attempt"].isna().all() and (found["reason"] == "").all()
    assert (found["tp_rank"] == 0).all()
    pd.testing.assert_series_equal(found["request_id"], whole.spans["request_id"])


def test_other_parquet_is_named(tmp_path: Path) -> None:
    """Not ours, and broken."""
    (path,) = written(tmp_path / "kept", records(Shape()))
    pq.write_table(pq.read_table(path).replace_schema_metadata(None), tmp_path / "other")
    with pytest.raises(SourceError, match="is Parquet, but not a spans table"):
        tabulate([tmp_path / "other"])
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(SourceError, match="is broken Parquet"):
        tabulate([path])


def test_row_groups_come_one_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of many row groups is read in as many batches, whose events stay with their spans."""
    monkeypatch.setattr("pdtrace.analysis.parquet.ROW_GROUP", 5)
    spans = records(Shape())
    (path,) = written(tmp_path, spans)
    assert [len(batch) for batch, _ in read_batches(path)][:2] == [5, 5]
    same(tabulate([path]).table, build(spans))
    assert pq.read_schema(path).names == SCHEMA.names


def test_a_row_group_holds_its_own_texts_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With those of all others a file of n row groups would be n times as long, and as slow."""
    monkeypatch.setattr("pdtrace.analysis.parquet.ROW_GROUP", 5)
    (path,) = written(tmp_path, records(Shape()))
    texts = [column.name for column in SPAN_COLUMNS if column.dtype == TEXT]
    with pq.ParquetFile(path, read_dictionary=texts) as file:
        for number in range(file.num_row_groups):
            group = file.read_row_group(number)
            for name in texts:
                (chunk,) = group[name].chunks
                assert sorted(chunk.dictionary.to_pylist()) == sorted(set(chunk.to_pylist()))


def test_the_command_says_what_it_needs(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Exactly one kind of output, and a source."""
    source = str(DATA / "c07_tempo_v2_partial.json")
    for arguments, status, words in (
        ([source], 2, "either --otlp-json FILE or --parquet DIR"),
        ([source, "--parquet", str(tmp_path / "kept")], 3, "marked its answer as partial"),
        ([str(tmp_path / "none"), "--parquet", str(tmp_path / "kept")], 1, "does not exist"),
    ):
        with pytest.raises(SystemExit) as stopped:
            main(["export", *arguments])
        assert (stopped.value.code, words in capfd.readouterr().err) == (status, True)
