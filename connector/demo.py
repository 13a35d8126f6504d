"""The demo's run: a small mixed workload through a real cluster in one mode after the other."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn

from pdtrace.connector.cluster import Cluster, ClusterError
from pdtrace.connector.cluster_settings import ClusterSettings, Mode, server_env
from pdtrace.connector.processes import EngineServer
from pdtrace.connector.workload import (
    WorkloadRequest,
    WorkloadResult,
    mixed_prompts,
    run_workload,
)

MODES: Final[tuple[Mode, ...]] = ("push", "pull")
_SEED: Final = 7
_SHORT_WORDS: Final = 12
_LONG_WORDS: Final = 80
_OUTPUT_TOKENS: Final = 16
_KV_CACHE: Final = "2G"
_CHECK_S: Final = 0.5
_THINK_S: Final = 0.05
"""Without a pause a caller's next request meets the router busy with the end of its last one."""
_ENGINE_END_S: Final = 10.0
"""A client may hear of an engine's death before its last process has ended."""


@dataclass(frozen=True, slots=True)
class DemoRun:
    """One mode's run: where its spans are, and what the client saw."""

    mode: Mode
    store: Path
    results: Sequence[WorkloadResult]


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoSettings:
    """Size of the demo; logs and stores go to `directory/<mode>`."""

    directory: Path
    model: str = "large-kv"
    requests: int = 24
    concurrency: int = 3


Progress = Callable[[str, int, int], None]
"""`progress(what, done, of)`: called when something starts (0 of n) and for each step of it."""


def run_demo(settings: DemoSettings, progress: Progress) -> list[DemoRun]:
    """Run every mode on a cluster of its own; engines are forked from one server.

    Raises `ClusterError`. Nothing is left running, however this ends.
    """
    progress("importing vLLM once", 0, 1)
    settings.directory.mkdir(parents=True, exist_ok=True)
    log = settings.directory / "engine-server.log"
    with EngineServer(log, {**ClusterSettings().base_env(None), **server_env()}) as server:
        return [_run_mode(settings, mode, server, progress) for mode in MODES]


def _run_mode(
    settings: DemoSettings, mode: Mode, server: EngineServer, progress: Progress
) -> DemoRun:
    directory = settings.directory / mode
    cluster = Cluster(
        ClusterSettings(
            mode=mode,
            model=settings.model,
            run_dir=directory,
            kv_cache=_KV_CACHE,
            prefix_caching=False,
        ),
        server,
    )
    progress(f"{mode}: starting prefill, decode, router, collector", 0, 1)
    with cluster:
        requests = demo_requests(mode, cluster.model, settings.requests)
        # The first request alone: it teaches the router P's identity and pays for the handshakes.
        results = _serve(cluster, requests[:1], 1, f"{mode}: first request", progress)
        rest = requests[1:]
        results += _serve(cluster, rest, settings.concurrency, f"{mode}: requests", progress)
        progress(f"{mode}: stopping, spans are flushed", 0, 1)
    return DemoRun(mode, cluster.store, results)


def demo_requests(mode: str, model: str, count: int) -> list[WorkloadRequest]:
    """Short and long prompts at random, the same in every mode; ids name the mode."""
    prompts = mixed_prompts(_SEED, count, _SHORT_WORDS, _LONG_WORDS)
    return [
        WorkloadRequest(
            model=model,
            max_tokens=_OUTPUT_TOKENS,
            prompt=prompt,
            request_id=f"demo-{mode}-{number:03d}",
            ignore_eos=True,
        )
        for number, prompt in enumerate(prompts)
    ]


def _serve(
    cluster: Cluster,
    requests: Sequence[WorkloadRequest],
    concurrency: int,
    what: str,
    progress: Progress,
) -> list[WorkloadResult]:
    """All requests through the router; an engine that dies ends it with its log's name."""
    done = 0
    progress(what, 0, len(requests))

    def on_done(_: WorkloadResult) -> None:
        nonlocal done
        done += 1
        progress(what, done, len(requests))

    async def serve() -> list[WorkloadResult]:
        assert cluster.router_url is not None
        load = asyncio.ensure_future(
            run_workload(cluster.router_url, requests, concurrency, on_done, think_s=_THINK_S)
        )
        try:
            while not load.done():
                await asyncio.wait({load}, timeout=_CHECK_S)
                cluster.check()
            return load.result()
        finally:
            load.cancel()

    results = asyncio.run(serve())
    failed = [result for result in results if not result.ok]
    if failed:
        _explain(cluster, failed[0])
    return results


def _explain(cluster: Cluster, failed: WorkloadResult) -> NoReturn:
    """Raise ClusterError: an engine that ended, if one did, else what the client was told."""
    deadline = time.monotonic() + _ENGINE_END_S
    while time.monotonic() < deadline:
        cluster.check()
        time.sleep(_CHECK_S / 5)
    raise ClusterError(
        f"request {failed.request_id} failed: {failed.error} (logs: {cluster.run_dir})"
    )
