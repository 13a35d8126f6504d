"""Runs of several engines as spans in a file: shapes of the generator, placed on P and D."""

import random
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
from generator import Shape, records

from pdtrace.analysis.records import AttributeValue, SpanRecord
from pdtrace.tracing import semconv as sc

MS = 1_000_000
_MEANS = {
    "ingress": 1.0,
    "queue": 8.0,
    "prefill": 60.0,
    "handing": 2.0,
    "hop": 1.0,
    "admission": 1.0,
    "capacity": 0.5,
    "registration": 3.0,
    "seen": 8.0,
    "requeue": 1.0,
    "first_decode": 16.0,
    "egress": 1.0,
}

Fault = Callable[[int, str, str, Shape], Shape]
"""What becomes of a request's shape: its number, P engine and D engine."""


def run(count: int, seed: int, fault: Fault, decode_engines: int = 2) -> list[SpanRecord]:
    """Spans of `count` push requests, two a second, over two P engines and some D engines."""
    drawn = random.Random(seed)
    spans: list[SpanRecord] = []
    for number in range(count):
        p, d = f"p-{drawn.randrange(2)}", f"d-{drawn.randrange(decode_engines)}"
        lengths: dict[str, Any] = {
            name: int(drawn.gammavariate(9, mean / 9) * MS) for name, mean in _MEANS.items()
        }
        start = int((number + drawn.random()) * MS * 500)
        shape = Shape(start=start, decode=90 * MS, dispatched=MS // 2, **lengths)
        shape = replace(shape, ranks=(replace(shape.ranks[0], submit=MS, transfer=6 * MS),))
        made = records(fault(number, p, d, shape), f"r-{number}")
        spans += [_placed(span, p, d) for span in made]
    return spans


def healthy(number: int, p: str, d: str, shape: Shape) -> Shape:
    """No fault."""
    return shape


def _placed(span: SpanRecord, p: str, d: str) -> SpanRecord:
    """The span on its engine, with the facts that engines add."""
    role = span.resource[sc.ROLE]
    if role == sc.ROLE_ROUTER:
        return span
    engine = p if role == sc.ROLE_PREFILL else d
    facts: dict[str, AttributeValue] = {sc.INPUT_TOKENS: 512, sc.MODEL: "m"}
    if span.name == sc.SPAN_WRITE_SUBMIT:
        facts |= {sc.TRANSFER_BYTES: 8_388_608, sc.TRANSFER_DESCRIPTORS: 256}
    placed: dict[str, AttributeValue] = {
        sc.ENGINE_ID: engine,
        sc.HOST_NAME: f"host-{engine}",
        sc.SERVICE_INSTANCE_ID: f"{engine}-1",
    }
    resource = {**span.resource, **placed}
    return replace(span, resource=resource, attributes={**span.attributes, **facts})


def write(path: Path, spans: Iterable[SpanRecord]) -> Path:
    """The spans as OTLP JSON lines, one line for each process."""
    processes: dict[str, list[SpanRecord]] = {}
    for span in spans:
        processes.setdefault(str(sorted(span.resource.items())), []).append(span)
    lines = (orjson.dumps(_message(mine)) + b"\n" for mine in processes.values())
    path.write_bytes(b"".join(lines))
    return path


def _message(spans: list[SpanRecord]) -> dict[str, Any]:
    scope = {"scope": {"name": spans[0].scope}, "spans": [_span(span) for span in spans]}
    resource = {"attributes": _attributes(spans[0].resource)}
    return {"resourceSpans": [{"resource": resource, "scopeSpans": [scope]}]}


def _span(span: SpanRecord) -> dict[str, Any]:
    return {
        "traceId": span.trace_id,
        "spanId": span.span_id,
        "name": span.name,
        "kind": span.kind,
        "startTimeUnixNano": str(span.start_ns),
        "endTimeUnixNano": str(span.end_ns),
        "attributes": _attributes(span.attributes),
        "events": [
            {
                "name": event.name,
                "timeUnixNano": str(event.time_ns),
                "attributes": _attributes(event.attributes),
            }
            for event in span.events
        ],
        "status": {"code": span.status},
    }


def _attributes(values: Any) -> list[dict[str, Any]]:
    return [
        {
            "key": key,
            "value": {"intValue": str(value)} if isinstance(value, int) else {"stringValue": value},
        }
        for key, value in values.items()
    ]
