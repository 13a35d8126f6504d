"""What worker hooks say when vLLM's own worker fails, on two real NIXL agents."""

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")
pytest.importorskip("nixl", reason="NIXL is not installed")

from nixl_pair import carried, eventually
from pair_steps import (
    D_ID,
    P_ID,
    Pair,
    error_of,
    fake_failure,
    hand_over,
    read,
    register,
    registration,
    shake_hands,
    shake_hands_of_decode,
    shape,
    turn_until,
    wanted,
)

from pdtrace.tracing import semconv as sc

pytestmark = pytest.mark.nixl


def test_a_write_that_cannot_be_posted(push: Pair) -> None:
    """The open span fails, and the lease that then runs out is no success."""
    shake_hands(push)
    register(push, [3])
    turn_until(push.p, lambda: push.p.worker._pending_d_registrations)
    hand_over(push, [1], at=50)
    push.p.worker.nixl_wrapper.transfer = fake_failure
    push.p.worker.writer_turn()
    assert error_of(push.p.spans()) == [(sc.SPAN_WRITE_SUBMIT, sc.ERROR_WRITE_FAILED)]
    push.p.worker._reqs_to_send[P_ID] = 0.0
    assert push.p.worker.get_transfer_results().finished_sending == {P_ID}
    assert push.p.hooks.take_notes().outcomes == {P_ID: sc.LEASE_EXPIRED}
    assert len(push.p.finish()) == 3


def test_a_failed_write_beside_a_good_one_is_not_a_success(push: Pair) -> None:
    """Of two ranks' WRITEs one is refused: the other completes, but the lease has no evidence."""
    shake_hands(push)
    register(push, [3])
    turn_until(push.p, lambda: push.p.worker._pending_d_registrations)
    hand_over(push, [1], at=50)
    worker = push.p.worker
    write_one, post, calls = worker._xfer_blocks, worker.nixl_wrapper.transfer, []

    def fake_first_post_fails(handle: Any) -> Any:
        calls.append(handle)
        return post(handle) if len(calls) > 1 else fake_failure()

    def write_two(**kwargs: Any) -> Any:
        write_one(**kwargs)
        return write_one(**kwargs)

    worker.nixl_wrapper.transfer, worker._xfer_blocks = fake_first_post_fails, write_two
    worker.writer_turn()

    def polled() -> bool:
        worker.get_transfer_results()
        return not worker._sending_transfers

    eventually(polled)
    assert len(calls) == 2
    worker._reqs_to_send[P_ID] = 0.0
    worker.get_transfer_results()
    assert push.p.hooks.take_notes().outcomes == {P_ID: sc.LEASE_EXPIRED}
    assert error_of(push.p.finish()) == [(sc.SPAN_WRITE_SUBMIT, sc.ERROR_WRITE_FAILED)]
    assert push.p.hooks._transfers == {}


def test_a_write_that_fails_on_the_way(push: Pair) -> None:
    """The poll raises (its peer is gone): the wait for completion ends as failed."""
    shake_hands(push)
    register(push, [3])
    turn_until(push.p, lambda: push.p.worker._pending_d_registrations)
    hand_over(push, [1], at=50)
    push.p.worker.writer_turn()
    push.p.worker.nixl_wrapper.check_xfer_state = fake_failure
    push.at(99)
    push.p.worker.get_transfer_results()
    spans = push.p.finish()
    assert error_of(spans) == [(sc.SPAN_WRITE_COMPLETE, sc.ERROR_WRITE_FAILED)]
    assert spans[-1]["end"] == 99


def test_a_registration_that_cannot_be_sent(push: Pair) -> None:
    """vLLM logs it and goes on; so does the span, as an error."""
    shake_hands(push)
    # Under the hook that counts bytes, as NIXL itself would fail.
    push.d.worker.nixl_wrapper.send_notif = fake_failure
    register(push, [3])
    assert error_of(push.d.finish()) == [(sc.SPAN_REGISTRATION, sc.ERROR_REGISTRATION_FAILED)]


def test_a_registration_without_a_peer_to_send_it_to(push: Pair) -> None:
    """The engine was forgotten between handshake and sending: vLLM only writes a line."""
    shake_hands(push)
    known = push.d.worker._remote_agents["engine-p"]
    push.d.worker._remote_agents["engine-p"] = {}
    register(push, [3])
    push.d.worker._remote_agents["engine-p"] = known
    assert error_of(push.d.finish()) == [(sc.SPAN_REGISTRATION, sc.ERROR_REGISTRATION_FAILED)]


@pytest.mark.parametrize("side", ["d", "p"])
def test_a_handshake_with_nobody(push: Pair, side: str) -> None:
    """Both that wait for it end with the handshake's error."""
    hooks = push.d.hooks if side == "d" else push.p.hooks
    if side == "d":
        push.at(25)
        staged = {D_ID: registration(push, [3], remote_port=99)}
        push.d.step({D_ID: carried("push", 20)}, push_registrations=staged)
        push.d.worker.writer_turn()
        eventually(lambda: not push.d.worker._failed_recv_reqs.empty())
        found, waiting = push.d, sc.SPAN_REGISTRATION
    else:
        shake_hands_of_decode(push)
        push.d.worker._do_send_reg_notif(D_ID, registration(push, [3], decode_port=99))
        turn_until(push.p, lambda: push.p.worker._pending_d_registrations)
        hand_over(push, [1], at=50)
        push.p.worker.writer_turn()
        eventually(lambda: not push.p.worker._handshake_futures)
        eventually(lambda: not hooks._asked)
        found, waiting = push.p, sc.SPAN_WRITE_SUBMIT
    failed = sc.ERROR_HANDSHAKE_FAILED
    assert sorted(error_of(found.finish())) == sorted(
        [(waiting, failed), (sc.SPAN_HANDSHAKE, failed)]
    )


def test_a_lease_that_nobody_used(push: Pair) -> None:
    """D never registers: P frees the blocks and says that nothing proves a transfer."""
    hand_over(push, [1], at=50)
    push.p.worker.writer_turn()
    assert push.p.hooks._handed
    push.p.worker._reqs_to_send[P_ID] = 0.0
    push.p.worker.get_transfer_results()
    assert push.p.hooks.take_notes().outcomes == {P_ID: sc.LEASE_EXPIRED}
    assert shape(push.p.finish()) == [(sc.SPAN_PREFILL_END, 50, 55)]
    assert push.p.hooks._handed == {}


def test_a_read_that_cannot_be_posted(pull: Pair) -> None:
    """D's scheduler hears of it later; the span ends now."""
    shake_hands(pull)
    pull.d.worker.nixl_wrapper.transfer = fake_failure
    read(pull, [3], [1])
    assert error_of(pull.d.finish()) == [(sc.SPAN_READ_SUBMIT, sc.ERROR_READ_FAILED)]
    assert pull.d.worker.get_transfer_results().failed_recving == {D_ID}
    assert pull.d.finish() and pull.d.hooks._loading == {}


def test_a_read_that_fails_on_the_way(pull: Pair) -> None:
    """P dies during the READ: the poll raises."""
    shake_hands(pull)
    read(pull, [3], [1])
    pull.d.worker.nixl_wrapper.check_xfer_state = fake_failure
    pull.d.worker.get_transfer_results()
    assert error_of(pull.d.finish()) == [(sc.SPAN_READ_COMPLETE, sc.ERROR_READ_FAILED)]


class nixlRemoteDisconnectError(Exception):
    """Named as NIXL's own."""


def fake_disconnection(*_: Any, **__: Any) -> None:
    """Injected where a call of NIXL is to find its peer gone."""
    raise nixlRemoteDisconnectError("injected")


@pytest.mark.parametrize(
    ("call", "span"),
    [("transfer", sc.SPAN_READ_SUBMIT), ("check_xfer_state", sc.SPAN_READ_COMPLETE)],
)
def test_a_read_from_a_peer_that_is_gone(pull: Pair, call: str, span: str) -> None:
    """NIXL says so, and so do the span and the scheduler's note."""
    shake_hands(pull)
    setattr(pull.d.worker.nixl_wrapper, call, fake_disconnection)
    read(pull, [3], [1])
    pull.d.worker.get_transfer_results()
    assert error_of(pull.d.finish()) == [(span, sc.ERROR_PEER_LOST)]
    assert pull.d.hooks.take_notes().failures == [(D_ID, sc.ERROR_PEER_LOST)]


@pytest.mark.parametrize(("fake", "lost"), [(fake_failure, []), (fake_disconnection, ["engine-p"])])
def test_a_heartbeat_to_a_peer_that_is_gone(
    push: Pair, monkeypatch: pytest.MonkeyPatch, fake: Any, lost: list[str]
) -> None:
    """vLLM only logs it; the scheduler is told which engine, but not of failures that may pass."""
    shake_hands(push)
    beat = SimpleNamespace(host="", port=0, tp_size=1, dcp_size=1, pp_size=1, req_ids={P_ID})
    with monkeypatch.context() as under_the_hook:
        agent = push.d.worker.nixl_wrapper
        under_the_hook.setattr(agent, "agent", SimpleNamespace(genNotif=fake))
        push.d.step(heartbeat_by_engine={"engine-p": beat})
    assert push.d.hooks.take_notes().lost == lost
    assert push.d.finish() == []


def test_a_read_of_blocks_that_expire_too_soon(pull: Pair) -> None:
    """Reading back from D, vLLM turns it away without a word in the log either."""
    shake_hands(pull)
    pull.d.worker._bidirectional_kv_xfer_enabled = True
    pull.d.worker._is_turn2_read_expired = lambda _: True
    read(pull, [3], [1])
    assert error_of(pull.d.finish()) == [(sc.SPAN_READ_SUBMIT, sc.ERROR_LEASE_EXPIRED)]


def test_a_request_that_only_cleans_up_is_not_mistaken_for_one(pull: Pair) -> None:
    """vLLM submits it after a failed one, with nothing to load: no span, not even if cold."""
    pull.d.step(reqs_to_recv={D_ID: wanted(pull, [], [1], port=99)})
    eventually(lambda: not pull.d.worker._failed_recv_reqs.empty())
    assert pull.d.finish() == []


def test_a_read_from_a_peer_that_is_known_bad(pull: Pair) -> None:
    """vLLM turns it away without a word in the log."""
    shake_hands(pull)
    pull.d.worker._invalid_remote_engines.add("engine-p")
    read(pull, [3], [1])
    assert error_of(pull.d.finish()) == [(sc.SPAN_READ_SUBMIT, sc.ERROR_PEER_LOST)]


def test_a_pull_handshake_with_nobody(pull: Pair) -> None:
    """The request fails on D with the handshake's error."""
    read(pull, [3], [1], port=99)
    eventually(lambda: not pull.d.worker._failed_recv_reqs.empty())
    failed = sc.ERROR_HANDSHAKE_FAILED
    assert sorted(error_of(pull.d.finish())) == [
        (sc.SPAN_HANDSHAKE, failed),
        (sc.SPAN_READ_SUBMIT, failed),
    ]
    assert pull.d.worker.get_transfer_results().failed_recving == {D_ID}
    assert len(pull.d.finish()) == 2


def test_a_pull_lease_that_nobody_used(pull: Pair) -> None:
    """P's worker never opened the request, so nothing of it is lost."""
    pull.p.worker._reqs_to_process.add(P_ID)
    pull.p.worker._reqs_to_send[P_ID] = 0.0
    pull.p.worker.get_transfer_results()
    assert pull.p.hooks.take_notes().outcomes == {P_ID: sc.LEASE_EXPIRED}
    assert pull.p.finish() == []
