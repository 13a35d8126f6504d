"""Scheduler-side hooks: what an EngineCore knows of a request, as events.

A request is one *leg* here: prefill (its blocks go to another engine), decode (its KV comes from
another engine) or single (one engine for both). The hooks only read what vLLM passes.
"""

from typing import Any, Final

from pdtrace.connector.carrier import RequestCarrier, attach, block_count
from pdtrace.tracing import events as ev
from pdtrace.tracing import semconv as sc
from pdtrace.tracing.guard import Guard
from pdtrace.tracing.ids import base_request_id
from pdtrace.tracing.propagation import traceparent_of
from pdtrace.tracing.recorder import Recorder

_PREFILL: Final = "prefill"
_DECODE: Final = "decode"
_SINGLE: Final = "single"
_FINISHED: Final = frozenset({"FINISHED_LENGTH_CAPPED", "FINISHED_STOPPED", "FINISHED_REPETITION"})
_FAILED: Final = frozenset({"FINISHED_ERROR"})
_MAX_LEGS: Final = 65_536


class _Leg:
    """One request on this engine, from arrival to its last event."""

    __slots__ = (
        "request", "role", "context", "attempted", "admitted", "scheduled", "token_seen",
        "asynchronous", "external_tokens", "first_tokens", "refused", "load_failed", "steps",
        "gap_ns", "out_since", "cached_tokens",
    )  # fmt: skip

    def __init__(self, request: Any, role: str, context: ev.RequestContext) -> None:
        self.request = request
        self.role = role
        self.context = context
        self.attempted = self.admitted = self.scheduled = self.token_seen = False
        self.refused = self.load_failed = False
        self.asynchronous = role is _DECODE
        self.external_tokens = self.cached_tokens = 0
        self.first_tokens: int | None = None
        self.steps = self.gap_ns = self.out_since = 0


def _role_of(params: dict[str, Any]) -> str:
    if params.get("do_remote_decode"):
        return _PREFILL
    return _DECODE if params.get("do_remote_prefill") else _SINGLE


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
        self._legs: dict[str, _Leg] = {}
        self._computing: dict[str, _Leg] = {}
        """Scheduled, computing a prompt."""
        self._complete: dict[str, _Leg] = {}
        """KV is complete, not scheduled yet."""
        self._starting: dict[str, _Leg] = {}
        """Decode, scheduled, no token yet."""
        self._to_worker: dict[str, RequestCarrier] = {}
        self._finish_began = 0

    def install(self, connector: Any, guard: Guard) -> None:
        """Wrap the scheduler-side methods of one connector."""
        observe = guard.observe
        observe(connector, "on_new_request", before=self.arrived)
        observe(connector, "get_num_new_matched_tokens", before=self.attempted, after=self.answered)
        observe(connector, "update_state_after_alloc", after=self.allocated)
        observe(connector, "build_connector_meta", after=self.step_built)
        observe(connector, "update_connector_output", before=self.output)
        for method in ("request_finished", "request_finished_all_groups"):
            observe(connector, method, before=self.finishing, after=self.finished)

    def arrived(self, request: Any) -> None:
        """The engine core has the request."""
        if len(self._legs) >= _MAX_LEGS:
            self._recorder.dropped["legs_full"] += 1
            return
        params = request.kv_transfer_params or {}
        role = _role_of(params)
        attributes = {
            sc.MODE: sc.MODE_NONE if role is _SINGLE else self._mode,
            sc.MODEL: self._model,
            sc.INPUT_TOKENS: request.num_prompt_tokens,
        }
        peer, peer_leg = params.get("remote_engine_id"), params.get("remote_request_id")
        if peer is not None:
            attributes[sc.PEER_ENGINE_ID] = str(peer)
        if peer_leg is not None and role is _DECODE and self._mode == sc.MODE_PULL:
            # In push it may be the router's own id; there P learns D's from the registration.
            attributes[sc.PEER_ENGINE_REQUEST_ID] = str(peer_leg)
        request_id = request.request_id
        traceparent = traceparent_of(request.trace_headers, params)
        context = ev.RequestContext(traceparent, base_request_id(request_id), attributes)
        self._legs[request_id] = _Leg(request, role, context)
        self._record(ev.OPENED, request_id, context)
        self._record(ev.DECODE_ARRIVED if role is _DECODE else ev.PREFILL_ARRIVED, request_id)

    def attempted(self, request: Any, *_: Any) -> None:
        """The scheduler asked the connector how much it can load; the first time counts."""
        leg = self._legs.get(request.request_id)
        if leg is not None and not leg.attempted:
            leg.attempted = True
            if leg.role is _DECODE:
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
        elif leg.role is _DECODE:
            self._start(leg, ev.LOCAL_HIT)
        else:
            self._schedule_prompt(leg, ev.PREFILL_SCHEDULED)

    def _schedule_prompt(self, leg: _Leg, kind: ev.EventKind) -> None:
        leg.scheduled = True
        self._computing[leg.request.request_id] = leg
        self._record(kind, leg.request.request_id)

    def _admit(self, leg: _Leg) -> None:
        """KV blocks are there; from here the request waits for KV from elsewhere."""
        request_id, now_ns = leg.request.request_id, self._recorder.now()
        leg.admitted = True
        kind = ev.DECODE_ALLOCATED if leg.role is _DECODE else ev.PROMPT_ALLOCATED
        self._recorder.record_at(kind, now_ns, request_id)
        self._send_to_worker(leg, now_ns)

    def _promote(self, leg: _Leg) -> None:
        self._complete.pop(leg.request.request_id, None)
        if leg.load_failed or leg.role is not _DECODE:
            self._schedule_prompt(leg, ev.PROMPT_SCHEDULED)
        else:
            self._start(leg, ev.DECODE_SCHEDULED)

    def _start(self, leg: _Leg, kind: ev.EventKind) -> None:
        leg.scheduled = True
        self._starting[leg.request.request_id] = leg
        self._record(kind, leg.request.request_id, {sc.PREEMPTIONS: _preemptions(leg)})

    def _send_to_worker(self, leg: _Leg, mono_ns: int) -> None:
        if not self._worker_tells:
            return
        context = leg.context
        self._to_worker[leg.request.request_id] = RequestCarrier(
            context.traceparent,
            context.base_id,
            self._recorder.wall_ns(mono_ns),
            dict(context.attributes),
        )

    def step_built(self, metadata: Any, scheduler_output: Any) -> None:
        """A step is scheduled: hand the worker its requests, account for who runs and who not."""
        if self._to_worker:
            attach(metadata, self._to_worker)
            self._to_worker = {}
        if not (self._computing or self._complete or self._starting):
            return
        tokens = scheduler_output.num_scheduled_tokens
        for request_id, leg in self._computing.items():
            self._account(leg, request_id in tokens)
        for request_id, leg in self._complete.items():
            if not leg.refused:
                leg.refused = True
                self._record(ev.DECODE_REFUSED, request_id)
        for request_id, leg in self._starting.items():
            if leg.first_tokens is None and request_id in tokens:
                leg.first_tokens = tokens[request_id]

    def _account(self, leg: _Leg, in_batch: bool) -> None:
        """Count steps, and the time in which the request was running but in no batch."""
        if in_batch:
            if leg.steps == 0:
                # Computed before its first step: vLLM counts the step's own tokens after this.
                leg.cached_tokens = leg.request.num_computed_tokens
            leg.steps += 1
            if leg.out_since:
                leg.gap_ns += self._recorder.now() - leg.out_since
                leg.out_since = 0
        elif not leg.out_since:
            leg.out_since = self._recorder.now()

    def output(self, connector_output: Any) -> None:
        """A step is done: what the workers saw, what has its first token, what was freed."""
        notes = getattr(connector_output, "kv_connector_worker_meta", None)
        outcomes: dict[str, str] = getattr(notes, "outcomes", {})
        for request_id, at_ns, rank in getattr(notes, "seen", ()):
            self._notified(request_id, at_ns, rank)
        failed = getattr(connector_output, "failed_recving", None) or ()
        for request_id in connector_output.finished_recving or ():
            self._loaded(request_id, request_id in failed)
        unproven = sc.LEASE_EXPIRED if self._worker_tells else None
        for request_id in connector_output.finished_sending or ():
            self._freed(request_id, outcomes.get(request_id, unproven))
        for waiting in (self._starting, self._computing):
            for leg in [leg for leg in waiting.values() if leg.request.num_output_tokens > 0]:
                self._first_token(leg)

    def _notified(self, request_id: str, at_ns: int, rank: int) -> None:
        leg = self._legs.get(request_id)
        if leg is None:
            return
        data = {ev.AT: at_ns} if rank < 0 else {ev.AT: at_ns, sc.PEER_TP_RANK: rank}
        kind = ev.NOTIFICATION_SEEN if leg.role is _DECODE else ev.LEASE_NOTIFIED
        self._record(kind, request_id, data)

    def _loaded(self, request_id: str, failed: bool) -> None:
        """The scheduler is told that the KV is complete, or that its load failed."""
        leg = self._legs.get(request_id)
        if leg is None or not leg.admitted or leg.scheduled:
            return
        leg.load_failed = failed
        data: dict[str, Any] = {sc.EXTERNAL_TOKENS: leg.external_tokens}
        if failed:
            data[sc.ERROR_TYPE] = sc.ERROR_READ_FAILED
        self._complete[request_id] = leg
        self._record(ev.KV_COMPLETE, request_id, data)

    def _freed(self, request_id: str, outcome: str | None) -> None:
        """Blocks held for the decode engine are freed; None: nobody can tell why."""
        if self._legs.pop(request_id, None) is None:
            return
        data = {sc.LEASE_OUTCOME: outcome} if outcome else {}
        if outcome == sc.LEASE_EXPIRED:
            data[sc.ERROR_TYPE] = sc.ERROR_LEASE_EXPIRED
        self._record(ev.LEASE_ENDED, request_id, data)

    def _first_token(self, leg: _Leg) -> None:
        """The first token is on the host."""
        if leg.token_seen:
            return
        leg.token_seen = True
        request_id = leg.request.request_id
        self._starting.pop(request_id, None)
        if leg.role is _PREFILL:
            return
        self._computing.pop(request_id, None)
        if leg.role is _SINGLE:
            self._record(ev.SINGLE_FIRST_TOKEN, request_id, _prefill_data(leg))
        elif leg.load_failed:
            data = {**_prefill_data(leg), sc.ERROR_TYPE: sc.ERROR_LOAD_FAILED_RECOMPUTE}
            self._record(ev.RECOMPUTE_FIRST_TOKEN, request_id, data)
        else:
            data = {sc.RECOMPUTED_TOKENS: leg.first_tokens or 0, **_loaded_at_once(leg)}
            self._record(ev.FIRST_TOKEN, request_id, data)

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
        for waiting in (self._computing, self._complete, self._starting):
            waiting.pop(request_id, None)
        if leg.role is _PREFILL:
            self._finish_prefill(leg, bool(result[0]), block_ids)
        else:
            self._finish_decode(leg)

    def _finish_prefill(self, leg: _Leg, held: bool, block_ids: Any) -> None:
        request_id, at_ns = leg.request.request_id, self._finish_began
        leg.scheduled = True  # a load that ends after this is of no interest
        if leg.request.status.name not in _FINISHED:
            del self._legs[request_id]
            self._record(ev.CLOSED, request_id, {sc.ERROR_TYPE: sc.ERROR_ABORTED})
            return
        record_at = self._recorder.record_at
        record_at(ev.PREFILL_FINISHED, at_ns, request_id, _prefill_data(leg))
        if self._mode == sc.MODE_PUSH and held and self._worker_tells:
            self._send_to_worker(leg, at_ns)  # which reports when its writer has the blocks
        else:
            record_at(ev.PREFILL_END_BEGUN, at_ns, request_id)
            count = block_count(block_ids)
            self._record(ev.PARAMETERS_RETURNED, request_id, {sc.BLOCK_COUNT: count})
        if held:
            record_at(ev.LEASE_BEGUN, at_ns, request_id)
        else:
            del self._legs[request_id]
            self._record(ev.CLOSED, request_id)

    def _finish_decode(self, leg: _Leg) -> None:
        request, request_id = leg.request, leg.request.request_id
        del self._legs[request_id]
        data = {sc.OUTPUT_TOKENS: request.num_output_tokens, sc.PREEMPTIONS: _preemptions(leg)}
        status = request.status.name
        if status in _FAILED and (leg.load_failed or (leg.admitted and not leg.scheduled)):
            # vLLM may fail the request before it tells the connector that the load failed.
            data[sc.ERROR_TYPE] = sc.ERROR_READ_FAILED
        elif status not in _FINISHED:
            data[sc.ERROR_TYPE] = sc.ERROR_ABORTED
        self._record(ev.DECODE_FINISHED, request_id, data)


def _preemptions(leg: _Leg) -> int:
    return int(getattr(leg.request, "num_preemptions", 0))


def _prefill_data(leg: _Leg) -> dict[str, Any]:
    data = {
        sc.PREFILL_STEPS: leg.steps,
        sc.PREFILL_CACHED_TOKENS: leg.cached_tokens,
        sc.PREEMPTIONS: _preemptions(leg),
        **_loaded_at_once(leg),
    }
    if leg.gap_ns:
        data[sc.PREFILL_GAP_NS] = leg.gap_ns
    return data


def _loaded_at_once(leg: _Leg) -> dict[str, Any]:
    """Tokens that the connector loads inside the forward pass: there is no wait to carry them."""
    if leg.admitted or not leg.external_tokens:
        return {}
    return {sc.EXTERNAL_TOKENS: leg.external_tokens}
