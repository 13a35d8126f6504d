"""Fixtures that several test modules share."""

from collections.abc import Iterator

import pytest

from pdtrace.connector.cluster_settings import ClusterSettings, server_env
from pdtrace.connector.processes import EngineServer


@pytest.fixture(scope="session")
def engine_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineServer]:
    """Imports vLLM once; every cluster of the session forks its engines from it."""
    log = tmp_path_factory.mktemp("engine-server") / "log"
    with EngineServer(log, {**ClusterSettings().base_env(None), **server_env()}) as server:
        yield server


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory, engine_server: EngineServer) -> "object":
    """Recorded runs of real engines, made on demand."""
    from recorded_runs import Runs

    return Runs(tmp_path_factory.mktemp("runs"), engine_server)
