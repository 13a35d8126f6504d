"""`pdtrace clocks` as called from a shell, and what the other commands say of clocks."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from generator import Shape, records
from skew import Skew, by_role, scaled, skewed
from test_clock_alignment import DATA, HOST, MS, OTHER

from pdtrace.analysis.alignment import align
from pdtrace.analysis.clock_notes import clock_notes, limited
from pdtrace.analysis.clock_pairs import pairs_of
from pdtrace.analysis.clock_report import pair_table, sentences
from pdtrace.analysis.handoffs import join
from pdtrace.analysis.intervals import negative
from pdtrace.analysis.records import SpanRecord
from pdtrace.analysis.split import split
from pdtrace.analysis.table import build
from pdtrace.cli.main import main
from pdtrace.tracing import semconv as sc

CASE = str(DATA / "c05_clock_skew.otlp.jsonl")


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as stopped:
        main([*arguments])
    assert isinstance(stopped.value.code, int)
    return stopped.value.code


def test_case_c05_gives_the_expected_interval(capfd: pytest.CaptureFixture[str]) -> None:
    """Bounds, and which message each comes from, within what drift adds."""
    expected: dict[str, Any] = json.loads((DATA / "c05_clock_skew.expected.json").read_text())
    (wanted,) = expected["clocks"]
    assert run("clocks", CASE, "--json") == 0
    out, err = capfd.readouterr()
    (found,) = [json.loads(line) for line in out.splitlines()]
    assert (found["from"], found["to"]) == (wanted["from"], wanted["to"])
    for key in ("offset_lo_ns", "offset_hi_ns", "midpoint_ns", "halfwidth_ns"):
        assert abs(found[key] - wanted[key]) <= wanted["tolerance_ns"]
    assert found["lower_from"] == "first token on D → first token at the router"
    assert found["upper_from"] == "decode leg sent → D has it"
    assert (found["messages"], found["agreement"], found["contradictions"]) == (3, 1.0, [])
    assert "1 request over several clocks: times aligned to ± 4.1" in err


def test_without_drift_the_interval_of_c05_is_exact(capfd: pytest.CaptureFixture[str]) -> None:
    """To the nanosecond."""
    assert run("clocks", CASE, "--json", "--drift-ppm", "0") == 0
    found = json.loads(capfd.readouterr().out)
    assert (found["offset_lo_ns"], found["offset_hi_ns"]) == (-41_000_000, -32_800_000)
    assert (found["midpoint_ns"], found["halfwidth_ns"]) == (-36_900_000, 4_100_000)


def test_tables_name_engines_and_hosts(capfd: pytest.CaptureFixture[str]) -> None:
    """Pair, evidence, over time."""
    assert run("clocks", CASE) == 0
    out = capfd.readouterr().out
    assert "d-engine-0 on host-b" in out
    assert "C2 − C1   -36.904 ± 4.104          3     100.0 %" in out
    assert "decode leg sent → D has it" in out and "2026-11-29 10:00:00 UTC" in out


def test_one_clock_is_said_to_be_one(capfd: pytest.CaptureFixture[str]) -> None:
    """Nothing to estimate, and no note on other commands."""
    assert run("clocks", str(DATA / "c16_push_modes.otlp.jsonl")) == 0
    out, err = capfd.readouterr()
    assert out.startswith("All spans are on one clock") and "clock" not in err


def test_unreadable_input_is_one_sentence(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Exit status 1 and the file's name."""
    assert run("clocks", str(tmp_path / "none.jsonl")) == 1
    out, err = capfd.readouterr()
    assert out == "" and err.startswith("pdtrace clocks: ") and "none.jsonl" in err


def two_hosts(shape: Shape, decode: Skew = OTHER) -> list[SpanRecord]:
    spans = scaled(records(shape), MS)
    return skewed(spans, by_role(router=HOST, prefill=HOST, decode=decode))


def test_one_sided_pairs_are_inequalities_in_words() -> None:
    """And the reason is said."""
    spans = [s for s in two_hosts(Shape(router=False)) if s.name != sc.SPAN_KV_WAIT]
    clocks = align(build(spans)).clocks
    assert clocks is not None
    (pair,) = pairs = pairs_of(clocks)
    names = {pair.start: "P", pair.end: "D"}
    assert pair_table(clocks, pairs).rows[0][1].startswith(">= ")
    (sentence,) = sentences(pairs, names)
    assert sentence.startswith("D against P: bounded from below only")


def test_clock_limited_requests_are_counted() -> None:
    """Slow messages leave a wide interval against a short coordination wait."""
    slow = Shape(mode="pull", dispatch="sequential", hop=300, egress=300)
    fast = Shape(mode="pull", dispatch="sequential", hop=0, egress=0)
    for shape, many in ((slow, 1), (fast, 0)):
        alignment = align(build(two_hosts(shape)))
        said = limited(split(join(alignment.table, alignment)))
        assert [s.startswith("1 request clock-limited") for s in said] == [True] * many


def test_negative_gaps_that_remain_are_counted() -> None:
    """Times that were not aligned as they should: D seems to have the request before P is done."""
    alignment = align(build(two_hosts(Shape(mode="pull", dispatch="sequential"))))
    good = join(alignment.table, alignment)
    assert negative(good).tolist() == [0]
    bad = replace(good, at=good.at.assign(hop_to_ns=good.at["hop_from_ns"] - 1))
    assert negative(bad).tolist() == [1]


@pytest.mark.parametrize("off", [0, 10**6], ids=["on one clock", "between clocks"])
def test_a_note_tells_where_gaps_are_negative(off: int) -> None:
    """On one clock by spans that contradict each other."""
    rows = pd.DataFrame(
        {"clock_halfwidth_ns": pd.array([off, pd.NA, 0], "Int64"), "clipped_gaps": [2, 0, 0]}
    )
    where = "between clocks" if off else "on one clock"
    assert clock_notes(rows, None) == [f"2 negative gaps {where} counted as no time"]
