"""vLLM's own `llm_request` span: one per leg, made when the leg ended, with durations in seconds.

    first token = start + time_to_first_token; time_in_model_prefill ends there, and time_in_queue
    directly before that

Durations become instants, which are events of the record. A value that cannot be (negative, NaN,
longer than what it is a part of) gives no instant but a reason.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from pdtrace.analysis.columns import whole
from pdtrace.analysis.intake import Tally
from pdtrace.analysis.records import Attributes, AttributeValue, EventRecord, SpanRecord
from pdtrace.tracing import semconv

_NS: Final = 1_000_000_000
_CHOICE: Final = re.compile(r"^\d+_(?=(?:chat)?cmpl-)")
_SUFFIX: Final = re.compile(r"-[0-9a-f]{8}$")
_INDEX: Final = re.compile(r"-\d+$")
_ROLES: Final = (semconv.ROLE_PREFILL, semconv.ROLE_DECODE)
_UNSTAMPED: Final = ": the engine never stamped it"


def adapt(record: SpanRecord, tally: Tally) -> SpanRecord:
    """The record with its instants as events, its role, its token counts, and its reasons."""
    said = record.attributes
    values = {name: _seconds(said, key) for name, key in _DURATIONS.items()}
    faults = {name: value for name, value in values.items() if isinstance(value, str)}
    for name in faults:
        tally.ignored[f"{_DURATIONS[name]} {faults[name].split(' (')[0]}"] += 1
    known = {name: value for name, value in values.items() if isinstance(value, int)}
    reasons = [f"{_DURATIONS[name].rpartition('.')[2]} {fault}" for name, fault in faults.items()]
    instants = _instants(record, known, faults, reasons)
    return replace(
        record,
        attributes=_attributes(said, instants, reasons),
        events=tuple(
            EventRecord(name, time_ns) for name, time_ns in instants.items() if time_ns is not None
        ),
        resource=_with_role(record.resource),
    )


_DURATIONS: Final = {
    "queue": semconv.VLLM_QUEUE_S,
    "ttft": semconv.VLLM_TTFT_S,
    "prefill": semconv.VLLM_PREFILL_S,
}


def _seconds(said: Attributes, key: str) -> int | str | None:
    """Nanoseconds, or what is wrong in words, or None where nothing was said."""
    value = said.get(key)
    if value is None:
        return None
    try:
        seconds = math.nan if isinstance(value, (bool, list)) else float(value)
    except ValueError:
        seconds = math.nan
    if math.isnan(seconds):
        return "is not a number"
    if math.isinf(seconds):
        return "is infinite"
    if seconds < 0:
        return f"is negative ({seconds:g} s){_UNSTAMPED}"
    return round(seconds * _NS)


def _instants(
    record: SpanRecord, known: Mapping[str, int], faults: Mapping[str, str], reasons: list[str]
) -> dict[str, int | None]:
    """First token, first scheduled, queued; what does not fit into the span gives a reason."""
    ttft, prefill, queue = known.get("ttft"), known.get("prefill"), known.get("queue")
    if not ttft:
        if "ttft" not in faults:
            what = "time_to_first_token is 0" if ttft == 0 else "time_to_first_token is missing"
            reasons.append(what + _UNSTAMPED)
        return {}
    if ttft > record.end_ns - record.start_ns + _SLACK_NS:
        reasons.append("time_to_first_token is longer than the request")
        return {}
    token = record.start_ns + ttft
    scheduled = token - prefill if prefill else None
    if scheduled is not None and scheduled < record.start_ns:
        reasons.append("time_in_model_prefill is longer than time_to_first_token")
        scheduled = None
    queued = scheduled - queue if scheduled is not None and queue is not None else None
    if queued is not None and queued < record.start_ns:
        reasons.append("time_in_queue is longer than time_to_first_token leaves room for")
        queued = None
    return {
        semconv.READ_FIRST_TOKEN: token,
        semconv.READ_SCHEDULED: scheduled,
        semconv.READ_QUEUED: queued,
    }


_SLACK_NS: Final = 1_000_000
"""The span's end and vLLM's own stamps are of two clocks."""


def _attributes(
    said: Attributes, instants: Mapping[str, int | None], reasons: list[str]
) -> dict[str, AttributeValue]:
    request_id = said.get(semconv.VLLM_REQUEST_ID)
    produced = whole(said.get(semconv.VLLM_COMPLETION_TOKENS))
    wanted = whole(said.get(semconv.VLLM_MAX_TOKENS, produced))
    found: dict[str, Any] = {
        semconv.ENGINE_REQUEST_ID: request_id if isinstance(request_id, str) else "",
        semconv.INPUT_TOKENS: said.get(semconv.VLLM_PROMPT_TOKENS),
        semconv.OUTPUT_TOKENS: produced,
        # A router asks P for one token.
        semconv.LEG: semconv.ROLE_PREFILL if wanted in (0, 1) else semconv.ROLE_DECODE,
        semconv.MODEL: said.get(semconv.MODEL),
        semconv.READ_ADJUSTED: said.get(semconv.READ_ADJUSTED),
        semconv.READ_REASON: "; ".join(reasons),
    }
    if not instants and produced == 0:
        found[semconv.ERROR_TYPE] = semconv.ERROR_ABORTED
    return {key: value for key, value in found.items() if value is not None}


def _with_role(resource: Attributes) -> Attributes:
    """The resource with the role that it names itself: in our attribute, or as its service."""
    if resource.get(semconv.ROLE) in _ROLES:
        return resource
    service = str(resource.get(semconv.SERVICE_NAME) or "").lower()
    named = [role for role in _ROLES if role in re.split(r"[^a-z]+", service)]
    return {**resource, semconv.ROLE: named[0] if len(named) == 1 else ""}


def spellings(engine_id: str) -> tuple[str, str]:
    """What a request id of vLLM's may be the id of: as it stands, and without a random suffix.

    `cmpl-<id>-<index>` and `chatcmpl-<id>`, each with or without `-<8 hex>` behind it.
    """
    text = _CHOICE.sub("", engine_id)
    for prefix, indexed in (("chatcmpl-", False), ("cmpl-", True)):
        if text.startswith(prefix):
            rest = text.removeprefix(prefix)
            bare = _SUFFIX.sub("", rest)
            if not indexed:
                return rest, bare
            if _INDEX.search(bare):
                return _INDEX.sub("", rest), _INDEX.sub("", bare)
            return _INDEX.sub("", rest), _INDEX.sub("", rest)
    return text, _SUFFIX.sub("", text)
