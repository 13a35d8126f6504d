"""Traffic through two prefill and two decode engines, of which one is in trouble for a while.

The requests visit all four pairs alike, so that the engine in trouble can be told from its peers.
What is planted lasts for a multiple of what a request usually takes, whatever the machine.
"""

import asyncio
import io
import os
import signal
import statistics
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, redirect_stdout
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from threading import Event
from typing import Any

import orjson
import pytest
from engines import complete
from faults import FAKE_FAULTS, SECONDS, core

from pdtrace.analysis.triage import FACTOR, NO_RISE, NOTHING_SLOW, TOO_FEW
from pdtrace.cli.main import main
from pdtrace.connector.cluster import Cluster, Engine
from pdtrace.connector.cluster_settings import ClusterSettings, Mode
from pdtrace.connector.workload import (
    WorkloadRequest,
    WorkloadResult,
    mixed_prompts,
    run_workload,
)

P, D = "prefill-1", "decode-1"
"""The engines that get into trouble."""
WORDS = 24
OUTPUT_TOKENS = 3
HEALTHY = 104
TROUBLED = 68
"""Half of them meet the engine in trouble; triage wants 30 slow ones."""
SELDOM = 95
"""Per cent of all usual times to the first token that the next two are multiples of."""
LIMIT = 1.2
"""What counts as slow."""
TROUBLE = 1.6
"""How long what is planted lasts."""
USUAL, AGAIN = "usual", "again"
"""Windows without any trouble."""
BLAMELESS = (NOTHING_SLOW, TOO_FEW, NO_RISE)
"""Verdicts that name nothing."""


class Crossed(ClusterSettings):
    """Each two requests in a row meet both prefill and both decode engines, each four all pairs."""

    def router_argv(self, prefills: list[str], decodes: list[str], *more: Any) -> list[str]:
        there_and_back = [*decodes, *reversed(decodes)]
        return ClusterSettings.router_argv(self, prefills, there_and_back, *more)


def settings(mode: Mode, directory: Path, **more: Any) -> ClusterSettings:
    """Engines that can be made slow; READs are under way for a while, as between hosts."""
    return Crossed(
        mode=mode,
        prefills=2,
        decodes=2,
        prefix_caching=False,
        kv_config={"kv_connector_module_path": "fake_delays"},
        env={"UCX_TLS": "tcp,self", FAKE_FAULTS: str(directory)},
        run_dir=directory / "run",
        **more,
    )


@dataclass(frozen=True)
class Recorded:
    """What is left of a cluster: its spans, and when it was healthy or in which trouble."""

    mode: Mode
    store: Path
    seldom_ns: float
    """Usually a first token comes sooner, as the client sees it."""
    windows: dict[str, str]

    def triage(self, window: str, *objective: str) -> dict[str, Any]:
        """What `pdtrace triage --json` says of a window, as compared with the usual one.

        Without an objective: what took longer than `LIMIT`.
        """
        limit = str(LIMIT * self.seldom_ns / 1e6)
        compared = ("--window", self.windows[window], "--baseline-window", self.windows[USUAL])
        return self._triage(*compared, *(objective or ("--slo-ms", limit)))

    def slowest(self, share: str) -> dict[str, Any]:
        """What it says of the slowest requests of both windows without trouble."""
        start, end = self.windows[USUAL].split("..")[0], self.windows[AGAIN].split("..")[1]
        return self._triage("--window", f"{start}..{end}", "--slowest", share)

    def _triage(self, *arguments: str) -> dict[str, Any]:
        written = io.TextIOWrapper(io.BytesIO(), "utf-8")
        with redirect_stdout(written), pytest.raises(SystemExit) as ended:
            main(["triage", str(self.store), "--mode", self.mode, "--json", *arguments])
        assert ended.value.code == 0
        written.seek(0)
        found: dict[str, Any] = orjson.loads(written.read())
        return found


@dataclass
class Trial:
    """A running cluster to which trouble comes and from which it goes."""

    cluster: Cluster
    directory: Path
    seldom_ns: float = 0.0
    windows: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Introduce all pairs one by one, then see what is usual."""
        self._window("introduction", 8, 1)
        results = self._window(USUAL, HEALTHY, 4)
        times = [result.ttft_ns or 0 for result in results]
        self.seldom_ns = statistics.quantiles(times, n=100)[SELDOM - 1]
        self._window(AGAIN, HEALTHY, 4)

    @property
    def seconds(self) -> float:
        """How long a trouble lasts."""
        return TROUBLE * self.seldom_ns / 1e9

    def goes_through(self, name: str, trouble: AbstractContextManager[None], at_once: int) -> None:
        """Requests while there is a trouble."""
        with trouble:
            self._window(name, TROUBLED, at_once)

    def recorded(self) -> Recorded:
        """That was all."""
        mode, store = self.cluster.settings.mode, self.cluster.store
        return Recorded(mode, store, self.seldom_ns, self.windows)

    def _window(self, name: str, count: int, at_once: int) -> list[WorkloadResult]:
        """So many requests, `at_once` in each wave; they have to be answered."""
        model = self.cluster.model
        requests = [
            WorkloadRequest(model=model, max_tokens=OUTPUT_TOKENS, prompt=prompt, ignore_eos=True)
            for prompt in mixed_prompts(len(self.windows), count, WORDS, WORDS)
        ]
        results = asyncio.run(self._waves(requests, at_once))
        assert [result.error for result in results] == [None] * count
        ends = [result.sent_wall_ns + result.e2e_ns for result in results]
        self.windows[name] = f"{_iso(results[0].sent_wall_ns)}..{_iso(max(ends))}"
        return results

    async def _waves(self, requests: list[WorkloadRequest], at_once: int) -> list[WorkloadResult]:
        assert self.cluster.router_url is not None
        results = []
        for start in range(0, len(requests), at_once):
            wave = requests[start : start + at_once]
            results += await run_workload(self.cluster.router_url, wave, at_once)
        return results

    # --- troubles ---

    @contextmanager
    def delay(self, name: str, engine: str, *more: float) -> Iterator[None]:
        """One of `fake_delays`."""
        switch = self.directory / f"{name}.{engine}"
        draft = switch.with_suffix(".draft")
        draft.write_text(" ".join(map(str, (self.seconds, *more))), encoding="utf-8")
        draft.rename(switch)
        try:
            yield
        finally:
            switch.unlink()

    @contextmanager
    def stalled_reads(self, engine: str) -> Iterator[None]:
        """The prefill engine stands still from the beginning of each READ for a while."""
        pid = core(self._engine(engine))
        with ExitStack() as stack:
            stack.callback(os.kill, pid, signal.SIGCONT)
            stack.enter_context(self.delay("stall", engine, pid))
            yield

    @contextmanager
    def others(self, engine: str, clients: int, prompt: str, tokens: int) -> Iterator[None]:
        """So many clients who use the engine alone, without any handoff, one request after another.

        They come by themselves, past the router, and go when they have got their answers.
        """
        url, enough, begun = self._engine(engine).url, Event(), Event()

        def ask() -> None:
            while not enough.is_set():
                complete(url, self.cluster.model, prompt, max_tokens=tokens, ignore_eos=True)
                begun.set()

        with ThreadPoolExecutor(clients) as pool:
            asking = [pool.submit(ask) for _ in range(clients)]
            try:
                assert begun.wait(SECONDS)
                yield
            finally:
                enough.set()
        for each in asking:
            each.result()

    def _engine(self, name: str) -> Engine:
        (found,) = (engine for engine in self.cluster.engines if engine.name == name)
        return found


def told(found: dict[str, Any]) -> tuple[str, str, str]:
    """Phase, attribute and value of a verdict that names a factor, as its first sentence does."""
    verdict = found["verdict"]
    assert verdict["kind"] == FACTOR, found["sentences"]
    head = found["sentences"][0]
    assert head.startswith(f"{verdict['phase']} +") and verdict["value"] in head
    return verdict["phase"], verdict["attribute"], verdict["value"]


def _iso(ns: int) -> str:
    """Unix ns as ISO 8601, to the microsecond."""
    seconds, rest = divmod(ns, 1_000_000_000)
    return datetime.fromtimestamp(seconds, UTC).replace(microsecond=rest // 1000).isoformat()
