"""Unequal tensor-parallel sizes of P and D on real engines: one span a rank, whoever transfers."""

import asyncio
from dataclasses import dataclass

import pytest
from faults import Pair
from traces import Traces, assert_exact_and_complete

from pdtrace.analysis.records import SpanRecord
from pdtrace.connector.cluster import Cluster
from pdtrace.connector.cluster_settings import ClusterSettings, Mode
from pdtrace.connector.processes import EngineServer
from pdtrace.connector.workload import WorkloadRequest, mixed_prompts, run_workload
from pdtrace.tracing import semconv as sc

pytestmark = pytest.mark.e2e

IDS = [f"tp-{number}" for number in range(3)]


@dataclass(frozen=True)
class Sizes:
    """Tensor-parallel ranks of P and of D."""

    mode: Mode
    prefill: int
    decode: int

    def __str__(self) -> str:
        return f"{self.mode}-{self.prefill}-{self.decode}"

    def settings(self) -> ClusterSettings:
        """One worker process a rank."""
        return ClusterSettings(
            mode=self.mode,
            layout="mp",
            prefill_flags=(f"--tensor-parallel-size={self.prefill}",),
            decode_flags=(f"--tensor-parallel-size={self.decode}",),
            env={"VLLM_CPU_OMP_THREADS_BIND": "0|1"},
            # The first pass of a cold engine takes seconds, and longer where others compute too.
            kv_config={"kv_connector_extra_config": {"kv_lease_duration": 600}},
            prefix_caching=False,
        )


@dataclass(frozen=True, kw_only=True)
class Ran(Traces):
    """What a pair of engines of these sizes left."""

    sizes: Sizes
    warming: set[str]
    """Ids of the requests that made the pair warm."""
    errors: list[str | None]


def proves(mode: Mode, prefill: int, decode: int) -> object:
    """The parameter for one pair of sizes, with the row that it proves."""
    row = pytest.mark.covers(f"tp-{prefill}-{decode}", mode, on="engines")
    return pytest.param(sizes := Sizes(mode, prefill, decode), id=str(sizes), marks=row)


@pytest.fixture(
    scope="module",
    params=[proves("push", 2, 1), proves("pull", 2, 1), proves("push", 1, 2), proves("pull", 1, 2)],
)
def ran(request: pytest.FixtureRequest, engine_server: EngineServer) -> Ran:
    """Three requests to a warm pair."""
    sizes: Sizes = request.param
    with Cluster(sizes.settings(), engine_server) as cluster:
        pair = Pair(cluster, tp_size=sizes.prefill, decode_tp_size=sizes.decode)
        pair.warm()
        requests = [
            WorkloadRequest(model=cluster.model, max_tokens=6, prompt=prompt, request_id=request_id)
            for request_id, prompt in zip(IDS, mixed_prompts(5, len(IDS), 40, 60), strict=True)
        ]
        assert cluster.router_url is not None
        results = asyncio.run(run_workload(cluster.router_url, requests, 1))
        store = cluster.store
    errors = [result.error for result in results]
    return Ran.of(store, sizes=sizes, warming=pair.asked, errors=errors)


def ranks(spans: list[SpanRecord]) -> list[int]:
    """The rank of the process of each span, sorted."""
    return sorted(int(str(span.resource[sc.TP_RANK])) for span in spans)


def peers(spans: list[SpanRecord], event: str) -> list[int | None]:
    """The peer's rank, if it was told, of each event of a name on these spans, sorted."""
    told = [e.attributes.get(sc.PEER_TP_RANK) for s in spans for e in s.events if e.name == event]
    return sorted((None if rank is None else int(str(rank)) for rank in told), key=str)


def test_every_rank_of_the_initiator_submits_and_completes(ran: Ran) -> None:
    """P's ranks WRITE, D's ranks READ; each says how many ranks of the peer it deals with."""
    assert ran.errors == [None] * len(IDS)
    push = ran.sizes.mode == "push"
    own, other = (
        (ran.sizes.prefill, ran.sizes.decode) if push else (ran.sizes.decode, ran.sizes.prefill)
    )
    names = (
        (sc.SPAN_WRITE_SUBMIT, sc.SPAN_WRITE_COMPLETE)
        if push
        else (sc.SPAN_READ_SUBMIT, sc.SPAN_READ_COMPLETE)
    )
    for request_id in IDS:
        for name in names:
            assert ranks(ran.spans(request_id, name)) == list(range(own))
        for span in ran.spans(request_id, names[0]):
            assert span.attributes[sc.PEER_TP_RANKS] == max(1, other // own)
        workers = {span.resource[sc.PROCESS_PID] for span in ran.spans(request_id, names[0])}
        assert len(workers) == own


def test_every_rank_of_decode_registers(ran: Ran) -> None:
    """P knows which rank it heard; several ranks are not a second registration."""
    for request_id in IDS:
        sent = ran.spans(request_id, sc.SPAN_REGISTRATION)
        matches = ran.spans(request_id, sc.SPAN_MATCH)
        assert "second_registration" not in ran.splits[request_id]["flags"]
        if ran.sizes.mode == "pull":
            assert (sent, matches) == ([], [])
            continue
        assert ranks(sent) == list(range(ran.sizes.decode))
        assert ranks(matches) == list(range(ran.sizes.prefill))
        for match in matches:
            heard = peers([match], sc.EVENT_REGISTRATION_RECEIVED)
            # One registration makes the match; the other may come before it or after.
            assert 1 <= len(heard) <= ran.sizes.decode
            assert len(set(heard)) == len(heard) and set(heard) <= set(range(ran.sizes.decode))


def test_every_pair_of_ranks_notifies(ran: Ran) -> None:
    """One notification from every rank that transferred to each rank whose blocks it was about.

    D knows P's ranks by their agents; in pull P never shakes hands with D, and cannot tell.
    """
    pairs = max(ran.sizes.prefill, ran.sizes.decode)
    for request_id in IDS:
        if ran.sizes.mode == "push":
            spans = ran.spans(request_id, sc.SPAN_KV_WAIT)
            expected: list[int | None] = [*range(ran.sizes.prefill)] * (pairs // ran.sizes.prefill)
        else:
            spans, expected = ran.spans(request_id, sc.SPAN_LEASE), [None] * pairs
        assert peers(spans, sc.EVENT_NOTIFICATION_SEEN) == expected


def test_all_ranks_end_in_one_request(ran: Ran) -> None:
    """The scheduler's spans are there once, and the lease has its evidence."""
    outcome = sc.LEASE_WRITTEN if ran.sizes.mode == "push" else sc.LEASE_READ
    for request_id in IDS:
        for name in (sc.SPAN_PREFILL, sc.SPAN_KV_WAIT, sc.SPAN_FIRST_DECODE, sc.SPAN_DECODE):
            assert sc.TP_RANK not in ran.span(request_id, name).resource
        assert ran.span(request_id, sc.SPAN_LEASE).attributes[sc.LEASE_OUTCOME] == outcome
        assert [span.name for span in ran.spans(request_id) if span.status == 2] == []


def test_the_split_of_several_ranks_is_exact_and_complete(ran: Ran) -> None:
    """The last rank decides; nothing falls between the ranks."""
    assert set(ran.splits) - ran.warming == set(IDS)
    for request_id in IDS:
        assert_exact_and_complete(ran.splits[request_id])
