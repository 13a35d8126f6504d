"""What tracing costs a serving pair: the same requests traced, untraced, and with vLLM's own spans.

    python benchmarks/overhead.py [--json] [--rounds 6] [--mode push] [--layout uni]

A round has four pairs of clusters of one prefill and one decode engine, all of fresh processes:
untraced beside pdtrace, pdtrace beside untraced, and the same with vLLM's `--otlp-traces-endpoint`.
Both clusters of a pair work at the same time on the same cores, each on one request after the other
out of the same list. So neither is ever idle, and a machine whose speed changes from second to
second, or that others use too, is as fast for both. One request at a time is the dearest case:
nobody shares the cost of a step. Both prefill engines run on the first core and both decode engines
on the last; TTFT and TPOT are therefore those of a machine with two tenants.

What is measured is the connector. The router is the same for all and sends no spans, as one that
knows nothing of pdtrace; the client begins a trace with each request, as a gateway does.

CPU is that of EngineCore and worker processes from the first counted request to the last answer.
The same load runs before that, until everything is warm and spans are exported at the usual pace,
and after it until the other cluster has done its part: exports of what came before stand for those
of what comes at the end. `all_cpu` counts the API servers as well, where vLLM's own spans are made.

Which cluster starts first may make it dearer or cheaper; the ratio of a round is therefore the
geometric mean over both orders. From the same two pairs comes the ratio of the first cluster to the
second one, in which tracing cancels: what a difference of nothing looks like. Printed is the
geometric mean over rounds with its 95 % t-interval.
"""

import argparse
import asyncio
import contextlib
import itertools
import json
import math
import os
import secrets
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pdtrace.connector.cluster import Cluster
from pdtrace.connector.cluster_settings import ClusterSettings, Layout, Mode, server_env
from pdtrace.connector.process_tree import members
from pdtrace.connector.processes import EngineServer
from pdtrace.connector.workload import WorkloadRequest, mixed_prompts, run_workload
from pdtrace.tracing.settings import Settings, variable

OURS, VLLM, PLAIN = "pdtrace", "vllm", "untraced"
PAIRS: Final = ((PLAIN, OURS), (OURS, PLAIN), (PLAIN, VLLM), (VLLM, PLAIN))
"""Of a round; the first one named starts first."""
DEFAULTS: Final = {variable("send_every_s"): str(Settings().send_every_s)}
"""As in production; a local cluster sends more often."""
METRICS: Final = ("cpu", "all_cpu", "ttft", "tpot")
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

    cpu_ns: int = 0
    all_cpu_ns: int = 0
    ttft_ns: list[int] = field(default_factory=list)
    tpot_ns: list[float] = field(default_factory=list)

    def value(self, metric: str) -> float:
        """CPU nanoseconds per request; geometric mean of TTFT and of TPOT, in nanoseconds."""
        if metric in ("cpu", "all_cpu"):
            spent = self.cpu_ns if metric == "cpu" else self.all_cpu_ns
            return spent / len(self.ttft_ns)
        return statistics.geometric_mean(self.ttft_ns if metric == "ttft" else self.tpot_ns)


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


def cpu_ns(cluster: Cluster, api_servers: bool) -> int:
    """CPU time so far of a cluster's engines; the leader of each one's processes serves the API."""
    return sum(
        process_cpu_ns(pid)
        for engine in cluster.engines
        for pid in members(engine.process.pid)
        if api_servers or pid != engine.process.pid
    )


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


def work(cluster: Cluster, load: Load, prompts: Sequence[str], ended: list[Cluster]) -> Sample:
    """Warm up, the counted requests, and then more of them until both clusters have `ended`."""
    sample = Sample()
    try:
        for prompt in prompts[: load.warm_up]:
            serve(cluster, prompt, load.tokens, Sample())
        sample.cpu_ns = -cpu_ns(cluster, api_servers=False)
        sample.all_cpu_ns = -cpu_ns(cluster, api_servers=True)
        for prompt in prompts[load.warm_up :]:
            serve(cluster, prompt, load.tokens, sample)
        sample.cpu_ns += cpu_ns(cluster, api_servers=False)
        sample.all_cpu_ns += cpu_ns(cluster, api_servers=True)
    finally:
        ended.append(cluster)
    for prompt in itertools.cycle(prompts):
        if len(ended) == 2:
            break
        serve(cluster, prompt, load.tokens, Sample())
    return sample


Pair = tuple[Sample, Sample]
"""What two clusters gave that worked at the same time, in the order in which they started."""
Round = Mapping[tuple[str, str], Pair]
"""By the arms of a pair, as in `PAIRS`."""


def work_side_by_side(first: Cluster, second: Cluster, load: Load, seed: int) -> Pair:
    """The same prompts to both."""
    prompts = mixed_prompts(seed, load.warm_up + load.requests, load.short, load.long)
    pin(first)
    pin(second)
    ended: list[Cluster] = []
    with ThreadPoolExecutor(2) as pool:
        one, other = (pool.submit(work, c, load, prompts, ended) for c in (first, second))
    return one.result(), other.result()


def ratio(found: Round, arm: str, metric: str) -> float:
    """Of a traced arm to the untraced one, over both orders; of PLAIN: of the first place to the
    second one, which should be 1."""
    if arm == PLAIN:
        pairs = [found[PLAIN, OURS], found[OURS, PLAIN]]
    else:
        pairs = [found[PLAIN, arm][::-1], found[arm, PLAIN]]
    return statistics.geometric_mean(one.value(metric) / two.value(metric) for one, two in pairs)


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


def summarize(rounds: Sequence[Round]) -> dict[str, object]:
    """Ratios to untraced by who traces and metric, and what an untraced request costs."""
    found: dict[str, object] = {"rounds": len(rounds)}
    for arm, prefix in _PREFIXES.items():
        for metric in METRICS:
            ratios = [ratio(one, arm, metric) for one in rounds]
            found[f"{prefix}{metric}_ratio"] = interval(ratios)
    plain = [
        sample
        for one in rounds
        for arms, pair in one.items()
        for arm, sample in zip(arms, pair, strict=True)
        if arm == PLAIN
    ]
    for metric in METRICS:
        values = [sample.value(metric) for sample in plain]
        found[f"untraced_{metric}_ms"] = statistics.median(values) / 1e6
    ours = [sample for one in rounds for sample in (one[PLAIN, OURS][1], one[OURS, PLAIN][0])]
    found["requests_per_arm"] = sum(len(sample.ttft_ns) for sample in ours)
    return found


_PREFIXES: Final = {OURS: "", VLLM: "vllm_", PLAIN: "place_"}
"""Of the keys of a ratio."""
_WORDS: Final = {OURS: "pdtrace", VLLM: "vLLM's own spans", PLAIN: "nothing, first to second place"}


def as_text(found: dict[str, object]) -> str:
    """A small table."""
    lines = [f"ratio to untraced, {found['rounds']} rounds, {found['requests_per_arm']} requests"]
    lines.append(f"{'':<42}{'low':>9}{'mid':>9}{'high':>9}")
    for arm, prefix in _PREFIXES.items():
        for metric in METRICS:
            one = found[f"{prefix}{metric}_ratio"]
            assert isinstance(one, dict)
            cells = "".join(f"{one[key]:>9.4f}" for key in ("low", "mid", "high"))
            lines.append(f"{f'{_WORDS[arm]}: {metric}':<42}{cells}")
    untraced = ", ".join(f"{m} {found[f'untraced_{m}_ms']:.2f} ms" for m in METRICS)
    return "\n".join([*lines, f"untraced, per request: {untraced}"])


def one_round(
    server: EngineServer, mode: Mode, layout: Layout, run_dir: Path, load: Load, seed: int
) -> Round:
    """Every pair once."""
    found = {}
    for pair in PAIRS:
        one, other = (settings(arm, mode, layout, run_dir / "-".join(pair)) for arm in pair)
        with Cluster(one, server) as first, Cluster(other, server) as second:
            found[pair] = work_side_by_side(first, second, load, seed)
    return found


def measure(
    mode: Mode, layout: Layout, count: int, load: Load, told: Callable[[str], None]
) -> dict[str, object]:
    """All rounds; raises RuntimeError if a request fails, since then nothing is comparable."""
    rounds: list[Round] = []
    with tempfile.TemporaryDirectory(prefix="pdtrace-overhead-") as scratch:
        run_dir = Path(scratch)
        env = {**ClusterSettings().base_env(None), **server_env()}
        with EngineServer(run_dir / "engine-server.log", env) as server:
            for number in range(count):
                where = run_dir / str(number)
                rounds.append(one_round(server, mode, layout, where, load, number))
                for arm in _PREFIXES:
                    ratios = ", ".join(f"{m} {ratio(rounds[-1], arm, m):.4f}" for m in METRICS)
                    told(f"round {number + 1} of {count}, {_WORDS[arm]}: {ratios}")
    return {"mode": mode, "layout": layout, **summarize(rounds)}


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--json", action="store_true", help="one JSON object instead of text")
    parser.add_argument("--rounds", type=int, default=6, help="rounds of fresh processes (>= 2)")
    parser.add_argument("--mode", choices=("push", "pull"), default="push")
    parser.add_argument("--layout", choices=("uni", "mp"), default="uni")
    given = parser.parse_args()
    if given.rounds < 2:
        parser.error("an interval over rounds needs two of them")
    found = measure(
        given.mode, given.layout, given.rounds, Load(), lambda line: print(line, file=sys.stderr)
    )
    print(json.dumps(found) if given.json else as_text(found))


if __name__ == "__main__":
    main()
