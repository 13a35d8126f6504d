"""Troubles planted in real engines in pull: `pdtrace triage` names each one first."""

import pytest
from planted import AGAIN, BLAMELESS, D, P, Recorded, Trial, settings, told

from pdtrace.analysis import phases
from pdtrace.analysis.triage_attributes import D_ENGINE, P_ENGINE
from pdtrace.analysis.triage_causes import HANDSHAKE_AGAIN, SLOW_TRANSPORT
from pdtrace.connector.cluster import Cluster
from pdtrace.connector.processes import EngineServer

pytestmark = pytest.mark.e2e

SMALL = ("--kv-cache-memory-bytes=4M", "--max-model-len=1920")
"""15 blocks of 128 tokens."""
WHOLE = "amber cedar " * 150
"""A prompt, one token a byte, that leaves none of them to anybody else."""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory, engine_server: EngineServer) -> Recorded:
    """One cluster that lives through all of it."""
    directory = tmp_path_factory.mktemp("planted-pull")
    with Cluster(settings("pull", directory, decode_flags=SMALL), engine_server) as cluster:
        trial = Trial(cluster, directory)
        trial.goes_through("stalled", trial.stalled_reads(P), at_once=2)
        trial.goes_through("forgotten", trial.delay("handshake", D), at_once=2)
        trial.goes_through("full", trial.others(D, 1, WHOLE, 50), at_once=2)
        return trial.recorded()


def test_without_trouble_nothing_is_blamed(recorded: Recorded) -> None:
    """Neither in a second window against the first, nor among the slowest of both."""
    assert recorded.triage(AGAIN)["verdict"]["kind"] in BLAMELESS
    found = recorded.slowest("25%")
    assert found["slow"] >= 30 and found["verdict"]["attribute"] is None


def test_transfers_that_stall(recorded: Recorded) -> None:
    """P stood still while it was read from; the cause says how slowly the data moved."""
    found = recorded.triage("stalled")
    assert told(found) == (phases.TRANSFER, P_ENGINE, P)
    assert [cause["anchor"] for cause in found["verdict"]["causes"]] == [SLOW_TRANSPORT]


def test_handshakes_again_and_again(recorded: Recorded) -> None:
    """Pairs that had worked together are not cold: these requests are compared, not put aside."""
    found = recorded.triage("forgotten")
    assert told(found) == (phases.HANDSHAKE, D_ENGINE, D)
    assert [cause["anchor"] for cause in found["verdict"]["causes"]] == [HANDSHAKE_AGAIN]
    assert [row["standing"] for row in found["standings"]] == ["ranked"]


def test_a_decode_engine_without_free_blocks(recorded: Recorded) -> None:
    """Somebody else's long requests hold its KV cache."""
    assert told(recorded.triage("full")) == (phases.DECODE_CAPACITY, D_ENGINE, D)
