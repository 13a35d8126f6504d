"""Spans of llm-d's sidecar, which sends the legs: when it had the request and when P answered.

Its `true_ttft_ms` ends where decode is dispatched, before any token: it is never read as one.
"""

from dataclasses import replace
from typing import Any, Final

from pdtrace.analysis.intake import Tally
from pdtrace.analysis.records import EventRecord, SpanRecord
from pdtrace.tracing import semconv

NO_TTFT: Final = "llm-d's true_ttft_ms ends where decode is dispatched, so it is no TTFT"
_IDS: Final = (semconv.LLMD_REQUEST_ID, "llm_d.request_id", "request_id")


def adapt(record: SpanRecord, tally: Tally) -> SpanRecord:
    """The sidecar's span as the router's; one without a request id stays without one."""
    said = record.attributes
    if semconv.LLMD_TRUE_TTFT_MS in said:
        tally.ignored[f"{semconv.LLMD_TRUE_TTFT_MS} is no time to first token"] += 1
    request_id = next((said[key] for key in _IDS if isinstance(said.get(key), str)), "")
    leg = record.name.rpartition(".")[2]
    events = [EventRecord(semconv.READ_LEG_END, record.end_ns)] if leg == "prefill" else []
    attributes: dict[str, Any] = {
        semconv.ENGINE_REQUEST_ID: request_id,
        semconv.READ_ADJUSTED: said.get(semconv.READ_ADJUSTED, False),
        semconv.READ_REASON: NO_TTFT if semconv.LLMD_TRUE_TTFT_MS in said else "",
    }
    return replace(
        record,
        attributes=attributes,
        events=tuple(events),
        resource={**record.resource, semconv.ROLE: semconv.ROLE_ROUTER},
    )
