"""Worker-side hooks common to push and pull: handshakes, transfers, notifications, failures.

A worker has several threads (engine main, push writer, handshake executor). Per-request state is in
dicts whose single operations the interpreter makes atomic; nothing here takes a lock.
"""

import threading
from abc import ABC, abstractmethod
from collections import deque
from functools import partial
from typing import Any, Final, NamedTuple

from pdtrace.connector import compat
from pdtrace.connector.carrier import attached
from pdtrace.connector.descriptors import DescriptorLengths
from pdtrace.connector.seams import Seams
from pdtrace.tracing import events as ev
from pdtrace.tracing import semconv as sc
from pdtrace.tracing.guard import Guard
from pdtrace.tracing.recorder import Recorder

_MAX_TRACKED: Final = 16_384
_NOT_COMPLETIONS: Final = (b"PUSH_REG:", b"HB:")
_ERRORS: Final = {
    "handshake_failed": sc.ERROR_HANDSHAKE_FAILED,
    "push_handshake_failed": sc.ERROR_HANDSHAKE_FAILED,
    "push_reg_handshake_failed": sc.ERROR_HANDSHAKE_FAILED,
    "push_reg_notif_failed": sc.ERROR_REGISTRATION_FAILED,
}
_DISCONNECTED: Final = "nixlRemoteDisconnectError"
_TRANSFER_FAILURES: Final = frozenset(
    {"transfer_setup_failed", "transfer_failed", "transfer_exception"}
)


def bound(table: dict[Any, Any]) -> None:
    """Forget the oldest entries of a table that only grows when something never comes."""
    while len(table) > _MAX_TRACKED:
        table.pop(next(iter(table)), None)


class Notes(NamedTuple):
    """What the scheduler side is to be told with a step; fields as in `WorkerNotes`."""

    seen: list[tuple[str, int, int]]
    outcomes: dict[str, str]
    failures: list[tuple[str, str]]
    lost: list[str]


class Transfer:
    """The READs or WRITEs of one request on this rank."""

    __slots__ = ("handles", "bytes", "descriptors", "post_us", "xfer_us", "posted_ns", "done_ns")

    def __init__(self) -> None:
        self.handles: set[int] = set()
        self.bytes: int | None = 0
        self.descriptors = self.post_us = self.xfer_us = 0
        self.posted_ns = self.done_ns = 0


class WorkerHooks(ABC):
    """Observes one worker-side connector. Subclasses add what is particular to a mode."""

    posted: ev.EventKind
    done: ev.EventKind
    transfer_error: str
    proven: str
    """Outcome of a lease on P of which there is evidence."""

    def __init__(self, recorder: Recorder, worker: Any) -> None:
        self._recorder = recorder
        self._record = recorder.record
        self._worker = worker
        self._thread = threading.local()
        self._asked: dict[str, int] = {}
        self._transfers: dict[str, Transfer] = {}
        self._handles: dict[int, str] = {}
        self._descriptors = DescriptorLengths()
        self._seen: deque[tuple[str, int, int]] = deque(maxlen=_MAX_TRACKED)
        self._outcomes: dict[str, str] = {}
        self._failures: deque[tuple[str, str]] = deque(maxlen=_MAX_TRACKED)
        self._lost: deque[str] = deque(maxlen=_MAX_TRACKED)
        self._evidence: dict[str, str] = {}
        """Requests of P of which a completion or a notification was seen."""
        self._fresh: set[str] = set()
        """Those of them that were seen in the step that is under way."""

    def install(self, seams: Seams, guard: Guard) -> None:
        """Wrap the methods of the worker and of its NIXL agent."""
        observe = partial(seams.observe, guard)
        observe(compat.FAILURE, before=self.failed)
        observe(compat.RESULTS, after=self.results)
        observe(compat.RESULTS_TUPLE, after=self.results)
        observe(compat.DESCRIBED, after=self._descriptors.described)
        observe(compat.PREPARED, after=self._descriptors.prepare)
        observe(compat.RELEASED, before=self._descriptors.released)
        observe(compat.MADE, after=self._made)
        observe(compat.COMPLETED, after=self._completed)
        observe(compat.DRAINED, after=self._drained)
        observe(compat.NOTIFIED, raised=self._undelivered)

    # --- what arrives from the scheduler ---

    @abstractmethod
    def step(self, metadata: Any) -> None:
        """A step's metadata is here, before the worker acts on it."""

    def open_requests(self, metadata: Any) -> dict[str, int]:
        """Make the step's new requests known; since when by request id, monotonic ns."""
        since = {}
        for request_id, carrier in attached(metadata).items():
            self._record(ev.OPENED, request_id, carrier.context())
            since[request_id] = self._recorder.mono_ns(carrier.since_ns)
        return since

    # --- handshakes: asked when a call had to leave its request waiting, usable when it comes back

    def entering(self, request_id: str) -> None:
        """This thread begins work for a request that needs its peer's agent."""
        self._thread.request = request_id
        self._thread.failed = False
        self.handshake_usable(request_id)

    def leaving(self, request_id: str) -> bool:
        """The work is over; False if it failed, or if the request now waits for a handshake."""
        self._thread.request = None
        return request_id not in self._asked and not self.has_failed()

    def has_failed(self) -> bool:
        """Whether vLLM told of a failure of the request that this thread works for."""
        return getattr(self._thread, "failed", False)

    def handshake_asked(self, request_id: str, engine_id: str, asked_ns: int) -> None:
        """The request has to wait for a handshake with a peer; only the first time counts."""
        if request_id in self._asked:
            return
        self._asked[request_id] = asked_ns
        bound(self._asked)
        self._record(ev.LEARNED, request_id, {sc.PEER_ENGINE_ID: str(engine_id)})
        self._recorder.record_at(ev.HANDSHAKE_ASKED, asked_ns, request_id)

    def handshake_usable(self, request_id: str) -> None:
        """It has been waited for."""
        if self._asked.pop(request_id, None) is not None:
            self._record(ev.HANDSHAKE_USABLE, request_id, {sc.HANDSHAKE_COLD: True})

    # --- transfers ---

    # NIXL's handles are objects; they are known here by `id`, so that none is kept alive.

    def _made(self, handle: Any, _op: str, local: Any, local_ids: Any, *_: Any, **__: Any) -> None:
        request_id = getattr(self._thread, "request", None)
        if request_id is None or self.has_failed():
            return
        transfer = self._transfers.get(request_id)
        if transfer is None:
            transfer = self._transfers[request_id] = Transfer()
            bound(self._transfers)
        self._handles[id(handle)] = request_id
        bound(self._handles)
        transfer.handles.add(id(handle))
        transfer.descriptors += len(local_ids)
        more = self._descriptors.total(local, local_ids)
        transfer.bytes = None if more is None or transfer.bytes is None else transfer.bytes + more

    def all_posted(self, request_id: str, peer_ranks: int, now_ns: int) -> None:
        """Every transfer of this rank is posted, since `now_ns` (monotonic)."""
        transfer = self._transfers.get(request_id)
        if transfer is None:
            return
        data: dict[str, Any] = {
            sc.TRANSFER_DESCRIPTORS: transfer.descriptors,
            sc.PEER_TP_RANKS: peer_ranks,
        }
        if transfer.bytes is not None:
            data[sc.TRANSFER_BYTES] = transfer.bytes
        self._recorder.record_at(self.posted, now_ns, request_id, data)
        # The engine's thread may have seen the completion already; whoever pops it reports it.
        transfer.posted_ns = now_ns
        if transfer.done_ns and self._transfers.pop(request_id, None) is not None:
            self._report_done(request_id, transfer)

    def _completed(self, telemetry: Any, handle: Any, *_: Any, **__: Any) -> None:
        """A transfer was seen complete; the last one completes the request on this rank."""
        request_id = self._handles.pop(id(handle), None)
        transfer = self._transfers.get(request_id) if request_id is not None else None
        if request_id is None or transfer is None:
            return
        transfer.post_us = max(transfer.post_us, int(telemetry.postDuration))
        transfer.xfer_us = max(transfer.xfer_us, int(telemetry.xferDuration))
        transfer.handles.discard(id(handle))
        if transfer.handles:
            return
        self.landed(request_id)
        transfer.done_ns = self._recorder.now()
        if transfer.posted_ns and self._transfers.pop(request_id, None) is not None:
            self._report_done(request_id, transfer)

    def _report_done(self, request_id: str, transfer: Transfer) -> None:
        data = {
            sc.NIXL_POST_US: transfer.post_us,
            sc.NIXL_XFER_US: transfer.xfer_us,
            sc.OBSERVED_BY: sc.OBSERVED_BY_STEP,
        }
        at_ns = max(transfer.done_ns, transfer.posted_ns)
        self._recorder.record_at(self.done, at_ns, request_id, data)

    @abstractmethod
    def landed(self, request_id: str) -> None:
        """Every transfer of the request is complete on this rank."""

    def keep_evidence(self, request_id: str) -> None:
        """Something proves that the request's blocks, held on P, were written or read."""
        self._evidence[request_id] = self.proven
        self._fresh.add(request_id)
        bound(self._evidence)

    # --- notifications, results, failures ---

    def _drained(self, notifications: Any, *_: Any, **__: Any) -> None:
        """Completion notifications of the peer, `<request id>:<count>`, were taken from NIXL."""
        for agent, messages in notifications.items():
            for message in messages:
                if not message.startswith(_NOT_COMPLETIONS):
                    request_id = message.decode().rsplit(":", 1)[0]
                    at_ns = self._recorder.wall_ns(self._recorder.now())
                    self._seen.append((request_id, at_ns, self._rank_of(agent)))

    def _rank_of(self, agent_name: str) -> int:
        """TP rank of a peer's agent, or -1: a peer we never shook hands with."""
        # NIXL gives the name as bytes when the peer is added, and as text with its messages.
        names = (agent_name, agent_name.encode())
        for agents in list(self._worker._remote_agents.values()):
            for rank, name in list(agents.items()):
                if name in names:
                    return int(rank[1] if isinstance(rank, tuple) else rank)
        return -1

    def results(self, results: Any, *_: Any, **__: Any) -> None:
        """The step's results: for each lease that ends, what is known of its blocks."""
        done = compat.finished_sending(results)
        if not (done or self._fresh):
            return  # as in most steps
        if getattr(self._worker, "pcp_rank", 0) and not self._worker.pcp_dcp_sharded:
            return  # holds only a copy, which nobody reads, and is done with it at once
        for request_id in done:
            outcome = self._evidence.pop(request_id, sc.LEASE_EXPIRED)
            if outcome != sc.LEASE_EXPIRED and request_id not in self._fresh:
                # vLLM reports a completion with the step that sees it; later, it is the lease's.
                outcome = compat.UNREPORTED
            self._outcomes[request_id] = outcome
            if outcome in (sc.LEASE_EXPIRED, compat.UNREPORTED):
                self.expired(request_id)
        self._fresh.clear()

    def expired(self, request_id: str) -> None:
        """A lease on P ran out."""
        self._asked.pop(request_id, None)
        self._transfers.pop(request_id, None)
        self._record(ev.CLOSED, request_id, {sc.ERROR_TYPE: sc.ERROR_LEASE_EXPIRED})

    @property
    def has_notes(self) -> bool:
        """Whether there is anything to tell the scheduler side; in most steps there is not."""
        return bool(self._seen or self._outcomes or self._failures or self._lost)

    def take_notes(self) -> Notes:
        """What the scheduler side is to be told with this step."""
        outcomes, self._outcomes = self._outcomes, {}
        return Notes(_taken(self._seen), outcomes, _taken(self._failures), _taken(self._lost))

    def failed(self, failure_type: str, req_id: str | None = None, *_: Any, **more: Any) -> None:
        """vLLM logs a failure of this worker; what is open of the request ends with it."""
        if req_id is None:
            return
        error = _ERRORS.get(failure_type)
        if error is None and failure_type in _TRANSFER_FAILURES:
            error = sc.ERROR_PEER_LOST if _is_lost(more.get("error")) else self.transfer_error
        if error is not None:
            self.fail(req_id, error)

    def fail(self, request_id: str, error: str) -> None:
        """End what is open of a request; a sibling that goes on no longer counts as success."""
        if getattr(self._thread, "request", None) == request_id:
            self._thread.failed = True
        self._asked.pop(request_id, None)
        self._transfers.pop(request_id, None)
        self._failures.append((request_id, error))
        self._record(ev.CLOSED, request_id, {sc.ERROR_TYPE: error})

    def _undelivered(self, error: Exception, agent_name: str, *_: Any, **__: Any) -> None:
        """A message (most often a heartbeat) could not be sent: is its engine gone?"""
        if not _is_lost(error):
            return
        for engine_id, agents in list(self._worker._remote_agents.items()):
            if agent_name in agents.values():
                self._lost.append(str(engine_id))


def _is_lost(error: BaseException | None) -> bool:
    """Whether NIXL says that the other side of a connection is gone."""
    return type(error).__name__ == _DISCONNECTED


def _taken(queue: "deque[Any]") -> list[Any]:
    """What is in a queue; other threads may add to it meanwhile."""
    return [queue.popleft() for _ in range(len(queue))]
