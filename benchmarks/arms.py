"""What the measurements of `overhead.py` share: load, samples, CPU time, intervals."""

import asyncio
import contextlib
import math
import os
import secrets
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pdtrace.connector.cluster import Cluster
from pdtrace.connector.cluster_settings import ClusterSettings, Layout, Mode
from pdtrace.connector.process_tree import members
from pdtrace.connector.processes import EngineServer
from pdtrace.connector.workload import WorkloadRequest, run_workload
from pdtrace.tracing.settings import Settings, variable

OURS, VLLM, PLAIN = "pdtrace", "vllm", "untraced"
DEFAULTS: Final = {variable("send_every_s"): str(Settings().send_every_s)}
"""As in production; a local cluster sends more often."""
CPU: Final = ("cpu", "main_cpu", "all_cpu")
METRICS: Final = (*CPU, "ttft", "tpot")
_T_975: Final = {
    2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365, 9: 2.306, 10: 2.262,
    11: 2.228, 12: 2.201, 13: 2.179, 14: 2.160, 15: 2.145, 16: 2.131, 20: 2.093, 30: 2.045,
}  # fmt: skip
"""97.5 % quantile of Student's t by number of rounds."""


@dataclass(frozen=True)
class Load:
    """What each cluster gets: prompts of `short` to `long` words, `tokens` generated."""

    requests: int = 24
    warm_up: int = 10
    short: int = 24
    long: int = 160
    tokens: int = 32


@dataclass
class Sample:
    """What the counted requests of one cluster gave."""

    cpu_ns: dict[str, int] = field(default_factory=dict)
    """As `cpu_ns` counts it."""
    ttft_ns: list[int] = field(default_factory=list)
    tpot_ns: list[float] = field(default_factory=list)

    def value(self, metric: str) -> float:
        """CPU nanoseconds per request; geometric mean of TTFT and of TPOT, in nanoseconds."""
        if metric in CPU:
            return self.cpu_ns[metric] / len(self.ttft_ns)
        return statistics.geometric_mean(self.ttft_ns if metric == "ttft" else self.tpot_ns)


@dataclass(frozen=True)
class Bench:
    """What all measurements run on; `told` gets a line now and then."""

    server: EngineServer
    mode: Mode
    layout: Layout
    load: Load
    told: Callable[[str], None]


def settings(arm: str, mode: Mode, layout: Layout, run_dir: Path) -> ClusterSettings:
    """The arms differ in nothing but who traces."""
    return ClusterSettings(
        mode=mode,
        layout=layout,
        traced=arm == OURS,
        router_traced=False,
        engine_spans=arm == VLLM,
        env={"PDTRACE": "1" if arm == OURS else "0", **DEFAULTS},
        prefix_caching=False,
        run_dir=run_dir / arm,
    )


def process_cpu_ns(pid: int) -> int:
    """CPU time of a whole process, threads that ended included (see clock_getcpuclockid(3))."""
    return time.clock_gettime_ns((~pid << 3) | 2)


def pin(cluster: Cluster) -> None:
    """Bind every thread of a cluster's engines to one core; those that start later inherit it."""
    cores = sorted(os.sched_getaffinity(0))
    for engine in cluster.engines:
        core = cores[0] if engine in cluster.prefills else cores[-1]
        for pid in members(engine.process.pid):
            for task in Path(f"/proc/{pid}/task").iterdir():
                with contextlib.suppress(ProcessLookupError):  # a thread that has ended since
                    os.sched_setaffinity(int(task.name), {core})


def main_thread_cpu_ns(pid: int) -> int:
    """CPU time of a process's first thread, on which an engine schedules and computes."""
    return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0])


def cpu_ns(cluster: Cluster) -> dict[str, int]:
    """CPU time so far of a cluster's engines: `cpu` of EngineCore and workers, `main_cpu` of their
    first threads alone, `all_cpu` with the API servers, which lead each engine's processes.
    """
    spent = dict.fromkeys(CPU, 0)
    for engine in cluster.engines:
        for pid in members(engine.process.pid):
            every = process_cpu_ns(pid)
            spent["all_cpu"] += every
            if pid != engine.process.pid:
                spent["cpu"] += every
                spent["main_cpu"] += main_thread_cpu_ns(pid)
    return spent


def less(later: dict[str, int], earlier: dict[str, int]) -> dict[str, int]:
    """What was spent in between."""
    return {name: later[name] - earlier[name] for name in CPU}


def serve(cluster: Cluster, prompt: str, tokens: int, sample: Sample) -> None:
    """One request; raises RuntimeError if it fails."""
    assert cluster.router_url is not None
    request = WorkloadRequest(
        model=cluster.model,
        max_tokens=tokens,
        prompt=prompt,
        ignore_eos=True,
        traceparent=f"00-{secrets.token_hex(16)}-{secrets.token_hex(8)}-01",
    )
    (result,) = asyncio.run(run_workload(cluster.router_url, [request], 1))
    if not result.ok or result.ttft_ns is None:
        raise RuntimeError(f"request {result.request_id} failed: {result.error}")
    sample.ttft_ns.append(result.ttft_ns)
    sample.tpot_ns.append((result.e2e_ns - result.ttft_ns) / (result.token_count - 1))


def interval(ratios: list[float]) -> dict[str, float]:
    """Geometric mean of independent ratios and its 95 % interval by Student's t on logarithms."""
    logs = [math.log(ratio) for ratio in ratios]
    middle = statistics.fmean(logs)
    # With a number of rounds that the table lacks, the next smaller one's wider quantile.
    t = _T_975[max(n for n in _T_975 if n <= len(logs))]
    half = t * statistics.stdev(logs) / math.sqrt(len(logs))
    return {
        "low": math.exp(middle - half), "mid": math.exp(middle), "high": math.exp(middle + half),
    }  # fmt: skip
