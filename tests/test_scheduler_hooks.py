"""Scheduler hooks on vLLM's own requests and outputs: whole spans, leg by leg."""

from typing import Any

import pytest
from scheduler_engine import (
    ABORTED,
    CALLER,
    COMPUTED,
    DECODE,
    ID,
    LENGTH,
    PEER,
    PREFILL,
    Connector,
    Engine,
    request,
    seams,
    span,
)
from vllm.v1.engine import EngineCoreEventType
from vllm.v1.request import Request, RequestStatus

from pdtrace.connector.carrier import attached
from pdtrace.connector.notes import WorkerNotes
from pdtrace.connector.scheduler import SchedulerHooks
from pdtrace.tracing import semconv as sc
from pdtrace.tracing.testing import EPOCH_NS


def test_a_prefill_leg_of_pull_until_its_blocks_are_read() -> None:
    """Queue, prefill, parameters returned, lease: adjacent, and the notification inside."""
    engine, leg = Engine("pull"), request(PREFILL)
    engine.arrive(10, leg)
    engine.attempt(15, leg)
    engine.allocate(20, leg, 0)
    engine.step(21, r=5)
    leg.append_output_token_ids(1)
    engine.finish(40, leg, held=True)
    engine.output(41)
    engine.step(50)
    notes = WorkerNotes([(ID, EPOCH_NS + 58, 1)], {ID: sc.LEASE_READ})
    engine.output(60, notes, finished_sending={ID})
    seen = [(sc.EVENT_NOTIFICATION_SEEN, 58, {sc.PEER_TP_RANK: 1})]
    assert engine.spans() == [
        span(sc.SPAN_PREFILL_QUEUE, 10, 20, "pull", {}),
        span(sc.SPAN_PREFILL, 20, 40, "pull", COMPUTED),
        span(sc.SPAN_PREFILL_END, 40, 40, "pull", {sc.BLOCK_COUNT: 3}),
        span(sc.SPAN_LEASE, 40, 60, "pull", {sc.LEASE_OUTCOME: sc.LEASE_READ}, events=seen),
    ]


def test_an_adapter_is_the_model_that_was_asked_for() -> None:
    """LoRA adapters of one engine are models of their own to those who call it."""
    engine, leg = Engine("pull"), request(PREFILL, adapter="tuned")
    engine.arrive(10, leg)
    engine.allocate(20, leg, 0)
    engine.finish(30, leg, held=False)
    assert {one["attributes"][sc.MODEL] for one in engine.spans()} == {"tuned"}


@pytest.mark.parametrize(
    ("notes", "own"),
    [
        (WorkerNotes([], {ID: "written"}), {sc.LEASE_OUTCOME: sc.LEASE_WRITTEN}),
        (
            WorkerNotes([], {ID: "expired"}),
            {sc.LEASE_OUTCOME: sc.LEASE_EXPIRED, sc.ERROR_TYPE: sc.ERROR_LEASE_EXPIRED},
        ),
        (None, {sc.LEASE_OUTCOME: sc.LEASE_EXPIRED, sc.ERROR_TYPE: sc.ERROR_LEASE_EXPIRED}),
    ],
    ids=["written", "expired", "no word"],
)
def test_a_prefill_leg_of_push_and_how_its_lease_ends(
    notes: WorkerNotes | None, own: dict[str, Any]
) -> None:
    """`finished_sending` alone is no success: only a worker's evidence is."""
    engine, leg = Engine("push"), request(PREFILL)
    engine.arrive(10, leg)
    engine.allocate(20, leg, 0)
    engine.step(21, r=5)
    engine.finish(40, leg, held=True)
    carrier = attached(engine.step(50))[ID]
    assert carrier.since_ns == EPOCH_NS + 40
    engine.output(60, notes, finished_sending={ID})
    assert engine.spans()[1:] == [
        span(sc.SPAN_PREFILL, 20, 40, "push", COMPUTED),
        span(sc.SPAN_LEASE, 40, 60, "push", own),
    ]


def test_a_chunked_prefill_counts_steps_and_the_time_in_no_batch() -> None:
    """Running, but left out of two steps by others."""
    engine, leg = Engine("pull"), request(PREFILL)
    engine.arrive(10, leg)
    engine.allocate(20, leg, 0)
    leg.num_computed_tokens = 1  # a hit in the prefix cache
    engine.step(20, r=1)
    leg.num_computed_tokens = 2
    engine.output(30)
    engine.step(31, other=9)
    engine.step(35, other=9)
    engine.step(40, r=2)
    engine.step(45, r=1)
    leg.num_preemptions = 1
    engine.finish(60, leg)
    own = {sc.PREFILL_STEPS: 3, sc.PREFILL_CACHED_TOKENS: 1, sc.PREEMPTIONS: 1}
    own[sc.PREFILL_GAP_NS] = 9
    assert engine.spans()[1] == span(sc.SPAN_PREFILL, 20, 60, "pull", own)


class ElderConnector(Connector):
    """vLLM before 0.22 does not tell a connector of a request's arrival."""

    on_new_request = None  # type: ignore[assignment]


@pytest.mark.parametrize(("noted", "begin"), [(True, 7), (False, 15)])
def test_a_request_of_an_elder_engine_begins_where_its_scheduler_noted_it(
    noted: bool, begin: int
) -> None:
    """Without a note, which vLLM makes for its statistics, where it is first tried."""
    engine, leg = Engine("pull", connector=ElderConnector()), request(PREFILL)
    if noted:
        leg.record_event(EngineCoreEventType.QUEUED, 7e-9)
    engine.attempt(15, leg)
    engine.attempt(16, leg)
    engine.allocate(20, leg, 0)
    engine.step(21, r=5)
    engine.finish(40, leg)
    assert engine.spans()[0] == span(sc.SPAN_PREFILL_QUEUE, begin, 20, "pull", {})


def decode_until_complete(engine: Engine, leg: Request) -> None:
    """Arrived 10, allocated 20, KV complete 40."""
    engine.arrive(10, leg)
    engine.attempt(12, leg)
    engine.attempt(16, leg)
    engine.allocate(20, leg, 4)
    engine.step(21)
    engine.output(30)
    engine.step(31)
    notes = WorkerNotes([(ID, EPOCH_NS + 38, 0), (ID, EPOCH_NS + 39, -1)])
    engine.output(40, notes, finished_recving={ID})


ADMISSION = span(
    sc.SPAN_DECODE_ADMISSION, 10, 20, "push", PEER, events=[(sc.EVENT_FIRST_ATTEMPT, 12, {})]
)
KV_WAIT = span(
    sc.SPAN_KV_WAIT,
    20,
    40,
    "push",
    {**PEER, sc.EXTERNAL_TOKENS: 4},
    events=[
        (sc.EVENT_NOTIFICATION_SEEN, 38, {sc.PEER_TP_RANK: 0}),
        (sc.EVENT_NOTIFICATION_SEEN, 39, {}),
    ],
)


def test_a_decode_leg_refused_for_capacity() -> None:
    """Five adjacent spans; the first pass that had no room for it is an event."""
    engine, leg = Engine("push"), request(DECODE)
    decode_until_complete(engine, leg)
    engine.step(45, other=3)
    engine.step(48, other=3)
    engine.allocate(50, leg, 0)
    engine.step(51, r=1)
    engine.output(55)
    leg.append_output_token_ids(1)
    engine.output(60)
    leg.append_output_token_ids([2, 3])
    engine.output(70)
    leg.num_preemptions = 2
    engine.finish(80, leg)
    refused: list[Any] = [(sc.EVENT_REFUSED, 45, {})]
    assert engine.spans() == [
        ADMISSION,
        KV_WAIT,
        span(sc.SPAN_DECODE_START, 40, 50, "push", {**PEER, sc.PREEMPTIONS: 0}, events=refused),
        span(sc.SPAN_FIRST_DECODE, 50, 60, "push", {**PEER, sc.RECOMPUTED_TOKENS: 1}),
        span(sc.SPAN_DECODE, 60, 80, "push", {**PEER, sc.OUTPUT_TOKENS: 3, sc.PREEMPTIONS: 2}),
    ]


@pytest.mark.parametrize("mode, said", [("pull", "cmpl-a-0-fedcba98"), ("push", None)])
def test_a_decode_leg_names_its_peers_leg_in_pull_alone(mode: str, said: str | None) -> None:
    """In push the remote id may be the router's own, and P says which leg it served."""
    engine = Engine(mode)
    leg = request(DECODE | {"remote_request_id": "cmpl-a-0-fedcba98"})
    engine.arrive(10, leg)
    engine.finish(20, leg, ABORTED)
    (admission,) = engine.spans()
    assert admission["attributes"].get(sc.PEER_ENGINE_REQUEST_ID) == said


def test_the_worker_is_told_of_a_decode_leg_once() -> None:
    """With the metadata of the step in which its blocks were allocated."""
    engine, leg = Engine("push"), request(DECODE, headers={"traceparent": CALLER})
    engine.arrive(10, leg)
    engine.allocate(20, leg, 4)
    carrier = attached(engine.step(21))[ID]
    assert (carrier.traceparent, carrier.since_ns) == (CALLER, EPOCH_NS + 20)
    assert carrier.attributes[sc.PEER_ENGINE_ID] == "engine-p"
    assert attached(engine.step(22)) == {}
    engine.finish(30, leg, ABORTED)
    engine.spans()


def test_a_full_local_hit_waits_for_nothing() -> None:
    """Allocated and scheduled in one pass: no KV wait, and the worker is told nothing."""
    engine, leg = Engine("push"), request(DECODE)
    engine.arrive(10, leg)
    engine.allocate(20, leg, 0)
    assert attached(engine.step(21, r=1)) == {}
    leg.append_output_token_ids(1)
    engine.output(30)
    engine.finish(40, leg)
    assert [(s["name"], s["start"], s["end"]) for s in engine.spans()] == [
        (sc.SPAN_DECODE_ADMISSION, 10, 20),
        (sc.SPAN_FIRST_DECODE, 20, 30),
        (sc.SPAN_DECODE, 30, 40),
    ]


def test_one_engine_for_both() -> None:
    """No handoff: prefill ends at the first token, mode is `none`."""
    engine, leg = Engine("push"), request(None)
    engine.arrive(10, leg)
    engine.allocate(20, leg, 0)
    engine.step(21, r=5)
    leg.append_output_token_ids(1)
    engine.output(30)
    leg.append_output_token_ids(2)
    engine.finish(40, leg, RequestStatus.FINISHED_STOPPED)
    assert engine.spans() == [
        span(sc.SPAN_PREFILL_QUEUE, 10, 20, "none", {}),
        span(sc.SPAN_PREFILL, 20, 30, "none", COMPUTED),
        span(sc.SPAN_DECODE, 30, 40, "none", {sc.OUTPUT_TOKENS: 2, sc.PREEMPTIONS: 0}),
    ]


@pytest.mark.parametrize("params", [PREFILL, None], ids=["prefill", "single"])
def test_a_prompt_loaded_while_the_request_waits(params: dict[str, Any] | None) -> None:
    """From a store or from D: the wait is a KV wait, not part of the prefill that follows."""
    engine, leg = Engine("pull"), request(params)
    engine.arrive(10, leg)
    engine.attempt(15, leg)
    engine.allocate(20, leg, 4)
    engine.step(21)
    engine.output(40, finished_recving={ID})
    engine.allocate(50, leg, 0)
    engine.step(51, r=1)
    leg.append_output_token_ids(1)
    engine.output(60)
    engine.finish(60, leg)
    mode = "pull" if params else "none"
    assert engine.spans()[:4] == [
        span(sc.SPAN_PREFILL_QUEUE, 10, 20, mode, {}),
        span(sc.SPAN_KV_WAIT, 20, 40, mode, {sc.EXTERNAL_TOKENS: 4}),
        span(sc.SPAN_DECODE_START, 40, 50, mode, {}),
        span(sc.SPAN_PREFILL, 50, 60, mode, COMPUTED),
    ]


@pytest.mark.parametrize(
    ("params", "name", "own"),
    [
        (None, sc.SPAN_PREFILL, COMPUTED),
        (DECODE, sc.SPAN_FIRST_DECODE, {**PEER, sc.RECOMPUTED_TOKENS: 1}),
    ],
    ids=["single", "decode"],
)
def test_tokens_loaded_inside_the_forward_pass(
    params: dict[str, Any] | None, name: str, own: dict[str, Any]
) -> None:
    """A synchronous loader makes nobody wait: the pass that loads carries their number."""
    engine, leg = Engine("pull"), request(params)
    engine.arrive(10, leg)
    engine.hooks.answered((4, False), leg, 0)
    engine.allocate(20, leg, 4)
    engine.step(21, r=1)
    leg.append_output_token_ids(1)
    engine.output(30)
    engine.finish(40, leg)
    mode = "pull" if params else "none"
    expected = span(name, 20, 30, mode, {**own, sc.EXTERNAL_TOKENS: 4})
    assert [found for found in engine.spans() if found["name"] == name] == [expected]


def test_without_worker_hooks_nobody_knows_how_a_lease_ended() -> None:
    """Another connector's prefill leg: no worker is waited for, and "freed" is all that is said."""
    engine, leg = Engine("push"), request(PREFILL)
    engine.hooks = SchedulerHooks(engine.recorder, "push", "demo", worker_tells=False)
    engine.connector = Connector()
    engine.hooks.install(seams(engine.connector), engine.recorder.guard)
    engine.arrive(10, leg)
    engine.allocate(20, leg, 0)
    engine.step(21, r=5)
    engine.finish(30, leg, held=True)
    assert attached(engine.step(31)) == {}
    engine.output(40, finished_sending={ID})
    assert engine.spans() == [
        span(sc.SPAN_PREFILL_QUEUE, 10, 20, "push", {}),
        span(sc.SPAN_PREFILL, 20, 30, "push", COMPUTED),
        span(sc.SPAN_PREFILL_END, 30, 30, "push", {sc.BLOCK_COUNT: 3}),
        span(sc.SPAN_LEASE, 30, 40, "push", {}),
    ]


@pytest.mark.parametrize("status", [LENGTH, RequestStatus.FINISHED_REPETITION])
def test_a_first_token_that_is_also_the_last(status: RequestStatus) -> None:
    """With `max_tokens=1` the finish comes before the output: the token is seen there."""
    engine, leg = Engine("push"), request(DECODE)
    decode_until_complete(engine, leg)
    engine.allocate(50, leg, 0)
    engine.step(51, r=1)
    leg.append_output_token_ids(1)
    engine.finish(60, leg, status)
    engine.output(61)
    assert engine.spans()[3:] == [
        span(sc.SPAN_FIRST_DECODE, 50, 60, "push", {**PEER, sc.RECOMPUTED_TOKENS: 1}),
        span(sc.SPAN_DECODE, 60, 60, "push", {**PEER, sc.OUTPUT_TOKENS: 1, sc.PREEMPTIONS: 0}),
    ]


@pytest.mark.parametrize("carrier", ["header", "body", "both"])
def test_the_callers_context_comes_by_header_or_body(carrier: str) -> None:
    """vLLM drops headers without its own endpoint; the body survives, and the header wins."""
    other = CALLER.replace("b7ad6b7169203331", "00f067aa0ba902b7")
    body = {"traceparent": CALLER if carrier == "body" else other}
    leg = request(
        {**PREFILL, **(body if carrier != "header" else {})},
        headers={"traceparent": CALLER} if carrier != "body" else None,
    )
    engine = Engine("pull")
    engine.arrive(10, leg)
    engine.finish(20, leg, ABORTED)
    (queue,) = engine.spans()
    assert (queue["trace"], queue["parent"]) == (int(CALLER[3:35], 16), int(CALLER[36:52], 16))


def test_blocks_of_a_connector_without_groups_are_counted() -> None:
    """Under some connectors vLLM calls `request_finished` with one flat list."""
    engine, leg = Engine("pull"), request(PREFILL)
    engine.arrive(10, leg)
    engine.allocate(20, leg, 0)
    leg.status = LENGTH
    engine.connector.request_finished(leg, [1, 2, 3, 4])
    assert engine.spans()[-1] == span(sc.SPAN_PREFILL_END, 20, 20, "pull", {sc.BLOCK_COUNT: 4})
