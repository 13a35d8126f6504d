"""Legs sent by hand to real engines, so that faults can be planted between them.

`Pair` is a client without a router: it says who is asked for what, and reads what the engines'
spans then say. Every wait is on a condition and bounded.
"""

import http.client
import json
import os
import signal
import urllib.error
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlparse

import orjson
from engines import complete, eventually, text

from pdtrace.analysis import report
from pdtrace.analysis.handoffs import join
from pdtrace.analysis.records import SpanRecord
from pdtrace.analysis.split import split
from pdtrace.analysis.store import SourceError, read_spans
from pdtrace.analysis.table import build
from pdtrace.connector import process_tree
from pdtrace.connector.cluster import Cluster, Engine
from pdtrace.connector.cluster_settings import ClusterSettings, Mode
from pdtrace.connector.processes import EngineServer
from pdtrace.tracing import semconv as sc

SECONDS = 60.0
"""What any condition may take on a busy machine; far beyond what it does take."""
PROMPT = "amber cedar " * 4
LONG = "amber cedar " * 42
"""About 500 tokens: 64 MB of the model `large-kv`."""
LARGE: dict[str, Any] = {
    "model": "large-kv",
    "kv_cache": "256M",
    "flags": ("--max-model-len=1024",),
}
"""Settings of engines whose transfers take a while."""

FAKE_FAULTS = "FAKE_FAULTS"
"""Tells the engines' module `fake_faults` its directory."""

Errors = dict[str, str]
"""Span name to its `error.type`, "" for one that ended well."""


class Answer(NamedTuple):
    """What a client sees: status, and the generated text or the error's message."""

    status: int
    text: str


SERVER_ERROR = Answer(500, "Internal server error")

P_SERVED: Errors = {
    sc.SPAN_PREFILL_QUEUE: "",
    sc.SPAN_PREFILL: "",
    sc.SPAN_PREFILL_END: "",
    sc.SPAN_LEASE: "",
}
P_UNREAD = P_SERVED | {sc.SPAN_LEASE: sc.ERROR_LEASE_EXPIRED}
D_SERVED: Errors = {
    sc.SPAN_DECODE_ADMISSION: "",
    sc.SPAN_KV_WAIT: "",
    sc.SPAN_DECODE_START: "",
    sc.SPAN_FIRST_DECODE: "",
    sc.SPAN_DECODE: "",
}
READ: Errors = {sc.SPAN_READ_SUBMIT: "", sc.SPAN_READ_COMPLETE: ""}
WRITTEN: Errors = {
    sc.SPAN_REGISTRATION: "",
    sc.SPAN_MATCH: "",
    sc.SPAN_WRITE_SUBMIT: "",
    sc.SPAN_WRITE_COMPLETE: "",
}
LEASE_SECONDS = 6
"""A sixth of it lies between heartbeats."""
WATCHDOG_SECONDS = 7
"""Later than vLLM gives up a handshake, which is after five."""
WARM_TRIES = 8
"""Requests that a cold pair may fail before it has to serve one."""


def waited(error: str) -> Errors:
    """D's scheduler, when the KV did not come."""
    return {sc.SPAN_DECODE_ADMISSION: "", sc.SPAN_KV_WAIT: error}


def unanswered(transfer: str) -> Errors:
    """D, when nobody answered the handshake that its span `transfer` needed."""
    failed = sc.ERROR_HANDSHAKE_FAILED
    return waited(failed) | {sc.SPAN_HANDSHAKE: failed, transfer: failed}


def settings(mode: Mode, directory: Path, **more: Any) -> ClusterSettings:
    """Engines to be asked by hand: short terms, and no transfer while either end stands still."""
    terms = {"kv_lease_duration": LEASE_SECONDS, "push_registration_timeout": WATCHDOG_SECONDS}
    kv_config = {"kv_connector_extra_config": terms, **more.pop("kv_config", {})}
    if more.get("traced", True):
        kv_config["kv_connector_module_path"] = "fake_faults"
    return ClusterSettings(
        mode=mode,
        router=False,
        prefix_caching=False,
        kv_config=kv_config,
        env={"UCX_TLS": "tcp,self", FAKE_FAULTS: str(directory), **more.pop("env", {})},
        run_dir=directory / "run",
        **more,
    )


@contextmanager
def warm_pair(
    settings: ClusterSettings, server: EngineServer, tp_size: int = 1, abandons: bool = False
) -> "Iterator[Pair]":
    """A pair that knows each other; in the end no fault has left anything open, unless it may."""
    with Cluster(settings, server) as cluster:
        pair = Pair(cluster, tp_size=tp_size)
        pair.warm()
        yield pair
    if settings.traced and not abandons:
        errors = {record.attributes.get(sc.ERROR_TYPE) for record in pair.records()}
        assert sc.ERROR_ABANDONED not in errors


class Pair:
    """The first prefill and the first decode engine of a cluster, or those that are named."""

    def __init__(
        self,
        cluster: Cluster,
        prefill: int = 0,
        decode: int = 0,
        tp_size: int = 1,
        decode_tp_size: int = 1,
    ) -> None:
        self._tp_size, self._decode_tp_size = tp_size, decode_tp_size
        self.cluster, self.mode = cluster, cluster.settings.mode
        self.p, self.d = cluster.prefills[prefill], cluster.decodes[decode]
        self.asked: set[str] = set()
        """Ids of all requests so far."""
        self._clients = ThreadPoolExecutor(8)

    # --- asking ---

    def prefill(self, request_id: str, prompt: str = PROMPT) -> dict[str, Any]:
        """P's leg: what it returns for D."""
        self.asked.add(request_id)
        ask = {"do_remote_decode": True, "do_remote_prefill": False}
        answer = complete(
            self.p.url, self.cluster.model, prompt, request_id, max_tokens=1, kv_transfer_params=ask
        )
        returned: dict[str, Any] = answer["kv_transfer_params"]
        return returned

    def told(self, request_id: str, **other: Any) -> dict[str, Any]:
        """What a router tells D ahead of P's answer."""
        known = {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_block_ids": [[1]],
            "remote_engine_id": self.p.name,
            "remote_request_id": request_id,
            "remote_host": "127.0.0.1",
            "remote_port": self.p.side_port,
            "tp_size": self._tp_size,
            "transfer_mode": self.mode,
        }
        return {**known, **other}

    def nowhere(self, request_id: str, engine_id: str = "nobody") -> dict[str, Any]:
        """The same of a P that does not exist."""
        return self.told(request_id, remote_engine_id=engine_id, remote_port=1)

    def decode(
        self, request_id: str, params: dict[str, Any] | None, prompt: str = PROMPT, **more: Any
    ) -> Answer:
        """D's leg, to its end."""
        self.asked.add(request_id)
        if params is not None:
            more["kv_transfer_params"] = params
        try:
            answer = complete(self.d.url, self.cluster.model, prompt, request_id, **more)
        except urllib.error.HTTPError as error:
            with error:
                return Answer(error.code, json.loads(error.read())["error"]["message"])
        return Answer(200, text(answer))

    def decode_later(self, *args: Any, **more: Any) -> "Future[Answer]":
        """The same in a thread."""
        return self._clients.submit(self.decode, *args, **more)

    def warm(self) -> None:
        """Ask until a request is served: all ranks of P and D then know each other.

        vLLM gives a handshake five seconds, too few at times where others compute too. Whoever
        waited for D's fails, for P's in push nobody hears of it; the next request tries again.
        """
        for number in range(WARM_TRIES):
            with suppress(TimeoutError):
                if self._introduce(f"warm-{number}").status == 200:
                    return
        raise AssertionError(f"P and D did not get to know each other in {WARM_TRIES} requests")

    def _introduce(self, request_id: str) -> Answer:
        """In push D comes first: two handshakes may take longer than a lease.

        And P only when all of D's ranks are through with theirs: vLLM's D dies when a rank is
        notified before its own is done (docs/versions.md). A rank that has registered waits for
        P's blocks although another one has failed.
        """
        if self.mode == "pull":
            return self.hand_off(request_id)
        answer = self.decode_later(request_id, self.told(request_id))
        eventually(lambda: len(self._registrations(request_id)) == self._decode_tp_size, SECONDS)
        if "" in self._registrations(request_id):
            self.prefill(request_id)
        return answer.result()

    def _registrations(self, request_id: str) -> list[str]:
        """How each rank of D ended its registration: `error.type`, "" for one that was sent."""
        return [
            str(record.attributes.get(sc.ERROR_TYPE, ""))
            for record in self.records()
            if record.name == sc.SPAN_REGISTRATION
            and record.attributes[sc.REQUEST_ID] == request_id
        ]

    def hand_off(self, request_id: str, prompt: str = PROMPT) -> Answer:
        """Both legs, one after the other."""
        return self.decode(request_id, self.prefill(request_id, prompt), prompt)

    def connect(
        self, engine: Engine, request_id: str, params: dict[str, Any], prompt: str = PROMPT,
        **more: Any,
    ) -> "Client":  # fmt: skip
        """A client that may leave whenever it likes."""
        self.asked.add(request_id)
        body = {"model": self.cluster.model, "prompt": prompt, "temperature": 0, **more}
        return Client(engine.url, {**body, "kv_transfer_params": params}, request_id)

    def leave_answer(self, engine: Engine, request_id: str, params: dict[str, Any]) -> None:
        """A client that hangs up once its streamed answer has begun."""
        client = self.connect(
            engine, request_id, params, stream=True, max_tokens=900, ignore_eos=True
        )
        assert client.read_some().startswith(b"data: ")
        client.leave()

    # --- what the spans say ---

    def records(self) -> list[SpanRecord]:
        """All spans that have arrived so far."""
        try:
            return read_spans([self.cluster.store]).records
        except SourceError:
            return []

    def seen(self) -> set[str]:
        """Ids of all requests of which there are spans."""
        return {str(record.attributes[sc.REQUEST_ID]) for record in self.records()}

    def errors(self, request_id: str) -> Errors:
        """The request's engine spans that have arrived so far."""
        return {
            record.name: str(record.attributes.get(sc.ERROR_TYPE, ""))
            for record in self.records()
            if record.attributes[sc.REQUEST_ID] == request_id
        }

    def expect(self, request_id: str, expected: Errors) -> None:
        """Wait until the request has exactly these spans; fails with those it has instead."""
        eventually(lambda: self.errors(request_id) == expected, SECONDS)
        assert self.errors(request_id) == expected

    def expect_all(self, request_id: str, expected: Errors) -> None:
        """The same, of these names only: others are there once for each rank."""

        def among() -> Errors:
            return {name: e for name, e in self.errors(request_id).items() if name in expected}

        eventually(lambda: among() == expected, SECONDS)
        assert among() == expected

    def flags(self, request_id: str) -> list[str]:
        """What the split says of the request."""
        done = split(join(build(self.records())))
        lines = [orjson.loads(line) for line in report.json_lines(done)]
        (flags,) = [line["flags"] for line in lines if line["request_id"] == request_id]
        return list(flags)

    def span(self, request_id: str, name: str) -> SpanRecord:
        """The request's one span of a name, once it is there."""

        def found() -> list[SpanRecord]:
            mine = [r for r in self.records() if r.attributes[sc.REQUEST_ID] == request_id]
            return [record for record in mine if record.name == name]

        assert eventually(lambda: bool(found()), SECONDS), f"no {name}: {self.errors(request_id)}"
        (one,) = found()
        return one


class Client:
    """A connection with one request on it."""

    def __init__(self, url: str, body: dict[str, Any], request_id: str) -> None:
        self._connection = http.client.HTTPConnection(str(urlparse(url).netloc), timeout=SECONDS)
        headers = {"Content-Type": "application/json", "X-Request-Id": request_id}
        self._connection.request("POST", "/v1/completions", json.dumps(body), headers)

    def read_some(self) -> bytes:
        """The first piece of a streamed answer."""
        return self._connection.getresponse().read1(1 << 16)

    def leave(self) -> None:
        """Hang up."""
        self._connection.close()


def core(engine: Engine) -> int:
    """The process with the engine's scheduler and worker (layout `uni`), not its HTTP server."""
    (pid,) = set(process_tree.members(engine.process.pid)) - {engine.process.pid}
    return pid


@contextmanager
def stopped(engine: Engine) -> Iterator[None]:
    """The engine stands still in between; its HTTP server goes on."""
    pid = core(engine)
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        if engine.process.status is None:
            os.kill(pid, signal.SIGCONT)


def kill(engine: Engine) -> None:
    """SIGKILL all of it, and wait until it is gone."""
    engine.process.send_signal(signal.SIGKILL, group=True)
    assert eventually(lambda: engine.process.status is not None, SECONDS)


@contextmanager
def fault(directory: Path, name: str) -> Iterator[None]:
    """A fault of `fake_faults` is on in between."""
    switch = directory / name
    switch.touch()
    try:
        yield
    finally:
        switch.unlink()
