"""Scheduler-side hooks: what an EngineCore knows of a request, as events.

A request is one *leg* here (see `pdtrace.connector.leg`). The hooks only read what vLLM passes.
"""

from collections.abc import Container
from functools import partial
from typing import Any, Final

from pdtrace.connector import compat
from pdtrace.connector.carrier import RequestCarrier, attach, block_count, carrier_of
from pdtrace.connector.kv_wait import KvWaits
from pdtrace.connector.leg import (
    DECODE,
    PREFILL,
    Leg,
    context_of,
    first_token,
    lease_data,
    preemptions,
    prefill_data,
    role_of,
)
from pdtrace.connector.seams import Seams
from pdtrace.tracing import events as ev
from pdtrace.tracing import semconv as sc
from pdtrace.tracing.guard import Guard
from pdtrace.tracing.recorder import Recorder

_FINISHED: Final = frozenset({"FINISHED_LENGTH_CAPPED", "FINISHED_STOPPED", "FINISHED_REPETITION"})
_FAILED: Final = frozenset({"FINISHED_ERROR"})
_MAX_LEGS: Final = 65_536


class SchedulerHooks:
    """Observes one scheduler-side connector; every method is a hook behind the guard.

    `mode` is `push`, `pull` or `none`; requests without a handoff are reported as `none`.
    `worker_tells`: hooks on the worker side report what happens there, and how leases end.
    """

    def __init__(
        self, recorder: Recorder, mode: str, model: str, worker_tells: bool = True
    ) -> None:
        self._recorder = recorder
        self._record = recorder.record
        self._mode = mode
        self._model = model
        self._worker_tells = worker_tells
        self._legs: dict[str, Leg] = {}
        self._waits = KvWaits(recorder, mode)
        self._computing: dict[str, Leg] = {}
        """Scheduled, computing a prompt."""
        self._complete: dict[str, Leg] = {}
        """KV is complete, not scheduled yet."""
        self._starting: dict[str, Leg] = {}
        """Decode, scheduled, no token yet."""
        self._to_worker: dict[str, RequestCarrier] = {}
        self._finish_began = 0
        self._told_of_arrivals = True

    def install(self, seams: Seams, guard: Guard) -> None:
        """Wrap the scheduler-side methods of one connector."""
        self._told_of_arrivals = seams.has(compat.ARRIVED)
        self._waits.deadlines = seams.attribute(compat.DEADLINES)
        observe = partial(seams.observe, guard)
        observe(compat.ARRIVED, before=self.arrived)
        observe(compat.ATTEMPTED, before=self.attempted, after=self.answered)
        observe(compat.ALLOCATED, after=self.allocated)
        observe(compat.STEP_BUILT, after=self.step_built)
        observe(compat.OUTPUT, before=self.output)
        for point in (compat.FINISHED, compat.FINISHED_ALL_GROUPS):
            observe(point, before=self.finishing, after=self.finished)

    def arrived(self, request: Any) -> None:
        """The engine core has the request."""
        self._arrived_at(request, self._recorder.now())

    def _arrived_at(self, request: Any, mono_ns: int) -> None:
        if getattr(request, "abort_immediately", False):
            # Nobody's request: vLLM submits it after one that failed or was aborted before its
            # answer began, for the connector to clean up, and ends it at once.
            self._recorder.ignored["phantom"] += 1
            return
        if len(self._legs) >= _MAX_LEGS:
            self._recorder.dropped["legs_full"] += 1
            return
        request_id, role = request.request_id, role_of(request.kv_transfer_params or {})
        context = context_of(request, role, self._mode, self._model)
        self._legs[request_id] = Leg(request, role, context)
        record_at = self._recorder.record_at
        record_at(ev.OPENED, mono_ns, request_id, context)
        arrived = ev.DECODE_ARRIVED if role is DECODE else ev.PREFILL_ARRIVED
        record_at(arrived, mono_ns, request_id)

    def attempted(self, request: Any, *_: Any) -> None:
        """The scheduler asked the connector how much it can load; the first time counts."""
        if not self._told_of_arrivals and request.request_id not in self._legs:
            self._arrived_at(request, compat.queued_ns(request) or self._recorder.now())
        leg = self._legs.get(request.request_id)
        if leg is not None and not leg.attempted:
            leg.attempted = True
            if leg.role is DECODE:
                self._record(ev.DECODE_ATTEMPTED, request.request_id)

    def answered(self, result: tuple[int | None, bool], request: Any, *_: Any) -> None:
        """The connector said how much it can load, and whether the request waits meanwhile."""
        leg = self._legs.get(request.request_id)
        if leg is not None:
            leg.asynchronous = bool(result[1])

    def allocated(self, _: Any, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """Blocks were allocated: to run at once, to be loaded into, or (second time) loaded."""
        leg = self._legs.get(request.request_id)
        if leg is None or leg.scheduled:
            return
        if leg.admitted:
            self._promote(leg)
            return
        leg.external_tokens = num_external_tokens
        if num_external_tokens > 0 and leg.asynchronous:
            self._admit(leg)
        elif leg.role is DECODE:
            self._start(leg, ev.LOCAL_HIT)
        else:
            self._schedule_prompt(leg, ev.PREFILL_SCHEDULED)

    def _schedule_prompt(self, leg: Leg, kind: ev.EventKind) -> None:
        leg.scheduled = True
        self._computing[leg.request.request_id] = leg
        self._record(kind, leg.request.request_id)

    def _admit(self, leg: Leg) -> None:
        """KV blocks are there; from here the request waits for KV from elsewhere."""
        now_ns = self._recorder.now()
        self._waits.begin(leg, now_ns)
        self._send_to_worker(leg, now_ns)

    def _promote(self, leg: Leg) -> None:
        self._complete.pop(leg.request.request_id, None)
        # Still there only if the hook failed that is told of the KV.
        self._waits.waiting.pop(leg.request.request_id, None)
        if leg.load_failed or leg.role is not DECODE:
            self._schedule_prompt(leg, ev.PROMPT_SCHEDULED)
        else:
            self._start(leg, ev.DECODE_SCHEDULED)

    def _start(self, leg: Leg, kind: ev.EventKind) -> None:
        leg.scheduled = True
        self._starting[leg.request.request_id] = leg
        self._record(kind, leg.request.request_id, {sc.PREEMPTIONS: preemptions(leg)})

    def _send_to_worker(self, leg: Leg, mono_ns: int) -> None:
        if self._worker_tells:
            since_ns = self._recorder.wall_ns(mono_ns)
            self._to_worker[leg.request.request_id] = carrier_of(leg, since_ns)

    def step_built(self, metadata: Any, scheduler_output: Any) -> None:
        """A step is scheduled: hand the worker its requests, account for who runs and who not."""
        if self._to_worker:
            attach(metadata, self._to_worker)
            self._to_worker = {}
        if self._waits.waiting:
            self._waits.find_late()
        if not (self._computing or self._complete or self._starting):
            return
        tokens = scheduler_output.num_scheduled_tokens
        for request_id, leg in self._computing.items():
            leg.account(request_id in tokens, self._recorder.now)
        for request_id, leg in self._complete.items():
            if not leg.refused:
                leg.refused = True
                self._record(ev.DECODE_REFUSED, request_id)
        for request_id, leg in self._starting.items():
            # Several steps when D lacks more than one batch holds.
            if request_id in tokens and leg.request.num_computed_tokens < leg.prompt_tokens:
                leg.computed_here += tokens[request_id]

    def output(self, connector_output: Any) -> None:
        """A step is done: what the workers saw, what has its first token, what was freed."""
        notes = getattr(connector_output, "kv_connector_worker_meta", None)
        if notes is not None:
            self._read(notes)
        if self._waits.failed:
            for leg, at_ns, error in self._waits.take_failed():
                self._close_decode(leg, at_ns, error)
        if connector_output.finished_recving:
            failed = getattr(connector_output, "failed_recving", None)
            for request_id in connector_output.finished_recving:
                self._loaded(request_id, failed)
        for request_id in connector_output.finished_sending or ():
            self._freed(request_id)
        if self._starting or self._computing:
            self._first_tokens()

    def _first_tokens(self) -> None:
        for waiting in (self._starting, self._computing):
            for leg in [leg for leg in waiting.values() if leg.request.num_output_tokens > 0]:
                self._first_token(leg)

    def _read(self, notes: Any) -> None:
        """What the workers say: `WorkerNotes`, or something of another connector's own."""
        for request_id, at_ns, rank in getattr(notes, "seen", ()):
            self._notified(request_id, at_ns, rank)
        for request_id, error in getattr(notes, "failures", ()):
            self._failing(request_id, error)
        for request_id, outcome in getattr(notes, "outcomes", {}).items():
            self._ending(request_id, outcome)
        for engine_id in getattr(notes, "lost", ()):
            self._waits.peer_lost(engine_id)

    def _notified(self, request_id: str, at_ns: int, rank: int) -> None:
        leg = self._legs.get(request_id)
        if leg is None:
            return
        data = None if rank < 0 else {sc.PEER_TP_RANK: rank}
        kind = ev.LEASE_NOTIFIED if leg.held else ev.NOTIFICATION_SEEN
        self._recorder.record_at(kind, self._recorder.mono_ns(at_ns), request_id, data)

    def _failing(self, request_id: str, error: str) -> None:
        """A worker says what failed; the first cause counts."""
        leg = self._legs.get(request_id)
        if leg is not None and not leg.failure:
            leg.failure = error

    def _ending(self, request_id: str, outcome: str) -> None:
        """A worker's rank is done with a lease; the last one's step frees the blocks."""
        leg = self._legs.get(request_id)
        if leg is not None:
            leg.outcome = compat.graver(outcome, leg.outcome or outcome)

    def _loaded(self, request_id: str, failed: Container[str] | None) -> None:
        """The KV is complete, or its load failed."""
        leg = self._legs.get(request_id)
        if leg is not None and leg.unserved:
            self._complete[request_id] = leg
            self._waits.end(leg, failed)

    def _freed(self, request_id: str) -> None:
        """Blocks held for the decode engine are freed; without evidence the lease ran out, unless
        there is nobody to give any."""
        leg = self._legs.pop(request_id, None)
        if leg is None:
            return
        outcome = leg.outcome or (sc.LEASE_EXPIRED if self._worker_tells else "")
        self._record(ev.LEASE_ENDED, request_id, lease_data(leg, outcome))

    def _first_token(self, leg: Leg) -> None:
        """The first token is on the host."""
        if leg.token_seen:
            return
        leg.token_seen = True
        request_id = leg.request.request_id
        self._starting.pop(request_id, None)
        if leg.role is PREFILL:
            return
        self._computing.pop(request_id, None)
        kind, data = first_token(leg)
        self._record(kind, request_id, data)

    def finishing(self, request: Any, *_: Any) -> None:
        """Before the connector decides about the blocks: this is the instant of the finish."""
        self._finish_began = self._recorder.now()
        leg = self._legs.get(request.request_id)
        if leg is not None and request.num_output_tokens > 0:
            self._first_token(leg)

    def finished(self, result: Any, request: Any, block_ids: Any) -> None:
        """The request is over on this engine; on P its blocks may be held from here on."""
        request_id = request.request_id
        leg = self._legs.get(request_id)
        if leg is None:
            return
        for table in (self._waits.waiting, self._computing, self._complete, self._starting):
            table.pop(request_id, None)
        leg.held = bool(result[0])
        if leg.role is PREFILL:
            self._finish_prefill(leg, block_ids)
        else:
            self._finish_decode(leg)

    def _finish_prefill(self, leg: Leg, block_ids: Any) -> None:
        request_id, at_ns = leg.request.request_id, self._finish_began
        status, unserved = leg.request.status.name, leg.unserved
        leg.scheduled = True  # a load that ends after this is of no interest
        if status not in _FINISHED:
            del self._legs[request_id]
            unloaded = status in _FAILED and unserved
            error = self._waits.load_error(leg) if unloaded else sc.ERROR_ABORTED
            self._record(ev.CLOSED, request_id, {sc.ERROR_TYPE: error})
            return
        record_at = self._recorder.record_at
        record_at(ev.PREFILL_FINISHED, at_ns, request_id, prefill_data(leg))
        if self._mode == sc.MODE_PUSH and leg.held and self._worker_tells:
            self._send_to_worker(leg, at_ns)  # which reports when its writer has the blocks
        else:
            record_at(ev.PREFILL_END_BEGUN, at_ns, request_id)
            count = block_count(block_ids)
            self._record(ev.PARAMETERS_RETURNED, request_id, {sc.BLOCK_COUNT: count})
        if leg.held:
            record_at(ev.LEASE_BEGUN, at_ns, request_id)
        else:
            del self._legs[request_id]
            self._record(ev.CLOSED, request_id)

    def _finish_decode(self, leg: Leg) -> None:
        status, at_ns = leg.request.status.name, self._finish_began
        if status in _FINISHED:
            self._close_decode(leg, at_ns, "")
        elif status in _FAILED and leg.unserved:
            # vLLM fails the request ahead of telling the connector that the load failed, and why.
            self._waits.failed.append((leg, at_ns))
        else:
            cause = "" if leg.load_failed else leg.failure or leg.silence
            self._close_decode(leg, at_ns, (leg.unserved and cause) or sc.ERROR_ABORTED)

    def _close_decode(self, leg: Leg, at_ns: int, error: str) -> None:
        request, kept = leg.request, leg.held and leg.role is DECODE and not error
        leg.scheduled = True  # a load that ends after this is of no interest
        if not kept:
            self._legs.pop(request.request_id, None)
        data = {sc.OUTPUT_TOKENS: request.num_output_tokens, sc.PREEMPTIONS: preemptions(leg)}
        if error:
            data[sc.ERROR_TYPE] = error
        kind = ev.DECODE_HELD if kept else ev.DECODE_FINISHED
        self._recorder.record_at(kind, at_ns, request.request_id, data)
