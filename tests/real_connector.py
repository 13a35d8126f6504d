"""A traced scheduler-side connector as vLLM's own factory makes it, without an engine around it."""

import os
import warnings
from functools import cache
from typing import Any

import engine_imports  # noqa: F401  # first of all
from vllm.config import KVTransferConfig
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.engine.arg_utils import EngineArgs
from vllm.v1.kv_cache_interface import KVCacheConfig

from pdtrace.connector import demo_model
from pdtrace.connector.cluster_settings import server_env

_MODULES = {"NixlPullConnector": "pull", "NixlPushConnector": "push"}
# Its cache of what it knows of models saves half a minute.
os.environ.setdefault("VLLM_CACHE_ROOT", server_env()["VLLM_CACHE_ROOT"])


@cache
def _config() -> Any:
    """The configuration that `vllm serve` would make; the model is not loaded."""
    args = EngineArgs(
        model=str(demo_model.model_path("small")), dtype=demo_model.DTYPE, max_model_len=1024
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return args.create_engine_config()


def make_connector(name: str, settings: object) -> Any:
    """A decode engine's connector with `settings` as its `pdtrace` object."""
    config = _config()
    config.kv_transfer_config = KVTransferConfig(
        kv_connector=name,
        kv_connector_module_path=f"pdtrace.connector.{_MODULES[name]}",
        kv_role="kv_consumer",
        kv_connector_extra_config={"pdtrace": settings},
    )
    cache_config = KVCacheConfig(num_blocks=16, kv_cache_tensors=[], kv_cache_groups=[])
    return KVConnectorFactory.create_connector(config, KVConnectorRole.SCHEDULER, cache_config)
