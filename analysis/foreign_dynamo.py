"""Dynamo's frontend: its `http-request` spans, and its request traces (JSON lines).

Both are one clock of one router. `ttft_ms` of a span ends at the first token that the frontend
sent. That of a request trace may end at the prefill worker's first token, so with two workers the
first token is where the trace's own upper bound of the KV transfer ends, or not known.
"""

import hashlib
import json
import math
from dataclasses import replace
from typing import Any, Final

from pdtrace.analysis.intake import MALFORMED, Tally, refusal
from pdtrace.analysis.records import Attributes, AttributeValue, EventRecord, SpanRecord
from pdtrace.tracing import semconv

_MS: Final = 1_000_000
_UNSURE: Final = "Dynamo's ttft_ms may end at the prefill worker's first token"
_FAULT: Final = "cannot be a time"


def adapt(record: SpanRecord, tally: Tally) -> SpanRecord:
    """The frontend's span as the router's: its start, and its first token where it says one."""
    said = record.attributes
    length = _nanoseconds(said.get(semconv.DYNAMO_TTFT_MS), semconv.DYNAMO_TTFT_MS, tally)
    token = () if not length else (EventRecord(semconv.READ_FIRST_TOKEN, record.start_ns + length),)
    fault = said.get(semconv.DYNAMO_TTFT_MS) is not None and length is None
    attributes = {
        semconv.ENGINE_REQUEST_ID: said.get(semconv.DYNAMO_REQUEST_ID) or "",
        semconv.PEER_ENGINE_REQUEST_ID: said.get(semconv.DYNAMO_CALLER_ID) or "",
        semconv.READ_REASON: f"{semconv.DYNAMO_TTFT_MS} {_FAULT}" if fault else "",
        semconv.READ_ADJUSTED: said.get(semconv.READ_ADJUSTED, False),
    }
    role: Attributes = {**record.resource, semconv.ROLE: semconv.ROLE_ROUTER}
    return replace(record, attributes=attributes, events=token, resource=role)


def trace_event(obj: dict[str, Any]) -> dict[str, Any] | None:
    """The event in a line of a request trace, bare or in a sink's envelope; None for others."""
    event = obj.get("event") if isinstance(obj.get("event"), dict) else obj
    known = isinstance(event, dict) and event.get("schema") == semconv.DYNAMO_TRACE_SCHEMA
    return event if known else None


def parse_trace(event: dict[str, Any], tally: Tally) -> list[SpanRecord]:
    """The end of a request as one record; other events of the trace (tools) give none."""
    if event.get("event_type") != "request_end":
        return []
    said = event.get("request")
    received = said.get("request_received_ms") if isinstance(said, dict) else None
    if not isinstance(said, dict) or type(received) is not int or not said.get("request_id"):
        tally.refuse(MALFORMED)
        return []
    start_ns = received * _MS
    total = _nanoseconds(said.get("total_time_ms"), "total_time_ms", tally) or 0
    span_id = hashlib.sha256(json.dumps(event, sort_keys=True).encode()).hexdigest()[:16]
    reason = refusal(span_id, span_id, start_ns, start_ns + total)
    if reason is not None:
        tally.refuse(reason)
        return []
    events, why = _instants(said, start_ns, tally)
    texts: dict[str, AttributeValue] = {
        semconv.ENGINE_REQUEST_ID: str(said["request_id"]),
        semconv.PEER_ENGINE_REQUEST_ID: str(said.get("x_request_id") or ""),
        semconv.READ_REASON: why,
    }
    return [
        SpanRecord(
            trace_id="",
            span_id=span_id,
            parent_id="",
            name=semconv.DYNAMO_TRACE_SCHEMA,
            kind=0,
            start_ns=start_ns,
            end_ns=start_ns + total,
            attributes=texts,
            events=tuple(EventRecord(name, at) for name, at in events.items()),
            status=0,
            resource={semconv.ROLE: semconv.ROLE_ROUTER},
            scope=semconv.DYNAMO_TRACE_SCHEMA,
        )
    ]


def _instants(said: dict[str, Any], start_ns: int, tally: Tally) -> tuple[dict[str, int], str]:
    """What is known, and why the first token is not."""
    names = (
        "prefill_wait_time_ms", "prefill_time_ms", "kv_transfer_estimated_latency_ms", "ttft_ms",
    )  # fmt: skip
    wait, prefill, moving, ttft = (_nanoseconds(said.get(name), name, tally) for name in names)
    found: dict[str, int] = {}
    if wait is not None and prefill is not None:
        found[semconv.READ_SCHEDULED] = start_ns + wait
        found[semconv.READ_COMPUTED] = start_ns + wait + prefill
    workers = said.get("worker") if isinstance(said.get("worker"), dict) else {}
    p, d = ((workers or {}).get(f"{side}_worker_id") for side in ("prefill", "decode"))
    if p is None or p == d:
        if ttft:
            found[semconv.READ_FIRST_TOKEN] = start_ns + ttft
        return found, "" if ttft else "no ttft_ms that can be a time"
    if moving is not None and semconv.READ_COMPUTED in found:
        found[semconv.READ_FIRST_TOKEN] = found[semconv.READ_COMPUTED] + moving
        return found, ""
    return found, _UNSURE


def _nanoseconds(raw: object, name: str, tally: Tally) -> int | None:
    """Milliseconds in ns; None, counted, for what is negative or no number."""
    if raw is None:
        return None
    try:
        value = math.nan if isinstance(raw, bool) else float(raw)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        value = math.nan
    if not 0 <= value < math.inf:
        tally.ignored[f"{name} {_FAULT}"] += 1
        return None
    return round(value * _MS)
