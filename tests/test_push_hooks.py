"""Push hooks on vLLM's own worker, with two real NIXL agents that move real memory."""

import threading
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")
pytest.importorskip("nixl", reason="NIXL is not installed")

from nixl_pair import eventually
from pair_steps import (
    CALLER,
    D_ID,
    P_ID,
    Pair,
    common,
    hand_over,
    moved,
    register,
    registration,
    shake_hands,
    shape,
    turn_until,
    without_durations,
    written,
)
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.metadata import PUSH_REG_NOTIF_PREFIX

from pdtrace.connector.push import NixlPushConnector
from pdtrace.tracing import semconv as sc
from pdtrace.tracing.ids import derived_trace_id

pytestmark = pytest.mark.nixl


def test_push_with_the_registration_first(push: Pair) -> None:
    """The match begins when it is received and ends when the blocks come; D's context is adopted.

    ::

        d  registration 20..30
        p      received 40 | match 40..55 | write_submit 60..60 | write_complete 60..70
    """
    shake_hands(push)
    register(push, [3, 4])
    push.at(40)
    turn_until(push.p, lambda: push.p.worker._pending_d_registrations)
    hand_over(push, [1, 2], at=50)
    push.at(60)
    push.p.worker.writer_turn()
    push.at(70)
    written(push)

    trace, parent = int(CALLER[3:35], 16), int(CALLER[36:52], 16)
    (sent,) = push.d.finish()
    sent_bytes = sent["attributes"].pop(sc.REGISTRATION_BYTES)
    assert sent_bytes > 200
    assert sent == {
        "name": sc.SPAN_REGISTRATION,
        "trace": derived_trace_id("a"),
        "parent": None,
        "start": 20,
        "end": 30,
        "attributes": common("d"),
    }
    handed, match, submit, complete = push.p.finish()
    assert handed == {
        "name": sc.SPAN_PREFILL_END,
        "trace": derived_trace_id("a"),
        "parent": None,
        "start": 50,
        "end": 55,
        "attributes": common("p", **{sc.BLOCK_COUNT: 2}),
    }
    later = {"trace": trace, "parent": parent}
    peer = {sc.PEER_ENGINE_ID: "engine-d", sc.PEER_ENGINE_REQUEST_ID: D_ID}
    assert match == {
        **later,
        "name": sc.SPAN_MATCH,
        "start": 40,
        "end": 55,
        "attributes": common("p", **peer, **{sc.MATCH_FIRST: sc.MATCH_REGISTRATION}),
        "events": [(sc.EVENT_REGISTRATION_RECEIVED, 40, {sc.PEER_TP_RANK: 0})],
    }
    size = {sc.TRANSFER_DESCRIPTORS: 2, sc.PEER_TP_RANKS: 1}
    assert submit == {
        **later,
        "name": sc.SPAN_WRITE_SUBMIT,
        "start": 60,
        "end": 60,
        "attributes": common(
            "p", **peer, **size, **{sc.TRANSFER_BYTES: moved(push, [1, 2], [3, 4])}
        ),
    }
    complete["attributes"] = without_durations(complete["attributes"])
    assert complete == {
        **later,
        "name": sc.SPAN_WRITE_COMPLETE,
        "start": 60,
        "end": 70,
        "attributes": common("p", **peer, **{sc.OBSERVED_BY: sc.OBSERVED_BY_STEP}),
    }
    assert push.p.hooks.take_notes().outcomes == {P_ID: sc.LEASE_WRITTEN}


def test_a_registration_is_sent_when_nixl_is_given_it(push: Pair) -> None:
    """P may have it before NIXL returns, so the return is no bound on when P received it."""
    shake_hands(push)
    agent = push.d.worker.nixl_wrapper
    prompt = agent.send_notif

    def fake_late_return(*args: Any, **kwargs: Any) -> None:
        prompt(*args, **kwargs)
        push.at(700)

    agent.send_notif = fake_late_return
    register(push, [3, 4])
    assert shape(push.d.finish()) == [(sc.SPAN_REGISTRATION, 20, 30)]


def test_push_with_the_blocks_first(push: Pair) -> None:
    """The match begins with the blocks; D sees the notification and says from which rank."""
    shake_hands(push)
    hand_over(push, [5, 6, 7], at=10)
    push.at(17)
    push.p.worker.writer_turn()
    register(push, [0, 1, 2])
    push.at(40)
    turn_until(push.p, lambda: push.p.worker._sending_transfers)
    push.at(50)
    written(push)
    _, match, submit, _ = push.p.finish()
    assert shape([match, submit]) == [(sc.SPAN_MATCH, 15, 40), (sc.SPAN_WRITE_SUBMIT, 40, 40)]
    assert match["attributes"][sc.MATCH_FIRST] == sc.MATCH_BLOCKS
    assert submit["attributes"][sc.TRANSFER_BYTES] == moved(push, [5, 6, 7], [0, 1, 2])

    push.at(60)
    turn_until(push.d, lambda: not push.d.worker._pending_completion_notifs.empty())
    ((request_id, at_ns, rank),), outcomes, _, _ = push.d.hooks.take_notes()
    assert (request_id, at_ns, rank, outcomes) == (
        D_ID,
        push.d.recorder.wall_ns(60),
        0,
        {},
    )


def test_a_cold_pair_shakes_hands_on_both_sides(push: Pair) -> None:
    """Asked for when the call had to leave its request waiting, usable when it comes back."""
    push.d.worker.may_shake_hands.clear()
    register(push, [3])
    push.d.worker.may_shake_hands.set()
    eventually(lambda: not push.d.worker._reg_send_inbox.empty())
    push.at(37)
    push.d.worker.writer_turn()

    push.p.worker.may_shake_hands.clear()
    turn_until(push.p, lambda: push.p.worker._pending_d_registrations)
    hand_over(push, [1], at=50)
    push.at(60)
    push.p.worker.writer_turn()
    push.p.worker.may_shake_hands.set()
    eventually(lambda: not push.p.worker._deferred_push_inbox.empty())
    push.at(80)
    push.p.worker.writer_turn()
    push.at(90)
    written(push)

    d_spans, p_spans = push.d.finish(), push.p.finish()
    assert shape(d_spans) == [(sc.SPAN_HANDSHAKE, 30, 37), (sc.SPAN_REGISTRATION, 20, 37)]
    assert d_spans[0]["attributes"] == common(
        "d", **{sc.PEER_ENGINE_ID: "engine-p", sc.HANDSHAKE_COLD: True}
    )
    assert shape(p_spans) == [
        (sc.SPAN_PREFILL_END, 50, 55),
        (sc.SPAN_MATCH, 37, 55),
        (sc.SPAN_HANDSHAKE, 60, 80),
        (sc.SPAN_WRITE_SUBMIT, 60, 80),
        (sc.SPAN_WRITE_COMPLETE, 80, 90),
    ]
    assert p_spans[2]["attributes"] == common(
        "p",
        **{
            sc.PEER_ENGINE_ID: "engine-d",
            sc.PEER_ENGINE_REQUEST_ID: D_ID,
            sc.HANDSHAKE_COLD: True,
        },
    )


def register_from_rank(pair: Pair, rank: int, at: int) -> None:
    """One of two ranks of D registers; the agent stands for both."""
    pair.at(at)
    pair.d.worker.tp_rank = rank
    pair.d.worker._do_send_reg_notif(D_ID, registration(pair, [3], decode_tp_size=2))


def test_every_rank_that_registers_is_an_event(push: Pair) -> None:
    """Several decode ranks register with one prefill rank; the first that came matches."""
    shake_hands(push)
    received = push.p.hooks._received
    register_from_rank(push, 1, at=30)
    turn_until(push.p, lambda: D_ID in received)
    register_from_rank(push, 0, at=40)
    turn_until(push.p, lambda: len(received[D_ID]) == 2)
    hand_over(push, [1], at=50)
    push.p.worker.writer_turn()
    written(push)
    match = push.p.finish()[1]
    assert (match["start"], match["end"]) == (30, 55)
    assert match["events"] == [
        (sc.EVENT_REGISTRATION_RECEIVED, 30, {sc.PEER_TP_RANK: 1}),
        (sc.EVENT_REGISTRATION_RECEIVED, 40, {sc.PEER_TP_RANK: 0}),
    ]
    assert (received, push.p.hooks._late) == ({}, {})


def test_a_rank_that_registers_after_the_match_waits_for_nothing(push: Pair) -> None:
    """The first rank's registration made the WRITE for both; nothing of the other's is kept."""
    shake_hands(push)
    hand_over(push, [1], at=10)
    push.p.worker.writer_turn()
    register_from_rank(push, 0, 30)
    turn_until(push.p, lambda: push.p.worker._sending_transfers)
    written(push)
    assert push.p.hooks._late == {D_ID: 1}
    register_from_rank(push, 1, 40)
    turn_until(push.p, lambda: not push.p.hooks._late)
    assert push.p.hooks._received == {}
    match = push.p.finish()[1]
    assert match["events"] == [(sc.EVENT_REGISTRATION_RECEIVED, 30, {sc.PEER_TP_RANK: 0})]


def test_an_untraced_peer_is_served_and_traced_on_one_side(push: Pair) -> None:
    """Its registration has no context; P's spans then stay in the derived trace."""
    shake_hands(push)
    plain = registration(push, [3])
    del plain[sc.REGISTRATION_KEY]
    message = PUSH_REG_NOTIF_PREFIX + msgspec.msgpack.encode(plain)
    for agent in push.d.worker._remote_agents["engine-p"].values():
        push.d.worker.nixl_wrapper.send_notif(agent, notif_msg=message)
    turn_until(push.p, lambda: push.p.worker._pending_d_registrations)
    hand_over(push, [1], at=50)
    push.p.worker.writer_turn()
    written(push)
    spans = push.p.finish()
    assert len(spans) == 4
    assert {(span["trace"], span["parent"]) for span in spans} == {(derived_trace_id("a"), None)}
    (event,) = spans[1]["events"]
    assert (event[0], event[2]) == (sc.EVENT_REGISTRATION_RECEIVED, {})


def test_a_completion_that_another_thread_sees_first_is_reported_once(push: Pair) -> None:
    """The engine's thread may poll between the last post and the writer's return from it."""
    shake_hands(push)
    register(push, [3])
    turn_until(push.p, lambda: push.p.worker._pending_d_registrations)
    worker = push.p.worker
    posted, may_return = threading.Event(), threading.Event()
    post = worker.nixl_wrapper.transfer

    def post_and_linger(handle: Any) -> Any:
        state = post(handle)
        with worker._sending_transfers_lock:  # vLLM publishes it a moment later
            worker._sending_transfers[P_ID].append(handle)
        posted.set()
        assert may_return.wait(60)
        return state

    worker.nixl_wrapper.transfer = post_and_linger
    hand_over(push, [1], at=50)
    push.at(60)
    writer = threading.Thread(target=worker.writer_turn)
    writer.start()
    assert posted.wait(60)
    push.at(64)
    written(push)
    push.at(66)
    worker._sending_transfers = _Forgetful()
    may_return.set()
    writer.join(60)
    spans = push.p.finish()
    assert shape(spans)[2:] == [
        (sc.SPAN_WRITE_SUBMIT, 60, 66),
        (sc.SPAN_WRITE_COMPLETE, 66, 66),
    ]
    assert push.p.hooks._transfers == {}
    assert push.p.hooks.take_notes().outcomes == {P_ID: sc.LEASE_WRITTEN}


class _Forgetful(dict[str, list[Any]]):
    """Takes the handle that was published already."""

    def __missing__(self, key: str) -> list[Any]:
        return []


def test_the_registration_carries_decodes_context() -> None:
    """Put into what vLLM staged; a request that staged nothing is left alone."""
    staged: dict[str, dict[str, Any]] = {D_ID: {"request_id": D_ID}}
    scheduler = SimpleNamespace(_push_pending_registrations=staged)
    connector: Any = SimpleNamespace(connector_scheduler=scheduler)
    for request_id in (D_ID, "another"):
        request = SimpleNamespace(
            request_id=request_id, trace_headers=None, kv_transfer_params={"traceparent": CALLER}
        )
        NixlPushConnector._tell_peer(connector, None, request, None, 4)
    assert staged == {
        D_ID: {"request_id": D_ID, sc.REGISTRATION_KEY: {sc.PARAM_TRACEPARENT: CALLER}}
    }
