"""Troubles planted in real engines in push: `pdtrace triage` names each one first."""

import pytest
from planted import AGAIN, BLAMELESS, D, P, Recorded, Trial, settings, told

from pdtrace.analysis import phases
from pdtrace.analysis.triage_attributes import D_ENGINE, P_ENGINE
from pdtrace.analysis.triage_causes import REGISTRATION_LATE
from pdtrace.connector.cluster import Cluster
from pdtrace.connector.processes import EngineServer

pytestmark = pytest.mark.e2e

SLOTS = 2
"""How many requests a prefill engine computes at once."""
OTHERS = 3 * SLOTS


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory, engine_server: EngineServer) -> Recorded:
    """One cluster that lives through all of it."""
    directory = tmp_path_factory.mktemp("planted-push")
    flags = (f"--max-num-seqs={SLOTS}",)
    with Cluster(settings("push", directory, prefill_flags=flags), engine_server) as cluster:
        trial = Trial(cluster, directory)
        trial.goes_through("late", trial.delay("registration", D), at_once=4)
        trial.goes_through("slow", trial.delay("forward", P), at_once=2)
        trial.goes_through("busy", trial.others(P, OTHERS, "amber cedar", 40), at_once=4)
        return trial.recorded()


def test_without_trouble_nothing_is_blamed(recorded: Recorded) -> None:
    """Neither in a second window against the first, nor among the slowest of both."""
    assert recorded.triage(AGAIN)["verdict"]["kind"] in BLAMELESS
    found = recorded.slowest("25%")
    assert found["slow"] >= 30 and found["verdict"]["attribute"] is None


def test_late_registrations(recorded: Recorded) -> None:
    """They come after prefill although both legs were sent at once; the cause says where."""
    found = recorded.triage("late")
    assert told(found) == (phases.REGISTRATION, D_ENGINE, D)
    assert [cause["anchor"] for cause in found["verdict"]["causes"]] == [REGISTRATION_LATE]


def test_a_slow_prefill_engine(recorded: Recorded) -> None:
    """The engine is named, neither a pair it is in nor the host it shares with all others."""
    assert told(recorded.triage("slow")) == (phases.PREFILL, P_ENGINE, P)


def test_an_overloaded_prefill_engine(recorded: Recorded) -> None:
    """Others keep its slots: requests wait for a place, and for nothing else."""
    assert told(recorded.triage("busy")) == (phases.PREFILL_QUEUE, P_ENGINE, P)
