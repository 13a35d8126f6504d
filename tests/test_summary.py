"""Quantiles, counts and sums by mode."""

from dataclasses import replace

import pandas as pd
import pytest
from generator import EPOCH_NS, Shape, Writer, records

from pdtrace.analysis.handoffs import join
from pdtrace.analysis.records import SpanRecord
from pdtrace.analysis.report import (
    TOO_FEW,
    count_sentences,
    flagged_table,
    kind_table,
    phase_table,
    quantile_table,
)
from pdtrace.analysis.split import Split, split
from pdtrace.analysis.summary import summarise
from pdtrace.analysis.table import build
from pdtrace.tracing import semconv as sc


def done(spans: list[SpanRecord]) -> Split:
    return split(join(build(spans)))


@pytest.fixture(scope="module")
def mixed() -> Split:
    """25 push requests (TTFT 364 to 388), two pull requests, one aborted request."""
    spans = [s for i in range(25) for s in records(Shape(queue=20 + i), f"push-{i}")]
    pull = Shape(mode="pull", dispatch="sequential")
    spans += [s for i in range(2) for s in records(pull, f"pull-{i}")]
    writer = Writer("gone", "push")
    writer.span(sc.SPAN_REQUEST, EPOCH_NS, EPOCH_NS + 9, status=2, error__type="aborted")
    return done([*spans, *writer.records])


def test_quantiles_come_with_their_count(mixed: Split) -> None:
    """25 requests carry a p95, not a p99; the aborted one is in no latency."""
    found = summarise(mixed).quantiles.set_index(["mode", "measure"])
    row = found.loc[("push", "ttft"), :]
    assert isinstance(row, pd.Series)
    assert (row["count"], row["p50_ns"], row["p95_ns"]) == (25, 376, 387)
    assert pd.isna(row["p99_ns"])
    # Places 8 and 18 of 25 values (from 1) enclose the median with 95.7 %.
    assert (row["p50_low_ns"], row["p50_high_ns"]) == (371, 381)
    assert row["p95_low_ns"] == 384 and pd.isna(row["p95_high_ns"])
    assert found.loc[("push", "tpot"), "p50_ns"] == 10


def test_means_of_phases_add_up_to_the_mean_ttft(mixed: Split) -> None:
    """As integer sums, before any division."""
    found = summarise(mixed)
    ttft = mixed.requests.loc[mixed.splittable].groupby("mode")["ttft_ns"].sum()
    assert found.exposed_sums.sum(axis=1).to_dict() == ttft.to_dict()


def test_requests_without_a_first_token_are_counted(mixed: Split) -> None:
    """Counted, said, listed."""
    summary = summarise(mixed)
    assert summary.counts.loc["push"].to_dict() == {
        "requests": 26,
        "split": 25,
        "no_first_token": 1,
        "token_not_known": 0,
        "aborted": 1,
        "phantoms": 0,
        "not_split": 0,
        "lease_expired": 0,
        "lower_bounds": 0,
    }
    said = "push: 26 requests, 25 split, 1 without a first token, 1 of these aborted"
    assert said in count_sentences(summary)
    listed = flagged_table(mixed).rows
    assert [row[2] for row in listed if row[0] == "gone"] == ["no first token"]


def test_an_expired_lease_is_kept_out_of_latencies() -> None:
    """The answer may rest on reused blocks."""
    spans = [s for i in range(2) for s in records(Shape(), f"r-{i}")]
    bad = [
        replace(s, end_ns=s.start_ns, attributes={**s.attributes, sc.LEASE_OUTCOME: "expired"})
        if s.name == sc.SPAN_LEASE
        else s
        for s in records(Shape(), "expired")
    ]
    summary = summarise(done([*spans, *bad]))
    assert summary.quantiles["count"].max() == 2
    assert summary.counts.loc["push", "lease_expired"] == 1
    assert summary.exposed_sums["prefill"].tolist() == [600]


def test_lower_bounds_are_printed_with_their_sign() -> None:
    """Without the router the way in and back is missing from TTFT and from the edge."""
    spans = [
        s
        for i in range(2)
        for s in records(Shape(), f"r-{i}")
        if s.resource[sc.ROLE] != sc.ROLE_ROUTER
    ]
    rows = quantile_table(summarise(done(spans))).rows
    cells = {row[1]: row[3] for row in rows}
    assert cells["TTFT"].startswith(">= ") and cells["edge"].startswith(">= ")
    assert not cells["compute wait"].startswith(">= ")


def test_tables_say_too_few_and_not_known(mixed: Split) -> None:
    """Two pull requests carry a median only; hidden time stands in brackets."""
    summary = summarise(mixed)
    pull = next(row for row in quantile_table(summary).rows if row[:2] == ("pull", "TTFT"))
    assert pull[4:] == (TOO_FEW, TOO_FEW)
    hop = next(row for row in phase_table(summary).rows if row[1] == "hop")
    assert hop[-1] == "0.000 (0.000)"


def test_intervals_stand_beside_the_quantiles(mixed: Split) -> None:
    """An end that the sample cannot give is left open, and so is an interval without ends."""
    cells = {row[:2]: row[3:5] for row in quantile_table(summarise(mixed)).rows}
    assert cells["push", "TTFT"] == ("0.000 (0.0–0.0)", "0.000 (≥ 0.0)")
    assert cells["pull", "TTFT"] == ("0.000", TOO_FEW)


def sized(request_id: str, prompt: int, cached: int, loaded: int) -> list[SpanRecord]:
    """A request whose spans say how long the prompt was and what the caches had."""
    said = {
        sc.SPAN_PREFILL: {sc.INPUT_TOKENS: prompt, sc.PREFILL_CACHED_TOKENS: cached},
        sc.SPAN_KV_WAIT: {sc.EXTERNAL_TOKENS: loaded},
    }
    return [
        replace(s, attributes={**s.attributes, **said.get(s.name, {})})
        for s in records(Shape(), request_id)
    ]


def test_requests_are_sorted_by_pair_length_and_cache() -> None:
    """Kinds in their natural order, each with its count; a way of sorting needs two kinds."""
    spans = [s for i in range(3) for s in sized(f"long-{i}", 5000, 0, 4999)]
    spans += [s for i in range(2) for s in sized(f"short-{i}", 100, 64, 99)]
    spans += sized("partial", 100, 0, 32)
    found = summarise(done(spans)).kinds
    ttft = found[found["measure"] == "ttft"]
    assert list(zip(ttft["by"], ttft["kind"], ttft["count"], strict=True)) == [
        ("P → D", "p-engine-0 → d-engine-0", 6),
        ("prompt", "0-255 tokens", 3),
        ("prompt", "4096-16383 tokens", 3),
        ("prefix cache", "hit on P", 2),
        ("prefix cache", "no hit", 3),
        ("prefix cache", "partial hit on D", 1),
    ]
    shown = [row[1] for row in kind_table(summarise(done(spans))).rows if row[2] == "TTFT"]
    assert [kind.partition(":")[0] for kind in shown] == ["prompt"] * 2 + ["prefix cache"] * 3
