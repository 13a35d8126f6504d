"""Our connectors with faults that a test can switch on: what NIXL would raise, raised on demand.

vLLM loads this module into real engines by `kv_connector_module_path`. The injected failure lies
under the hooks, where NIXL's own would. A fault is on while its file exists in the directory that
the environment variable `FAKE_FAULTS` names: `<call>.<engine id>.<TP rank>`.
"""

import os
from pathlib import Path
from typing import Any

from pdtrace.connector.pull import NixlPullConnector as _Pull
from pdtrace.connector.push import NixlPushConnector as _Push


class FakeFailure(RuntimeError):
    """Injected."""


def _fake_failures(vllm_config: Any) -> None:
    """Let this process's NIXL agent fail while the fault is on."""
    import nixl._api as api
    from vllm.distributed import parallel_state

    engine_id = vllm_config.kv_transfer_config.engine_id
    directory = Path(os.environ["FAKE_FAULTS"])
    transfer, send_notif = api.nixl_agent.transfer, api.nixl_agent.send_notif

    def switched_on(call: str) -> bool:
        rank = parallel_state.get_tensor_model_parallel_rank()
        return (directory / f"{call}.{engine_id}.{rank}").exists()

    def fake_transfer(self: Any, *args: Any, **kwargs: Any) -> Any:
        if switched_on("transfer"):
            raise FakeFailure("injected: not posted")
        return transfer(self, *args, **kwargs)

    def fake_send_notif(self: Any, name: str, notif_msg: bytes, *args: Any) -> Any:
        if notif_msg.startswith(b"PUSH_REG:") and switched_on("registration"):
            raise FakeFailure("injected: not sent")
        return send_notif(self, name, notif_msg, *args)

    api.nixl_agent.transfer, api.nixl_agent.send_notif = fake_transfer, fake_send_notif


class NixlPushConnector(_Push):
    """Ours, on an agent that can be told to fail."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        if role.name == "WORKER":
            _fake_failures(vllm_config)
        super().__init__(vllm_config, role, kv_cache_config)


class NixlPullConnector(_Pull):
    """Ours, on an agent that can be told to fail."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        if role.name == "WORKER":
            _fake_failures(vllm_config)
        super().__init__(vllm_config, role, kv_cache_config)
