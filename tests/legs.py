"""The two legs of a request by hand, in whatever order and with whatever ids."""

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from engines import complete, eventually, text

from pdtrace.analysis.sources import SourceError
from pdtrace.analysis.store import read_spans
from pdtrace.connector.cluster import Engine
from pdtrace.connector.cluster_settings import HOST, SERVED_MODEL
from pdtrace.connector.workload import mixed_prompts
from pdtrace.tracing import semconv as sc

TO_PREFILL: Final = {"do_remote_decode": True, "do_remote_prefill": False}
# No lease may end because the machine is slow.
PATIENT: Final = {"kv_connector_extra_config": {"kv_lease_duration": 600}}


def prompt_of(length: int, seed: int) -> str:
    """A prompt of so many tokens (one is a byte); prompts of different seeds share no block."""
    (words,) = mixed_prompts(seed, 1, length, length)
    return words[:length]


def prefill(
    engine: Engine, prompt: Any, request_id: str, context: str | None = None, **more: Any
) -> dict[str, Any]:
    """P's leg; returns its `kv_transfer_params`."""
    asked = {**TO_PREFILL, **more, **_carried(context)}
    answer = complete(
        engine.url, SERVED_MODEL, prompt, request_id, max_tokens=1, kv_transfer_params=asked
    )
    params: dict[str, Any] = answer["kv_transfer_params"]
    return params


def decode(
    engine: Engine,
    prompt: Any,
    request_id: str,
    params: Mapping[str, Any],
    context: str | None = None,
    **more: Any,
) -> str:
    """D's leg; returns the text."""
    given = {**params, **_carried(context)}
    return text(
        complete(engine.url, SERVED_MODEL, prompt, request_id, kv_transfer_params=given, **more)
    )


def registering_with(engine: Engine, request_id: str) -> dict[str, Any]:
    """What a router tells D in push before P has answered."""
    return {
        "do_remote_decode": False,
        "do_remote_prefill": True,
        "remote_engine_id": engine.name,
        "remote_host": HOST,
        "remote_port": engine.side_port,
        "remote_request_id": request_id,
        "tp_size": 1,
    }


def decode_first(
    store: Path, prefill_engine: Engine, decode_engine: Engine, prompt: str, request_id: str
) -> str:
    """Push: P's leg is sent when D's registration is on its way, which D's span says."""
    params = registering_with(prefill_engine, request_id)
    with ThreadPoolExecutor(1) as pool:
        answer: Future[str] = pool.submit(decode, decode_engine, prompt, request_id, params)
        assert eventually(lambda: seen(store, request_id, sc.SPAN_REGISTRATION))
        prefill(prefill_engine, prompt, request_id)
        return answer.result(60)


def seen(store: Path, request_id: str, name: str) -> bool:
    """Whether the collector has a span of this name of the request."""
    try:
        records = read_spans([store]).records
    except SourceError:
        return False
    return any(r.name == name and r.attributes.get(sc.REQUEST_ID) == request_id for r in records)


def _carried(context: str | None) -> dict[str, str]:
    return {sc.PARAM_TRACEPARENT: context} if context else {}
