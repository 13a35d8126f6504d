"""The engine server with small programs in the place of engines; vLLM is not imported here."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from engines import eventually, leftovers

from pdtrace.connector.processes import EngineServer, Process, ProcessError, telling_line

IGNORES_SIGTERM = "import signal, time; signal.signal(15, signal.SIG_IGN); print('on', flush=True)"
WAITS = "import time; print('on', flush=True); time.sleep(600)"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EngineServer]:
    """A server that has not imported vLLM."""
    with EngineServer(tmp_path / "server.log", os.environ) as running:
        yield running


def run(server: EngineServer, tmp_path: Path, name: str, code: str, stage: int = 0) -> Process:
    """Start a Python program and wait for its first line."""
    argv = [sys.executable, "-c", code]
    process = server.execute(name, argv, os.environ, tmp_path / f"{name}.log", stage=stage)
    assert eventually(lambda: process.status is not None or _wrote(process.log))
    return process


def _wrote(log: Path) -> bool:
    return log.exists() and log.stat().st_size > 0


def test_exit_status_and_output_are_reported(server: EngineServer, tmp_path: Path) -> None:
    """A positive status as it is, with the program's own last error as the reason."""
    process = run(server, tmp_path, "program", "raise SystemExit('ValueError: no such thing')")
    assert process.wait(30) == 1
    expected = f"program ended with status 1: ValueError: no such thing (log: {process.log})"
    assert process.why_it_ended() == expected


def test_a_killed_process_is_named_by_its_signal(server: EngineServer, tmp_path: Path) -> None:
    """SIGKILL leaves nothing in the log."""
    process = run(server, tmp_path, "program", WAITS)
    process.send_signal(signal.SIGKILL)
    assert process.wait(30) == -signal.SIGKILL
    assert "ended with SIGKILL" in process.why_it_ended()


def test_a_program_that_is_not_there_ends_with_127(server: EngineServer, tmp_path: Path) -> None:
    """As a shell would say it."""
    process = server.execute("nobody", ["/nonexistent"], {}, tmp_path / "log", stage=0)
    assert process.wait(30) == 127
    assert "No such file" in process.why_it_ended()


def test_stop_kills_who_ignores_sigterm(server: EngineServer, tmp_path: Path) -> None:
    """After the time it was given."""
    stubborn = run(server, tmp_path, "stubborn", f"{IGNORES_SIGTERM}; time.sleep(600)")
    server.stop([stubborn], 0.2)
    assert stubborn.status == -signal.SIGKILL


def test_what_outlives_its_leader_is_killed(server: EngineServer, tmp_path: Path) -> None:
    """The exit is reported only when the whole session is gone."""
    code = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {WAITS!r}]); input()"
    leader = server.execute(
        "leader", [sys.executable, "-c", code], os.environ, tmp_path / "log", stage=0
    )
    assert leader.wait(30) == 1
    assert leftovers([leader.pid]) == []


def test_close_stops_stage_by_stage(tmp_path: Path) -> None:
    """Each stage is gone before the next is asked to stop."""
    order = tmp_path / "order"
    code = (
        "import signal, time\n"
        "def end(*_):\n"
        "    time.sleep(0.1)\n"
        f"    print(NAME, file=open({str(order)!r}, 'a'), flush=True)\n"
        "    raise SystemExit(0)\n"
        "signal.signal(15, end)\n"
        "print('on', flush=True)\n"
        "time.sleep(600)\n"
    )
    with EngineServer(tmp_path / "server.log", os.environ) as server:
        for stage in (2, 0, 1):
            run(server, tmp_path, f"stage-{stage}", code.replace("NAME", str(stage)), stage)
    assert order.read_text().split() == ["0", "1", "2"]


def test_nothing_outlives_a_killed_server(tmp_path: Path) -> None:
    """Children end with the server, and the launcher is told."""
    with EngineServer(tmp_path / "server.log", os.environ) as server:
        process = run(server, tmp_path, "program", WAITS)
        os.kill(server.pid, signal.SIGKILL)
        assert process.wait(30) == -signal.SIGKILL
        assert eventually(lambda: leftovers([process.pid]) == [])
        with pytest.raises(ProcessError, match="engine server"):
            server.execute("late", [sys.executable], {}, tmp_path / "log", stage=0)


@pytest.mark.parametrize(
    ("program", "status", "written"),
    [
        ("pass", 0, ""),
        ("raise SystemExit", 0, ""),
        ("raise SystemExit(3)", 3, ""),
        ("raise SystemExit('no such model')", 1, "no such model"),
        ("raise ValueError('bad block size')", 1, "ValueError: bad block size"),
    ],
)
def test_an_engine_ends_as_python_ends(program: str, status: int, written: str) -> None:
    """Its status and last words; threads are waited for and exit handlers run, in this order."""
    code = (
        "import atexit, threading, time\n"
        "from pdtrace.connector.engine_server import end, status_of\n"
        "atexit.register(print, 'exit handler')\n"
        "def work():\n"
        "    time.sleep(0.1)\n"
        "    print('thread')\n"
        "threading.Thread(target=work).start()\n"
        "def program():\n"
        f"    {program}\n"
        "end(status_of(program))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == status
    assert done.stdout.split("\n") == ["thread", "exit handler", ""]
    assert done.stderr.strip().rpartition("\n")[2] == written


@pytest.mark.parametrize(
    ("log", "line"),
    [
        ("", ""),
        ("starting\nbye\n", "bye"),
        ("KeyError: 'x'\nmore\n", "KeyError: 'x'"),
        (
            "(EngineCore pid=7) ERROR 11-29 18:07:13 [core.py:1] ValueError: bad block size\n"
            "RuntimeError: Engine core initialization failed. See root cause above.\n",
            "ValueError: bad block size",
        ),
        (
            "Found ulimit of 9, which can cause errors like `OSError: [Errno 24] Too many`.\n"
            "(EngineCore pid=7) WARNING 11-29 18:07:13 [x.py:1] KeyError: 'unimportant'\n"
            "!!!!!!! Segfault encountered !!!!!!!\n"
            "RuntimeError: Engine core initialization failed. See root cause above.\n",
            "!!!!!!! Segfault encountered !!!!!!!",
        ),
        ("usage: vllm\nvllm serve: error: unrecognized arguments: --no\n\n", None),
    ],
)
def test_the_telling_line_is_the_root_error(tmp_path: Path, log: str, line: str | None) -> None:
    """Not the one that only says to look above."""
    path = tmp_path / "log"
    path.write_text(log)
    expected = "vllm serve: error: unrecognized arguments: --no" if line is None else line
    assert telling_line(path) == expected
