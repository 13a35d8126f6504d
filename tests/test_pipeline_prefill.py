"""Pipeline-parallel prefill in push: each stage of P WRITEs its own layers to the one rank of D."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")
pytest.importorskip("nixl", reason="NIXL is not installed")

from nixl_pair import PushWorker, Side, carried, eventually, make_agent
from pair_steps import D_ID, P_ID
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.metadata import RemoteMeta, ReqMeta

from pdtrace.connector.push import PushWorkerHooks
from pdtrace.connector.resource import resource_attributes
from pdtrace.tracing import semconv as sc
from pdtrace.tracing.testing import SettableClock

pytestmark = pytest.mark.nixl

WHY = "pipeline parallelism does not run on vLLM's CPU backend"
LAYERS = (4096, 512)
"""Bytes of a block in each layer; one layer a stage."""


class Pipeline:
    """P in two stages, D in one; one clock for all."""

    def __init__(self, agents: tuple[Any, Any, Any]) -> None:
        self.clock = SettableClock()
        peers: dict[int, Any] = {}
        workers = [
            PushWorker("engine-p", agents[0], LAYERS[:1], peers),
            PushWorker("engine-p", agents[1], LAYERS[1:], peers),
            PushWorker("engine-d", agents[2], LAYERS, peers),
        ]
        for stage, worker in enumerate(workers[:2]):
            worker.pp_size, worker.stages = 2, workers[:2]
            worker.layers = slice(stage, stage + 1)
            worker.memory[0][:] = stage + 1
        *stages, self.d = [Side(worker, PushWorkerHooks, self.clock) for worker in workers]
        self.stages: list[Any] = stages

    def register(self) -> None:
        """D allocated blocks 3 and 4 at 20; its registration goes to every stage."""
        p, d = self.stages[0].worker, self.d.worker
        registration = {
            "request_id": D_ID,
            "decode_engine_id": "engine-d",
            "decode_host": "127.0.0.1",
            "decode_port": d.port,
            "decode_tp_size": 1,
            "local_block_ids": [[3, 4]],
            "remote_engine_id": "engine-p",
            "remote_host": "127.0.0.1",
            "remote_port": p.port,
            "remote_tp_size": 1,
            "remote_pp_size": 2,
        }
        expected = ReqMeta(
            local_block_ids=([3, 4],),
            local_physical_block_ids=([3, 4],),
            tp_size=1,
            pp_size=2,
            remote=RemoteMeta(((),), "127.0.0.1", p.port, "engine-p", P_ID),
        )
        self.clock.mono = 25
        self.d.step(
            {D_ID: carried("push", 20)},
            push_registrations={D_ID: registration},
            reqs_to_recv={D_ID: expected},
        )
        turns(self.d, lambda: self.d.spans())

    def finish(self, stage: int, at: int) -> None:
        """A stage of P hands blocks 1 and 2 over and WRITEs its layer of them."""
        side = self.stages[stage]
        turns(side, lambda: side.worker._pending_d_registrations)
        self.clock.mono = at
        side.worker._reqs_to_process.add(P_ID)
        side.step(
            {P_ID: carried("push", at)},
            push_finished_blocks={P_ID: ([1, 2],)},
            reqs_to_send={P_ID: 1e12},
        )
        turns(side, lambda: side.worker._sending_transfers)
        self.clock.mono = at + 10
        eventually(lambda: P_ID in side.worker.get_transfer_results().finished_sending)


def turns(side: Any, condition: Any) -> None:
    """Let a writer look until something is so."""

    def looked() -> object:
        side.worker.writer_turn()
        return condition()

    eventually(looked)


@pytest.fixture
def pipeline() -> Iterator[Pipeline]:
    """Three real agents."""
    names = ("stage-0", "stage-1", "pipeline-decode")
    made = Pipeline((make_agent(names[0]), make_agent(names[1]), make_agent(names[2])))
    yield made
    for side in (*made.stages, made.d):
        side.worker.close()


@pytest.mark.covers("pp-prefill", "push", on="classes", why=WHY)
def test_each_stage_matches_and_writes_its_layers(pipeline: Pipeline) -> None:
    """One registration reaches both stages; each has its own spans with its own bytes; D waits
    for a notification from either."""
    pipeline.register()
    handshake, registration = pipeline.d.spans()
    assert [s["name"] for s in (handshake, registration)] == [
        sc.SPAN_HANDSHAKE,
        sc.SPAN_REGISTRATION,
    ]
    assert set(pipeline.d.worker._remote_agents["engine-p"]) == {(0, 0), (1, 0)}
    for stage, side in enumerate(pipeline.stages):
        pipeline.finish(stage, at=50 + 100 * stage)
        spans = {span["name"]: span for span in side.finish()}
        assert set(spans) == {
            sc.SPAN_PREFILL_END,
            sc.SPAN_MATCH,
            sc.SPAN_HANDSHAKE,
            sc.SPAN_WRITE_SUBMIT,
            sc.SPAN_WRITE_COMPLETE,
        }
        assert spans[sc.SPAN_WRITE_SUBMIT]["attributes"][sc.TRANSFER_BYTES] == 2 * LAYERS[stage]
        assert spans[sc.SPAN_MATCH]["attributes"][sc.PEER_ENGINE_ID] == "engine-d"
        told = [event[2] for event in spans[sc.SPAN_MATCH]["events"]]
        assert told == [{sc.PEER_TP_RANK: 0}]
        assert (pipeline.d.worker.memory[stage][3:5] == stage + 1).all()
        turns(pipeline.d, lambda: not pipeline.d.worker._pending_completion_notifs.empty())
        received = pipeline.d.worker.get_transfer_results().finished_recving
        assert received == ({D_ID} if stage == 1 else set())
    seen = pipeline.d.hooks.take_notes().seen
    assert [(request_id, rank) for request_id, _, rank in seen] == [(D_ID, 0), (D_ID, 0)]


@pytest.mark.parametrize(("rank", "stage"), [(0, 0), (1, 0), (2, 1), (3, 1), (6, 1)])
def test_a_worker_names_its_stage(rank: int, stage: int) -> None:
    """From its number: two stages of two tensor-parallel ranks, twice."""
    parallel = SimpleNamespace(
        rank=rank,
        tensor_parallel_size=2,
        pipeline_parallel_size=2,
        data_parallel_size=1,
        prefill_context_parallel_size=1,
    )
    transfer = SimpleNamespace(engine_id="engine-p", kv_role="kv_producer")
    config = SimpleNamespace(
        kv_transfer_config=transfer, parallel_config=parallel, model_config=SimpleNamespace()
    )
    attributes = resource_attributes(config, "X", SimpleNamespace(tp_rank=rank % 2), {})
    assert (attributes[sc.PP_RANK], attributes[sc.TP_RANK]) == (stage, rank % 2)
