"""`vllm.general_plugins` entry point: trace an existing configuration without changing it.

vLLM calls `register` in every one of its processes. With `PDTRACE=1`, or with an OTLP endpoint in
the environment and `PDTRACE` not 0, the names of vLLM's NIXL connectors lead to ours. Neither vLLM
nor NIXL is imported when this module is, and NIXL not even by `register`: vLLM has to set variables
for it first.
"""

import importlib
import logging
import os
from collections.abc import Callable, Mapping
from typing import Any, Final

_log = logging.getLogger("pdtrace")
_CONNECTORS: Final = {
    "NixlConnector": "pdtrace.connector.pull",
    "NixlPullConnector": "pdtrace.connector.pull",
    "NixlPushConnector": "pdtrace.connector.push",
}
_ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")


def wanted(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether this process is to be traced."""
    switch = environment.get("PDTRACE", "")
    if switch:
        return switch != "0"
    return any(environment.get(name) for name in _ENDPOINTS)


def _loader(module: str, name: str) -> Callable[[], Any]:
    def load() -> Any:
        return getattr(importlib.import_module(module), name)

    return load


def register() -> None:
    """Replace vLLM's registry entries; never raises, since that would stop the engine."""
    if not wanted():
        return
    try:
        factory = importlib.import_module(
            "vllm.distributed.kv_transfer.kv_connector.factory"
        ).KVConnectorFactory
        for name, module in _CONNECTORS.items():
            if name in factory._registry:
                factory._registry[name] = _loader(module, name)
    except Exception:
        _log.exception("pdtrace: vLLM's connectors could not be replaced; the engine is not traced")
