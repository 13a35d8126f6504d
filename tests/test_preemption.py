"""Preemption on P and on D, on real engines whose KV cache is too small for two requests."""

import asyncio
from dataclasses import dataclass

import pytest
from legs import PATIENT, prompt_of
from traces import Traces, assert_exact_and_complete

from pdtrace.analysis.records import SpanRecord
from pdtrace.connector.cluster import Cluster
from pdtrace.connector.cluster_settings import ClusterSettings, Mode
from pdtrace.connector.processes import EngineServer
from pdtrace.connector.workload import WorkloadRequest, WorkloadResult, run_workload
from pdtrace.tracing import semconv as sc

pytestmark = pytest.mark.e2e

PROMPT, OUTPUT = 1000, 200
CROWDED, ALONE = ("crowd-0", "crowd-1"), ("alone-0", "alone-1")
# A block holds 128 tokens: 8 a prompt, 10 with its answer; one block of each pool is vLLM's own.
# P has room for one prompt, D for two prompts but not for two answers.
P_BLOCKS, D_BLOCKS = 9, 18


@dataclass(frozen=True, kw_only=True)
class Crowd(Traces):
    """The same two requests together and one by one."""

    results: dict[str, WorkloadResult]

    def only_preempted(self, name: str) -> SpanRecord:
        """The span of the one request of the crowd that was preempted while it was open."""
        spans = [self.span(request_id, name) for request_id in CROWDED]
        (found,) = [span for span in spans if span.attributes[sc.PREEMPTIONS]]
        return found


@pytest.fixture(scope="module", params=["push", "pull"])
def crowd(request: pytest.FixtureRequest, engine_server: EngineServer) -> Crowd:
    """One by one first, so that the engines know each other; then both at once."""
    mode: Mode = request.param
    settings = ClusterSettings(
        mode=mode,
        prefix_caching=False,
        kv_config=PATIENT,
        flags=("--block-size=128", "--no-scheduler-reserve-full-isl"),
        prefill_flags=(
            "--max-model-len=1024",
            f"--num-gpu-blocks-override={P_BLOCKS}",
            "--max-num-batched-tokens=128",
            "--long-prefill-token-threshold=64",
        ),
        decode_flags=("--max-model-len=1280", f"--num-gpu-blocks-override={D_BLOCKS}"),
    )
    with Cluster(settings, engine_server) as cluster:
        assert cluster.router_url is not None

        def serve(ids: tuple[str, ...], concurrency: int) -> list[WorkloadResult]:
            requests = [
                WorkloadRequest(
                    model=cluster.model,
                    max_tokens=OUTPUT,
                    prompt=prompt_of(PROMPT, seed),
                    request_id=request_id,
                    ignore_eos=True,
                )
                for seed, request_id in enumerate(ids)
            ]
            assert cluster.router_url is not None
            return asyncio.run(run_workload(cluster.router_url, requests, concurrency))

        results = [*serve(ALONE, 1), *serve(CROWDED, 2)]
        store = cluster.store
    return Crowd.of(store, results={result.request_id: result for result in results})


def test_preemption_changes_no_answer(crowd: Crowd) -> None:
    """Neither on P nor on D, and no request has a span more for it."""
    assert [result.error for result in crowd.results.values()] == [None] * 4
    for crowded, alone in zip(CROWDED, ALONE, strict=True):
        assert crowd.results[crowded].text == crowd.results[alone].text
        counts = crowd.count(crowded)
        counts.pop(sc.SPAN_HANDSHAKE, None)
        assert counts.pop(sc.SPAN_LEG) == 2
        assert set(counts.values()) == {1}
    assert [span.name for span in crowd.records if span.status == 2] == []


@pytest.mark.covers("preempted-prefill", "push", "pull", on="engines")
def test_a_prefill_that_is_preempted(crowd: Crowd) -> None:
    """One span from the first schedule to the end: it counts the steps of both tries and the gap
    between them, in which the request was in no batch."""
    found = crowd.only_preempted(sc.SPAN_PREFILL)
    gap = int(str(found.attributes[sc.PREFILL_GAP_NS]))
    assert 0 < gap < found.end_ns - found.start_ns
    assert found.attributes[sc.PREFILL_CACHED_TOKENS] == 0
    for request_id in ALONE:
        alone = crowd.span(request_id, sc.SPAN_PREFILL).attributes
        assert alone[sc.PREEMPTIONS] == 0 and sc.PREFILL_GAP_NS not in alone
        assert int(str(found.attributes[sc.PREFILL_STEPS])) > int(str(alone[sc.PREFILL_STEPS]))


@pytest.mark.covers("preempted-decode", "push", "pull", on="engines")
def test_a_decode_that_is_preempted(crowd: Crowd) -> None:
    """It happened after the first token, so that only the rest of the answer tells of it: the KV
    was handed over once, and D computes it again by itself."""
    found = crowd.only_preempted(sc.SPAN_DECODE)
    request_id = str(found.attributes[sc.REQUEST_ID])
    assert found.attributes[sc.OUTPUT_TOKENS] == OUTPUT
    assert crowd.span(request_id, sc.SPAN_DECODE_START).attributes[sc.PREEMPTIONS] == 0
    assert crowd.span(request_id, sc.SPAN_FIRST_DECODE).attributes[sc.RECOMPUTED_TOKENS] == 1
    assert crowd.span(request_id, sc.SPAN_KV_WAIT).attributes[sc.EXTERNAL_TOKENS] == PROMPT


def test_the_split_of_the_preempted_is_exact_and_complete(crowd: Crowd) -> None:
    """Whoever had to wait."""
    assert set(crowd.splits) == {*CROWDED, *ALONE}
    for line in crowd.splits.values():
        assert_exact_and_complete(line)
