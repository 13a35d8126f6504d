"""Any other connector of vLLM's, with what its scheduler side knows as spans.

`"kv_connector_module_path": "pdtrace.connector.any"` traces the connector that `kv_connector`
names, or, if that is `TracedConnector`, the one that `kv_connector_extra_config` names:

    {"connector": "MyConnector", "connector_module_path": "my.module", …its own settings…}

`connector_module_path` is left out for a connector that vLLM registers. The class that vLLM gets is
a subclass of the connector's own and has its name, so whatever vLLM asks a class holds as before.
"""

import importlib
import sys
from functools import cache
from types import FrameType
from typing import Any, Final

from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1

from pdtrace.connector.attach import attach_scheduler
from pdtrace.connector.plugin import CONNECTORS
from pdtrace.tracing import semconv as sc
from pdtrace.tracing.settings import ConfigurationError

BY_CONFIGURATION: Final = "TracedConnector"
NAME_KEY: Final = "connector"
MODULE_KEY: Final = "connector_module_path"
_PUSHING: Final = frozenset({"MooncakeConnector"})
_EITHER: Final = "MoRIIOConnector"


def __getattr__(name: str) -> Any:
    """The traced class that vLLM's factory looks up here by the name in its configuration."""
    if name == BY_CONFIGURATION:
        # Some of what vLLM asks (SupportsHMA) it asks the class, before any object could know the
        # configuration: so the class has to be made for the one that the factory holds.
        return _configured(_caller_configuration(sys._getframe(1)))
    if name not in KVConnectorFactory._registry:
        raise AttributeError(_unknown(name))
    return _registered(name)


def _caller_configuration(caller: FrameType) -> Any:
    config = caller.f_locals.get("kv_transfer_config")
    if config is None:
        raise AttributeError(f"{BY_CONFIGURATION} is made by vLLM's factory for a configuration")
    return config


def _configured(config: Any) -> type[Any]:
    """The class for one `KVTransferConfig`; `ConfigurationError` when it names no connector."""
    name, module = (config.get_from_extra_config(key, None) for key in (NAME_KEY, MODULE_KEY))
    if not isinstance(name, str) or not name:
        raise ConfigurationError(
            f'pdtrace: {BY_CONFIGURATION} needs kv_connector_extra_config["{NAME_KEY}"], the name'
            " of the connector to trace"
        )
    if module is not None:
        return traced(_imported(name, module))
    if name not in KVConnectorFactory._registry:
        raise ConfigurationError(_unknown(name))
    return _registered(name)


def _unknown(name: str) -> str:
    known = ", ".join(sorted(KVConnectorFactory._registry))
    return f"pdtrace: this vLLM registers no connector {name!r}, only {known}"


def _registered(name: str) -> type[Any]:
    if name == "MultiConnector":
        raise ConfigurationError(
            "pdtrace: MultiConnector is not traced itself; name pdtrace.connector.any, .push or"
            " .pull as kv_connector_module_path of the child to trace"
        )
    if name in CONNECTORS:
        ours: type[Any] = getattr(importlib.import_module(CONNECTORS[name]), name)
        return ours
    return traced(KVConnectorFactory.get_connector_class_by_name(name))


def _imported(name: str, module: str) -> Any:
    try:
        found = getattr(importlib.import_module(module), name, None)
    except ImportError as error:
        raise ConfigurationError(f"pdtrace: {MODULE_KEY} {module!r}: {error}") from error
    if not isinstance(found, type) or not issubclass(found, KVConnectorBase_V1):
        raise ConfigurationError(f"pdtrace: no connector {name!r} in module {module!r}")
    return found


@cache
def traced(inner: Any) -> type[Any]:
    """A traced subclass of a connector class, under the same name; the same one each time."""

    class Traced(inner):  # type: ignore[misc]
        """The connector as it is; its scheduler side is observed."""

        def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
            super().__init__(vllm_config, role, kv_cache_config)
            if role.name == "SCHEDULER":
                mode = transfer_mode(inner.__name__, vllm_config.kv_transfer_config)
                self._pdtrace = attach_scheduler(self, vllm_config, mode)

    Traced.__name__ = Traced.__qualname__ = inner.__name__
    return Traced


def transfer_mode(name: str, config: Any) -> str:
    """Who moves the blocks: P (push), D (pull), or (none) a store, or nobody knows."""
    if name == _EITHER:
        reads = str(config.get_from_extra_config("read_mode", "")).lower() in ("true", "1")
        return sc.MODE_PULL if reads else sc.MODE_PUSH
    return sc.MODE_PUSH if name in _PUSHING else sc.MODE_NONE
