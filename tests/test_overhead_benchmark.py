"""The arithmetic of `benchmarks/overhead.py`: what stands between samples and printed ratios."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

FILE = Path(__file__).parent.parent / "benchmarks" / "overhead.py"


@pytest.fixture(scope="module")
def overhead() -> ModuleType:
    """The benchmark as a module; benchmarks are not part of the package."""
    spec = importlib.util.spec_from_file_location("overhead", FILE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["overhead"] = module
    spec.loader.exec_module(module)
    return module


def test_an_interval_over_rounds(overhead: ModuleType) -> None:
    """Three ratios of 0.9, 1, 1.1111…: the middle is 1, the half-width t(2) · s / √3 in logarithms.

    s = ln(1 / 0.9) = 0.10536, so 4.303 · 0.10536 / 1.73205 = 0.26175.
    """
    found = overhead.interval([0.9, 1.0, 1 / 0.9])
    assert found["mid"] == pytest.approx(1.0)
    assert found["low"] == pytest.approx(0.76970, abs=2e-5)
    assert found["high"] == pytest.approx(1.29920, abs=2e-5)


def test_ratios_are_to_both_untraced_clusters_of_a_round(overhead: ModuleType) -> None:
    """Neither a machine half as fast in one round nor the place of a cluster changes a ratio."""

    def sample(cost: float, speed: int) -> object:
        cpu = int(cost * speed)
        return overhead.Sample(cpu, 2 * cpu, [1000 * speed], [10.0 * speed])

    costs = {
        "untraced-first": 1.02e9,
        "pdtrace": 1.01e9,
        "vllm": 1.1e9,
        "untraced-last": 1e9 / 1.02,
    }
    rounds = [{arm: sample(cost, speed) for arm, cost in costs.items()} for speed in (1, 2)]
    found = overhead.summarize(rounds)
    assert found["cpu_ratio"] == pytest.approx({"low": 1.01, "mid": 1.01, "high": 1.01})
    assert found["all_cpu_ratio"] == pytest.approx({"low": 1.01, "mid": 1.01, "high": 1.01})
    assert found["vllm_cpu_ratio"]["mid"] == pytest.approx(1.1)
    assert found["untraced_cpu_ratio"]["mid"] == pytest.approx(1.02**2)
    assert found["ttft_ratio"] == pytest.approx({"low": 1, "mid": 1, "high": 1})
    assert (found["rounds"], found["requests_per_arm"]) == (2, 2)
    assert found["untraced_tpot_ms"] == pytest.approx(15e-6)
    assert "pdtrace: all_cpu" in overhead.as_text(found)


def test_the_traced_clusters_change_places(overhead: ModuleType) -> None:
    """Between the untraced ones, each one nearer to the first in every second round."""
    assert overhead.order_of(0) == ["untraced-first", "pdtrace", "vllm", "untraced-last"]
    assert overhead.order_of(1) == ["untraced-first", "vllm", "pdtrace", "untraced-last"]
