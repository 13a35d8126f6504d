"""What vLLM alone answers where its answer is not obvious: the same as it does when traced."""

import urllib.request

import pytest
from engines import eventually
from faults import SECONDS, SERVER_ERROR, Pair, kill, settings

from pdtrace.connector.cluster import Cluster, Engine
from pdtrace.connector.processes import EngineServer

pytestmark = pytest.mark.e2e


def metric(engine: Engine, name: str) -> float:
    """Sum of one of vLLM's own counters."""
    with urllib.request.urlopen(f"{engine.url}/metrics", timeout=SECONDS) as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name + "{"))


def test_vllm_alone_in_pull(
    tmp_path_factory: pytest.TempPathFactory, engine_server: EngineServer
) -> None:
    """A refused handshake, a READ after the lease, a P that is dead."""
    made = settings("pull", tmp_path_factory.mktemp("plain"), traced=False)
    with Cluster(made, engine_server) as cluster:
        pair = Pair(cluster)
        expected = pair.hand_off("warm")
        late = pair.prefill("late")
        assert pair.decode("refused", pair.nowhere("refused")) == SERVER_ERROR
        expired = "vllm:nixl_num_kv_expired_reqs_total"
        assert eventually(lambda: metric(pair.p, expired) == 1, SECONDS)
        assert pair.decode("late", late) == expected
        gone = pair.prefill("gone")
        kill(pair.p)
        assert pair.decode("gone", gone) == SERVER_ERROR


def test_vllm_alone_in_push(
    tmp_path_factory: pytest.TempPathFactory, engine_server: EngineServer
) -> None:
    """A refused handshake; a registration whose watchdog has fired, and which is served."""
    made = settings("push", tmp_path_factory.mktemp("plain"), traced=False)
    with Cluster(made, engine_server) as cluster:
        pair = Pair(cluster)
        expected = pair.hand_off("warm")
        late = pair.decode_later("late", pair.told("late"))
        assert pair.decode("refused", pair.nowhere("refused")) == SERVER_ERROR
        log = pair.d.process.log
        assert eventually(lambda: "without a push completion" in log.read_text(), SECONDS)
        pair.prefill("late")
        assert late.result() == expected
