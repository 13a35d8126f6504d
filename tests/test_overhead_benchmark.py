"""The arithmetic of `benchmarks/overhead.py`: what stands between samples and printed ratios."""

import importlib
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
NAMES = ("arms", "fresh", "switched", "overhead")


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """The benchmark's modules; benchmarks are not part of the package."""
    monkeypatch.setattr(sys, "path", [str(BENCHMARKS), *sys.path])
    yield SimpleNamespace(**{name: importlib.import_module(name) for name in NAMES})
    for name in NAMES:
        sys.modules.pop(name, None)


def test_an_interval_over_rounds(modules: SimpleNamespace) -> None:
    """Three ratios of 0.9, 1, 1.1111…: the middle is 1, the half-width t(2) · s / √3 in logarithms.

    s = ln(1 / 0.9) = 0.10536, so 4.303 · 0.10536 / 1.73205 = 0.26175.
    """
    found = modules.arms.interval([0.9, 1.0, 1 / 0.9])
    assert found["mid"] == pytest.approx(1.0)
    assert found["low"] == pytest.approx(0.76970, abs=2e-5)
    assert found["high"] == pytest.approx(1.29920, abs=2e-5)


def cpu(modules: SimpleNamespace, spent: int) -> dict[str, int]:
    """Half of it on main threads, as much again in API servers."""
    return dict(zip(modules.arms.CPU, (spent, spent // 2, 2 * spent), strict=True))


def test_a_ratio_is_over_both_orders_of_a_pair(modules: SimpleNamespace) -> None:
    """Neither a machine half as fast for one pair nor the place of a cluster changes a ratio."""
    places = (1.04e9, 1e9)
    costs = {"untraced": 1.0, "pdtrace": 1.01, "vllm": 1.1}

    def sample(cost: float, speed: int) -> object:
        spent = cpu(modules, int(cost * speed))
        return modules.arms.Sample(spent, [1000 * speed], [10.0 * speed])

    def one_round(speed: int) -> dict[tuple[str, str], tuple[object, ...]]:
        return {
            arms: tuple(
                sample(costs[arm] * place, speed + number)
                for arm, place in zip(arms, places, strict=True)
            )
            for number, arms in enumerate(modules.fresh.PAIRS)
        }

    found = modules.fresh.summarize([one_round(1), one_round(3)])
    assert found["fresh_cpu_ratio"] == pytest.approx({"low": 1.01, "mid": 1.01, "high": 1.01})
    for name in ("all_cpu", "main_cpu"):
        dearer = pytest.approx({"low": 1.01, "mid": 1.01, "high": 1.01})
        assert found[f"fresh_{name}_ratio"] == dearer
    assert found["vllm_cpu_ratio"]["mid"] == pytest.approx(1.1)
    assert found["place_cpu_ratio"]["mid"] == pytest.approx(1.04)
    assert found["fresh_ttft_ratio"] == pytest.approx({"low": 1, "mid": 1, "high": 1})
    assert (found["rounds"], found["fresh_requests_per_arm"]) == (2, 4)
    assert found["untraced_tpot_ms"] == pytest.approx(35e-6)
    pairs = [blocks(modules, 1), blocks(modules, 3)]
    both = found | modules.switched.summarize(pairs, pairs)
    printed = modules.overhead.as_text(both)
    assert "fresh processes, pdtrace: all_cpu" in printed
    assert "hooks on to off: ttft" in printed


def test_the_faster_cluster_works_until_the_other_one_has_ended(
    modules: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests of the warm-up and of the end cost something and are not counted."""
    served: list[str] = []
    ended: list[str] = []

    def fake_serve(cluster: str, prompt: str, tokens: int, sample: Any) -> None:
        served.append(prompt)
        sample.ttft_ns.append(1)
        if len(served) == 6:
            ended.append("slow")

    monkeypatch.setattr(modules.fresh, "serve", fake_serve)
    monkeypatch.setattr(modules.fresh, "cpu_ns", lambda cluster: cpu(modules, 10 * len(served)))
    load = modules.arms.Load(requests=3, warm_up=1)
    sample = modules.fresh.work("fast", load, ["a", "b", "c", "d"], ended)
    assert served == ["a", "b", "c", "d", "a", "b"]
    assert (sample.cpu_ns, len(sample.ttft_ns)) == (cpu(modules, 30), 3)


def test_a_cluster_that_fails_does_not_keep_the_other_one_at_work(
    modules: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It counts as ended, and its error is what the caller sees."""

    def fake_serve(cluster: str, prompt: str, tokens: int, sample: Any) -> None:
        raise RuntimeError("request 7 failed")

    monkeypatch.setattr(modules.fresh, "serve", fake_serve)
    ended: list[str] = []
    with pytest.raises(RuntimeError, match="request 7 failed"):
        modules.fresh.work("broken", modules.arms.Load(), ["a"], ended)
    assert ended == ["broken"]


def blocks(
    modules: SimpleNamespace, speed: int, hooks: float = 1.01
) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
    """Hooks that cost 1 %, on a first cluster 5 % dearer, in blocks of which one is slower."""

    def sample(cost: float) -> Any:
        found = modules.arms.Sample(cpu(modules, int(cost * 1e9 * speed)))
        found.ttft_ns, found.tpot_ns = [1000, 1000], [cost, cost]
        return found

    return (sample(1.05 * hooks), sample(1)), (sample(1.05 * 3), sample(hooks * 3))


def test_neither_a_dearer_cluster_nor_a_slower_block_is_in_the_ratio_of_hooks(
    modules: SimpleNamespace,
) -> None:
    """Both stand above and below the line; CPU is of clusters side by side, latency of turns."""
    together, turns = (
        [blocks(modules, speed, hooks) for speed in (1, 3)] for hooks in (1.01, 1.02)
    )
    found = modules.switched.summarize(together, turns)
    beside, alone = (
        pytest.approx({"low": cost, "mid": cost, "high": cost}) for cost in (1.01, 1.02)
    )
    assert (found["cpu_ratio"], found["all_cpu_ratio"], found["beside_tpot_ratio"]) == (beside,) * 3
    assert found["tpot_ratio"] == alone
    assert found["ttft_ratio"] == pytest.approx({"low": 1, "mid": 1, "high": 1})
    assert (found["pairs"], found["requests_per_arm"]) == (2, 8)


@pytest.mark.parametrize(("on", "off"), [(0, 0), (1000, 101), (1000, 1000)])
def test_hooks_that_do_not_switch_are_no_measurement(
    modules: SimpleNamespace, on: int, off: int
) -> None:
    """With hooks on spans have to come, with hooks off hardly any."""
    modules.switched.demand_spans(1000, 99)
    with pytest.raises(RuntimeError, match="bytes of spans"):
        modules.switched.demand_spans(on, off)


def test_a_switch_turns_hooks_off_and_on_again(
    modules: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an engine's setup does it, on an object with one method."""
    from pdtrace.tracing.guard import Guard

    class Target:
        def method(self) -> str:
            return "result"

    switch = modules.switched.Switch(tmp_path / "switch")
    monkeypatch.setenv("PDTRACE_BENCHMARK_SWITCH", str(switch.path))
    monkeypatch.setattr(Guard, "observe", Guard.observe)
    runpy.run_path(str(modules.switched.HOOKS))
    target, seen = Target(), []
    assert Guard().observe(target, "method", before=lambda: seen.append("before"))
    assert not Guard().observe(target, "absent")
    for on in (True, False, True):
        switch.turn(on)
        assert target.method() == "result"
    assert seen == ["before", "before"]


def test_each_prompt_is_begun_by_the_one_or_the_other_first(
    modules: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In turns, nobody begins before the other one has ended."""
    served: list[str] = []

    def fake_serve(cluster: str, prompt: str, tokens: int, sample: Any) -> None:
        served.append(f"{cluster} {prompt}")
        sample.ttft_ns.append(1)

    monkeypatch.setattr(modules.switched, "serve", fake_serve)
    monkeypatch.setattr(modules.switched, "REST_S", 0)
    monkeypatch.setattr(modules.switched, "cpu_ns", lambda cluster: cpu(modules, len(served)))
    found = modules.switched.in_turns(("one", "other"), ["a", "b"], 32)
    assert served == ["one a", "other a", "other b", "one b"]
    assert [len(sample.ttft_ns) for sample in found] == [2, 2]
    assert [sample.cpu_ns for sample in found] == [cpu(modules, 4)] * 2
