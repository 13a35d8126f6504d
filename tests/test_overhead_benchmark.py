"""The arithmetic of `benchmarks/overhead.py`: what stands between samples and printed ratios."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

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


def test_a_ratio_is_over_both_orders_of_a_pair(overhead: ModuleType) -> None:
    """Neither a machine half as fast for one pair nor the place of a cluster changes a ratio."""
    places = (1.04e9, 1e9)
    costs = {"untraced": 1.0, "pdtrace": 1.01, "vllm": 1.1}

    def sample(cost: float, speed: int) -> object:
        cpu = int(cost * speed)
        return overhead.Sample(cpu, 2 * cpu, [1000 * speed], [10.0 * speed])

    def one_round(speed: int) -> dict[tuple[str, str], tuple[object, ...]]:
        return {
            arms: tuple(
                sample(costs[arm] * place, speed + number)
                for arm, place in zip(arms, places, strict=True)
            )
            for number, arms in enumerate(overhead.PAIRS)
        }

    found = overhead.summarize([one_round(1), one_round(3)])
    assert found["cpu_ratio"] == pytest.approx({"low": 1.01, "mid": 1.01, "high": 1.01})
    assert found["all_cpu_ratio"] == pytest.approx({"low": 1.01, "mid": 1.01, "high": 1.01})
    assert found["vllm_cpu_ratio"]["mid"] == pytest.approx(1.1)
    assert found["place_cpu_ratio"]["mid"] == pytest.approx(1.04)
    assert found["ttft_ratio"] == pytest.approx({"low": 1, "mid": 1, "high": 1})
    assert (found["rounds"], found["requests_per_arm"]) == (2, 4)
    assert found["untraced_tpot_ms"] == pytest.approx(35e-6)
    assert "pdtrace: all_cpu" in overhead.as_text(found)


def test_the_faster_cluster_works_until_the_other_one_has_ended(
    overhead: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests of the warm-up and of the end cost something and are not counted."""
    served: list[str] = []
    ended: list[str] = []

    def fake_serve(cluster: str, prompt: str, tokens: int, sample: Any) -> None:
        served.append(prompt)
        sample.ttft_ns.append(1)
        if len(served) == 6:
            ended.append("slow")

    monkeypatch.setattr(overhead, "serve", fake_serve)
    monkeypatch.setattr(overhead, "cpu_ns", lambda cluster, api_servers: 10 * len(served))
    load = overhead.Load(requests=3, warm_up=1)
    sample = overhead.work("fast", load, ["a", "b", "c", "d"], ended)
    assert served == ["a", "b", "c", "d", "a", "b"]
    assert (sample.cpu_ns, sample.all_cpu_ns, len(sample.ttft_ns)) == (30, 30, 3)


def test_a_cluster_that_fails_does_not_keep_the_other_one_at_work(
    overhead: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It counts as ended, and its error is what the caller sees."""

    def fake_serve(cluster: str, prompt: str, tokens: int, sample: Any) -> None:
        raise RuntimeError("request 7 failed")

    monkeypatch.setattr(overhead, "serve", fake_serve)
    ended: list[str] = []
    with pytest.raises(RuntimeError, match="request 7 failed"):
        overhead.work("broken", overhead.Load(), ["a"], ended)
    assert ended == ["broken"]
