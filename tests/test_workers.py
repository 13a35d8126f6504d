"""Parts on other processes: of this machine, and of a real Dask cluster that loses a worker."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest
from distributed import Client, LocalCluster
from generator import Shape, records
from recorder_threads import eventually
from test_partitions import same, stored

from pdtrace.analysis import opened
from pdtrace.analysis.parallel import Result, split_parts
from pdtrace.analysis.parquet import row_groups
from pdtrace.analysis.partitions import Division, divide
from pdtrace.analysis.workers import WorkersError, dask, processes
from pdtrace.cli.main import main

pytestmark = pytest.mark.e2e
REQUESTS = 36


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The spans of some requests, push and pull, in two exports."""
    spans = [
        span
        for number in range(REQUESTS)
        for span in records(
            Shape(mode=("push", "pull")[number % 2], start=number * 1000), f"r-{number:02}"
        )
    ]
    return stored(tmp_path_factory.mktemp("kept"), spans)


@pytest.fixture(scope="module")
def division(files: list[Path]) -> Division:
    """Four parts of them."""
    found = divide(row_groups(files), 160)
    assert len(found.parts) == 4
    return found


@pytest.fixture(scope="module")
def here(division: Division) -> Result:
    """What this process makes of them."""
    return split_parts(division, 50.0)


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """A scheduler and two workers, each a process of its own, on loopback."""
    with LocalCluster(
        n_workers=2, threads_per_worker=1, dashboard_address="127.0.0.1:0", host="127.0.0.1"
    ) as started:
        yield started


def test_processes_give_the_same_split(division: Division, here: Result) -> None:
    """Whichever of them took which part."""
    with processes(2) as executor:
        found = split_parts(division, 50.0, executor)
    same(found.split, here.split)
    assert found.account.notes() == here.account.notes()


def test_a_worker_that_is_killed_changes_nothing(
    division: Division, here: Result, cluster: LocalCluster
) -> None:
    """Its parts are split by another one."""
    done: list[Result] = []
    with dask(cluster.scheduler_address, 2) as executor:
        run = threading.Thread(
            target=lambda: done.append(split_parts(division, 50.0, executor)), daemon=True
        )
        with Client(cluster.scheduler_address) as client:
            workers = client.run(os.getpid)
            run.start()
            eventually(lambda: any(client.processing().values()))
            busy = next(name for name, tasks in client.processing().items() if tasks)
            os.kill(workers[busy], signal.SIGKILL)
            assert not done
            run.join(120)
            assert workers[busy] not in client.run(os.getpid).values()
    same(done[0].split, here.split)


@pytest.mark.parametrize("where", ["one process", "two processes", "a scheduler", "local"])
def test_the_command_prints_the_same_bytes_wherever_it_works(
    where: str,
    files: list[Path],
    cluster: LocalCluster,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Also as with all spans at once."""
    options = {
        "one process": ["--processes", "1"],
        "two processes": ["--processes", "2"],
        "a scheduler": ["--dask", cluster.scheduler_address],
        "local": ["--dask", "local", "--processes", "2"],
    }[where]
    whole = printed(files, [], capfd)
    monkeypatch.setattr(opened, "ROWS", 160)
    assert printed(files, options, capfd) == whole
    assert whole.count("\n") == REQUESTS


def printed(files: list[Path], options: list[str], capfd: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as stopped:
        main(["split", *map(str, files), "--json", *options])
    assert stopped.value.code == 0
    return capfd.readouterr().out


def test_no_scheduler_is_said_in_one_sentence(
    files: list[Path], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """And nothing is split by other means."""
    monkeypatch.setattr(opened, "ROWS", 160)
    monkeypatch.setattr("pdtrace.analysis.workers._CONNECT_S", 1)
    with pytest.raises(SystemExit) as stopped:
        main(["split", *map(str, files), "--dask", "tcp://127.0.0.1:9"])
    out, err = capfd.readouterr()
    assert (stopped.value.code, out) == (1, "")
    assert err.startswith("pdtrace split: no Dask scheduler answers at tcp://127.0.0.1:9")


def test_a_scheduler_that_is_lost_ends_in_one_sentence(tmp_path: Path) -> None:
    """Nothing waits for it for ever."""
    place = tmp_path / "scheduler.json"
    at = ["--scheduler-file", str(place)]
    begun = [
        subprocess.Popen([sys.executable, "-m", f"distributed.cli.dask_{kind}", *at, *options])
        for kind, options in (
            ("scheduler", ["--host", "127.0.0.1", "--port", "0", "--no-dashboard"]),
            ("worker", ["--no-dashboard", "--no-nanny", "--nthreads", "1"]),
        )
    ]
    try:
        eventually(lambda: place.exists() and place.stat().st_size > 0)
        address = orjson.loads(place.read_bytes())["address"]
        with (
            pytest.raises(WorkersError, match=f"^the Dask cluster at {address} was lost: "),
            dask(address, 1) as executor,
        ):
            list(executor.map(os.kill, [begun[0].pid], [signal.SIGKILL]))
    finally:
        for process in begun:
            process.kill()
            process.wait()
