"""The same engines with and without tracing, switched while they run.

Two clusters with our connectors work at the same time on the same cores; in one of them the hooks
are on, in the other off (`switch_hooks`), and then the other way round. So neither the machine's
speed nor what distinguishes one start of a process from another is in the ratio: both are in its
numerator and in its denominator.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from statistics import geometric_mean
from time import sleep

from arms import METRICS, OURS, Bench, Sample, cpu_ns, interval, less, pin, serve, settings

from pdtrace.connector.cluster import Cluster
from pdtrace.connector.cluster_settings import ClusterSettings
from pdtrace.connector.workload import mixed_prompts
from pdtrace.tracing.settings import Settings

HOOKS = Path(__file__).with_name("switch_hooks.py")
REST_S = Settings().send_every_s + 1.5
"""After the last answer of a block: until all that it left has been made and sent."""
Block = tuple[Sample, Sample]
"""What the two clusters gave that worked at the same time."""


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


def one_block(clusters: Sequence[Cluster], prompts: Sequence[str], tokens: int) -> Block:
    """Both serve the same prompts, one after the other; their rest afterwards is counted too."""
    samples = (Sample(), Sample())

    def work(cluster: Cluster, sample: Sample) -> None:
        for prompt in prompts:
            serve(cluster, prompt, tokens, sample)

    before = [cpu_ns(cluster) for cluster in clusters]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(work, clusters, samples))
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


def ratio(blocks: tuple[Block, Block], metric: str) -> float:
    """On to off: in the first block the first cluster's hooks were on, in the second the other's.

    Whatever makes one cluster dearer than the other is in both, once in each direction.
    """
    (first_on, first_off), (second_off, second_on) = blocks
    values = [(first_on, first_off), (second_on, second_off)]
    return geometric_mean(on.value(metric) / off.value(metric) for on, off in values)


def summarize(pairs: Sequence[tuple[Block, Block]]) -> dict[str, object]:
    """Ratios by metric, and how many requests were traced for them."""
    found: dict[str, object] = {"pairs": len(pairs)}
    for metric in METRICS:
        found[f"{metric}_ratio"] = interval([ratio(blocks, metric) for blocks in pairs])
    found["requests_per_arm"] = sum(len(block[0].ttft_ns) for blocks in pairs for block in blocks)
    return found


def measure(bench: Bench, count: int, run_dir: Path) -> dict[str, object]:
    """`count` pairs of blocks, in the order ABBA: every second pair begins the other way round."""
    load = bench.load
    run_dir.mkdir(parents=True)
    switches = [Switch(run_dir / f"switch-{number}") for number in (0, 1)]
    one, other = (
        switchable(bench, run_dir / str(number), switch) for number, switch in enumerate(switches)
    )
    pairs: list[tuple[Block, Block]] = []
    with Cluster(one, bench.server) as first, Cluster(other, bench.server) as second:
        clusters = (first, second)
        prompts = mixed_prompts(count, load.requests, load.short, load.long)
        for cluster in clusters:
            pin(cluster)
        one_block(clusters, prompts[: load.warm_up], load.tokens)
        for number in range(count):
            blocks: dict[bool, Block] = {}
            for on in (True, False) if number % 2 == 0 else (False, True):
                switches[0].turn(on)
                switches[1].turn(not on)
                before = [stored(cluster) for cluster in clusters]
                blocks[on] = one_block(clusters, prompts, load.tokens)
                came = [stored(c) - size for c, size in zip(clusters, before, strict=True)]
                demand_spans(*(came if on else reversed(came)))
            pairs.append((blocks[True], blocks[False]))
            ratios = ", ".join(f"{m} {ratio(pairs[-1], m):.4f}" for m in METRICS)
            bench.told(f"pair {number + 1} of {count}: {ratios}")
    return summarize(pairs)
