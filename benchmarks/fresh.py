"""Engines with and without tracing, each in fresh processes: pdtrace, and vLLM's own spans.

A round has four pairs of clusters of one prefill and one decode engine: untraced beside pdtrace,
pdtrace beside untraced, and the same with vLLM's `--otlp-traces-endpoint`. Both clusters of a pair
work at the same time on the same cores. Which one starts first may make it dearer or cheaper; the
ratio of a round is therefore the geometric mean over both orders. From the same pairs comes the
ratio of the first cluster to the second one, in which tracing cancels: what a difference of nothing
looks like.

What differs from one start to the next outweighs what differs from one request to the next, so
there are many rounds of few requests. The same load runs before the counted requests, until
everything is warm and spans are exported at the usual pace, and after them until the other cluster
has done its part: exports of what came before stand for those of what comes at the end.
"""

import itertools
import statistics
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from arms import (
    METRICS,
    OURS,
    PLAIN,
    VLLM,
    Bench,
    Load,
    Sample,
    cpu_ns,
    interval,
    less,
    pin,
    serve,
    settings,
)

from pdtrace.connector.cluster import Cluster
from pdtrace.connector.workload import mixed_prompts

PAIRS: Final = ((PLAIN, OURS), (OURS, PLAIN), (PLAIN, VLLM), (VLLM, PLAIN))
"""Of a round; the first one named starts first."""
PREFIXES: Final = {OURS: "fresh_", VLLM: "vllm_", PLAIN: "place_"}
"""Of the keys of a ratio."""
FEW: Final = Load(requests=8, warm_up=4)
"""For each start of a cluster."""


def work(cluster: Cluster, load: Load, prompts: Sequence[str], ended: list[Cluster]) -> Sample:
    """Warm up, the counted requests, and then more of them until both clusters have `ended`."""
    sample = Sample()
    try:
        for prompt in prompts[: load.warm_up]:
            serve(cluster, prompt, load.tokens, Sample())
        before = cpu_ns(cluster)
        for prompt in prompts[load.warm_up :]:
            serve(cluster, prompt, load.tokens, sample)
        sample.cpu_ns = less(cpu_ns(cluster), before)
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


def summarize(rounds: Sequence[Round]) -> dict[str, object]:
    """Ratios to untraced by who traces and metric, and what an untraced request costs."""
    found: dict[str, object] = {"rounds": len(rounds)}
    for arm, prefix in PREFIXES.items():
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
    found["fresh_requests_per_arm"] = sum(len(sample.ttft_ns) for sample in ours)
    return found


def one_round(bench: Bench, run_dir: Path, seed: int) -> Round:
    """Every pair once."""
    found = {}
    for pair in PAIRS:
        where = run_dir / "-".join(pair)
        one, other = (settings(arm, bench.mode, bench.layout, where) for arm in pair)
        with Cluster(one, bench.server) as first, Cluster(other, bench.server) as second:
            found[pair] = work_side_by_side(first, second, FEW, seed)
    return found


def measure(bench: Bench, count: int, run_dir: Path) -> dict[str, object]:
    """All rounds."""
    rounds: list[Round] = []
    for number in range(count):
        rounds.append(one_round(bench, run_dir / str(number), number))
        for arm, prefix in PREFIXES.items():
            ratios = ", ".join(f"{m} {ratio(rounds[-1], arm, m):.4f}" for m in METRICS)
            bench.told(f"round {number + 1} of {count}, {prefix}: {ratios}")
    return summarize(rounds)
