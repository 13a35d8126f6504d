"""A later turn of a conversation: D keeps its blocks, and P reads them back before it computes."""

from typing import Any

import pytest
from scheduler_engine import COMPUTED, DECODE, ID, PEER, PREFILL, Engine, request, span
from vllm.v1.request import Request, RequestStatus

from pdtrace.connector.carrier import attached
from pdtrace.connector.notes import WorkerNotes
from pdtrace.tracing import semconv as sc
from pdtrace.tracing.testing import EPOCH_NS

READ_BACK = {**PREFILL, "remote_engine_id": "engine-d", "remote_request_id": "cmpl-before"}


def load_back(engine: Engine, leg: Request) -> None:
    """A later turn on P: arrived 10, allocated 20, D's blocks are there 40, scheduled 50."""
    engine.arrive(10, leg)
    engine.attempt(15, leg)
    engine.allocate(20, leg, 4)
    carried = attached(engine.step(21))[ID].attributes
    assert carried[sc.TRANSFER_DIRECTION] == sc.DIRECTION_READ_BACK
    assert carried[sc.PEER_ENGINE_ID] == "engine-d"
    engine.output(40, finished_recving={ID})
    engine.allocate(50, leg, 0)
    engine.step(51, r=1)


def test_a_later_turn_reads_back_what_decode_has_kept() -> None:
    """P waits for D's blocks before it computes the rest; only that wait has a direction."""
    engine, leg = Engine("pull"), request(READ_BACK)
    load_back(engine, leg)
    leg.append_output_token_ids(1)
    engine.finish(60, leg)
    back = {sc.TRANSFER_DIRECTION: sc.DIRECTION_READ_BACK, sc.PEER_ENGINE_ID: "engine-d"}
    assert engine.spans() == [
        span(sc.SPAN_PREFILL_QUEUE, 10, 20, "pull", {}),
        span(sc.SPAN_KV_WAIT, 20, 40, "pull", {sc.EXTERNAL_TOKENS: 4, **back}),
        span(sc.SPAN_DECODE_START, 40, 50, "pull", {}),
        span(sc.SPAN_PREFILL, 50, 60, "pull", COMPUTED),
        span(sc.SPAN_PREFILL_END, 60, 60, "pull", {sc.BLOCK_COUNT: 3}),
    ]


def test_a_read_back_that_fails_the_request() -> None:
    """P's request ends with the load's error, not as aborted."""
    engine, leg = Engine("pull"), request(READ_BACK)
    engine.arrive(10, leg)
    engine.attempt(15, leg)
    engine.allocate(20, leg, 4)
    engine.step(21)
    engine.finish(40, leg, RequestStatus.FINISHED_ERROR)
    engine.output(41, finished_recving={ID}, failed_recving={ID})
    own = {sc.ERROR_TYPE: sc.ERROR_READ_FAILED}
    assert engine.spans()[1:] == [span(sc.SPAN_KV_WAIT, 20, 40, "pull", own)]


@pytest.mark.parametrize("outcome", [sc.LEASE_READ, sc.LEASE_EXPIRED])
def test_blocks_that_decode_keeps_for_a_later_turn(outcome: str) -> None:
    """A lease of D's own; that nobody goes on with the conversation is no error."""
    engine, leg = Engine("pull"), request(DECODE)
    engine.arrive(10, leg)
    engine.allocate(20, leg, 0)
    engine.step(21, r=1)
    leg.append_output_token_ids(1)
    engine.output(30)
    engine.finish(40, leg, held=True)
    seen: list[Any] = []
    if outcome == sc.LEASE_READ:
        seen = [(sc.EVENT_NOTIFICATION_SEEN, 58, {})]
        engine.output(59, WorkerNotes([(ID, EPOCH_NS + 58, -1)]))
    engine.output(60, WorkerNotes([], {ID: outcome}), finished_sending={ID})
    lease = span(sc.SPAN_LEASE, 40, 60, "pull", {**PEER, sc.LEASE_OUTCOME: outcome})
    if seen:
        lease["events"] = seen
    assert engine.spans()[3:] == [lease]
