"""`benchmarks/analysis.py` compares like with like: one traffic, as Parquet and as JSON lines."""

import sys
from pathlib import Path

import orjson
import pytest

from pdtrace.analysis.load import load
from pdtrace.analysis.report import request_records
from pdtrace.analysis.split import split

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


def test_both_forms_hold_the_same_requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every number of every request; and the per-trace baseline walks the same traces."""
    monkeypatch.setattr(sys, "path", [str(BENCHMARKS), *sys.path])
    from per_trace import critical_paths

    import analysis

    analysis.write_parquet(40, tmp_path / "kept")
    lines = list(analysis.json_lines(40))
    (tmp_path / "lines.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    splits = [split(load([tmp_path / name]).handoffs) for name in ("kept", "lines.jsonl")]
    kept, told = (list(request_records(done)) for done in splits)
    assert kept == told
    assert len(splits[0].splittable) == 40
    paths = critical_paths(map(orjson.loads, lines))
    whole = sorted(sum(path.values()) for path in paths)
    spans = load([tmp_path / "kept"]).table.spans
    router = spans[spans["name"] == "pd.request"]
    assert whole == sorted(router["end_ns"] - router["start_ns"])
