"""Real engines whose OTLP endpoint hangs, then is gone: the same answers, and they end in time."""

import re
import signal
import socket
import time
from functools import partial
from pathlib import Path

import pytest
from engines import complete, eventually, text

from pdtrace.connector.cluster import Cluster
from pdtrace.connector.cluster_settings import ClusterSettings, Mode
from pdtrace.connector.processes import EngineServer

pytestmark = pytest.mark.e2e

PROMPTS = ["The amber door", "Seven grey cats sat " * 20, "Why not"]
LOSSES = re.compile(r"pd_events_dropped_total: .*(export_failed|not_sent) \d+")


def told_of_losses(log: Path) -> bool:
    """Whether the engine's log says how many spans were lost, and why."""
    return LOSSES.search(log.read_text(encoding="utf-8", errors="replace")) is not None


@pytest.mark.parametrize(
    "mode",
    [
        pytest.param(mode, marks=pytest.mark.covers("exporter-down", mode, on="engines"))
        for mode in ("push", "pull")
    ],
)
def test_engines_serve_and_end_without_their_endpoint(
    mode: Mode, engine_server: EngineServer, tmp_path: Path
) -> None:
    """What is lost is counted in the engines' logs; P's own continuation is what is expected."""
    with socket.socket() as hanging:
        hanging.bind(("127.0.0.1", 0))
        hanging.listen()
        settings = ClusterSettings(
            mode=mode,
            run_dir=tmp_path,
            prefix_caching=False,
            env={
                "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{hanging.getsockname()[1]}",
                "OTEL_EXPORTER_OTLP_TIMEOUT": "1",
            },
        )
        with Cluster(settings, engine_server) as cluster:
            router, prefill = cluster.router_url or "", cluster.prefills[0].url
            expected = [text(complete(prefill, cluster.model, prompt)) for prompt in PROMPTS]
            answers = [text(complete(router, cluster.model, prompt)) for prompt in PROMPTS]
            hanging.close()
            answers += [text(complete(router, cluster.model, prompt)) for prompt in PROMPTS]
            assert answers == expected * 2
            began = time.monotonic()
            engines = [engine.process for engine in cluster.engines]
            for process in engines:
                process.send_signal(signal.SIGTERM)
            assert [process.wait(60) for process in engines] == [0, 0]
            assert time.monotonic() - began < 30
            for process in engines:
                assert eventually(partial(told_of_losses, process.log))
