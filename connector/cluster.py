"""A local cluster of real engines: prefill, decode, router and collector on this machine.

    with Cluster(ClusterSettings(mode="push")) as cluster:
        post(cluster.router_url + "/v1/completions", ...)

Everything runs under an engine server (`processes.EngineServer`), which takes it all down when this
process ends, however it ends.
"""

import json
import re
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from pdtrace.connector.cluster_settings import (
    HOST,
    SERVED_MODEL,
    ClusterSettings,
    Role,
    collector_argv,
    server_env,
)
from pdtrace.connector.processes import EngineServer, Process, ProcessError
from pdtrace.connector.readiness import complete, free_ports, healthy, until

STOP_SECONDS: Final = 12.0
"""For each of router, engines and collector: more than the engines' own time to finish."""
_ABANDON_SECONDS: Final = 1.0
"""The same when the start failed: nothing to flush, and an engine half up may not even listen."""
_STAGES: Final = {"router": 0, "engine": 1, "collector": 2}
"""Order of stopping: nobody may lose the place where its last spans go."""
_PORT_TAKEN: Final = re.compile(r"address already in use", re.IGNORECASE)


class ClusterError(RuntimeError):
    """The cluster could not be started; says which process ended and where its log is."""


@dataclass(frozen=True, slots=True)
class Engine:
    """One vLLM engine of the cluster."""

    name: str
    role: Role
    url: str
    side_port: int
    process: Process


@dataclass(frozen=True, slots=True)
class CollectorAddress:
    """Where the collector listens: `host:port` for gRPC, a URL for HTTP."""

    grpc: str
    http: str


class Cluster:
    """Starts with `start` or as a context manager; `stop` may be called at any time, repeatedly."""

    def __init__(self, settings: ClusterSettings, server: EngineServer | None = None) -> None:
        self.settings = settings
        self.model = SERVED_MODEL
        self.engines: list[Engine] = []
        self.router_url: str | None = None
        self.collector: CollectorAddress | None = None
        self.run_dir = settings.run_dir or Path(tempfile.mkdtemp(prefix="pdtrace-cluster-"))
        self.store = settings.store or self.run_dir / "store"
        self._shared = server
        self._server: EngineServer | None = None
        self._processes: dict[str, list[Process]] = {}
        self._attempt = 0

    @classmethod
    def plain(cls, settings: ClusterSettings, server: EngineServer | None = None) -> "Cluster":
        """One engine with the same settings but no connector, router or tracing."""
        return cls(replace(settings, mode="none", traced=False), server)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def prefills(self) -> list[Engine]:
        """Prefill engines in order of their names."""
        return [engine for engine in self.engines if engine.role == "prefill"]

    @property
    def decodes(self) -> list[Engine]:
        """Decode engines in order of their names."""
        return [engine for engine in self.engines if engine.role == "decode"]

    def start(self) -> None:
        """Start all and wait until each is healthy; on any failure nothing is left running."""
        for last_attempt in (False, True):
            try:
                self._start_all()
                return
            except ProcessError as error:
                taken = self._lost_port_race()
                self.stop(_ABANDON_SECONDS)
                if last_attempt or not taken:
                    raise ClusterError(str(error)) from error
            except BaseException:
                self.stop(_ABANDON_SECONDS)
                raise

    def stop(self, seconds: float = STOP_SECONDS) -> None:
        """Router, engines, collector, in this order; then the server, unless it is shared.

        Each of the three may take so many seconds before it is killed.
        """
        server, self._server = self._server, None
        if server is None:
            return
        try:
            for kind in _STAGES:
                server.stop(self._processes.pop(kind, []), seconds)
        finally:
            self.engines, self.router_url, self.collector = [], None, None
            if server is not self._shared:
                server.close()

    def check(self) -> None:
        """Raise ClusterError if a process of the cluster has ended."""
        for process in self.processes():
            if process.status is not None:
                raise ClusterError(process.why_it_ended())

    def processes(self) -> list[Process]:
        """All processes of the cluster, without the engine server."""
        return [process for kind in _STAGES for process in self._processes.get(kind, [])]

    def _start_all(self) -> None:
        self._attempt += 1
        self.run_dir.mkdir(parents=True, exist_ok=True)
        deadline = time.monotonic() + self.settings.start_seconds
        self._server = server = self._shared or EngineServer(
            self.run_dir / "engine-server.log", {**self.settings.base_env(None), **server_env()}
        )
        ready = self._start_collector(server) if self.settings.wants_collector() else None
        server.wait_preloaded(self.settings.start_seconds)
        if ready is not None:
            told = self._wait_for_file(ready, deadline)
            self.collector = CollectorAddress(told["grpc"], told["http"])
        self._start_engines(server)
        ready = self._start_router(server) if self._wants_router() else None
        for engine in self.engines:
            self._wait(lambda: healthy(engine.url), engine.process, deadline)  # noqa: B023
        if ready is not None:
            self._wait_for_file(ready, deadline)

    def _wants_router(self) -> bool:
        return self.settings.router and self.settings.mode != "none"

    def _start_collector(self, server: EngineServer) -> Path:
        ready = self._ready_file("collector")
        argv = collector_argv(self.store, ready)
        self._run(server, "collector", argv, self.settings.base_env(None))
        return ready

    def _start_engines(self, server: EngineServer) -> None:
        settings, grpc = self.settings, self._collector_grpc()
        roles = settings.roles()
        ports = free_ports(2 * len(roles))
        for (name, role), port, side_port in zip(roles, ports[::2], ports[1::2], strict=True):
            process = server.fork_engine(
                name,
                settings.engine_argv(name, role, port, grpc),
                settings.engine_env(name, side_port, grpc),
                self._log(name),
                stage=_STAGES["engine"],
            )
            self._processes.setdefault("engine", []).append(process)
            self.engines.append(Engine(name, role, f"http://{HOST}:{port}", side_port, process))

    def _start_router(self, server: EngineServer) -> Path:
        (port,) = free_ports(1)
        ready = self._ready_file("router")
        prefills = [engine.url for engine in self.prefills]
        decodes = [engine.url for engine in self.decodes]
        argv = self.settings.router_argv(prefills, decodes, port, ready)
        collector = self._collector_grpc() if self.settings.router_traced else None
        env = {**self.settings.base_env(collector), **self.settings.env}
        self._run(server, "router", argv, env)
        self.router_url = f"http://{HOST}:{port}"
        return ready

    def _run(self, server: EngineServer, kind: str, argv: list[str], env: dict[str, str]) -> None:
        process = server.execute(kind, argv, env, self._log(kind), stage=_STAGES[kind])
        self._processes.setdefault(kind, []).append(process)

    def _collector_grpc(self) -> str | None:
        return self.collector.grpc if self.collector else None

    def _log(self, name: str) -> Path:
        suffix = f"-retry{self._attempt - 1}" if self._attempt > 1 else ""
        return self.run_dir / f"{name}{suffix}.log"

    def _ready_file(self, kind: str) -> Path:
        """Where a program will tell that it is ready; one of an earlier run must not mislead."""
        ready = self.run_dir / f"{kind}.ready.json"
        ready.unlink(missing_ok=True)
        return ready

    def _wait_for_file(self, ready: Path, deadline: float) -> dict[str, str]:
        (process,) = self._processes[ready.name.partition(".")[0]]
        self._wait(lambda: complete(ready), process, deadline)
        told: dict[str, str] = json.loads(ready.read_text(encoding="utf-8"))
        return told

    def _wait(self, ready: Callable[[], bool], process: Process, deadline: float) -> None:
        """Until it is ready; any process of the cluster that ends is an error at once."""

        def settled() -> bool:
            return any(p.status is not None for p in self.processes()) or ready()

        in_time = until(settled, deadline)
        for ended in self.processes():
            if ended.status is not None:
                raise ProcessError(ended.why_it_ended())
        if not in_time:
            raise ProcessError(
                f"{process.name} was not ready within {self.settings.start_seconds:g} s"
                f" (log: {process.log})"
            )

    def _lost_port_race(self) -> bool:
        """Whether somebody took one of our free ports before our process could."""
        ended = [process for process in self.processes() if process.status is not None]
        return any(
            _PORT_TAKEN.search(process.log.read_text(encoding="utf-8", errors="replace"))
            for process in ended
            if process.log.exists()
        )
