"""The same engines with and without tracing, switched while they run.

Of two clusters with our connectors one has its hooks on, the other off (`switch_hooks`), and then
the other way round. So neither the machine's speed nor what distinguishes one start of a process
from another is in the ratio: both are in its numerator and in its denominator. They work side by
side on the same cores, which tells their CPU, and in turns, which tells their latencies.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import repeat
from pathlib import Path
from statistics import geometric_mean
from time import sleep
from typing import Final

from arms import CPU, METRICS, OURS, Bench, Sample, cpu_ns, interval, less, pin, serve, settings

from pdtrace.connector.cluster import Cluster
from pdtrace.connector.cluster_settings import ClusterSettings
from pdtrace.connector.workload import mixed_prompts
from pdtrace.tracing.settings import Settings

HOOKS = Path(__file__).with_name("switch_hooks.py")
REST_S = Settings().send_every_s + 1.5
"""After the last answer of a block: until all that it left has been made and sent."""
Block = tuple[Sample, Sample]
"""What the two clusters gave."""
Blocks = tuple[Block, Block]
"""With the hooks of the first cluster on, and with those of the other."""
BESIDE: Final = "beside_"


class Switch:
    """The byte that says whether one cluster's hooks are on."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.write_bytes(b"\x01")

    def turn(self, on: bool) -> None:
        with self.path.open("r+b") as file:
            file.write(bytes([on]))


def switchable(bench: Bench, run_dir: Path, switch: Switch) -> ClusterSettings:
    """Our connectors, with hooks that go on and off."""
    plain = settings(OURS, bench.mode, bench.layout, run_dir)
    env = {**plain.env, "PDTRACE_BENCHMARK_SWITCH": str(switch.path)}
    return replace(plain, env=env, engine_setup=HOOKS)


def side_by_side(clusters: Sequence[Cluster], prompts: Sequence[str], tokens: int) -> Block:
    """Both serve the same prompts on the same cores, beginning each together.

    Their rest afterwards is counted too.
    """
    return _block(clusters, prompts, tokens, ThreadPoolExecutor(2))


def in_turns(clusters: Sequence[Cluster], prompts: Sequence[str], tokens: int) -> Block:
    """The same, but each prompt is served by one of them after the other."""
    return _block(clusters, prompts, tokens, ThreadPoolExecutor(1))


def _block(
    clusters: Sequence[Cluster], prompts: Sequence[str], tokens: int, threads: ThreadPoolExecutor
) -> Block:
    """Each prompt is begun by the one or the other first, by turns."""
    samples = (Sample(), Sample())

    def work(which: int, prompt: str) -> None:
        serve(clusters[which], prompt, tokens, samples[which])

    before = [cpu_ns(cluster) for cluster in clusters]
    with threads as pool:
        for number, prompt in enumerate(prompts):
            order = (0, 1) if number % 2 == 0 else (1, 0)
            list(pool.map(work, order, repeat(prompt, 2)))
    sleep(REST_S)
    for cluster, sample, spent in zip(clusters, samples, before, strict=True):
        sample.cpu_ns = less(cpu_ns(cluster), spent)
    return samples


def stored(cluster: Cluster) -> int:
    """Bytes of the spans that have arrived from a cluster."""
    return sum(file.stat().st_size for file in cluster.store.rglob("*") if file.is_file())


def demand_spans(on: int, off: int) -> None:
    """Raises RuntimeError unless what is compared is what it is called: stored bytes of a block."""
    if on == 0 or off > on / 10:
        raise RuntimeError(f"{on} bytes of spans came with hooks on, {off} with hooks off")


def ratio(blocks: Blocks, metric: str) -> float:
    """On to off: in the first block the first cluster's hooks were on, in the second the other's.

    Whatever makes one cluster dearer than the other is in both, once in each direction.
    """
    (first_on, first_off), (second_off, second_on) = blocks
    values = [(first_on, first_off), (second_on, second_off)]
    return geometric_mean(on.value(metric) / off.value(metric) for on, off in values)


def summarize(together: Sequence[Blocks], turns: Sequence[Blocks]) -> dict[str, object]:
    """Ratios by metric, and how many requests were traced for each.

    CPU is that of clusters side by side, TTFT and TPOT are those of clusters in turns. With the
    prefix `BESIDE` all of them are of clusters side by side.
    """
    found: dict[str, object] = {"pairs": len(turns)}
    for metric in METRICS:
        beside = interval([ratio(blocks, metric) for blocks in together])
        alone = interval([ratio(blocks, metric) for blocks in turns])
        found[f"{metric}_ratio"] = beside if metric in CPU else alone
        found[f"{BESIDE}{metric}_ratio"] = beside
    found["requests_per_arm"] = sum(len(block[0].ttft_ns) for blocks in turns for block in blocks)
    return found


def measure(bench: Bench, count: int, run_dir: Path) -> dict[str, object]:
    """`count` pairs of blocks, in the order ABBA: every second pair begins the other way round."""
    load = bench.load
    run_dir.mkdir(parents=True)
    switches = [Switch(run_dir / f"switch-{number}") for number in (0, 1)]
    one, other = (
        switchable(bench, run_dir / str(number), switch) for number, switch in enumerate(switches)
    )
    together: list[Blocks] = []
    turns: list[Blocks] = []
    with Cluster(one, bench.server) as first, Cluster(other, bench.server) as second:
        clusters = (first, second)
        prompts = mixed_prompts(count, load.requests, load.short, load.long)
        for cluster in clusters:
            pin(cluster)
        side_by_side(clusters, prompts[: load.warm_up], load.tokens)
        for number in range(count):
            blocks: dict[bool, tuple[Block, Block]] = {}
            for on in (True, False) if number % 2 == 0 else (False, True):
                switches[0].turn(on)
                switches[1].turn(not on)
                before = [stored(cluster) for cluster in clusters]
                blocks[on] = (
                    side_by_side(clusters, prompts, load.tokens),
                    in_turns(clusters, prompts, load.tokens),
                )
                came = [stored(c) - size for c, size in zip(clusters, before, strict=True)]
                demand_spans(*(came if on else reversed(came)))
            together.append((blocks[True][0], blocks[False][0]))
            turns.append((blocks[True][1], blocks[False][1]))
            ratios = ", ".join(
                f"{m} {ratio((together if m in CPU else turns)[-1], m):.4f}" for m in METRICS
            )
            bench.told(f"pair {number + 1} of {count}: {ratios}")
    return summarize(together, turns)
