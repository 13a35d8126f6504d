"""The instants an engine can report, and what each one does to a request's spans.

An event is one append of a small tuple on an engine's thread, nothing more:

    (kind, mono_ns, request_id, data)

`mono_ns` is CLOCK_MONOTONIC in nanoseconds. `data` is None or a mapping that the caller will not
change again: attributes for the spans that end, or for the point; with `ERROR_TYPE` among them the
ended spans are errors. The recorder's thread turns events into spans later.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from pdtrace.tracing import semconv as sc


@dataclass(frozen=True, slots=True, eq=False)
class EventKind:
    """What one kind of instant ends, begins or marks; spans are named as in semconv."""

    name: str
    ends: tuple[str, ...] = ()
    begins: tuple[str, ...] = ()
    point: tuple[str, str] | None = None
    """(span, event name): adds a span event to that span while it is open."""
    closes: bool = False
    """The request is over here: whatever is still open ends with it, as an error."""
    tells: bool = False
    """No instant of a span, but something about the request."""


class RequestContext(NamedTuple):
    """The first thing reported of a request: its trace and what all its spans carry.

    `traceparent` is the caller's W3C context or "". `attributes` are shared by all spans. The
    caller's own id of the request is found in the engine's, but not on the engine's thread.
    """

    traceparent: str
    attributes: Mapping[str, Any]


Event = tuple[EventKind, int, str, Any]

OPENED: Final = EventKind("opened", tells=True)
"""`data` is a `RequestContext`; only this kind makes the recorder know a request."""
LEARNED: Final = EventKind("learned", tells=True)
"""`data` joins what all spans of the request carry that end from now on."""
ADOPTED: Final = EventKind("adopted", tells=True)
"""`data` is the peer's `traceparent`: used where the request came without context of its own."""

# Prefill engine, scheduler side.
PREFILL_ARRIVED: Final = EventKind("prefill_arrived", begins=(sc.SPAN_PREFILL_QUEUE,))
PREFILL_SCHEDULED: Final = EventKind(
    "prefill_scheduled", ends=(sc.SPAN_PREFILL_QUEUE,), begins=(sc.SPAN_PREFILL,)
)
PROMPT_ALLOCATED: Final = EventKind(
    "prompt_allocated", ends=(sc.SPAN_PREFILL_QUEUE,), begins=(sc.SPAN_KV_WAIT,)
)
"""The prompt's beginning is loaded from elsewhere first, while the request waits."""
PREFILL_FINISHED: Final = EventKind("prefill_finished", ends=(sc.SPAN_PREFILL,))
PREFILL_END_BEGUN: Final = EventKind("prefill_end_begun", begins=(sc.SPAN_PREFILL_END,))
PARAMETERS_RETURNED: Final = EventKind("parameters_returned", ends=(sc.SPAN_PREFILL_END,))
LEASE_BEGUN: Final = EventKind("lease_begun", begins=(sc.SPAN_LEASE,))
LEASE_NOTIFIED: Final = EventKind(
    "lease_notified", point=(sc.SPAN_LEASE, sc.EVENT_NOTIFICATION_SEEN)
)
LEASE_ENDED: Final = EventKind("lease_ended", ends=(sc.SPAN_LEASE,), closes=True)

# Prefill engine, worker side (push).
BLOCKS_HANDED: Final = EventKind("blocks_handed", ends=(sc.SPAN_PREFILL_END,))
MATCH_BEGUN: Final = EventKind("match_begun", begins=(sc.SPAN_MATCH,))
REGISTRATION_RECEIVED: Final = EventKind(
    "registration_received", point=(sc.SPAN_MATCH, sc.EVENT_REGISTRATION_RECEIVED)
)
MATCHED: Final = EventKind("matched", ends=(sc.SPAN_MATCH,))
WRITE_BEGUN: Final = EventKind("write_begun", begins=(sc.SPAN_WRITE_SUBMIT,))
WRITE_POSTED: Final = EventKind(
    "write_posted", ends=(sc.SPAN_WRITE_SUBMIT,), begins=(sc.SPAN_WRITE_COMPLETE,)
)
WRITE_DONE: Final = EventKind("write_done", ends=(sc.SPAN_WRITE_COMPLETE,), closes=True)

# Decode engine, scheduler side.
DECODE_ARRIVED: Final = EventKind("decode_arrived", begins=(sc.SPAN_DECODE_ADMISSION,))
DECODE_ATTEMPTED: Final = EventKind(
    "decode_attempted", point=(sc.SPAN_DECODE_ADMISSION, sc.EVENT_FIRST_ATTEMPT)
)
DECODE_ALLOCATED: Final = EventKind(
    "decode_allocated", ends=(sc.SPAN_DECODE_ADMISSION,), begins=(sc.SPAN_KV_WAIT,)
)
NOTIFICATION_SEEN: Final = EventKind(
    "notification_seen", point=(sc.SPAN_KV_WAIT, sc.EVENT_NOTIFICATION_SEEN)
)
KV_COMPLETE: Final = EventKind(
    "kv_complete", ends=(sc.SPAN_KV_WAIT,), begins=(sc.SPAN_DECODE_START,)
)
KV_WAIT_FAILED: Final = EventKind("kv_wait_failed", ends=(sc.SPAN_KV_WAIT,))
"""Nothing will come any more, as far as can be known; vLLM goes on waiting, and so the request."""
DECODE_REFUSED: Final = EventKind("decode_refused", point=(sc.SPAN_DECODE_START, sc.EVENT_REFUSED))
DECODE_SCHEDULED: Final = EventKind(
    "decode_scheduled", ends=(sc.SPAN_DECODE_START,), begins=(sc.SPAN_FIRST_DECODE,)
)
LOCAL_HIT: Final = EventKind(
    "local_hit", ends=(sc.SPAN_DECODE_ADMISSION,), begins=(sc.SPAN_FIRST_DECODE,)
)
"""D holds the whole prompt: allocated and scheduled in one pass, with nothing to wait for."""
PROMPT_SCHEDULED: Final = EventKind(
    "prompt_scheduled", ends=(sc.SPAN_DECODE_START,), begins=(sc.SPAN_PREFILL,)
)
"""The load is over and a prompt is computed: the rest of it, or on D all of it if it failed."""
RECOMPUTE_FIRST_TOKEN: Final = EventKind(
    "recompute_first_token", ends=(sc.SPAN_PREFILL,), begins=(sc.SPAN_DECODE,)
)
FIRST_TOKEN: Final = EventKind(
    "first_token", ends=(sc.SPAN_FIRST_DECODE,), begins=(sc.SPAN_DECODE,)
)
DECODE_FINISHED: Final = EventKind("decode_finished", ends=(sc.SPAN_DECODE,), closes=True)
DECODE_HELD: Final = EventKind("decode_held", ends=(sc.SPAN_DECODE,), begins=(sc.SPAN_LEASE,))
"""Finished, and its blocks stay: P may read them back when the conversation goes on."""

# One engine for both: prefill ends at the first token.
SINGLE_FIRST_TOKEN: Final = EventKind(
    "single_first_token", ends=(sc.SPAN_PREFILL,), begins=(sc.SPAN_DECODE,)
)

# Decode engine, worker side.
REGISTRATION_BEGUN: Final = EventKind("registration_begun", begins=(sc.SPAN_REGISTRATION,))
REGISTRATION_SENT: Final = EventKind("registration_sent", ends=(sc.SPAN_REGISTRATION,), closes=True)
READ_BEGUN: Final = EventKind("read_begun", begins=(sc.SPAN_READ_SUBMIT,))
READ_POSTED: Final = EventKind(
    "read_posted", ends=(sc.SPAN_READ_SUBMIT,), begins=(sc.SPAN_READ_COMPLETE,)
)
READ_DONE: Final = EventKind("read_done", ends=(sc.SPAN_READ_COMPLETE,), closes=True)
READ_NOT_NEEDED: Final = EventKind("read_not_needed", ends=(sc.SPAN_READ_SUBMIT,), closes=True)

# Either worker.
HANDSHAKE_ASKED: Final = EventKind("handshake_asked", begins=(sc.SPAN_HANDSHAKE,))
HANDSHAKE_USABLE: Final = EventKind("handshake_usable", ends=(sc.SPAN_HANDSHAKE,))

CLOSED: Final = EventKind("closed", closes=True)
"""This side is done with the request; `data[ERROR_TYPE]` says why, if something is still open."""
