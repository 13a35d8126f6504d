"""`pdtrace demo` as a user runs it: real engines, and nothing left behind however it ends."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from pdtrace.cli.split_cmd import app as split_app

pytestmark = pytest.mark.e2e

PDTRACE = str(Path(sys.executable).with_name("pdtrace"))


def shared_memory() -> set[str]:
    """Names of the shared-memory segments of this machine."""
    return set(os.listdir("/dev/shm"))


@pytest.fixture
def demo(tmp_path: Path) -> Iterator["subprocess.Popen[str]"]:
    """A small demo under way; ended with the test, if it did not end by itself."""
    process = subprocess.Popen(
        [PDTRACE, "demo", "--model", "small", "--requests", "5", "--out", str(tmp_path / "out")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    yield process
    if process.poll() is None:
        process.terminate()
        process.wait(60)
    for stream in (process.stdout, process.stderr):
        assert stream is not None
        stream.close()


def read_until(process: "subprocess.Popen[str]", line: str) -> None:
    """Consume output up to a line; the demo says what it is doing when it has no terminal."""
    assert process.stdout is not None
    for found in process.stdout:
        if found.startswith(line):
            return
    assert process.stderr is not None
    raise AssertionError(f"{line!r} never came: {process.stderr.read()}")


def family(process: "subprocess.Popen[str]") -> list[psutil.Process]:
    """Everything the demo has started so far."""
    started: list[psutil.Process] = psutil.Process(process.pid).children(recursive=True)
    return started


def writing_to(log: str, processes: list[psutil.Process]) -> list[psutil.Process]:
    """Those whose standard output is a log of that name."""
    found = []
    for process in processes:
        try:
            target = os.readlink(f"/proc/{process.pid}/fd/1")
        except OSError:
            continue
        if target.endswith(f"/{log}"):
            found.append(process)
    return found


def assert_gone(processes: list[psutil.Process]) -> None:
    """None of them lives, within a bounded time."""
    _, alive = psutil.wait_procs(processes, timeout=20)
    assert [p for p in alive if p.is_running() and p.status() != psutil.STATUS_ZOMBIE] == []


def test_the_demo_splits_both_modes_and_writes_a_report(
    demo: "subprocess.Popen[str]", tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit 0, the split of both modes, one page, stores that `pdtrace split` reads again."""
    before = shared_memory()
    read_until(demo, "push: requests")
    started = family(demo)
    out, err = demo.communicate(timeout=200)
    assert demo.returncode == 0, err
    assert_gone(started)
    assert shared_memory() <= before | shared_memory_of_others(before)
    assert "5 of 5 requests split" in out and "pull" in out
    page = (tmp_path / "out" / "report.html").read_text()
    assert "demo-push-000" in page and "demo-pull-000" in page
    stores = [str(tmp_path / "out" / mode / "store") for mode in ("push", "pull")]
    split_app(args=[*stores, "--json"], standalone_mode=False)
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {line["mode"] for line in lines} == {"push", "pull"} and len(lines) == 10


def shared_memory_of_others(before: set[str]) -> set[str]:
    """Segments of engines that this test session itself keeps running beside the demo."""
    mine = psutil.Process().children(recursive=True)
    maps = "".join(Path(f"/proc/{p.pid}/maps").read_text() for p in mine if p.is_running())
    return {name for name in shared_memory() - before if f"/dev/shm/{name}" in maps}


def test_an_interrupt_leaves_nothing_behind(demo: "subprocess.Popen[str]") -> None:
    """Ctrl-C in the middle of the requests: exit 130, no process, no shared memory."""
    before = shared_memory()
    read_until(demo, "push: requests")
    started = family(demo)
    demo.send_signal(signal.SIGINT)
    _, err = demo.communicate(timeout=60)
    assert demo.returncode == 130, err
    assert "interrupted" in err and "Traceback" not in err
    assert_gone(started)
    assert shared_memory() <= before | shared_memory_of_others(before)


def test_a_dead_engine_ends_the_demo_with_its_log(
    demo: "subprocess.Popen[str]", tmp_path: Path
) -> None:
    """SIGKILL to one EngineCore: one sentence names the engine and its log, exit 1."""
    read_until(demo, "push: first request")
    started = family(demo)
    *_, engine_core = writing_to("decode-0.log", started)
    engine_core.kill()
    _, err = demo.communicate(timeout=120)
    assert demo.returncode == 1
    assert str(tmp_path / "out" / "push" / "decode-0.log") in err and "Traceback" not in err
    assert_gone(started)
