"""One recorded run of real engines gives the same split through every format."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from recorded_runs import Arm, Runs
from test_jaeger import jaeger_of

from pdtrace.analysis.export import json_lines, to_parquet
from pdtrace.analysis.framing import framed
from pdtrace.analysis.load import load, loaded
from pdtrace.analysis.otlp import json_to_protobuf
from pdtrace.analysis.records import SpanRecord
from pdtrace.analysis.report import request_records
from pdtrace.analysis.split import split
from pdtrace.analysis.store import read_spans
from pdtrace.analysis.table import build
from pdtrace.analysis.tabulate import Tabulated, tabulate

pytestmark = pytest.mark.e2e
Documents = list[dict[str, Any]]


def as_json_lines(store: Path, documents: Documents, out: Path) -> None:
    out.write_bytes(b"".join(json_lines([store], [])))


def as_one_message(store: Path, documents: Documents, out: Path) -> None:
    out.write_bytes(json_to_protobuf(together(documents)))


def as_many_messages(store: Path, documents: Documents, out: Path) -> None:
    out.write_bytes(b"".join(framed(json_to_protobuf(one)) for one in documents))


def as_parquet(store: Path, documents: Documents, out: Path) -> None:
    to_parquet([store], out)


def as_tempo_v1(store: Path, documents: Documents, out: Path) -> None:
    batches = [old_names(entry) for entry in together(documents)["resourceSpans"]]
    out.write_text(json.dumps({"batches": batches}))


def as_tempo_v2(store: Path, documents: Documents, out: Path) -> None:
    out.write_text(json.dumps({"trace": together(documents), "status": "COMPLETE"}, indent=1))


def together(documents: Documents) -> dict[str, Any]:
    return {"resourceSpans": [entry for one in documents for entry in one["resourceSpans"]]}


def old_names(entry: dict[str, Any]) -> dict[str, Any]:
    groups = [
        {"instrumentationLibrary": group["scope"], "spans": group["spans"]}
        for group in entry["scopeSpans"]
    ]
    return {"resource": entry["resource"], "instrumentationLibrarySpans": groups}


FORMATS: list[Callable[[Path, Documents, Path], None]] = [
    as_json_lines, as_one_message, as_many_messages, as_parquet, as_tempo_v1, as_tempo_v2,
]  # fmt: skip


@pytest.mark.parametrize("mode", ["push", "pull"])
def test_a_run_gives_the_same_split_through_every_format(
    mode: Any, runs: Runs, tmp_path: Path
) -> None:
    """To the nanosecond, every key of every request; Jaeger's to its microseconds."""
    store = runs.get(Arm(mode)).store
    wanted = said(store)
    assert len(wanted) == 6
    documents = [json.loads(line) for line in json_lines([store], [])]
    for write in FORMATS:
        out = tmp_path / write.__name__
        write(store, documents, out)
        assert said(out) == wanted, write.__name__
    records = read_spans([store]).records
    jaeger = tmp_path / "jaeger.json"
    jaeger.write_text(json.dumps(jaeger_of(records)))
    table = build(map(in_microseconds, records))
    floored = list(request_records(split(loaded(Tabulated(table, [], {})).handoffs)))
    assert said(jaeger) == floored
    for one, other in zip(floored, wanted, strict=True):
        assert abs(one["ttft_ns"] - other["ttft_ns"]) <= 1000
    assert tabulate([tmp_path / "as_parquet"]).notes == []


def said(source: Path) -> list[dict[str, Any]]:
    return list(request_records(split(load([source]).handoffs)))


def in_microseconds(record: SpanRecord) -> SpanRecord:
    return replace(
        record,
        start_ns=record.start_ns // 1000 * 1000,
        end_ns=record.end_ns // 1000 * 1000,
        events=tuple(replace(e, time_ns=e.time_ns // 1000 * 1000) for e in record.events),
    )
