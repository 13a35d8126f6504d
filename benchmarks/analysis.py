"""How fast spans become a split, and beside it what that is compared with, in one run.

    python benchmarks/analysis.py [--json] [--requests 10000 100000] [--lines 20000]

- `pdtrace split DIR` on the spans table in Parquet of made traffic (16 spans a request) of each
  size, as a user runs it: wall time from start to end, and the most memory that its processes had
  together (an upper bound: what they share is counted for each). The traffic is written before,
  and that is not measured.
- `pdtrace split FILE` on OTLP JSON lines, with `orjson.loads` of the same lines in the same run,
  and with a per-trace critical path in plain Python (`per_trace.py`), as CRISP and Jaeger's page do
  it, on the same traces. The last two get the bytes from memory, ours reads the file and starts
  Python, so the ratios are what a user waits for.
"""

import argparse
import collections
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import orjson
import psutil
from made_traffic import PER_REQUEST, arrow_tables
from per_trace import critical_paths

from pdtrace.analysis.columns import RESOURCE_ATTRIBUTES, SPAN_ATTRIBUTES, Batch
from pdtrace.analysis.hours import write_hours
from pdtrace.analysis.table import TableBuilder

SIZES: Final = (10_000, 100_000)
LINES: Final = 20_000
SPANS_A_LINE: Final = 512
_POLL_S: Final = 0.25
_BATCH: Final = 50_000


def write_parquet(count: int, directory: Path) -> None:
    """Made traffic of so many requests, as `pdtrace export` keeps it."""
    builder = TableBuilder()
    builder.add_batch(arrow_tables(count))
    spans, events, _ = builder.finish_arrow()
    write_hours([Batch(spans, events)], directory)


def timed_split(source: Path, *options: str) -> tuple[float, float]:
    """Wall seconds of `pdtrace split`, and the most memory (GB) of all its processes together."""
    command = [sys.executable, "-c", "from pdtrace.cli.main import main; raise SystemExit(main())"]
    began = time.perf_counter()
    process = psutil.Popen([*command, "split", str(source), *options], stdout=subprocess.DEVNULL)
    most = 0
    while process.poll() is None:
        most = max(most, _memory(process))
        time.sleep(_POLL_S)
    if process.returncode:
        raise RuntimeError(f"pdtrace split ended with {process.returncode}")
    return time.perf_counter() - began, most / 1e9


def _memory(process: psutil.Process) -> int:
    """Resident memory; what processes share is counted for each, so this is an upper bound."""
    total = 0
    try:
        for one in [process, *process.children(recursive=True)]:
            total += one.memory_info().rss
    except psutil.NoSuchProcess:
        pass
    return total


def json_lines(count: int) -> Iterator[bytes]:
    """The same traffic as OTLP JSON lines, as a collector's file exporter writes them."""
    spans, events = arrow_tables(count)
    rows, told = spans.to_pylist(), events.to_pylist()
    said: dict[int, list[dict[str, Any]]] = {}
    for event in told:
        said.setdefault(event["row"], []).append(
            {"name": event["name"], "timeUnixNano": str(event["time_ns"])}
        )
    for at in range(0, len(rows), SPANS_A_LINE):
        groups: dict[str, list[dict[str, Any]]] = {}
        resources: dict[str, dict[str, Any]] = {}
        for place, row in enumerate(rows[at : at + SPANS_A_LINE], at):
            resources[row["instance_id"]] = row
            groups.setdefault(row["instance_id"], []).append(_span(row, said.get(place, [])))
        yield orjson.dumps(
            {
                "resourceSpans": [
                    {
                        "resource": {
                            "attributes": _attributes(resources[one], RESOURCE_ATTRIBUTES)
                        },
                        "scopeSpans": [{"scope": {"name": "pdtrace"}, "spans": group}],
                    }
                    for one, group in groups.items()
                ]
            }
        )


def _span(row: dict[str, Any], events: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "traceId": row["trace_id"],
        "spanId": row["span_id"],
        "parentSpanId": row["parent_id"],
        "name": row["name"],
        "kind": 1,
        "startTimeUnixNano": str(row["start_ns"]),
        "endTimeUnixNano": str(row["end_ns"]),
        "attributes": _attributes(row, SPAN_ATTRIBUTES),
        "events": events,
        "status": {},
    }


def _attributes(row: dict[str, Any], names: dict[str, str]) -> list[dict[str, Any]]:
    found = []
    for key, column in names.items():
        value = row[column]
        if isinstance(value, bool) or value is None or value == "":
            continue
        kind = {"intValue": str(value)} if isinstance(value, int) else {"stringValue": value}
        found.append({"key": key, "value": kind})
    return found


def seconds(work: Any) -> float:
    """Wall seconds of a call."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def measure_lines(count: int, scratch: Path) -> dict[str, float]:
    """OTLP JSON lines: ours, the JSON parser alone, the per-trace baseline."""
    lines = list(json_lines(count))
    path = scratch / "traffic.otlp.jsonl"
    path.write_bytes(b"\n".join(lines) + b"\n")
    ours, memory = timed_split(path)
    parse = seconds(lambda: collections.deque(map(orjson.loads, lines), maxlen=0))
    baseline = seconds(lambda: critical_paths(map(orjson.loads, lines)))
    spans = count * PER_REQUEST
    return {
        "requests": count,
        "megabytes": sum(map(len, lines)) / 1e6,
        "split_s": ours,
        "memory_gb": memory,
        "orjson_s": parse,
        "per_trace_s": baseline,
        "split_to_orjson": ours / parse,
        "split_to_per_trace": ours / baseline,
        "split_us_a_span": ours / spans * 1e6,
    }


def measure(sizes: Sequence[int], lines: int) -> dict[str, object]:
    """Everything, smallest first."""
    with tempfile.TemporaryDirectory(prefix="pdtrace-analysis-") as directory:
        scratch = Path(directory)
        parquet = []
        for size in sorted(sizes):
            write_parquet(size, scratch / str(size))
            took, memory = timed_split(scratch / str(size))
            parquet.append(
                {"requests": size, "split_s": took, "us_a_request": took / size * 1e6,
                 "memory_gb": memory}
            )  # fmt: skip
            print(f"Parquet, {size} requests: {took:.1f} s, {memory:.2f} GB", file=sys.stderr)
        return {
            "cores": len(os.sched_getaffinity(0)),
            "parquet": parquet,
            "json_lines": measure_lines(lines, scratch),
        }


def as_text(found: dict[str, Any]) -> str:
    """A small table."""
    rows = [f"pdtrace split, spans table in Parquet, {found['cores']} cores",
            f"{'requests':>10}{'s':>9}{'us a request':>14}{'GB':>8}"]  # fmt: skip
    for one in found["parquet"]:
        rows.append(
            f"{one['requests']:>10}{one['split_s']:>9.1f}{one['us_a_request']:>14.0f}"
            f"{one['memory_gb']:>8.2f}"
        )
    lines = found["json_lines"]
    rows += [
        f"OTLP JSON lines, {lines['requests']} requests, {lines['megabytes']:.0f} MB",
        f"  pdtrace split {lines['split_s']:.2f} s, {lines['memory_gb']:.2f} GB",
        f"  orjson.loads {lines['orjson_s']:.2f} s: ratio {lines['split_to_orjson']:.2f}",
        f"  per-trace critical path {lines['per_trace_s']:.2f} s: "
        f"ratio {lines['split_to_per_trace']:.2f}",
    ]
    return "\n".join(rows)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--json", action="store_true", help="one JSON object instead of text")
    parser.add_argument("--requests", type=int, nargs="+", default=SIZES, help="sizes in Parquet")
    parser.add_argument("--lines", type=int, default=LINES, help="requests as JSON lines")
    given = parser.parse_args()
    found = measure(given.requests, given.lines)
    print(json.dumps(found) if given.json else as_text(found))


if __name__ == "__main__":
    main()
