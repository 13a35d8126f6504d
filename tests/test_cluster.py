"""Real engines: answers as of one engine, and nothing left behind however a cluster ends."""

import os
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
from engines import complete, eventually, hand_off, leftovers, marked, sessions, shared_memory, text

from pdtrace.connector.cluster import Cluster, ClusterError
from pdtrace.connector.cluster_settings import ClusterSettings, Layout, Mode
from pdtrace.connector.process_tree import members
from pdtrace.connector.processes import EngineServer
from pdtrace.connector.readiness import free_ports

pytestmark = pytest.mark.e2e

PROMPTS = [f"{number} amber cedar willow stone " * 8 for number in range(3)]


def untraced(tmp_path: Path, mode: Mode = "push", layout: Layout = "uni") -> ClusterSettings:
    """vLLM as it comes, no router, no collector."""
    return ClusterSettings(mode=mode, layout=layout, traced=False, router=False, run_dir=tmp_path)


@pytest.fixture(scope="module")
def plain_answers(
    engine_server: EngineServer, tmp_path_factory: pytest.TempPathFactory
) -> list[str]:
    """What one engine without any connector says."""
    settings = untraced(tmp_path_factory.mktemp("plain"))
    with Cluster.plain(settings, engine_server) as plain:
        url = plain.engines[0].url
        return [text(complete(url, plain.model, prompt)) for prompt in PROMPTS]


def test_engines_find_everything_imported(engine_server: EngineServer) -> None:
    """The engine server has imported all that vLLM asks for later, and has no thread of its own."""
    engine_server.wait_preloaded(120)
    log = engine_server.log.read_text(encoding="utf-8")
    assert "itself" not in log and "threads" not in log
    assert os.listdir(f"/proc/{engine_server.pid}/task") == [str(engine_server.pid)]


@pytest.mark.parametrize("mode", ["push", "pull"])
def test_handed_over_answers_are_those_of_one_engine(
    mode: Mode, engine_server: EngineServer, tmp_path: Path, plain_answers: list[str]
) -> None:
    """vLLM's own connectors, parameters carried by hand; nothing is left after the stop."""
    with Cluster(untraced(tmp_path, mode), engine_server) as cluster:
        assert [engine.name for engine in cluster.engines] == ["prefill-0", "decode-0"]
        assert [hand_off(cluster, prompt) for prompt in PROMPTS] == plain_answers
        mine = sessions(cluster)
    assert leftovers(mine) == []
    assert len(set(plain_answers)) == len(PROMPTS)


def test_no_thread_of_an_engine_is_pinned(engine_server: EngineServer, tmp_path: Path) -> None:
    """Not even after a transfer has started threads of its own."""
    with Cluster(untraced(tmp_path), engine_server) as cluster:
        hand_off(cluster, PROMPTS[0])
        for session in sessions(cluster):
            for pid in members(session):
                for thread in os.listdir(f"/proc/{pid}/task"):
                    assert os.sched_getaffinity(int(thread)) == os.sched_getaffinity(0)


def test_nothing_is_left_of_a_killed_engine(engine_server: EngineServer, tmp_path: Path) -> None:
    """Its scheduler, worker and shared memory go too, and `check` names it and its log."""
    with Cluster(untraced(tmp_path, layout="mp"), engine_server) as cluster:
        mine, killed = sessions(cluster), cluster.decodes[0].process
        assert len(members(killed.pid)) >= 3
        assert shared_memory(killed.pid) != []
        cluster.check()
        killed.send_signal(signal.SIGKILL)
        assert killed.wait(60) == -signal.SIGKILL
        assert leftovers([killed.pid]) == []
        with pytest.raises(ClusterError, match=r"decode-0 ended with SIGKILL.*decode-0\.log"):
            cluster.check()
        assert leftovers([cluster.prefills[0].process.pid]) != []
    assert leftovers(mine) == []


def test_a_wrong_model_path_is_named_with_its_log(
    engine_server: EngineServer, tmp_path: Path
) -> None:
    """One sentence: process, status, reason, log."""
    settings = ClusterSettings(mode="none", traced=False, run_dir=tmp_path, model="/nonexistent")
    with pytest.raises(ClusterError) as raised:
        Cluster(settings, engine_server).start()
    message = str(raised.value)
    assert message.startswith("engine-0 ended with status 1: ")
    assert "/nonexistent" in message
    assert message.endswith(f"(log: {tmp_path / 'engine-0.log'})")


def test_one_engine_that_cannot_start_takes_the_others_down(
    engine_server: EngineServer, tmp_path: Path
) -> None:
    """A start that fails leaves nothing running."""
    settings = replace(untraced(tmp_path), decode_flags=("--no-such-flag",))
    cluster = Cluster(settings, engine_server)
    with pytest.raises(ClusterError, match=r"decode-0 .* unrecognized arguments: --no-such-flag"):
        cluster.start()
    assert cluster.processes() == []


def test_a_lost_port_race_is_run_again(
    engine_server: EngineServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody may listen on a port that was free a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as somebody:
        taken = [somebody.getsockname()[1], *free_ports(1)]
        answers = iter([taken, free_ports(2)])
        monkeypatch.setattr("pdtrace.connector.cluster.free_ports", lambda count: next(answers))
        with Cluster.plain(untraced(tmp_path), engine_server) as cluster:
            assert text(complete(cluster.engines[0].url, cluster.model, "Hello"))
    assert (tmp_path / "engine-0-retry1.log").exists()


class Launcher(NamedTuple):
    """`pdtrace cluster up` under way; its processes have the mark in their environment."""

    process: "subprocess.Popen[str]"
    mark: str

    def wait_ready(self) -> None:
        """Until it says so."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("Ctrl-C"):
                return
        raise AssertionError(f"ended with {self.process.wait()} before it was ready")


@contextmanager
def launched(run_dir: Path, *options: str) -> Iterator[Launcher]:
    """Killed in the end if it has not ended before."""
    program = "from pdtrace.cli.main import main; raise SystemExit(main())"
    command = [sys.executable, "-c", program, "cluster", "up", "--run-dir", str(run_dir)]
    mark = uuid.uuid4().hex
    with subprocess.Popen(
        [*command, *options],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PDTRACE_TEST_MARK": mark},
        start_new_session=True,
    ) as process:
        try:
            yield Launcher(process, mark)
        finally:
            process.kill()


@pytest.fixture(scope="module")
def launchers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Launcher, Launcher]]:
    """A whole cluster and a plain engine; they start side by side, each imports vLLM for itself."""
    with (
        launched(tmp_path_factory.mktemp("up")) as cluster,
        launched(tmp_path_factory.mktemp("up"), "--mode", "none", "--layout", "mp") as engine,
    ):
        yield cluster, engine


def test_up_stops_everything_at_ctrl_c(launchers: tuple[Launcher, Launcher]) -> None:
    """Status 0, and no process of it is left when the command has returned."""
    launcher, _ = launchers
    launcher.wait_ready()
    assert len(marked(launcher.mark)) >= 8
    launcher.process.send_signal(signal.SIGINT)
    assert launcher.process.wait(60) == 0
    assert marked(launcher.mark) == []


def test_nothing_outlives_a_killed_launcher(launchers: tuple[Launcher, Launcher]) -> None:
    """The engine server sees the socket close and stops its children itself."""
    _, launcher = launchers
    launcher.wait_ready()
    of_it = {os.getsid(pid) for pid in marked(launcher.mark)}
    assert any(shared_memory(session) for session in of_it)
    launcher.process.kill()
    assert eventually(lambda: marked(launcher.mark) == [])
    assert [path for session in of_it for path in shared_memory(session)] == []
