"""Since when: the change point of a phase, and the engines' event nearest to it."""

import numpy as np
import pandas as pd
import pytest
from traffic import MS, START_NS, empty_spans

from pdtrace.analysis.triage_time import events, medians, nearest, shift

S = 1_000_000_000


def series(step_at: float, by_ms: float, seed: int = 1, seconds: int = 1200) -> pd.DataFrame:
    """Bins of ten requests a second around 10 ms, `by_ms` more from `step_at` seconds on."""
    random = np.random.default_rng(seed)
    at = np.arange(0, seconds * S, S // 10, dtype=np.int64)
    values = random.gamma(4, 2.5, len(at)) + np.where(at >= step_at * S, by_ms, 0)
    return medians(START_NS + at, (values * MS).astype(np.int64))


def test_bins_are_half_minutes_in_a_long_run_and_shorter_in_a_short_one() -> None:
    """40 of 30 s in 20 minutes, 20 of 3 s in one; a bin with two requests says nothing."""
    assert len(series(0, 0)) == 40 and len(series(0, 0, seconds=60)) in (20, 21)
    few = medians(np.arange(40, dtype=np.int64) * 30 * S, np.ones(40, dtype=np.int64))
    assert len(few) == 0
    assert len(medians(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))) == 0


@pytest.mark.parametrize("step_at", [120, 600, 1080])
def test_a_step_is_dated_to_its_bin(step_at: int) -> None:
    """Near either end as well."""
    found = shift(series(step_at, 5))
    assert found is not None and found.p < 0.01
    assert found.at_ns == START_NS + step_at * S
    assert found.after_ns - found.before_ns == pytest.approx(5 * MS, rel=0.2)


def test_noise_has_no_date() -> None:
    """Of 20 runs without a step at most one in twenty has p ≤ 5 %."""
    found = [shift(series(0, 0, seed)) for seed in range(20)]
    assert sum(one is not None and one.p <= 0.05 for one in found) <= 1


def test_too_few_bins_have_no_date() -> None:
    """Seven bins cannot tell a step from chance."""
    assert shift(series(60, 50).head(7)) is None


def processes(*rows: tuple[str, str, int, int, str]) -> pd.DataFrame:
    """Engine, instance, seconds of its first and last span, configuration."""
    names = ["engine_id", "instance_id", "start_ns", "end_ns", "config"]
    spans = pd.DataFrame(rows, columns=names)
    spans[["start_ns", "end_ns"]] = START_NS + spans[["start_ns", "end_ns"]] * S
    return pd.concat([empty_spans(), spans]).assign(role="decode")


def test_restarts_changed_settings_and_new_engines_are_events() -> None:
    """Workers that run beside each other are no restart, nor is an engine's first second."""
    found = events(
        processes(
            ("d-0", "d-0-core", 0, 900, '{"max_num_seqs": 8}'),
            ("d-0", "d-0-worker", 5, 900, '{"max_num_seqs": 8}'),
            ("d-1", "d-1-a", 1, 300, '{"max_num_seqs": 8, "vllm": "0.31"}'),
            ("d-1", "d-1-b", 330, 900, '{"max_num_seqs": 4, "vllm": "0.31"}'),
            ("d-2", "d-2-a", 400, 500, "{}"),
            ("d-2", "d-2-b", 520, 900, "{}"),
            ("", "", 0, 1, ""),
        )
    )
    told = [(int(t - START_NS) // S, e, w) for t, e, w in found.itertuples(index=False)]
    assert told == [
        (330, "d-1", "restarted with another configuration (max_num_seqs: 8 → 4)"),
        (400, "d-2", "first seen"),
        (520, "d-2", "restarted"),
    ]
    assert nearest(found, START_NS + 350 * S) == 0
    assert nearest(found, START_NS + 3000 * S) is None
    assert nearest(events(empty_spans().assign(role="decode")), START_NS) is None
