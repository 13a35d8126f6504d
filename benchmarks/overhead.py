"""What tracing costs a serving pair, and beside it what vLLM's own spans cost.

    python benchmarks/overhead.py [--json] [--pairs 12] [--rounds 10] [--mode push] [--layout uni]

Two measurements of the same workload, a prefill and a decode engine on each side:

- `cpu_ratio`, `ttft_ratio`, `tpot_ratio`: the same engines with our hooks on and off, switched
  while they run (`switched.py`). Off means that each hook point is vLLM's own method behind one
  call of a function. This tells what recording, making and sending spans costs.
- `fresh_*`: engines of fresh processes with our connectors against such without (`fresh.py`),
  which adds what is there whether or not anything is recorded. Every start of an engine is a
  few percent faster or slower than the next, so these intervals are wide. `vllm_*`: the same with
  vLLM's `--otlp-traces-endpoint`; `place_*`: untraced against untraced in all but name.

In both, two clusters have the same requests on the same cores, each one request after the other,
which is the dearest case: nobody shares the cost of a step. All prefill engines run on the first
core and all decode engines on the last.

CPU is compared while both work at the same time, so a machine whose speed changes from second to
second, or that others use too, is as fast for both. For latencies that is no fair comparison, as
fine as it is: whoever comes to a core a moment after the other one may wait for a whole slice of
the scheduler's, so little differences show as large. `ttft_ratio` and `tpot_ratio` are therefore of
clusters that take turns, request by request and each as often first, with the cores to themselves;
what is measured beside a tenant is there as well, as `beside_ttft_ratio` and `beside_tpot_ratio`.
`fresh_*` and what follows is beside a tenant.

What is measured is the connector. The router is the same for all and sends no spans, as one that
knows nothing of pdtrace; the client begins a trace with each request, as a gateway does.

CPU is that of EngineCore and worker processes; `main_cpu` that of their first threads alone, on
which they schedule and compute, so what it shows is in the engine's way; `all_cpu` counts the API
servers as well, where vLLM's own spans are made. Printed are geometric means over pairs (or rounds)
with their 95 % t-intervals.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Final

import fresh
import switched
from arms import METRICS, OURS, PLAIN, VLLM, Bench, Load

from pdtrace.connector.cluster_settings import ClusterSettings, Layout, Mode, server_env
from pdtrace.connector.processes import EngineServer

_ROWS: Final = {
    "": "hooks on to off",
    switched.BESIDE: "hooks on to off, beside a tenant",
    fresh.PREFIXES[OURS]: "fresh processes, pdtrace",
    fresh.PREFIXES[VLLM]: "fresh processes, vLLM's own spans",
    fresh.PREFIXES[PLAIN]: "nothing, first to second place",
}


def as_text(found: dict[str, object]) -> str:
    """A small table."""
    lines = [
        f"{found['pairs']} pairs of blocks, {found['requests_per_arm']} requests with hooks on;"
        f" {found['rounds']} rounds, {found['fresh_requests_per_arm']} requests traced"
    ]
    lines.append(f"{'':<44}{'low':>9}{'mid':>9}{'high':>9}")
    for prefix, words in _ROWS.items():
        for metric in METRICS:
            one = found[f"{prefix}{metric}_ratio"]
            assert isinstance(one, dict)
            cells = "".join(f"{one[key]:>9.4f}" for key in ("low", "mid", "high"))
            lines.append(f"{f'{words}: {metric}':<44}{cells}")
    untraced = ", ".join(f"{m} {found[f'untraced_{m}_ms']:.2f} ms" for m in METRICS)
    return "\n".join([*lines, f"untraced, per request: {untraced}"])


def measure(mode: Mode, layout: Layout, pairs: int, rounds: int, load: Load) -> dict[str, object]:
    """Both; raises RuntimeError if a request fails, since then nothing is comparable."""

    def told(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    with tempfile.TemporaryDirectory(prefix="pdtrace-overhead-") as scratch:
        run_dir = Path(scratch)
        env = {**ClusterSettings().base_env(None), **server_env()}
        with EngineServer(run_dir / "engine-server.log", env) as server:
            bench = Bench(server, mode, layout, load, told)
            by_switch = switched.measure(bench, pairs, run_dir / "switched")
            by_process = fresh.measure(bench, rounds, run_dir / "fresh")
    return {"mode": mode, "layout": layout, **by_switch, **by_process}


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--json", action="store_true", help="one JSON object instead of text")
    parser.add_argument("--pairs", type=int, default=12, help="pairs of blocks, on and off (>= 2)")
    parser.add_argument("--rounds", type=int, default=10, help="rounds of fresh processes (>= 2)")
    parser.add_argument("--mode", choices=("push", "pull"), default="push")
    parser.add_argument("--layout", choices=("uni", "mp"), default="uni")
    given = parser.parse_args()
    if min(given.pairs, given.rounds) < 2:
        parser.error("an interval needs two of them")
    found = measure(given.mode, given.layout, given.pairs, given.rounds, Load())
    print(json.dumps(found) if given.json else as_text(found))


if __name__ == "__main__":
    main()
