"""Scheduler hooks when a leg does not end well: whole spans of vLLM's own requests."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
from scheduler_engine import ABORTED, COMPUTED, DECODE, ID, PEER, PREFILL, Engine, request, span
from vllm.v1.request import RequestStatus

from pdtrace.connector.notes import WorkerNotes
from pdtrace.tracing import semconv as sc
from pdtrace.tracing.testing import EPOCH_NS


def errored(error: str) -> dict[str, Any]:
    """Own attributes of a span of D that failed."""
    return {**PEER, sc.ERROR_TYPE: error}


def test_a_failed_load_that_decode_recomputes() -> None:
    """The KV wait failed; the prompt is then computed here, and that span says so."""
    engine, leg = Engine("pull"), request(DECODE)
    engine.arrive(10, leg)
    engine.allocate(20, leg, 4)
    engine.step(21)
    engine.output(40, finished_recving={ID}, failed_recving={ID})
    engine.allocate(50, leg, 0)
    engine.step(51, r=5)
    leg.append_output_token_ids(1)
    engine.output(60)
    engine.finish(70, leg)
    failed = {**PEER, sc.EXTERNAL_TOKENS: 4, sc.ERROR_TYPE: sc.ERROR_READ_FAILED}
    recomputed = {**PEER, **COMPUTED, sc.ERROR_TYPE: sc.ERROR_LOAD_FAILED_RECOMPUTE}
    assert engine.spans()[1:] == [
        span(sc.SPAN_KV_WAIT, 20, 40, "pull", failed),
        span(sc.SPAN_DECODE_START, 40, 50, "pull", PEER),
        span(sc.SPAN_PREFILL, 50, 60, "pull", recomputed),
        span(sc.SPAN_DECODE, 60, 70, "pull", {**PEER, sc.OUTPUT_TOKENS: 1, sc.PREEMPTIONS: 0}),
    ]


@pytest.mark.parametrize(
    ("mode", "failures", "error"),
    [
        ("pull", [], sc.ERROR_READ_FAILED),
        ("push", [], sc.ERROR_REGISTRATION_FAILED),
        ("pull", [(ID, sc.ERROR_PEER_LOST)], sc.ERROR_PEER_LOST),
        ("push", [("other", sc.ERROR_PEER_LOST), (ID, "a"), (ID, "b")], "a"),
    ],
)
def test_a_failed_load_that_fails_the_request(
    mode: str, failures: list[tuple[str, str]], error: str
) -> None:
    """vLLM fails it ahead of the output that says why; the span ends then, and says why."""
    engine, leg = Engine(mode), request(DECODE)
    engine.arrive(10, leg)
    engine.allocate(20, leg, 4)
    engine.step(21)
    engine.finish(40, leg, RequestStatus.FINISHED_ERROR)
    notes = WorkerNotes(failures=failures)
    engine.output(41, notes, finished_recving={ID}, failed_recving={ID})
    assert engine.spans()[1:] == [span(sc.SPAN_KV_WAIT, 20, 40, mode, errored(error))]


def test_a_failed_load_without_a_handoff_registered_nothing() -> None:
    """Another connector beside push could not load what it had promised."""
    engine, leg = Engine("push"), request({})
    engine.arrive(10, leg)
    engine.attempt(15, leg)
    engine.allocate(20, leg, 4)
    engine.step(21)
    engine.finish(40, leg, RequestStatus.FINISHED_ERROR)
    engine.output(41, None, finished_recving={ID}, failed_recving={ID})
    failed = {sc.ERROR_TYPE: sc.ERROR_READ_FAILED}
    assert engine.spans() == [
        span(sc.SPAN_PREFILL_QUEUE, 10, 20, "none", {}),
        span(sc.SPAN_KV_WAIT, 20, 40, "none", failed),
    ]


def test_a_failed_load_is_known_where_vllm_names_only_blocks() -> None:
    """Before vLLM 0.30 the output has no `failed_recving`: the worker's own note tells."""
    engine, leg = Engine("pull"), request(DECODE)
    engine.arrive(10, leg)
    engine.allocate(20, leg, 4)
    engine.step(21)
    engine.clock.mono = 40
    notes = WorkerNotes(failures=[(ID, sc.ERROR_HANDSHAKE_FAILED)])
    older = SimpleNamespace(
        kv_connector_worker_meta=notes, finished_recving={ID}, finished_sending=None
    )
    engine.connector.update_connector_output(cast(Any, older))
    engine.finish(90, leg, ABORTED)
    failed = errored(sc.ERROR_HANDSHAKE_FAILED) | {sc.EXTERNAL_TOKENS: 4}
    assert engine.spans()[1:] == [
        span(sc.SPAN_KV_WAIT, 20, 40, "pull", failed),
        span(sc.SPAN_DECODE_START, 40, 90, "pull", errored(sc.ERROR_ABORTED)),
    ]


def test_a_late_registration_ends_the_waiting_and_not_the_request() -> None:
    """vLLM's watchdog forgets it; KV that comes all the same is decoded from."""
    engine, leg, younger = Engine("push"), request(DECODE), request(DECODE, "cmpl-b-0-0123abcd")
    deadlines = {ID: 30.0, younger.request_id: 70.0}
    engine.hooks._waits.deadlines = deadlines
    for waiting in (leg, younger):
        engine.arrive(10, waiting)
        engine.allocate(20, waiting, 4)
    engine.step(21)
    del deadlines[ID]
    engine.step(30)
    engine.step(31)
    engine.output(40, finished_recving={ID})
    engine.finish(90, leg, ABORTED)
    engine.finish(91, younger, ABORTED)
    assert engine.spans()[2:4] == [
        span(sc.SPAN_KV_WAIT, 20, 30, "push", errored(sc.ERROR_REGISTRATION_EXPIRED)),
        span(sc.SPAN_DECODE_START, 40, 90, "push", errored(sc.ERROR_ABORTED)),
    ]


def test_kv_that_a_failing_hook_did_not_hear_of_is_not_late() -> None:
    """What is scheduled has its KV, and vLLM's watchdog has forgotten it for that."""
    engine, leg = Engine("push"), request(DECODE)
    engine.hooks._waits.deadlines = deadlines = {ID: 30.0}
    engine.arrive(10, leg)
    engine.allocate(20, leg, 4)
    engine.step(21)
    deadlines.clear()
    engine.allocate(40, leg, 0)
    engine.step(41, r=1)
    leg.append_output_token_ids(1)
    engine.output(50)
    engine.finish(60, leg)
    named = {found["name"]: found["attributes"].get(sc.ERROR_TYPE) for found in engine.spans()}
    assert named == {
        sc.SPAN_DECODE_ADMISSION: None,
        sc.SPAN_FIRST_DECODE: None,
        sc.SPAN_DECODE: None,
        sc.SPAN_KV_WAIT: sc.ERROR_ABANDONED,
    }


def test_a_registration_that_could_not_be_sent_names_the_cause_when_it_is_late() -> None:
    """The watchdog is when vLLM gives up, not why."""
    engine, leg = Engine("push"), request(DECODE)
    engine.hooks._waits.deadlines = deadlines = {ID: 30.0}
    engine.arrive(10, leg)
    engine.allocate(20, leg, 4)
    engine.output(25, WorkerNotes(failures=[(ID, sc.ERROR_REGISTRATION_FAILED)]))
    deadlines.clear()
    engine.step(30)
    engine.finish(90, leg, ABORTED)
    failed = errored(sc.ERROR_REGISTRATION_FAILED)
    assert engine.spans()[1:] == [span(sc.SPAN_KV_WAIT, 20, 30, "push", failed)]


@pytest.mark.parametrize(("times", "end"), [(1, 90), (2, 31)])
def test_a_lost_peer_ends_the_waiting_at_its_second_silence(times: int, end: int) -> None:
    """What it sent before its end may lie unread at the first; an abort then names the peer too."""
    engine, leg = Engine("push"), request(DECODE)
    engine.arrive(10, leg)
    engine.allocate(20, leg, 4)
    for at in range(30, 30 + times):
        engine.output(at, WorkerNotes(lost=["engine-x", "engine-p"]))
    engine.finish(90, leg, ABORTED)
    lost = errored(sc.ERROR_PEER_LOST)
    assert engine.spans()[1:] == [span(sc.SPAN_KV_WAIT, 20, end, "push", lost)]


def test_a_lease_that_ran_out_on_one_rank_ran_out() -> None:
    """Ranks report in steps of their own; one without evidence is enough, in any order."""
    for outcomes in (("written", "expired"), ("expired", "written")):
        engine, leg = Engine("push"), request(PREFILL)
        engine.arrive(10, leg)
        engine.allocate(20, leg, 0)
        engine.step(21, r=5)
        engine.finish(40, leg, held=True)
        engine.output(50, WorkerNotes(outcomes={ID: outcomes[0]}))
        engine.output(60, WorkerNotes(outcomes={ID: outcomes[1]}), finished_sending={ID})
        expired = {sc.LEASE_OUTCOME: sc.LEASE_EXPIRED, sc.ERROR_TYPE: sc.ERROR_LEASE_EXPIRED}
        assert engine.spans()[-1] == span(sc.SPAN_LEASE, 40, 60, "push", expired)


def test_a_rank_whose_lease_ran_out_overrules_those_with_evidence() -> None:
    """Several workers' notes of one step become one."""
    one = WorkerNotes([("a", 1, 0)], {"x": "expired", "y": "written", "z": "written"}, [("f", "e")])
    other = WorkerNotes([("b", 2, 1)], {"x": "written", "y": "expired", "z": "written"}, [], ["p"])
    for left, right in ((one, other), (other, one)):
        merged = left.aggregate(right)
        assert sorted(merged.seen) == [("a", 1, 0), ("b", 2, 1)]
        assert merged.outcomes == {"x": "expired", "y": "expired", "z": "written"}
        assert (merged.failures, merged.lost) == ([("f", "e")], ["p"])


@pytest.mark.parametrize("params", [PREFILL, DECODE])
def test_what_vllm_submits_for_itself_is_no_request(params: dict[str, Any]) -> None:
    """After a rejected, failed or aborted request vLLM submits one that it ends at once.

    It is told by vLLM's own mark on it, so that requests with a name of any form are traced.
    """
    engine = Engine("pull")
    phantom, plain = request(params, "0123456789abcdef"), request(params, "fedcba9876543210")
    phantom.abort_immediately = True
    for one in (phantom, plain):
        engine.arrive(10, one)
        engine.finish(11, one, ABORTED)
    (only,) = engine.spans()
    assert only["attributes"][sc.ENGINE_REQUEST_ID] == plain.request_id
    assert engine.recorder.ignored == {"phantom": 1}


ABORT = {**PEER, sc.ERROR_TYPE: sc.ERROR_ABORTED}


@pytest.mark.parametrize(
    ("stage", "expected"),
    [
        ("arrived", (sc.SPAN_DECODE_ADMISSION, 10)),
        ("allocated", (sc.SPAN_KV_WAIT, 20)),
        ("complete", (sc.SPAN_DECODE_START, 40)),
        ("scheduled", (sc.SPAN_FIRST_DECODE, 50)),
        ("decoding", (sc.SPAN_DECODE, 60)),
    ],
)
def test_a_decode_leg_aborted_at_each_stage(stage: str, expected: tuple[str, int]) -> None:
    """What is open ends as aborted; a transfer that completes later is not news."""
    engine, leg = Engine("push"), request(DECODE)
    engine.arrive(10, leg)
    if stage != "arrived":
        engine.allocate(20, leg, 4)
        engine.step(21)
    if stage in ("complete", "scheduled", "decoding"):
        engine.output(40, finished_recving={ID})
    if stage in ("scheduled", "decoding"):
        engine.allocate(50, leg, 0)
        engine.step(51, r=1)
    if stage == "decoding":
        leg.append_output_token_ids(1)
        engine.output(60)
    engine.finish(90, leg, ABORTED)
    engine.output(95, WorkerNotes([(ID, EPOCH_NS + 94, 0)]), finished_recving={ID})
    last = engine.spans()[-1]
    name, start = expected
    own: dict[str, Any] = dict(ABORT)
    if stage == "decoding":
        own |= {sc.OUTPUT_TOKENS: 1, sc.PREEMPTIONS: 0}
    assert last == span(name, start, 90, "push", own)


@pytest.mark.parametrize("scheduled", [False, True])
def test_a_prefill_leg_aborted(scheduled: bool) -> None:
    """In the queue or while it computes; no lease begins."""
    engine, leg = Engine("push"), request(PREFILL)
    engine.arrive(10, leg)
    if scheduled:
        engine.allocate(20, leg, 0)
        engine.step(21, r=5)
    engine.finish(90, leg, ABORTED)
    start, name = (20, sc.SPAN_PREFILL) if scheduled else (10, sc.SPAN_PREFILL_QUEUE)
    own = {sc.ERROR_TYPE: sc.ERROR_ABORTED}
    assert engine.spans()[-1] == span(name, start, 90, "push", own)
