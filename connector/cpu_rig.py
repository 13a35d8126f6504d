"""What lets several real engines share two CPU cores. For the local cluster only.

None of this belongs into a connector that somebody loads into a serving engine: it changes how
NIXL waits and where vLLM's threads run. It is applied in an engine process that we forked
ourselves, before that process builds anything.
"""

import gc
import os
import secrets
import time
from typing import Any, Final

PROGRESS_DELAY_US: Final = 1000
"""NIXL's progress thread sleeps this long between looks; by default it spins on a whole core."""

NICENESS: Final = 19

QUEUE_REST_S: Final = 0.0001
"""Between two looks of a process that waits for another one of its engine."""

THREAD_ENV: Final = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
"""Needed while the libraries load: a process that has started threads must not be forked."""

ENGINE_ENV: Final = {
    **THREAD_ENV,
    # Several ranks each compile vLLM's embedding in C++ at their first pass, half a minute of both
    # cores, whatever `--enforce-eager` says.
    "TORCH_COMPILE_DISABLE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "UCX_NET_DEVICES": "lo",
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
}

ENGINE_FLAGS: Final = (
    "--enforce-eager",
    "--max-model-len=4096",
    "--max-num-seqs=16",
)


def layout_env(layout: str) -> dict[str, str]:
    """`uni`: scheduler and worker in one process, as with one GPU. `mp`: a process each."""
    return {"VLLM_ENABLE_V1_MULTIPROCESSING": "0" if layout == "uni" else "1"}


def layout_flags(layout: str) -> tuple[str, ...]:
    """The executor that goes with `layout_env`."""
    return (f"--distributed-executor-backend={layout}",)


def apply() -> None:
    """All remedies, in the engine's own process."""
    give_way()
    calm_progress_thread()
    keep_affinity()
    fork_workers()
    inspect_model_here()
    keep_heap_frozen()
    keep_logging()
    name_shared_memory()
    rest_while_waiting()


def give_way() -> None:
    """Let router, client and collector run first: elsewhere no forward pass is in their way."""
    os.nice(NICENESS)


def calm_progress_thread() -> None:
    """Make NIXL's progress thread sleep between looks; its Python API insists on a delay of 0.

    Switching the thread off would not do: a READ from an idle engine then never completes.
    """
    # vLLM sets this before it imports nixl; we import it first.
    os.environ.setdefault("UCX_RCACHE_MAX_UNRELEASED", "1024")
    try:
        import nixl._api as api
    except ImportError:
        return
    config: Any = api.nixlBind.nixlAgentConfig

    class PatientConfig(config):  # type: ignore[misc]
        """The agent configuration, deaf to the hard-coded delay."""

        def __setattr__(self, name: str, value: object) -> None:
            super().__setattr__(name, PROGRESS_DELAY_US if name == "pthrDelay" else value)

    api.nixlBind.nixlAgentConfig = PatientConfig


def keep_affinity() -> None:
    """Leave every thread on all cores: vLLM's NIXL worker pins itself to the last one."""
    os.sched_setaffinity = lambda pid, mask: None


def fork_workers() -> None:
    """Fork EngineCore and workers: on CPU vLLM insists on spawn, six seconds of imports each."""
    import multiprocessing
    from types import SimpleNamespace

    from vllm.utils import system_utils

    fork = multiprocessing.get_context("fork")
    system_utils.multiprocessing = SimpleNamespace(get_context=lambda method: fork)
    os.register_at_fork(after_in_child=_end_like_a_spawned_process)


def _end_like_a_spawned_process() -> None:
    """Run exit handlers also in a forked worker, but not those of the process it came from.

    Where they are spawned, as outside of this rig, telemetry can rely on them.
    """
    import atexit
    import multiprocessing.util as util

    atexit._clear()
    # Registered now it would be forgotten: a starting process drops what it inherited.
    util.register_after_fork(
        atexit, lambda module: util.Finalize(None, module._run_exitfuncs, exitpriority=-1)
    )


def inspect_model_here() -> None:
    """Look at the model class in this process; vLLM starts an interpreter, 15 s when cold."""
    from vllm.model_executor.models import registry

    registry._run_in_subprocess = lambda inspect: inspect()


def keep_heap_frozen() -> None:
    """Never walk the objects that the engine server froze: that copies all of its pages.

    vLLM unfreezes before its collections at shutdown, which then take three seconds.
    """
    gc.unfreeze = lambda: None


def keep_logging() -> None:
    """Log as the engine server was told to when it imported vLLM.

    To set it up again Python clears the caches of a thousand loggers a thousand times.
    """
    os.environ.setdefault("VLLM_CONFIGURE_LOGGING", "0")


def name_shared_memory() -> None:
    """Give shared memory names that tell whose it is: a killed engine cannot remove its own."""
    from multiprocessing import shared_memory

    from pdtrace.connector.process_tree import shared_memory_prefix

    prefix = shared_memory_prefix(os.getsid(0))
    namer: Any = shared_memory
    namer._make_filename = lambda: f"/{prefix}{secrets.token_hex(4)}"


def rest_while_waiting() -> None:
    """Sleep between looks into vLLM's shared-memory queues (`mp`) instead of yielding the core.

    A loop of `sched_yield` in several processes on two cores keeps all others from running, of
    whatever niceness, for a second at a time and now and then for half a minute (Linux 6.18).
    """
    from vllm.distributed.device_communicators import shm_broadcast

    queues: Any = shm_broadcast
    queues.sched_yield = lambda: time.sleep(QUEUE_REST_S)
