"""The ledger: exact sums, mix and rate, intervals over blocks of time."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from traffic import healthy, longer, some

from pdtrace.analysis.triage_buckets import doubling, strata
from pdtrace.analysis.triage_ledger import block_edges, intervals, ledger, mix_and_rate
from pdtrace.analysis.triage_traffic import Traffic

PHASES = ["prefill", "transfer", "hop"]
rows = st.lists(
    st.tuples(*(st.integers(0, 10**13) for _ in PHASES), st.sampled_from("abc")),
    min_size=1,
    max_size=12,
)


def frames(drawn: list[tuple[int, int, int, str]]) -> tuple[pd.DataFrame, pd.Series]:
    """Exposed ns by phase, and the stratum of each row."""
    frame = pd.DataFrame([row[:3] for row in drawn], columns=PHASES, dtype="int64")
    return frame, pd.Series([row[3] for row in drawn], dtype="str")


@settings(max_examples=60, deadline=None)
@given(slow=rows, usual=rows)
def test_the_phases_sum_to_the_difference_of_mean_ttft(
    slow: list[tuple[int, int, int, str]], usual: list[tuple[int, int, int, str]]
) -> None:
    """As integers scaled by both counts, not as rounded means; shares sum to 1."""
    (one, _), (other, _) = frames(slow), frames(usual)
    found = ledger(one, other)
    ttft = [int(frame.to_numpy().astype(object).sum()) for frame in (one, other)]
    scaled = len(other) * ttft[0] - len(one) * ttft[1]
    assert sum(found["scaled"]) == scaled
    assert found["share"].sum() == pytest.approx(1 if scaled else 0)


@settings(max_examples=60, deadline=None)
@given(slow=rows, usual=rows)
def test_mix_and_rate_are_all_of_the_difference(
    slow: list[tuple[int, int, int, str]], usual: list[tuple[int, int, int, str]]
) -> None:
    """For every phase, whatever strata each set has."""
    (one, one_in), (other, other_in) = frames(slow), frames(usual)
    found = mix_and_rate(one, other, one_in, other_in)
    d = (one.mean() - other.mean()).to_numpy()
    assert found.sum(axis=1).to_numpy() == pytest.approx(d, rel=1e-9, abs=1)


def test_another_mix_is_mix_and_slower_requests_are_rate() -> None:
    """Two strata of 10 and 30 ns: first other shares, then 5 ns more in each."""
    usual = pd.DataFrame({"prefill": [10, 10, 10, 30]})
    strata_of = pd.Series(["short", "short", "short", "long"])
    mix = mix_and_rate(usual[2:], usual, strata_of[2:], strata_of)
    rate = mix_and_rate(usual + 5, usual, strata_of, strata_of)
    assert mix.iloc[0].tolist() == [5.0, 0.0]
    assert rate.iloc[0].tolist() == [0.0, 5.0]


def test_a_kind_of_request_that_is_new_is_mix() -> None:
    """There is no rate to compare it with."""
    usual, new = pd.DataFrame({"prefill": [10, 10]}), pd.DataFrame({"prefill": [10, 90]})
    found = mix_and_rate(new, usual, pd.Series(["a", "b"]), pd.Series(["a", "a"]))
    assert found.iloc[0].tolist() == [40.0, 0.0]


def test_blocks_hold_equally_many_and_there_are_twenty_at_least() -> None:
    """30 arrivals make 20 blocks of one or two; 3000 make 50 of 60."""
    for count, blocks in ((30, 20), (900, 30), (3000, 50)):
        at = np.arange(count, dtype=np.int64) ** 2
        sizes = np.bincount(np.searchsorted(block_edges(at), at, side="right"))
        assert len(sizes) == blocks and sizes.max() - sizes.min() <= 1


def bounds(slow: Traffic, usual: Traffic) -> pd.DataFrame:
    one, other = (traffic.requests["t0_ns"].to_numpy(np.int64) for traffic in (slow, usual))
    return intervals(slow.exposed, usual.exposed, one, other, together=False)


def test_an_interval_holds_what_was_planted_and_is_the_same_again() -> None:
    """100 ms more in one phase; the seed is fixed."""
    usual, slow = healthy(2000, 1), healthy(400, 2)
    slow = longer(slow, "transfer", some(slow, 1.0), 100)
    found = bounds(slow, usual)
    low, high = (float(found[name]["transfer"]) for name in ("d_low_ns", "d_high_ns"))
    assert low < 100e6 < high and high - low < 10e6
    pd.testing.assert_frame_equal(found, bounds(slow, usual))


def test_trouble_that_comes_in_bursts_has_a_wider_interval() -> None:
    """The same number of affected requests, spread over all blocks or in a few of them."""
    usual, slow = healthy(2000, 1), healthy(600, 2)
    at = slow.requests["t0_ns"]
    burst = at < at.sort_values().iloc[180]
    widths = []
    for affected in (some(slow, 0.3), burst):
        found = bounds(longer(slow, "transfer", affected, 100), usual).loc["transfer"]
        widths.append(found["d_high_ns"] - found["d_low_ns"])
    assert widths[1] > 1.5 * widths[0]


def test_buckets_double_and_keep_what_is_not_known() -> None:
    """Each edge belongs to the upper bucket."""
    values = pd.Series([0, 1, 127, 128, 255, 256, 5000, None], dtype="Int64")
    expected = ["0", "1–127", "1–127", "128–255", "128–255", "256–511", "4096–8191", "not known"]
    assert doubling(values, 128).tolist() == expected


def test_a_stratum_is_length_and_cached_tokens() -> None:
    """What was asked and what was there already."""
    assert strata(healthy(1, 1).requests).tolist() == ["512–1023 tokens, 0 cached"]
