"""Scheduler hooks that fail, and calls that they do not expect: the engine never notices."""

import random
from types import SimpleNamespace
from typing import Any

import pytest
from scheduler_engine import (
    ABORTED,
    DECODE,
    ID,
    LENGTH,
    PREFILL,
    Connector,
    Engine,
    Metadata,
    request,
    seams,
)
from vllm.v1.outputs import KVConnectorOutput
from vllm.v1.request import Request

from pdtrace.connector.notes import WorkerNotes
from pdtrace.connector.scheduler import SchedulerHooks
from pdtrace.tracing.guard import Guard
from pdtrace.tracing.testing import EPOCH_NS, SettableClock, make_recorder


class FakeBrokenRecord:
    """Injects a failure: `record` raises, every time."""

    def __call__(self, *_: Any, **__: Any) -> None:
        """Raise."""
        raise RuntimeError("injected")


def test_hooks_that_fail_leave_the_engine_its_results() -> None:
    """Every wrapped method still returns what it returns, and the errors are counted."""
    recorder, _ = make_recorder(SettableClock())
    guard = Guard()
    recorder.record = recorder.record_at = FakeBrokenRecord()  # type: ignore[method-assign]
    connector: Any = Connector()
    SchedulerHooks(recorder, "push", "demo").install(seams(connector), guard)
    broken = SimpleNamespace()  # without any attribute that a hook needs
    output = KVConnectorOutput(finished_recving={ID}, finished_sending={ID})
    leg = request(DECODE)
    assert connector.on_new_request(leg) is None
    assert connector.get_num_new_matched_tokens(leg, 0) == (7, True)
    assert connector.update_state_after_alloc(leg, None, 4) is None
    assert isinstance(connector.build_connector_meta(broken), Metadata)
    assert connector.update_connector_output(output) is None
    leg.status = LENGTH
    assert connector.request_finished_all_groups(leg, ([1],)) == (False, None)
    assert connector.request_finished(broken, [1]) == (False, None)
    assert connector.update_connector_output(broken) is None
    assert set(guard.errors) >= {
        "on_new_request",
        "get_num_new_matched_tokens",
        "update_state_after_alloc",
        "request_finished_all_groups",
        "request_finished",
        "update_connector_output",
    }


def test_the_engines_own_errors_pass_unchanged() -> None:
    """A connector that raises is the engine's business; no hook runs behind it."""

    class FakeFailingConnector(Connector):
        def update_state_after_alloc(self, *_: Any) -> None:
            raise LookupError("the engine's own")

    recorder, exporter = make_recorder(SettableClock())
    connector = FakeFailingConnector()
    SchedulerHooks(recorder, "push", "demo").install(seams(connector), recorder.guard)
    leg = request(PREFILL)
    connector.on_new_request(leg)
    with pytest.raises(LookupError, match="the engine's own"):
        connector.update_state_after_alloc(leg, None, 0)
    recorder.flush()
    assert exporter.spans == []


def test_the_table_of_legs_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request too many is served untraced, and counted."""
    monkeypatch.setattr("pdtrace.connector.scheduler._MAX_LEGS", 1)
    engine, leg, late = Engine("pull"), request(PREFILL), request(PREFILL, "cmpl-b-0-0123abcd")
    engine.arrive(10, leg)
    engine.arrive(11, late)
    engine.allocate(20, late, 0)
    engine.finish(30, late)
    engine.finish(30, leg, ABORTED)
    engine.recorder.flush()
    assert engine.recorder.losses() == {"legs_full": 1}
    assert len(engine.exporter.spans) == 1


def anything(engine: Engine, leg: Request, at: int, rng: random.Random) -> None:
    """One call that vLLM might make, whether it makes sense now or not."""
    calls: list[tuple[Any, ...]] = [
        (engine.attempt, at, leg),
        (engine.allocate, at, leg, rng.choice((0, 4))),
        (engine.output, at, WorkerNotes([(ID, EPOCH_NS + at, 0), ("x", 1, 0)])),
        (engine.step, at),
        (leg.append_output_token_ids, 1),
    ]
    call, *args = rng.choice(calls)
    call(*args)
    if rng.random() < 0.3:
        engine.output(at, finished_recving={ID, "x"})
    if rng.random() < 0.3:
        engine.step(at, r=1)


def test_any_order_of_calls_leaves_nothing_behind() -> None:
    """Random legs, calls out of order and unknown ids: tables empty, spans never inverted."""
    rng = random.Random(7)
    for _ in range(200):
        engine = Engine(rng.choice(("push", "pull")))
        leg = request(rng.choice((PREFILL, DECODE, None)))
        engine.arrive(1, leg)
        for at in range(2, 14):
            anything(engine, leg, at, rng)
        engine.finish(20, leg, rng.choice((LENGTH, ABORTED)), held=rng.random() < 0.5)
        engine.output(21, finished_sending={ID, "y"}, finished_recving={ID})
        for found in engine.spans():
            assert 1 <= found["start"] <= found["end"] <= 21
