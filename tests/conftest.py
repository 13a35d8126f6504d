"""Fixtures that several test modules share."""

import asyncio
import gc
import os
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pdtrace.connector.cluster_settings import ClusterSettings, server_env
from pdtrace.connector.processes import EngineServer

if TYPE_CHECKING:
    from pair_steps import Make, Pair
    from router_rig import Rig


pytest.register_assert_rewrite("faults")


def pytest_collection() -> None:
    """Imports make many objects and no garbage; looking for some takes seconds."""
    gc.disable()


def pytest_collection_finish() -> None:
    """What was collected stays."""
    gc.enable()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the marks of all tests, and run those without engines first."""
    import coverage_table

    config.stash[coverage_table.OF_ALL] = coverage_table.of_all(items)
    items.sort(key=lambda item: item.get_closest_marker("e2e") is not None)


@pytest.fixture(scope="session", autouse=True)
def early_start(request: pytest.FixtureRequest) -> None:
    """The engine server imports vLLM while tests without engines run."""
    if any("engine_server" in getattr(item, "fixturenames", ()) for item in request.session.items):
        request.getfixturevalue("engine_server").preload()


@pytest.fixture(scope="session")
def engine_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineServer]:
    """Imports vLLM once; every cluster of the session forks its engines from it."""
    log = tmp_path_factory.mktemp("engine-server") / "log"
    # Engines can then load the connectors of `fake_faults`.
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    env = {**ClusterSettings().base_env(None), **server_env(), "PYTHONPATH": path.rstrip(":")}
    with EngineServer(log, env) as server:
        yield server


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory, engine_server: EngineServer) -> "object":
    """Recorded runs of real engines, made on demand."""
    from recorded_runs import Runs

    return Runs(tmp_path_factory.mktemp("runs"), engine_server)


@pytest.fixture(scope="session")
def agents() -> tuple[Any, Any]:
    """Two real NIXL agents for the whole session: UCX takes a second to start."""
    from nixl_pair import make_agent

    return make_agent("prefill-agent"), make_agent("decode-agent")


@pytest.fixture
def make(agents: tuple[Any, Any]) -> "Iterator[Make]":
    """Make pairs of traced workers that are taken down afterwards."""
    from pair_steps import Pair

    made: list[Pair] = []

    def make(worker: Any, hooks: Any, lengths: tuple[int, ...] = (4096,)) -> Pair:
        made.append(Pair(agents, worker, hooks, lengths))
        return made[-1]

    yield make
    for pair in made:
        pair.close()


@pytest.fixture
def push(make: "Make") -> "Pair":
    """A pair of traced workers in push mode."""
    from nixl_pair import PushWorker

    from pdtrace.connector.push import PushWorkerHooks

    return make(PushWorker, PushWorkerHooks)


@pytest.fixture
def pull(make: "Make") -> "Pair":
    """A pair of traced workers in pull mode."""
    from nixl_pair import PullWorker

    from pdtrace.connector.pull import PullWorkerHooks

    return make(PullWorker, PullWorkerHooks)


@pytest.fixture(scope="session")
def rigged(tmp_path_factory: pytest.TempPathFactory, engine_server: EngineServer) -> "object":
    """Runs of real engines whose hooks fail on demand, made on demand."""
    from rigged_runs import RiggedRuns

    return RiggedRuns(tmp_path_factory.mktemp("rigged"), engine_server)


@pytest.fixture(scope="module")
def router_loop() -> Iterator[asyncio.AbstractEventLoop]:
    """Runs in a thread; serves a router and its engines."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield loop
    loop.call_soon_threadsafe(loop.stop)
    thread.join(10)
    loop.close()


@pytest.fixture
def rig(router_loop: asyncio.AbstractEventLoop) -> "Iterator[Rig]":
    """A router between scripted engines, not started yet."""
    from router_rig import Rig

    rig = Rig(router_loop)
    yield rig
    rig.stop()


@pytest.fixture
def answering() -> Iterator[Callable[[int, bytes], str]]:
    """Starts HTTP servers that answer everything with one status and body; gives their address."""
    servers = []

    def start(status: int, body: bytes) -> str:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_POST = do_GET

            def log_message(self, *_: object) -> None:
                """Silent."""

        server = HTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return f"127.0.0.1:{server.server_port}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()
