"""`vllm.general_plugins` entry point: trace an existing configuration without changing it.

vLLM calls `register` in every one of its processes. With `PDTRACE=1`, or with an OTLP endpoint in
the environment and without `PDTRACE=0`, the names of vLLM's NIXL connectors lead to ours. Neither
vLLM nor NIXL is imported when this module is, and NIXL not even by `register`: vLLM has to set
variables for it first.
"""

import importlib
import logging
from collections.abc import Callable
from typing import Any, Final

from pdtrace.tracing.settings import read_settings, wanted

_log = logging.getLogger("pdtrace")
CONNECTORS: Final = {
    "NixlConnector": "pdtrace.connector.pull",
    "NixlPullConnector": "pdtrace.connector.pull",
    "NixlPushConnector": "pdtrace.connector.push",
}
"""vLLM's names of its NIXL connectors, and where ours of the same name are."""


def _loader(module: str, name: str) -> Callable[[], Any]:
    def load() -> Any:
        return getattr(importlib.import_module(module), name)

    return load


def register() -> None:
    """Replace vLLM's registry entries.

    Raises `ConfigurationError` for a wrong `PDTRACE_*` variable: vLLM then does not start, which
    is better before it has loaded a model than after. Raises nothing else.
    """
    if not wanted(read_settings()):
        return
    try:
        factory = importlib.import_module(
            "vllm.distributed.kv_transfer.kv_connector.factory"
        ).KVConnectorFactory
        for name, module in CONNECTORS.items():
            if name in factory._registry:
                factory._registry[name] = _loader(module, name)
    except Exception:
        _log.exception("pdtrace: vLLM's connectors could not be replaced; the engine is not traced")
