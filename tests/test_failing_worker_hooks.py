"""Each worker hook fails in turn, on two real NIXL agents: the blocks arrive all the same."""

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")
pytest.importorskip("nixl", reason="NIXL is not installed")

from nixl_pair import PullWorker, PushWorker, eventually
from pair_steps import (
    P_ID,
    Make,
    fake_failure,
    hand_over,
    moved,
    read,
    received,
    register,
    turn_until,
    written,
)

from pdtrace.connector.pull import PullWorkerHooks
from pdtrace.connector.push import PushWorkerHooks
from pdtrace.tracing.guard import Guard

pytestmark = pytest.mark.nixl

PUSH_HOOKS = (
    "_ensure_handshake",
    "get_transfer_results",
    "get_xfer_descs",
    "prep_xfer_dlist",
    "make_prepped_xfer",
    "get_xfer_telemetry",
    "get_new_notifs",
    "send_notif",
    "_send_registration_to_p",
    "_do_send_reg_notif",
    "_pop_matching_finished_blocks",
    "_handle_push_reg_notif",
    "_do_start_push_kv",
    "_xfer_blocks_for_req",
)
PULL_HOOKS = (
    "_background_nixl_handshake",
    "get_transfer_results",
    "make_prepped_xfer",
    "get_xfer_telemetry",
    "get_new_notifs",
    "_read_blocks_for_req",
    "_get_new_notifs",
)


@pytest.fixture
def fake_failing_hooks(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], list[str]]:
    """Injects a failure into both hooks of one method; gives the list of errors told."""
    observe = Guard.observe

    def arm(broken: str) -> list[str]:
        told: list[str] = []

        def observe_with_failure(self: Guard, target: Any, method: str, **hooks: Any) -> bool:
            if method == broken:
                hooks = {"before": fake_failure, "after": fake_failure}
            return observe(self, target, method, **hooks)

        monkeypatch.setattr(Guard, "observe", observe_with_failure)
        monkeypatch.setattr(Guard, "failed", lambda _, hook, *__: told.append(hook))
        return told

    return arm


@pytest.mark.parametrize("broken", PULL_HOOKS)
def test_a_pull_arrives_whichever_hook_fails(
    fake_failing_hooks: Callable[[str], list[str]], make: Make, broken: str
) -> None:
    """D has its blocks and P frees its own. Handshakes are held back as for push, see there."""
    told = fake_failing_hooks(broken)
    pair = make(PullWorker, PullWorkerHooks)
    pair.p.worker._reqs_to_process.add(P_ID)
    pair.p.worker._reqs_to_send[P_ID] = 1e12
    pair.d.worker.may_shake_hands.clear()
    read(pair, [3], [1])
    pair.d.worker.may_shake_hands.set()
    eventually(lambda: not pair.d.worker._ready_requests.empty())
    pair.d.step()
    received(pair)
    eventually(lambda: P_ID in pair.p.worker.get_transfer_results().finished_sending)
    assert moved(pair, [1], [3]) == 4096
    assert set(told) == {broken}


@pytest.mark.parametrize("broken", PUSH_HOOKS)
def test_a_push_arrives_whichever_hook_fails(
    fake_failing_hooks: Callable[[str], list[str]], make: Make, broken: str
) -> None:
    """From a cold pair to the freed blocks; the writer drops no request.

    Handshakes are held back until the writer's turn is over: one that is done within the turn is
    not waited for at all.
    """
    told = fake_failing_hooks(broken)
    pair = make(PushWorker, PushWorkerHooks)
    p, d = pair.p.worker, pair.d.worker
    for worker in (p, d):
        worker.may_shake_hands.clear()
    register(pair, [3, 4])
    d.may_shake_hands.set()
    eventually(lambda: not d._reg_send_inbox.empty())
    d.writer_turn()
    hand_over(pair, [1, 2], at=50)
    turn_until(pair.p, lambda: not p._push_finished_blocks)
    p.may_shake_hands.set()
    eventually(lambda: not p._deferred_push_inbox.empty())
    p.writer_turn()
    written(pair)
    assert moved(pair, [1, 2], [3, 4]) == 2 * 4096
    assert set(told) == {broken}
