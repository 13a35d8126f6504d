"""The launcher's handle on its engine server and on the processes that runs.

The server (`pdtrace.connector.engine_server`) does the forking, reaping and cleaning up; here are
only messages to it and what it reported. Closing the socket, also by dying, makes it stop all.
"""

import json
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

KILL_SECONDS: Final = 10.0
"""How long the kernel and the server may take to confirm a SIGKILL."""
_TELLING: Final = re.compile(
    r"\b\w*(?:Error|Exception): \S|: error: \S|^error: |Segfault encountered|Fatal Python error",
    re.IGNORECASE,
)
_NOT_TELLING: Final = re.compile(
    r"Engine core initialization failed|CancelledError|^Found ulimit|^WARNING "
)
_PREFIX: Final = re.compile(r"^\(\w+ pid=\d+\) (?:(?:INFO|ERROR) \S+ \S+ \[\S+\] )?")


class ProcessError(RuntimeError):
    """A process of the cluster could not be started, or ended before its time."""


def telling_line(log: Path) -> str:
    """The line of a log that says best why the process ended: the last error, or the last line."""
    try:
        text = log.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    lines = [_PREFIX.sub("", line).strip() for line in text.splitlines()]
    errors = [x for x in lines if _TELLING.search(x) and not _NOT_TELLING.search(x)]
    return (errors or [x for x in lines if x] or [""])[-1]


@dataclass(frozen=True, slots=True)
class Process:
    """One process of a cluster, alive or not."""

    name: str
    pid: int
    log: Path
    server: "EngineServer"

    @property
    def status(self) -> int | None:
        """Exit status, negative for a signal; None while the process or a child of it lives."""
        return self.server.status_of(self.pid)

    def send_signal(self, number: int, *, group: bool = False) -> None:
        """Signal the process, or with `group` its children too; nothing once it ended."""
        self.server.signal(self.pid, number, group=group)

    def wait(self, seconds: float) -> int | None:
        """Exit status, or None when the process still lives after so long."""
        self.server.wait_for(lambda: self.status is not None, seconds)
        return self.status

    def why_it_ended(self) -> str:
        """One sentence that names the process and its log."""
        status = self.status
        how = f"status {status}" if status is None or status >= 0 else _signal_name(-status)
        return f"{self.name} ended with {how}: {telling_line(self.log)} (log: {self.log})"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


class EngineServer:
    """Starts processes for one or several clusters; engines by fork, others by exec.

    Share one between clusters: its vLLM imports take about 15 s and are needed once.
    """

    def __init__(self, log: Path, env: Mapping[str, str]) -> None:
        self.log = log
        self._changed = threading.Condition()
        self._started: dict[int, int] = {}
        self._status: dict[int, int] = {}
        self._requests = 0
        self._preload_sent = self._preloaded = self._lost = False
        ours, theirs = socket.socketpair()
        self._channel = ours
        with theirs, log.open("ab") as out:
            # Own session: a Ctrl-C at the terminal is for the launcher, who then stops in order.
            self._server = subprocess.Popen(
                [sys.executable, "-m", "pdtrace.connector.engine_server", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=dict(env),
                start_new_session=True,
            )
        self._reader = threading.Thread(target=self._read, name="engine-server", daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def pid(self) -> int:
        """Process id of the server itself."""
        return self._server.pid

    def preload(self) -> None:
        """Let the server import vLLM, once; returns at once."""
        if not self._preload_sent:
            self._preload_sent = True
            self._send({"op": "preload"})

    def wait_preloaded(self, seconds: float) -> None:
        """Until vLLM is imported."""
        self.preload()
        self.wait_for(lambda: self._preloaded or self._lost, seconds)
        if not self._preloaded:
            raise self._failure("did not import vLLM")

    def fork_engine(
        self, name: str, argv: Sequence[str], env: Mapping[str, str], log: Path, *, stage: int
    ) -> Process:
        """Run `vllm serve` with these arguments in a fork of the server."""
        self.preload()
        return self._start("fork", name, argv, env, log, stage)

    def execute(
        self, name: str, argv: Sequence[str], env: Mapping[str, str], log: Path, *, stage: int
    ) -> Process:
        """Run a program. When all must stop, lower stages stop first."""
        return self._start("exec", name, argv, env, log, stage)

    def signal(self, pid: int, number: int, *, group: bool) -> None:
        """Signal a child; the server ignores it when the child has ended."""
        if not self._lost:
            self._send({"op": "kill", "pid": pid, "signal": int(number), "group": group})

    def status_of(self, pid: int) -> int | None:
        """Exit status of a child, None while it lives."""
        with self._changed:
            status = self._status.get(pid)
            return -signal.SIGKILL if status is None and self._lost else status

    def wait_for(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Wait until something the server reports makes the condition true."""
        with self._changed:
            return self._changed.wait_for(condition, seconds)

    def stop(self, processes: Collection[Process], seconds: float) -> None:
        """SIGTERM to all of them at once, SIGKILL to those that live after so long."""
        for process in processes:
            process.send_signal(signal.SIGTERM)
        if self._all_ended(processes, seconds):
            return
        for process in processes:
            process.send_signal(signal.SIGKILL, group=True)
        self._all_ended(processes, KILL_SECONDS)

    def close(self) -> None:
        """Stop everything, stage by stage, and the server."""
        try:
            self._channel.shutdown(socket.SHUT_WR)
        except OSError:
            pass
        try:
            self._server.wait(60)
        except subprocess.TimeoutExpired:
            self._server.kill()
            self._server.wait()
        self._reader.join(KILL_SECONDS)
        self._channel.close()

    def _all_ended(self, processes: Collection[Process], seconds: float) -> bool:
        return self.wait_for(lambda: all(p.status is not None for p in processes), seconds)

    def _start(
        self,
        op: str,
        name: str,
        argv: Sequence[str],
        env: Mapping[str, str],
        log: Path,
        stage: int,
    ) -> Process:
        with self._changed:
            self._requests += 1
            number = self._requests
        request = {"op": op, "id": number, "argv": list(argv), "env": dict(env)}
        self._send({**request, "log": str(log), "stage": stage})
        self.wait_for(lambda: number in self._started or self._lost, 120)
        if number not in self._started:
            raise self._failure(f"did not start {name}")
        return Process(name, self._started[number], log, self)

    def _failure(self, what: str) -> ProcessError:
        return ProcessError(f"the engine server {what}: {telling_line(self.log)} (log: {self.log})")

    def _send(self, message: Mapping[str, Any]) -> None:
        try:
            self._channel.sendall(json.dumps(message).encode() + b"\n")
        except OSError as error:
            raise self._failure("is gone") from error

    def _read(self) -> None:
        """Take in reports until the server is gone."""
        with self._channel.makefile("rb") as lines:
            try:
                for line in lines:
                    self._note(json.loads(line))
            except OSError:
                pass
        with self._changed:
            self._lost = True
            self._changed.notify_all()

    def _note(self, report: dict[str, Any]) -> None:
        with self._changed:
            match report["event"]:
                case "preloaded":
                    self._preloaded = True
                case "started":
                    self._status.pop(report["pid"], None)
                    self._started[report["id"]] = report["pid"]
                case "exited":
                    self._status[report["pid"]] = report["status"]
            self._changed.notify_all()
