"""The process that starts a cluster's processes and takes them down with it.

It imports vLLM once, without starting a thread, and then forks an engine in two seconds instead of
spawning it in twenty. `pdtrace.connector.processes.EngineServer` talks to it, one JSON object a
line, over a socket whose other end closes when the launcher dies however it dies.

    {"op": "preload"}                               -> {"event": "preloaded"}
    {"op": "fork"|"exec", "id", "argv", "env", "log", "stage"} -> {"event": "started", "id", "pid"}
    {"op": "kill", "pid", "signal", "group"}           {"event": "exited", "pid", "status"}
"""

import atexit
import ctypes
import importlib.util
import json
import os
import selectors
import signal
import socket
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from pdtrace.connector import process_tree
from pdtrace.connector.cluster_settings import ENGINE_SETUP
from pdtrace.connector.preload import preload

STOP_SECONDS: Final = 10.0
"""What a child may take for an orderly end once the launcher is gone."""
_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36

Message = dict[str, Any]


@dataclass(slots=True)
class _Child:
    """One process we started, leader of its own session; `status` is None while it lives."""

    pid: int
    stage: int
    status: int | None = None


class Server:
    """Single-threaded, because a process with threads must not fork."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._children: dict[int, _Child] = {}
        self._buffer = b""
        self._open = True
        self._wake_read, wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(wake_write, False)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, self._hang_up)

    def serve(self) -> Message | None:
        """Until the launcher hangs up. In a forked engine: what it was asked to run."""
        while self._open:
            for message in self._receive():
                if self._obey(message):
                    return message
            self._reap()
        self._stop_all()
        return None

    def _hang_up(self, *_: object) -> None:
        self._open = False

    def _receive(self) -> list[Message]:
        """Wait for a message, a signal, or the next look at a dying session."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._channel, selectors.EVENT_READ)
            selector.register(self._wake_read, selectors.EVENT_READ)
            ready = [key.fd for key, _ in selector.select(0.02 if self._sweeping() else None)]
        if self._wake_read in ready:
            os.read(self._wake_read, 4096)
        if self._channel.fileno() not in ready:
            return []
        return self._read_lines()

    def _read_lines(self) -> list[Message]:
        try:
            data = self._channel.recv(1 << 16)
        except ConnectionError:
            data = b""
        if not data:
            self._open = False
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        return [json.loads(line) for line in lines]

    def _send(self, message: Message) -> None:
        try:
            self._channel.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            self._open = False

    def _obey(self, message: Message) -> bool:
        """Do what a message asks; True in the child that must now run an engine."""
        match message["op"]:
            case "preload":
                preload()
                self._send({"event": "preloaded"})
            case "fork" | "exec":
                return self._start(message)
            case "kill":
                self._kill(message)
        return False

    def _start(self, message: Message) -> bool:
        server = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._become_child(message, server)
            return True
        self._children[pid] = _Child(pid, message["stage"])
        self._send({"event": "started", "id": message["id"], "pid": pid})
        return False

    def _become_child(self, message: Message, server: int) -> None:
        """Own session, log and environment; ends with this server. `exec` does not return."""
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        os.setsid()
        die_with_parent(server)
        self._channel.close()
        redirect(message["log"])
        if message["op"] == "exec":
            _execute(message["argv"], message["env"])
        os.environ.clear()
        os.environ.update(message["env"])

    def _kill(self, message: Message) -> None:
        """Only a child that was not reaped: its number cannot mean somebody else."""
        child = self._children.get(message["pid"])
        if child is None or child.status is not None:
            return
        if message["group"]:
            os.killpg(child.pid, message["signal"])
        else:
            os.kill(child.pid, message["signal"])

    def _sweeping(self) -> bool:
        return any(child.status is not None for child in self._children.values())

    def _reap(self) -> None:
        """Collect exits, end what is left of each dead child's session, then report it."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            # Others are orphans of our children, ours by PR_SET_CHILD_SUBREAPER.
            if pid in self._children:
                child = self._children[pid]
                child.status = os.waitstatus_to_exitcode(status)
        for child in [c for c in self._children.values() if c.status is not None]:
            if process_tree.sweep(child.pid):
                del self._children[child.pid]
                self._send({"event": "exited", "pid": child.pid, "status": child.status})

    def _stop_all(self) -> None:
        """Stage by stage, so that engines can still hand their spans to the collector."""
        for stage in sorted({child.stage for child in self._children.values()}):
            members = {pid for pid, child in self._children.items() if child.stage == stage}
            self._signal(members, signal.SIGTERM)
            deadline = time.monotonic() + STOP_SECONDS
            while members & self._children.keys() and time.monotonic() < deadline:
                self._reap()
                time.sleep(0.02)
            self._signal(members, signal.SIGKILL)
        while self._children:
            self._reap()
            time.sleep(0.02)

    def _signal(self, pids: set[int], number: int) -> None:
        for pid in pids & self._children.keys():
            self._kill({"pid": pid, "signal": number, "group": False})


def _execute(argv: list[str], env: dict[str, str]) -> None:
    try:
        os.execve(argv[0], argv, env)
    except OSError as error:
        print(f"{argv[0]}: {error}", file=sys.stderr, flush=True)
    os._exit(127)


def die_with_parent(parent: int) -> None:
    """SIGKILL when the parent ends, for this process and all that it will fork."""
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def redirect(log: str) -> None:
    """Standard output and error into a file, input from nowhere."""
    nowhere = os.open(os.devnull, os.O_RDONLY)
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(nowhere, 0)
    os.dup2(out, 1)
    os.dup2(out, 2)
    os.close(nowhere)
    os.close(out)


def run_engine(argv: list[str]) -> None:
    """`vllm serve` with these arguments in this process, on the CPU rig."""
    from vllm.entrypoints.cli.serve import ServeSubcommand
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    from pdtrace.connector import cpu_rig

    os.register_at_fork(after_in_child=lambda: die_with_parent(os.getppid()))
    cpu_rig.apply()
    own = process_tree.scratch(os.getsid(0))
    own.mkdir(mode=0o700, exist_ok=True)
    tempfile.tempdir = os.environ["TMPDIR"] = str(own)
    if os.environ.get(ENGINE_SETUP):
        run_setup(os.environ[ENGINE_SETUP])
    # Not vLLM's own `main`: that asks for a distribution named vllm, and the CPU build's is not.
    sys.argv = ["vllm", "serve", *argv]
    command = ServeSubcommand()
    parser = FlexibleArgumentParser(prog="vllm")
    command.subparser_init(parser.add_subparsers(dest="subparser"))
    args = parser.parse_args(sys.argv[1:])
    command.validate(args)
    command.cmd(args)


def run_setup(path: str) -> None:
    """Run a file as a module that stays; EngineCore and workers are forked with it."""
    spec = importlib.util.spec_from_file_location("pdtrace_engine_setup", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)


def status_of(program: Callable[[], None]) -> int:
    """Exit status that Python would give a program; it has printed what Python would print."""
    try:
        program()
    except SystemExit as ended:
        if ended.code is None or isinstance(ended.code, int):
            return ended.code or 0
        print(ended.code, file=sys.stderr)
        return 1
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def end(status: int) -> NoReturn:
    """End as Python does, but without taking vLLM's modules apart: two seconds for each engine."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(status)


def main() -> None:
    """Serve the socket whose descriptor is the only argument."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    server = Server(socket.socket(fileno=int(sys.argv[1])))
    engine = server.serve()
    end(0 if engine is None else status_of(lambda: run_engine(engine["argv"])))


if __name__ == "__main__":
    main()
