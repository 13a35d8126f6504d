"""vLLM's Mooncake connector, scheduler side: what is told of a handoff that NIXL does not make."""

from types import SimpleNamespace
from typing import Any

import engine_imports  # noqa: F401  # first of all
import pytest
from scheduler_engine import ID, Engine, request, seams, span
from vllm.distributed.kv_transfer.kv_connector.v1.mooncake import mooncake_connector as mooncake

from pdtrace.connector.any import traced
from pdtrace.connector.scheduler import SchedulerHooks
from pdtrace.tracing import semconv as sc

WHY = "its transfer engine is not in the test environment; by hand on engines, docs/connectors.md"
PREFILL = {"do_remote_decode": True, "transfer_id": "t"}
DECODE = {
    "do_remote_prefill": True,
    "transfer_id": "t",
    "remote_engine_id": "engine-p",
    "remote_bootstrap_addr": "http://127.0.0.1:1",
}
PEER = {sc.PEER_ENGINE_ID: "engine-p"}
BLOCKS = SimpleNamespace(get_unhashed_block_ids_all_groups=lambda: ([1, 2],))


def engine(producer: bool) -> Engine:
    """Real connector and scheduler, without the configuration that their constructors want."""
    scheduler: Any = object.__new__(mooncake.MooncakeConnectorScheduler)
    scheduler.is_kv_producer, scheduler.is_kv_consumer = producer, not producer
    scheduler.kv_cache_config = SimpleNamespace(transfer_group_ids=[0])
    scheduler.blocks_per_sw, scheduler._reqs_not_processed = [0], set()
    scheduler._has_mamba = scheduler._bounded_replay = scheduler._is_hma_required = False
    scheduler._reqs_need_recv, scheduler._reqs_need_send = {}, {}
    connector: Any = object.__new__(traced(mooncake.MooncakeConnector))
    connector.connector_scheduler, connector.connector_worker = scheduler, None
    made = Engine("push")
    made.hooks = SchedulerHooks(made.recorder, "push", "demo", worker_tells=False)
    made.connector = connector
    made.hooks.install(seams(connector), made.recorder.guard)
    return made


@pytest.mark.covers("mooncake", "none", on="classes", why=WHY)
def test_a_prefill_leg_holds_its_blocks_until_they_are_sent() -> None:
    """`finished_sending` frees them; how it went, only Mooncake's worker knows."""
    side, leg = engine(producer=True), request(PREFILL)
    side.arrive(10, leg)
    side.connector.update_state_after_alloc(leg, BLOCKS, 0)
    side.step(21, r=5)
    side.clock.mono = 30
    leg.status = mooncake.RequestStatus.FINISHED_LENGTH_CAPPED
    assert side.connector.request_finished_all_groups(leg, ([1, 2],)) == (True, None)
    side.output(40, finished_sending={ID})
    names = [sc.SPAN_PREFILL_QUEUE, sc.SPAN_PREFILL, sc.SPAN_PREFILL_END, sc.SPAN_LEASE]
    spans = side.spans()
    assert [found["name"] for found in spans] == names
    assert spans[-2:] == [
        span(sc.SPAN_PREFILL_END, 30, 30, "push", {sc.BLOCK_COUNT: 2}),
        span(sc.SPAN_LEASE, 30, 40, "push", {}),
    ]


@pytest.mark.covers("mooncake", "none", on="classes", why=WHY)
def test_a_decode_leg_waits_for_its_blocks() -> None:
    """Asked, allocated, told, scheduled, first token, finished: adjacent to the nanosecond."""
    side, leg = engine(producer=False), request(DECODE)
    side.arrive(10, leg)
    side.clock.mono = 12
    assert side.connector.get_num_new_matched_tokens(leg, 0) == (5, True)
    side.clock.mono = 20
    side.connector.update_state_after_alloc(leg, BLOCKS, 5)
    side.step(21)
    side.output(40, finished_recving={ID})
    side.clock.mono = 50
    side.connector.update_state_after_alloc(leg, BLOCKS, 0)
    side.step(51, r=1)
    leg.append_output_token_ids(1)
    side.output(60)
    side.clock.mono = 70
    leg.status = mooncake.RequestStatus.FINISHED_LENGTH_CAPPED
    assert side.connector.request_finished_all_groups(leg, ([1, 2],)) == (False, None)
    spans = side.spans()
    assert [(found["name"], found["start"], found["end"]) for found in spans] == [
        (sc.SPAN_DECODE_ADMISSION, 10, 20),
        (sc.SPAN_KV_WAIT, 20, 40),
        (sc.SPAN_DECODE_START, 40, 50),
        (sc.SPAN_FIRST_DECODE, 50, 60),
        (sc.SPAN_DECODE, 60, 70),
    ]
    assert spans[1] == span(sc.SPAN_KV_WAIT, 20, 40, "push", {**PEER, sc.EXTERNAL_TOKENS: 5})
