"""One request on one engine: what the scheduler-side hooks have seen of it so far.

A request is one *leg* here: prefill (its blocks go to another engine), decode (its KV comes from
another engine) or single (one engine for both).
"""

from collections.abc import Callable
from typing import Any, Final

from pdtrace.connector.compat import UNREPORTED
from pdtrace.tracing import events as ev
from pdtrace.tracing import semconv as sc
from pdtrace.tracing.events import RequestContext
from pdtrace.tracing.propagation import traceparent_of

PREFILL: Final = "prefill"
DECODE: Final = "decode"
SINGLE: Final = "single"


def role_of(params: dict[str, Any]) -> str:
    """Which leg the `kv_transfer_params` of a request ask for."""
    if params.get("do_remote_decode"):
        return PREFILL
    return DECODE if params.get("do_remote_prefill") else SINGLE


def context_of(request: Any, role: str, mode: str, model: str) -> RequestContext:
    """What all spans of a request have in common; without a handoff its mode is `none`."""
    params = request.kv_transfer_params or {}
    attributes = {
        sc.MODE: sc.MODE_NONE if role is SINGLE else mode,
        sc.MODEL: _asked_for(request, model),
        sc.INPUT_TOKENS: request.num_prompt_tokens,
    }
    peer, peer_leg = params.get("remote_engine_id"), params.get("remote_request_id")
    if peer is not None and role is not PREFILL:
        attributes[sc.PEER_ENGINE_ID] = str(peer)
    if peer_leg is not None and role is DECODE and mode == sc.MODE_PULL:
        # In push it may be the router's own id; there P learns D's from the registration.
        attributes[sc.PEER_ENGINE_REQUEST_ID] = str(peer_leg)
    traceparent = traceparent_of(request.trace_headers, params)
    return RequestContext(traceparent, attributes)


def _asked_for(request: Any, model: str) -> str:
    """The model as the caller names it: an adapter (LoRA) has a name of its own."""
    adapter = getattr(request, "lora_request", None)
    return str(getattr(adapter, "lora_name", model))


class Leg:
    """One request on this engine, from arrival to its last event."""

    __slots__ = (
        "request", "role", "context", "attempted", "admitted", "scheduled", "token_seen",
        "asynchronous", "external_tokens", "computed_here", "prompt_tokens", "refused",
        "load_failed", "failure", "silence", "held", "outcome", "steps", "gap_ns", "out_since",
        "cached_tokens",
    )  # fmt: skip

    def __init__(self, request: Any, role: str, context: RequestContext) -> None:
        self.request = request
        self.role = role
        self.context = context
        self.attempted = self.admitted = self.scheduled = self.token_seen = False
        self.refused = self.load_failed = self.held = False
        self.asynchronous = role is DECODE
        self.failure = ""
        """`error.type` that a worker gave for its load."""
        self.silence = ""
        """`error.type` of why nothing more may come, while vLLM still waits for it."""
        self.outcome = ""
        """What the workers said of its lease so far; one rank's expiry is everybody's."""
        self.external_tokens = self.cached_tokens = self.computed_here = 0
        self.prompt_tokens: int = request.num_prompt_tokens
        self.steps = self.gap_ns = self.out_since = 0

    @property
    def unserved(self) -> bool:
        """It got blocks to load into, and has not been scheduled since."""
        return self.admitted and not self.scheduled

    def account(self, in_batch: bool, now: Callable[[], int]) -> None:
        """A step of its prompt: count it, and the time in which it ran but was in no batch."""
        if in_batch:
            if self.steps == 0:
                # Computed before its first step: vLLM counts the step's own tokens after this.
                self.cached_tokens = self.request.num_computed_tokens
            self.steps += 1
            if self.out_since:
                self.gap_ns += now() - self.out_since
                self.out_since = 0
        elif not self.out_since:
            self.out_since = now()


def read_back(leg: Leg) -> dict[str, Any]:
    """What tells P's load of blocks that D has kept from a handoff; nothing for other loads."""
    source = (leg.request.kv_transfer_params or {}).get("remote_engine_id")
    if leg.role is not PREFILL or source is None:
        return {}
    return {sc.TRANSFER_DIRECTION: sc.DIRECTION_READ_BACK, sc.PEER_ENGINE_ID: str(source)}


def preemptions(leg: Leg) -> int:
    """How often vLLM has preempted the request so far."""
    return int(getattr(leg.request, "num_preemptions", 0))


def prefill_data(leg: Leg) -> dict[str, Any]:
    """Attributes of its `pd.prefill`."""
    data = {
        sc.PREFILL_STEPS: leg.steps,
        sc.PREFILL_CACHED_TOKENS: leg.cached_tokens,
        sc.PREEMPTIONS: preemptions(leg),
        **loaded_at_once(leg),
    }
    if leg.gap_ns:
        data[sc.PREFILL_GAP_NS] = leg.gap_ns
    return data


def loaded_at_once(leg: Leg) -> dict[str, Any]:
    """Tokens that the connector loads inside the forward pass: there is no wait to carry them."""
    if leg.admitted or not leg.external_tokens:
        return {}
    return {sc.EXTERNAL_TOKENS: leg.external_tokens}


def first_token(leg: Leg) -> tuple[ev.EventKind, dict[str, Any]]:
    """What its first token ends on this engine, with the attributes of that span."""
    if leg.role is SINGLE:
        return ev.SINGLE_FIRST_TOKEN, prefill_data(leg)
    if leg.load_failed:
        recomputed = {sc.ERROR_TYPE: sc.ERROR_LOAD_FAILED_RECOMPUTE}
        return ev.RECOMPUTE_FIRST_TOKEN, prefill_data(leg) | recomputed
    return ev.FIRST_TOKEN, {sc.RECOMPUTED_TOKENS: leg.computed_here, **loaded_at_once(leg)}


def lease_data(leg: Leg, outcome: str) -> dict[str, Any]:
    """How its `pd.lease` ended; nothing when there is nobody to tell it."""
    data = {sc.LEASE_OUTCOME: outcome} if outcome else {}
    if outcome == UNREPORTED:
        data = {sc.LEASE_OUTCOME: sc.LEASE_EXPIRED, sc.LEASE_NOTE: sc.NOTE_UNREPORTED}
    # D keeps its blocks in case there is a next turn; that there is none is no error.
    if data.get(sc.LEASE_OUTCOME) == sc.LEASE_EXPIRED and leg.role is PREFILL:
        data[sc.ERROR_TYPE] = sc.ERROR_LEASE_EXPIRED
    return data
