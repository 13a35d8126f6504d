"""One `X-Request-Id` on two requests, on real engines: two requests, each with its own legs.

vLLM's push itself pairs the legs by the id without its random suffix, and the first that fits wins:
two that run at once may get each other's blocks there (the flag `mispaired`, since P's match names
the leg it served). In pull each D leg is told which P leg to read.
"""

import asyncio
from pathlib import Path
from typing import Any

import orjson
import pytest

from pdtrace.analysis import report
from pdtrace.analysis.load import load
from pdtrace.analysis.split import split
from pdtrace.analysis.store import read_spans
from pdtrace.connector.cluster import Cluster
from pdtrace.connector.cluster_settings import ClusterSettings, Mode
from pdtrace.connector.processes import EngineServer
from pdtrace.connector.workload import WorkloadRequest, WorkloadResult, run_workload
from pdtrace.tracing import semconv as sc

pytestmark = pytest.mark.e2e

AGAIN, AT_ONCE = "again", "at-once"
PROMPTS = ("amber basin cedar delta ember fjord", "kettle lantern meadow nectar orchid quartz")


@pytest.fixture(scope="module", params=["push", "pull"])
def run(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    engine_server: EngineServer,
) -> tuple[str, list[WorkloadResult], Path]:
    """Mode, results and store: an id in sequence, in pull also one that two share at once."""
    mode: Mode = request.param
    folder = tmp_path_factory.mktemp(f"reused-{mode}")
    settings = ClusterSettings(mode=mode, run_dir=folder, prefix_caching=False)
    with Cluster(settings, engine_server) as cluster:
        url = cluster.router_url
        assert url is not None

        def asked(request_id: str) -> list[WorkloadRequest]:
            return [
                WorkloadRequest(cluster.model, 8, prompt=prompt, request_id=request_id)
                for prompt in PROMPTS
            ]

        results = asyncio.run(run_workload(url, asked(AGAIN), 1))
        if mode == "pull":
            results += asyncio.run(run_workload(url, asked(AT_ONCE), 2))
        return mode, results, cluster.store


def told(store: Path) -> list[dict[str, Any]]:
    """What `pdtrace split --json` prints."""
    done = split(load([store]).handoffs)
    return [orjson.loads(line) for line in report.json_lines(done)]


@pytest.mark.covers("reused-id", "push", "pull", on="engines")
def test_each_request_with_a_reused_id_has_its_own_split(
    run: tuple[str, list[WorkloadResult], Path],
) -> None:
    """Two rows an id, told apart by `instance`; complete, exact, and nobody's retry."""
    mode, results, store = run
    assert [result.error for result in results] == [None] * len(results)
    found = told(store)
    ids = [AGAIN] if mode == "push" else [AGAIN, AT_ONCE]
    assert sorted((one["request_id"], one["instance"]) for one in found) == [
        (request_id, instance) for request_id in ids for instance in (1, 2)
    ]
    for one in found:
        assert sum(one["phases"].values()) == one["ttft_ns"]
        assert set(one["flags"]) <= {"cold_handshake"}
        assert one["classes"]["unattributed"] <= one["ttft_ns"] // 20


def test_legs_name_their_peers_leg(run: tuple[str, list[WorkloadResult], Path]) -> None:
    """Every D leg in pull, every P leg in push from the match on; each peer's leg once."""
    mode, _, store = run
    name = sc.SPAN_WRITE_COMPLETE if mode == "push" else sc.SPAN_READ_COMPLETE
    role = sc.ROLE_DECODE if mode == "push" else sc.ROLE_PREFILL
    spans = read_spans([store]).records
    named = [s.attributes[sc.PEER_ENGINE_REQUEST_ID] for s in spans if s.name == name]
    legs = {s.attributes[sc.ENGINE_REQUEST_ID] for s in spans if s.resource[sc.ROLE] == role}
    assert sorted(map(str, named)) == sorted(map(str, legs))
