"""Runs of real engines, each made once a session and kept as what the client and the store saw."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from traces import Traces

from pdtrace.connector.cluster import Cluster
from pdtrace.connector.cluster_settings import ClusterSettings, Layout, Mode
from pdtrace.connector.processes import EngineServer
from pdtrace.connector.workload import (
    WorkloadRequest,
    WorkloadResult,
    mixed_prompts,
    run_workload,
)

REQUESTS = 6
OUTPUT_TOKENS = 12


@dataclass(frozen=True)
class Arm:
    """What distinguishes one run: `traced` as in `ClusterSettings`."""

    mode: Mode
    layout: Layout = "uni"
    traced: bool | Literal["plugin"] = True
    engines: int = 1

    def __str__(self) -> str:
        names = {True: "traced", False: "untraced", "plugin": "plugin"}
        return f"{self.mode}-{self.layout}-{names[self.traced]}-{self.engines}x{self.engines}"


@dataclass(frozen=True, kw_only=True)
class Run(Traces):
    """A finished run: the client's results and what the store holds."""

    arm: Arm
    store: Path
    results: Sequence[WorkloadResult]


class Runs:
    """Makes runs on demand, one cluster at a time, engines forked from one server."""

    def __init__(self, directory: Path, server: EngineServer) -> None:
        self._directory = directory
        self._server = server
        self._made: dict[Arm, Run] = {}

    def get(self, arm: Arm) -> Run:
        """The run of an arm."""
        if arm not in self._made:
            self._made[arm] = self._make(arm)
        return self._made[arm]

    def _make(self, arm: Arm) -> Run:
        directory = self._directory / str(arm)
        settings = ClusterSettings(
            mode=arm.mode,
            layout=arm.layout,
            traced=arm.traced,
            prefills=arm.engines,
            decodes=arm.engines,
            run_dir=directory,
            prefix_caching=False,
        )
        with Cluster(settings, self._server) as cluster:
            url = cluster.router_url or cluster.engines[0].url
            requests = workload(cluster.model)
            # One by one until router and engines know each other, then several at once.
            results = asyncio.run(run_workload(url, requests[:2], 1))
            results += asyncio.run(run_workload(url, requests[2:], 2))
            store = cluster.store
        if not arm.traced:
            return Run(records=(), splits={}, arm=arm, store=store, results=results)
        return Run.of(store, arm=arm, store=store, results=results)


def workload(model: str) -> list[WorkloadRequest]:
    """Short and long prompts, completions and (the last one) a chat; the same in every run."""
    prompts = mixed_prompts(3, REQUESTS, 8, 60)
    requests = [
        WorkloadRequest(
            model=model, max_tokens=OUTPUT_TOKENS, prompt=prompt, request_id=f"run-{number}"
        )
        for number, prompt in enumerate(prompts[:-1])
    ]
    chat = WorkloadRequest(
        model=model,
        max_tokens=OUTPUT_TOKENS,
        messages=({"role": "user", "content": prompts[-1]},),
        request_id=f"run-{REQUESTS - 1}",
    )
    return [*requests, chat]
