"""Pull hooks on vLLM's own worker, with two real NIXL agents that move real memory."""

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")
pytest.importorskip("nixl", reason="NIXL is not installed")

from nixl_pair import eventually
from pair_steps import (
    D_ID,
    P_ID,
    Pair,
    moved,
    read,
    received,
    shake_hands,
    shape,
    wanted,
    without_durations,
)

from pdtrace.tracing import semconv as sc
from pdtrace.tracing.ids import derived_trace_id

pytestmark = pytest.mark.nixl


def test_pull_of_a_warm_pair(pull: Pair) -> None:
    """Two adjacent spans on D with what was really read; P has proof from the notification."""
    shake_hands(pull)
    pull.p.worker._reqs_to_process.add(P_ID)
    pull.p.worker._reqs_to_send[P_ID] = 1e12
    read(pull, [3, 4], [1, 2])
    pull.at(40)
    received(pull)
    submit, complete = pull.d.finish()
    own = {sc.REQUEST_ID: "a", sc.ENGINE_REQUEST_ID: D_ID, sc.MODE: "pull"}
    trace = {"trace": derived_trace_id("a"), "parent": None}
    assert submit == {
        **trace,
        "name": sc.SPAN_READ_SUBMIT,
        "start": 25,
        "end": 25,
        "attributes": {
            **own,
            sc.TRANSFER_DESCRIPTORS: 2,
            sc.PEER_TP_RANKS: 1,
            sc.TRANSFER_BYTES: moved(pull, [1, 2], [3, 4]),
        },
    }
    complete["attributes"] = without_durations(complete["attributes"])
    assert complete == {
        **trace,
        "name": sc.SPAN_READ_COMPLETE,
        "start": 25,
        "end": 40,
        "attributes": {**own, sc.OBSERVED_BY: sc.OBSERVED_BY_STEP},
    }
    assert pull.d.hooks._evidence == {}

    pull.at(50)
    eventually(lambda: pull.p.worker.get_transfer_results().finished_sending == {P_ID})
    seen, outcomes, _, _ = pull.p.hooks.take_notes()
    assert seen == [(P_ID, pull.p.recorder.wall_ns(50), 0)]
    assert outcomes == {P_ID: sc.LEASE_READ}
    assert pull.p.finish() == []


def test_pull_of_a_cold_pair(pull: Pair) -> None:
    """The handshake lies inside the submission, which a later step goes on with."""
    pull.d.worker.may_shake_hands.clear()  # or it may be done within the first step
    read(pull, [3], [1])
    pull.d.worker.may_shake_hands.set()
    eventually(lambda: not pull.d.worker._ready_requests.empty())
    pull.at(30)
    pull.d.step()
    pull.at(40)
    received(pull)
    handshake, submit, complete = pull.d.finish()
    assert shape([handshake, submit, complete]) == [
        (sc.SPAN_HANDSHAKE, 25, 30),
        (sc.SPAN_READ_SUBMIT, 25, 30),
        (sc.SPAN_READ_COMPLETE, 30, 40),
    ]
    assert handshake["attributes"][sc.PEER_ENGINE_ID] == "engine-p"
    assert submit["attributes"][sc.TRANSFER_BYTES] == moved(pull, [1], [3])


def test_a_full_local_hit_only_notifies(pull: Pair) -> None:
    """D's scheduler waits for nothing and hands no context over: no span, and nothing lost."""
    shake_hands(pull)
    pull.d.step(reqs_to_recv={D_ID: wanted(pull, [], [1])})
    assert pull.d.finish() == []
