"""Our connectors in an engine that can be made slow: each delay lies below the hooks.

vLLM loads this module into real engines by `kv_connector_module_path`. A delay is on while its
file exists in the directory that the environment variable `FAKE_FAULTS` names:
`<delay>.<engine id>`, which says for how many seconds (`stall`: and of which process).

    registration    what this D registers with P is under way for so long
    handshake       this D forgets its peers between requests, and meeting one takes so long
    stall           this P stands still from when a D begins to read from it
    forward         each forward pass of this engine takes so much longer
"""

import os
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from pdtrace.connector.pull import NixlPullConnector as _Pull
from pdtrace.connector.push import NixlPushConnector as _Push


def switched_on(delay: str, engine_id: str) -> list[float]:
    """The numbers in the delay's file; none while it is off."""
    with suppress(FileNotFoundError):
        words = Path(os.environ["FAKE_FAULTS"], f"{delay}.{engine_id}").read_text(encoding="utf-8")
        return [float(word) for word in words.split()]
    return []


def fake_slow_forwards(engine_id: str) -> None:
    """As on a processor that was throttled."""
    from vllm.v1.worker.gpu_worker import Worker

    execute_model = Worker.execute_model

    def fake_execute_model(self: Any, scheduler_output: Any) -> Any:
        if scheduler_output.total_num_scheduled_tokens:
            time.sleep(sum(switched_on("forward", engine_id)))
        return execute_model(self, scheduler_output)

    worker: Any = Worker
    worker.execute_model = fake_execute_model


def fake_late_registrations(engine_id: str) -> None:
    """NIXL's agent takes a registration and sends it later: nobody else has to wait for that."""
    import nixl._api as api

    agent: Any = api.nixl_agent
    send_notif = agent.send_notif

    def fake_send_notif(*args: Any, **kwargs: Any) -> Any:
        seconds = switched_on("registration", engine_id)
        message = kwargs.get("notif_msg", args[-1])
        if not seconds or not message.startswith(b"PUSH_REG:"):
            return send_notif(*args, **kwargs)
        return threading.Timer(seconds[0], send_notif, args, kwargs).start()

    agent.send_notif = fake_send_notif


def fake_forgotten_peers(worker: Any, engine_id: str) -> None:
    """Peers are forgotten as vLLM itself forgets one that was idle for too long."""
    start_load_kv, handshake = worker.start_load_kv, worker._nixl_handshake

    def fake_start_load_kv(metadata: Any) -> Any:
        if metadata.reqs_to_recv and switched_on("handshake", engine_id):
            busy = {meta.remote.engine_id for meta in worker._recving_metadata.values()}
            for peer in set(worker._remote_agents) - busy:
                worker._cleanup_remote_engine(peer)
        return start_load_kv(metadata)

    def fake_handshake(*args: Any, **kwargs: Any) -> Any:
        time.sleep(sum(switched_on("handshake", engine_id)))
        return handshake(*args, **kwargs)

    worker.start_load_kv, worker._nixl_handshake = fake_start_load_kv, fake_handshake


def fake_stalled_reads(worker: Any) -> None:
    """The peer is stopped as a READ from it is posted, and continues after a while."""
    read_blocks = worker._read_blocks

    def fake_read_blocks(*args: Any, **kwargs: Any) -> Any:
        stall = switched_on("stall", kwargs["dst_engine_id"])
        if stall:
            seconds, pid = stall[0], int(stall[1])
            threading.Timer(seconds, os.kill, (pid, signal.SIGCONT)).start()
            stop(pid, seconds)
        return read_blocks(*args, **kwargs)

    worker._read_blocks = fake_read_blocks


def stop(pid: int, seconds: float) -> None:
    """A process stops when it next runs, and on a busy machine a READ may be faster."""
    os.kill(pid, signal.SIGSTOP)
    deadline = time.monotonic() + seconds / 2
    stat = Path("/proc", str(pid), "stat")
    while stat.read_text().rpartition(")")[2].split()[0] != "T" and time.monotonic() < deadline:
        time.sleep(0.0002)


class NixlPushConnector(_Push):
    """Ours, in an engine that can be made slow and its registrations late."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        if role.name == "WORKER":
            fake_slow_forwards(vllm_config.kv_transfer_config.engine_id)
            fake_late_registrations(vllm_config.kv_transfer_config.engine_id)
        super().__init__(vllm_config, role, kv_cache_config)


class NixlPullConnector(_Pull):
    """Ours, on a worker that can be made to forget its peers, and to stop them."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        if role.name == "WORKER":
            fake_forgotten_peers(self.connector_worker, vllm_config.kv_transfer_config.engine_id)
            fake_stalled_reads(self.connector_worker)
