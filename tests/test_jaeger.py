"""Jaeger's JSON as an input: UI downloads, API answers, storage dumps, and moved times."""

import json
from pathlib import Path
from typing import Any

import pytest

from pdtrace.analysis.handoffs import join
from pdtrace.analysis.intake import Tally
from pdtrace.analysis.jaeger import parse_jaeger
from pdtrace.analysis.records import EventRecord, SpanRecord
from pdtrace.analysis.report import request_records
from pdtrace.analysis.split import split
from pdtrace.analysis.store import read_spans
from pdtrace.analysis.tabulate import tabulate
from pdtrace.tracing import semconv as sc

DATA = Path(__file__).parent / "data"
START_US = 1_795_946_400_000_000
MOVED = "This span's timestamps were adjusted by -1.5ms"
ASKED = "clock skew adjustment disabled; not applying calculated delta of 1.5ms"


def span(**changes: Any) -> dict[str, Any]:
    plain: dict[str, Any] = {
        "traceID": "71d1f1da4fde64a13380a71e082cc6c",
        "spanID": "a5bd6dd9",
        "operationName": "pd.match",
        "references": [
            {"refType": "CHILD_OF", "traceID": "71d1f1da4fde64a13380a71e082cc6c", "spanID": "1f"}
        ],
        "startTime": START_US,
        "duration": 7,
        "tags": [
            {"key": "span.kind", "type": "string", "value": "client"},
            {"key": "otel.scope.name", "type": "string", "value": "pdtrace"},
            {"key": sc.TRANSFER_BYTES, "type": "int64", "value": 9007199254740993},
        ],
        "logs": [
            {
                "timestamp": START_US + 3,
                "fields": [{"key": "event", "type": "string", "value": "pd.refused"}],
            }
        ],
        "processID": "p1",
    }
    return plain | changes


def trace(*spans: dict[str, Any]) -> dict[str, Any]:
    process = {
        "serviceName": "vllm-prefill",
        "tags": [{"key": sc.ROLE, "type": "string", "value": "prefill"}],
    }
    return {"traceID": spans[0]["traceID"], "spans": list(spans), "processes": {"p1": process}}


WHOLE = SpanRecord(
    trace_id="071d1f1da4fde64a13380a71e082cc6c",
    span_id="00000000a5bd6dd9",
    parent_id="000000000000001f",
    name="pd.match",
    kind=3,
    start_ns=START_US * 1000,
    end_ns=START_US * 1000 + 7000,
    attributes={sc.TRANSFER_BYTES: 9007199254740993},
    events=(EventRecord("pd.refused", START_US * 1000 + 3000, {}),),
    status=0,
    resource={sc.ROLE: "prefill", sc.SERVICE_NAME: "vllm-prefill"},
    scope="pdtrace",
)


def read(obj: dict[str, Any]) -> list[SpanRecord]:
    return parse_jaeger(obj, Tally())


@pytest.mark.parametrize(
    "written",
    [
        {"data": [trace(span())], "total": 0, "errors": None},
        trace(span()),
        span(process=trace(span())["processes"]["p1"]),
        trace(span(startTime=str(START_US), duration="7")),
        trace(span(startTime=float(START_US))),
        trace(span(references=[], parentSpanID="1f")),
        trace(span(traceID="071D1F1DA4FDE64A13380A71E082CC6C", references=[], parentSpanID="1f")),
    ],
    ids=["answer", "one trace", "one span", "text", "floats", "parent", "whole id"],
)
def test_every_shape_gives_the_same_record(written: dict[str, Any]) -> None:
    """Ids get their zeros back, tags their types, times their microseconds."""
    assert read(written) == [WHOLE]


@pytest.mark.parametrize(
    ("tag", "value"),
    [
        ({"type": "int64", "value": "9007199254740993"}, 9007199254740993),
        ({"type": "float64", "value": 0.5}, 0.5),
        ({"type": "bool", "value": "true"}, True),
        ({"type": "bool", "value": False}, False),
        ({"type": "STRING", "value": "x"}, "x"),
        ({"value": 3}, 3),
    ],
)
def test_tags_have_their_types(tag: dict[str, Any], value: object) -> None:
    """As the API writes them, and as a storage writes all of them: as text."""
    (record,) = read(trace(span(tags=[{"key": "k", **tag}])))
    assert record.attributes == {"k": value}


@pytest.mark.parametrize(
    ("tags", "status"),
    [
        ([{"key": "error", "type": "bool", "value": True}], 2),
        ([{"key": "otel.status_code", "type": "string", "value": "ERROR"}], 2),
        ([{"key": "otel.status_code", "type": "string", "value": "OK"}], 1),
        ([{"key": "error", "type": "bool", "value": False}], 0),
    ],
)
def test_status_comes_from_its_tags(tags: list[dict[str, Any]], status: int) -> None:
    """OTLP's status, or what older clients set."""
    assert read(trace(span(tags=tags)))[0].status == status


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"duration": -1}, "end before start"),
        ({"duration": None}, "no readable time"),
        ({"startTime": 77}, "time of another epoch"),
        ({"startTime": START_US * 1000}, "time of another epoch"),
        ({"spanID": ""}, "no span id"),
        ({"tags": 7}, "malformed span"),
    ],
)
def test_unusable_spans_are_counted(changes: dict[str, Any], reason: str) -> None:
    """By the same reasons as anywhere else."""
    tally = Tally()
    assert parse_jaeger(trace(span(**changes), span()), tally) == [WHOLE]
    assert tally.rejected == {reason: 1}


def jaeger_of(records: list[SpanRecord], warn: dict[str, str] | None = None) -> dict[str, Any]:
    """The records as Jaeger shows them; `warn` is the warning on the spans of a role."""
    spans: list[dict[str, Any]] = []
    processes: dict[str, Any] = {}
    for record in records:
        key = f"p{len(processes)}"
        processes[key] = {"serviceName": "s", "tags": tags(record.resource)}
        start_us = record.start_ns // 1000
        warning = (warn or {}).get(str(record.resource.get(sc.ROLE)))
        spans.append(
            {
                "traceID": record.trace_id.lstrip("0"),
                "spanID": record.span_id.lstrip("0"),
                "operationName": record.name,
                "parentSpanID": record.parent_id,
                "startTime": start_us,
                "duration": record.end_ns // 1000 - start_us,
                "tags": [*tags(record.attributes), *tags({"error": record.status == 2})],
                "logs": [
                    {
                        "timestamp": event.time_ns // 1000,
                        "fields": [*tags({"event": event.name}), *tags(event.attributes)],
                    }
                    for event in record.events
                ],
                "processID": key,
                "warnings": [warning] if warning else None,
            }
        )
    return {"data": [{"traceID": "", "spans": spans, "processes": processes}]}


def tags(attributes: Any) -> list[dict[str, Any]]:
    kinds = {str: "string", bool: "bool", int: "int64", float: "float64"}
    return [
        {"key": key, "type": kinds[type(value)], "value": value}
        for key, value in attributes.items()
        if type(value) in kinds
    ]


def said(path: Path) -> dict[str, Any]:
    (found,) = request_records(split(join(tabulate([path]).table)))
    return found


def test_a_case_through_jaeger_gives_the_same_split(tmp_path: Path) -> None:
    """c07's times are whole microseconds, so nothing is lost; that they could be is said."""
    path = tmp_path / "jaeger.json"
    path.write_text(json.dumps(jaeger_of(read_spans([DATA / "c07_tempo_v1.json"]).records)))
    assert said(path) == said(DATA / "c07_tempo_v1.json")
    assert tabulate([path]).notes == [
        "12 spans of Jaeger, whose times are whole microseconds: exact to 1 µs"
    ]


def test_spans_that_the_backend_moved_give_nothing_between_processes(tmp_path: Path) -> None:
    """Marked and counted: the router's own TTFT stays, the rest is not pretended to be known."""
    path = tmp_path / "jaeger.json"
    records = read_spans([DATA / "c07_tempo_v1.json"]).records
    path.write_text(json.dumps(jaeger_of(records, {"decode": MOVED})))
    found = said(path)
    assert found["flags"] == ["adjusted_by_backend"]
    assert found["ttft_ns"] == said(DATA / "c07_tempo_v1.json")["ttft_ns"]
    nothing = ("phases", "classes", "handover_ns", "clock_halfwidth_ns")
    assert [found[key] for key in nothing] == [None] * 4
    assert "moved" in found["reason"]
    assert any("trace store moved" in note for note in tabulate([path]).notes)


def test_a_warning_about_skew_that_was_left_alone_changes_nothing(tmp_path: Path) -> None:
    """Jaeger says so by default, and its times are as they were."""
    path = tmp_path / "jaeger.json"
    records = read_spans([DATA / "c07_tempo_v1.json"]).records
    path.write_text(json.dumps(jaeger_of(records, {"decode": ASKED, "prefill": ASKED})))
    assert said(path) == said(DATA / "c07_tempo_v1.json")
