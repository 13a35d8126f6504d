"""vLLM's proposed lifecycle log of KV connectors (schema `vllm-kv-connector-v1`) to span records.

A line is one instant: a JSON object, alone or behind the text that a logger puts before it. It
names requests by hash and says neither rank nor host. Each becomes a span of no length whose id is
a hash of its content, so that a line read twice is one.
"""

import hashlib
import json
from typing import Any, Final

from pdtrace.analysis.intake import MALFORMED, Tally, refusal
from pdtrace.analysis.records import AttributeValue, SpanRecord
from pdtrace.tracing import semconv

MARK: Final = semconv.KV_LOG_SCHEMA.encode()
_DECODER: Final = json.JSONDecoder()
_ROLES: Final = {"producer": semconv.ROLE_PREFILL, "consumer": semconv.ROLE_DECODE}
_TEXTS: Final = ("event", "request_id_hash", "request_group_id_hash", "transfer_mode", "role")


def is_event(value: object) -> bool:
    """Whether a decoded JSON value is a line of this log."""
    return isinstance(value, dict) and value.get("schema") == semconv.KV_LOG_SCHEMA


def embedded(line: bytes) -> dict[str, Any] | None:
    """The event inside a line of a log; None when there is no whole one."""
    if MARK not in line:
        return None
    text = line.decode(errors="replace")
    at = text.find("{")
    while at >= 0:
        try:
            value, _ = _DECODER.raw_decode(text, at)
        except ValueError:
            value = None
        if is_event(value):
            found: dict[str, Any] = value
            return found
        at = text.find("{", at + 1)
    return None


def parse_event(event: dict[str, Any], tally: Tally) -> list[SpanRecord]:
    """The event as one record; refused ones are counted in `tally`."""
    at_ns = event.get("wall_ns")
    texts = [event.get(name) for name in _TEXTS]
    if not all(isinstance(text, str) and text for text in texts) or type(at_ns) is not int:
        tally.rejected[MALFORMED] += 1
        return []
    content = json.dumps(event, sort_keys=True).encode()
    span_id = hashlib.sha256(content).hexdigest()[:16]
    reason = refusal(span_id, span_id, at_ns, at_ns)
    if reason is not None:
        tally.rejected[reason] += 1
        return []
    return [_record(event, span_id, at_ns)]


def _record(event: dict[str, Any], span_id: str, at_ns: int) -> SpanRecord:
    attributes: dict[str, AttributeValue] = {
        semconv.REQUEST_ID: event["request_group_id_hash"],
        semconv.ENGINE_REQUEST_ID: event["request_id_hash"],
        semconv.MODE: event["transfer_mode"],
    }
    if isinstance(event.get("remote_request_id_hash"), str):
        attributes[semconv.PEER_ENGINE_REQUEST_ID] = event["remote_request_id_hash"]
    return SpanRecord(
        trace_id="",
        span_id=span_id,
        parent_id="",
        name=semconv.KV_LOG_SPAN + event["event"],
        kind=0,
        start_ns=at_ns,
        end_ns=at_ns,
        attributes=attributes,
        events=(),
        status=2 if event["event"].endswith("_failed") else 0,
        resource={semconv.ROLE: _ROLES.get(event["role"], event["role"])},
        scope=semconv.KV_LOG_SCHEMA,
    )
