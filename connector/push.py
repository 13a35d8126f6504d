"""`NixlPushConnector` with hooks: D registers its blocks, P's writer thread WRITEs into them."""

import threading
from functools import partial
from typing import Any, NamedTuple

from vllm.distributed.kv_transfer.kv_connector.v1.nixl.connector import (
    NixlPushConnector as _NixlPushConnector,
)

from pdtrace.connector import compat
from pdtrace.connector.attach import attach
from pdtrace.connector.carrier import block_count
from pdtrace.connector.seams import Seams
from pdtrace.connector.worker import WorkerHooks, bound
from pdtrace.tracing import events as ev
from pdtrace.tracing import semconv as sc
from pdtrace.tracing.guard import Guard


class _Received(NamedTuple):
    """A registration as P's writer took it from NIXL; `rank` of D, None if that is untraced."""

    mono_ns: int
    rank: int | None


def _rank_of(registration: dict[str, Any]) -> int | None:
    told = registration.get(sc.REGISTRATION_KEY)
    rank = told.get(sc.REGISTRATION_TP_RANK) if isinstance(told, dict) else None
    return rank if isinstance(rank, int) else None


class _Match(NamedTuple):
    """Blocks and registration of a request of P that are both there; instants monotonic ns."""

    request_id: str
    handed_ns: int
    both_known_ns: int
    received: list[_Received]
    registration: dict[str, Any]


class _Outgoing(threading.local):
    """The registration that a thread is sending; heartbeats leave by the same call, elsewhere."""

    sent_bytes = 0
    last_ns = 0
    """When NIXL was given it for the last of P's ranks so far."""


class PushWorkerHooks(WorkerHooks):
    """What a push worker knows: registrations sent and received, the match, the WRITEs."""

    posted = ev.WRITE_POSTED
    done = ev.WRITE_DONE
    transfer_error = sc.ERROR_WRITE_FAILED
    proven = sc.LEASE_WRITTEN

    def __init__(self, recorder: Any, worker: Any) -> None:
        super().__init__(recorder, worker)
        self._handed: dict[str, int] = {}
        """P's request id to the instant (monotonic ns) its blocks were handed to the writer."""
        self._arriving: tuple[str, int] | None = None
        """D's request id and the instant of the registration that the writer has in hand."""
        self._received: dict[str, list[_Received]] = {}
        """D's request id to the registrations drained on P that wait for blocks."""
        self._late: dict[str, int] = {}
        """D's request id to how many of its ranks have yet to register: one was enough."""
        self._outgoing = _Outgoing()

    def install(self, seams: Seams, guard: Guard) -> None:
        super().install(seams, guard)
        observe = partial(seams.observe, guard)
        observe(compat.HANDSHAKE, before=self._before_ensure, after=self._after_ensure)
        observe(compat.HANDSHAKE_BLOCKING, before=self._blocking, after=self._blocked)
        observe(compat.REGISTERED, before=self._registering, after=self._registered)
        observe(compat.REGISTRATION_SENT, before=self._sending, after=self._sent)
        observe(compat.NOTIFIED, before=self._notifying)
        observe(compat.REGISTRATION_KEPT, after=self._kept)
        observe(compat.REGISTRATION_RECEIVED, before=self._registration_received)
        observe(compat.MATCHED, before=self._matched, after=self._pushed)
        observe(compat.WRITES_POSTED, after=self._posted_all)

    def step(self, metadata: Any) -> None:
        """D: registrations leave the scheduler. P: finished blocks reach the writer."""
        since = self.open_requests(metadata)
        for request_id in metadata.push_registrations:
            if request_id in since:
                self._recorder.record_at(ev.REGISTRATION_BEGUN, since[request_id], request_id)
        for request_id, block_ids in metadata.push_finished_blocks.items():
            now_ns = self._recorder.now()
            self._handed[request_id] = now_ns
            bound(self._handed)
            if request_id in since:
                self._recorder.record_at(ev.PREFILL_END_BEGUN, since[request_id], request_id)
                count = {sc.BLOCK_COUNT: block_count(block_ids)}
                self._recorder.record_at(ev.BLOCKS_HANDED, now_ns, request_id, count)

    # --- handshakes: most leave the request waiting; up to vLLM 0.26 P's blocks its writer ---

    def _before_ensure(self, *_: Any, **__: Any) -> None:
        self._thread.asked_ns = self._recorder.now()

    def _after_ensure(self, pending: Any, engine_id: str, *_: Any, **__: Any) -> None:
        request_id = getattr(self._thread, "request", None)
        if pending is not None and request_id is not None:
            self.handshake_asked(request_id, engine_id, self._thread.asked_ns)

    def _blocking(
        self, engine_id: str, _host: str, _port: int, _size: int, request_id: str, *_: Any
    ) -> None:
        if engine_id not in self._worker._remote_agents:
            self.handshake_asked(request_id, engine_id, self._recorder.now())

    def _blocked(
        self, done: Any, _id: str, _host: str, _port: int, _size: int, request_id: str, *_: Any
    ) -> None:
        """vLLM logs no failure of this kind through the method that tells of the others."""
        if done:
            self.handshake_usable(request_id)
        else:
            self.fail(request_id, sc.ERROR_HANDSHAKE_FAILED)

    # --- D: the registration leaves ---

    def _registering(self, req_id: str, *_: Any) -> None:
        """Called when the registration is staged, and again when a handshake came between."""
        self.entering(req_id)

    def _registered(self, _: Any, req_id: str, *__: Any) -> None:
        self.leaving(req_id)

    def _sending(self, _req_id: str, registration: dict[str, Any], *_: Any) -> None:
        """Just before it is encoded: say which rank it comes from."""
        self._outgoing.sent_bytes = 0
        rank = {sc.REGISTRATION_TP_RANK: int(self._worker.tp_rank)}
        # A dictionary of its own: ranks in one process are given the same registration.
        registration[sc.REGISTRATION_KEY] = {**registration.get(sc.REGISTRATION_KEY, {}), **rank}

    def _notifying(self, _agent: str, notif_msg: bytes = b"", *_: Any, **__: Any) -> None:
        self._outgoing.sent_bytes += len(notif_msg)
        self._outgoing.last_ns = self._recorder.now()

    def _sent(self, _: Any, req_id: str, *__: Any) -> None:
        """Sent to every rank of P; without a byte sent there was nobody to send it to.

        Sent is when NIXL was given it, not when NIXL returned: P may have it before that.
        """
        if self.has_failed():
            return
        if self._outgoing.sent_bytes:
            data = {sc.REGISTRATION_BYTES: self._outgoing.sent_bytes}
            self._recorder.record_at(ev.REGISTRATION_SENT, self._outgoing.last_ns, req_id, data)
        else:
            self.fail(req_id, sc.ERROR_REGISTRATION_FAILED)

    def handshake_asked(self, request_id: str, engine_id: str, asked_ns: int) -> None:
        self._report_match()
        super().handshake_asked(request_id, engine_id, asked_ns)

    def fail(self, request_id: str, error: str) -> None:
        self._report_match()
        super().fail(request_id, error)

    def landed(self, request_id: str) -> None:
        self.keep_evidence(request_id)

    def expired(self, request_id: str) -> None:
        self._handed.pop(request_id, None)
        super().expired(request_id)

    # --- P: the registration arrives, is matched, the WRITEs are posted ---

    def _registration_received(self, decode_request_id: str, *_: Any) -> None:
        """Taken from NIXL; which rank it is from shows when it is matched, or kept."""
        self._arriving = decode_request_id, self._recorder.now()

    def _kept(self, *_: Any) -> None:
        """Without blocks to match it waits; vLLM keeps the last one of a request."""
        if self._arriving is not None:
            self._arrived(self._worker._pending_d_registrations.get(self._arriving[0]))

    def _arrived(self, registration: dict[str, Any] | None) -> None:
        if self._arriving is None:
            return
        (request_id, at_ns), self._arriving = self._arriving, None
        if request_id not in self._late:
            received = _Received(at_ns, _rank_of(registration or {}))
            self._received.setdefault(request_id, []).append(received)
            bound(self._received)
        elif self._late[request_id] > 1:
            self._late[request_id] -= 1
        else:
            del self._late[request_id]

    def _matched(
        self, request_id: str, _blocks: Any, registration: dict[str, Any], *_: Any
    ) -> None:
        """Blocks and registration are both there; called again when a handshake came between."""
        now_ns = self._recorder.now()
        self._report_match()
        self._arrived(registration)
        handed_ns = self._handed.pop(request_id, None)
        if handed_ns is not None:
            received = self._received.pop(registration.get("request_id", ""), None)
            received = received or [_Received(now_ns, _rank_of(registration))]
            self._expect_others(len(received), registration)
            self._thread.match = _Match(request_id, handed_ns, now_ns, received, registration)
        self.entering(request_id)

    def _expect_others(self, received: int, registration: dict[str, Any]) -> None:
        """The first of several ranks of D makes the match; the others must not wait for another."""
        ranks = int(registration.get("decode_tp_size", 1)) // self._worker.world_size
        if ranks > received:
            self._late[registration["request_id"]] = ranks - received
            bound(self._late)

    def _report_match(self) -> None:
        """The match that this thread works on, once its WRITEs are posted: until then D waits.

        Sooner where something else has to be told of the request.
        """
        match = self._thread.__dict__.pop("match", None)
        if match is None:
            return
        request_id, handed_ns, both_known_ns, received, registration = match
        record, record_at = self._record, self._recorder.record_at
        context = registration.get(sc.REGISTRATION_KEY)
        if isinstance(context, dict) and isinstance(context.get(sc.PARAM_TRACEPARENT), str):
            record(ev.ADOPTED, request_id, context[sc.PARAM_TRACEPARENT])
        peer = {
            sc.PEER_ENGINE_ID: str(registration.get("decode_engine_id", "")),
            sc.PEER_ENGINE_REQUEST_ID: str(registration.get("request_id", "")),
        }
        record(ev.LEARNED, request_id, peer)
        first_ns = received[0].mono_ns
        first = sc.MATCH_REGISTRATION if first_ns <= handed_ns else sc.MATCH_BLOCKS
        record_at(ev.MATCH_BEGUN, min(handed_ns, first_ns), request_id)
        for one in received:
            rank = None if one.rank is None else {sc.PEER_TP_RANK: one.rank}
            record_at(ev.REGISTRATION_RECEIVED, one.mono_ns, request_id, rank)
        both_ns = max(handed_ns, first_ns)
        record_at(ev.MATCHED, both_ns, request_id, {sc.MATCH_FIRST: first})
        record_at(ev.WRITE_BEGUN, both_known_ns, request_id)

    def _pushed(self, _: Any, request_id: str, *__: Any) -> None:
        self._report_match()
        self.leaving(request_id)

    def _posted_all(self, _: Any, req_id: str, meta: Any, *__: Any) -> None:
        """Every WRITE of this rank is posted; vLLM logged a failure if one was not."""
        now_ns = self._recorder.now()
        self._report_match()
        handles = self._worker.dst_xfer_side_handles.get(meta.remote.engine_id, {})
        self.all_posted(req_id, len(handles), now_ns)


class NixlPushConnector(_NixlPushConnector):
    """vLLM's push connector, traced."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self._pdtrace = attach(self, vllm_config, sc.MODE_PUSH, PushWorkerHooks)
        self._pdtrace.observe(compat.STAGED, after=self._tell_peer)

    def build_connector_worker_meta(self) -> Any:
        """Notes for the scheduler side; vLLM's own NIXL connector sends none."""
        return self._pdtrace.notes() or super().build_connector_worker_meta()

    def _tell_peer(self, _: Any, request: Any, *__: Any) -> None:
        """Put D's context into the staged registration; an untraced P ignores unknown keys."""
        staged = self.connector_scheduler._push_pending_registrations.get(request.request_id)
        if staged is not None:
            staged[sc.REGISTRATION_KEY] = registration_context(request)


def registration_context(request: Any) -> dict[str, str]:
    """D's trace context as it travels to P."""
    from pdtrace.tracing.propagation import traceparent_of

    return {sc.PARAM_TRACEPARENT: traceparent_of(request.trace_headers, request.kv_transfer_params)}
