"""What each leg says to its engine: the request bodies and their `kv_transfer_params`.

vLLM reads these keys (nixl `base_scheduler.on_new_request`, `push_scheduler` and `pull_scheduler`
`update_state_after_alloc`, `metadata.add_new_req_to_recv`):
- push, on D: where P is. P finds its blocks by the request id, so P's block ids are not needed, and
  D's leg can be sent before P has begun.
- pull, on D: all that P returned, because D reads P's blocks by their ids.
"""

from collections.abc import Mapping
from typing import Any, Final

from pdtrace.tracing.semconv import PARAM_TRACEPARENT

PARAMS: Final = "kv_transfer_params"
_REMOTE_REQUEST_ID: Final = "remote_request_id"
_IDENTITY_NEEDED: Final = ("remote_engine_id", "remote_host", "remote_port", "tp_size")
_IDENTITY_OPTIONAL: Final = ("dcp_size", "pp_size", "transfer_mode")
_TO_DECODE: Final = {"do_remote_prefill": True, "do_remote_decode": False}
_TO_PREFILL: Final = {"do_remote_prefill": False, "do_remote_decode": True}


def identity_of(params: Mapping[str, Any]) -> dict[str, Any] | None:
    """P's coordinates within what it returned; None when some are missing."""
    if any(params.get(key) is None for key in _IDENTITY_NEEDED):
        return None
    return {key: params[key] for key in (*_IDENTITY_NEEDED, *_IDENTITY_OPTIONAL) if key in params}


def push_params(identity: Mapping[str, Any], remote_request_id: str) -> dict[str, Any]:
    """For D in push. Without P's answer the remote id is the router's own (heartbeats miss P then;
    P's lease is renewed by nobody, which matters only beyond 30 s)."""
    return {**_TO_DECODE, **identity, _REMOTE_REQUEST_ID: remote_request_id}


def answered_push_params(answer: Mapping[str, Any], request_id: str) -> dict[str, Any]:
    """For D in push when P has answered: with P's own id, which heartbeats can match."""
    identity = identity_of(answer) or {}
    return push_params(identity, str(answer.get(_REMOTE_REQUEST_ID) or request_id))


def prefill_body(body: Mapping[str, Any], traceparent: str | None) -> dict[str, Any]:
    """The user's body for P: one token, in one piece."""
    leg = {key: value for key, value in body.items() if key != "stream_options"}
    leg["stream"] = False
    leg["max_tokens"] = 1
    if "max_completion_tokens" in body:
        leg["max_completion_tokens"] = 1
    if isinstance(body.get("min_tokens"), int):
        # vLLM refuses min_tokens > max_tokens.
        leg["min_tokens"] = min(body["min_tokens"], 1)
    return _with_params(leg, _TO_PREFILL, traceparent)


def decode_body(
    body: Mapping[str, Any], params: Mapping[str, Any], traceparent: str | None
) -> dict[str, Any]:
    """The user's body for D, with where the KV cache comes from."""
    return _with_params(body, params, traceparent)


def _with_params(
    body: Mapping[str, Any], params: Mapping[str, Any], traceparent: str | None
) -> dict[str, Any]:
    # The context goes into the body too: vLLM drops the header when its own OTLP endpoint is unset.
    carrier = {} if traceparent is None else {PARAM_TRACEPARENT: traceparent}
    return {**body, PARAMS: {**params, **carrier}}
