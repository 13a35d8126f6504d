"""`pdtrace demo` as a user runs it: real engines, and nothing left behind however it ends."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest

from pdtrace.cli.split_cmd import app as split_app

pytestmark = pytest.mark.e2e

PDTRACE = str(Path(sys.executable).with_name("pdtrace"))


def shared_memory() -> set[str]:
    """Names of the shared-memory segments of this machine."""
    return set(os.listdir("/dev/shm"))


class Demo(NamedTuple):
    """A demo under way, and where it writes to."""

    process: "subprocess.Popen[str]"
    out: Path


@contextmanager
def under_way(out: Path, requests: int) -> Iterator[Demo]:
    """A small demo, ended in the end if it did not end by itself."""
    size = ["--model", "small", "--requests", str(requests)]
    process = subprocess.Popen(
        [PDTRACE, "demo", *size, "--out", str(out)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield Demo(process, out)
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(60)
        for stream in (process.stdout, process.stderr):
            assert stream is not None
            stream.close()


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[Demo]:
    """One that may come to its end."""
    with under_way(tmp_path / "out", requests=5) as demo:
        yield demo


@pytest.fixture(scope="module")
def doomed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Demo]]:
    """Two that start side by side, with more requests than they will live to serve."""
    directory = tmp_path_factory.mktemp("doomed")
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(under_way(directory / name, requests=1000))
            for name in ("interrupted", "bereft")
        }


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


def shared_memory_of_others(before: set[str]) -> set[str]:
    """Segments of engines that this test session itself keeps running beside the demo."""
    maps = []
    for process in psutil.Process().children(recursive=True):
        with suppress(OSError):
            maps.append(Path(f"/proc/{process.pid}/maps").read_text())
    return {name for name in shared_memory() - before if f"/dev/shm/{name}" in "".join(maps)}


def test_an_interrupt_leaves_nothing_behind(doomed: dict[str, Demo]) -> None:
    """Ctrl-C in the middle of the requests: exit 130, no process, no shared memory."""
    demo = doomed["interrupted"].process
    before = shared_memory()
    read_until(demo, "push: requests")
    started = family(demo)
    demo.send_signal(signal.SIGINT)
    _, err = demo.communicate(timeout=60)
    assert demo.returncode == 130, err
    assert "interrupted" in err and "Traceback" not in err
    assert_gone(started)
    assert shared_memory() <= before | shared_memory_of_others(before)


def test_a_dead_engine_ends_the_demo_with_its_log(doomed: dict[str, Demo]) -> None:
    """SIGKILL to one EngineCore: one sentence names the engine and its log, exit 1."""
    demo, out = doomed["bereft"]
    read_until(demo, "push: first request")
    started = family(demo)
    *_, engine_core = writing_to("decode-0.log", started)
    engine_core.kill()
    _, err = demo.communicate(timeout=120)
    assert demo.returncode == 1
    assert str(out / "push" / "decode-0.log") in err and "Traceback" not in err
    assert_gone(started)


def test_the_demo_splits_both_modes_and_writes_a_report(
    demo: Demo, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit 0, the split of both modes, one page, stores that `pdtrace split` reads again."""
    before = shared_memory()
    read_until(demo.process, "push: requests")
    started = family(demo.process)
    out, err = demo.process.communicate(timeout=200)
    assert demo.process.returncode == 0, err
    assert_gone(started)
    assert shared_memory() <= before | shared_memory_of_others(before)
    assert "5 of 5 requests split" in out and "pull" in out
    page = (demo.out / "report.html").read_text()
    assert "demo-push-000" in page and "demo-pull-000" in page
    stores = [str(demo.out / mode / "store") for mode in ("push", "pull")]
    split_app(args=[*stores, "--json"], standalone_mode=False)
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {line["mode"] for line in lines} == {"push", "pull"} and len(lines) == 10
