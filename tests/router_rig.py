"""A router between scripted engines over real loopback HTTP, and the spans it should make."""

import asyncio
import json
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import httpx
import uvicorn
from fake_engine import WAIT_S, FakeEngine
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from starlette.applications import Starlette

from pdtrace.connector.readiness import free_ports
from pdtrace.connector.router import create_app
from pdtrace.connector.router_settings import RouterSettings
from pdtrace.connector.router_spans import DerivedIdGenerator
from pdtrace.tracing.clock import Clock

WALL_NS = 1_800_000_000_000_000_000
PROMPT = {"model": "m", "prompt": "p", "max_tokens": 2}
STREAM = {**PROMPT, "stream": True}
CHAT = {"model": "m", "messages": [{"role": "user", "content": "p"}], "stream": True}


class HandClock(Clock):
    """Stands still until the test moves it."""

    def __init__(self) -> None:
        self.now_ns = 0
        super().__init__(wall_ns=lambda: WALL_NS + self.now_ns, mono_ns=lambda: self.now_ns)

    def move_to(self, now_ns: int) -> Callable[[], None]:
        """A script item."""
        return lambda: setattr(self, "now_ns", now_ns)


class Rig:
    """A router between scripted engines, all served by one loop in a thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.clock = HandClock()
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider(id_generator=DerivedIdGenerator(), shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.prefill = [FakeEngine("P")]
        self.decode = [FakeEngine("D")]
        self.url = ""
        self._servers: list[tuple[uvicorn.Server, Future[None]]] = []

    def start(self, mode: str = "push", down: tuple[FakeEngine, ...] = (), **more: Any) -> None:
        """Serves all engines but those that are `down`, and the router."""
        for engine in (*self.prefill, *self.decode):
            engine.port = free_ports(1)[0] if engine in down else self._serve(engine.app)
        settings = RouterSettings(
            mode=mode,
            prefill_urls=tuple(engine.url for engine in self.prefill),
            decode_urls=tuple(engine.url for engine in self.decode),
            **more,
        )
        tracer = self.provider.get_tracer("pdtrace")
        port = self._serve(create_app(settings, tracer, self.clock))
        self.url = f"http://127.0.0.1:{port}"

    def _serve(self, app: Starlette) -> int:
        listener = socket.create_server(("127.0.0.1", 0))
        config = uvicorn.Config(app, log_level="critical", timeout_graceful_shutdown=1)
        server = uvicorn.Server(config)
        future = asyncio.run_coroutine_threadsafe(server.serve([listener]), self.loop)
        self._servers.append((server, future))
        port: int = listener.getsockname()[1]
        return port

    def stop(self) -> None:
        """End the router and then its engines."""
        self._end(self._servers[::-1])

    def stop_first(self) -> None:
        """End the first prefill engine, while the others go on."""
        self._end([self._servers.pop(0)])

    def _end(self, servers: list[tuple[uvicorn.Server, Future[None]]]) -> None:
        for server, _ in servers:
            server.should_exit = True
        for _, future in servers:
            future.result(WAIT_S)

    def set(self, gate: asyncio.Event) -> None:
        """Open a gate that a script waits for."""
        self.loop.call_soon_threadsafe(gate.set)

    def post(
        self, body: Any = STREAM, path: str = "/v1/completions", **headers: str
    ) -> httpx.Response:
        """One request, to the end of its answer; headers with underscores."""
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        content = body if isinstance(body, bytes) else json.dumps(body)
        with self.client() as client:
            return client.post(path, content=content, headers=sent)

    @contextmanager
    def stream(
        self, body: Any = STREAM, path: str = "/v1/completions"
    ) -> Iterator[Iterator[bytes]]:
        """The pieces of an answer that began well, as they come."""
        with self.client() as client, client.stream("POST", path, json=body) as answer:
            assert answer.status_code == 200
            yield answer.iter_raw()

    def client(self) -> httpx.Client:
        """Of the router alone, whatever the environment says of proxies."""
        return httpx.Client(base_url=self.url, trust_env=False, timeout=WAIT_S)

    def learn(self) -> None:
        """One request, so that the router knows P; its spans and traces are forgotten."""
        assert self.post(PROMPT).status_code == 200
        self.spans(1)
        self.exporter.clear()
        for engine in (*self.prefill, *self.decode):
            engine.requests.clear()
            engine.received.clear()

    def wait_for_leg(self, role: str) -> None:
        """Until the leg's span has ended, so that the router has that engine's whole answer."""
        self._finished(lambda span: (span.attributes or {}).get("pd.leg") == role)

    def spans(self, requests: int = 1) -> list[ReadableSpan]:
        """All finished spans, once this many `pd.request` are among them."""
        return self._finished(lambda span: span.name == "pd.request", requests)

    def _finished(
        self, wanted: Callable[[ReadableSpan], bool], count: int = 1
    ) -> list[ReadableSpan]:
        deadline = time.monotonic() + WAIT_S
        while sum(map(wanted, spans := list(self.exporter.get_finished_spans()))) < count:
            assert time.monotonic() < deadline, f"only {[span.name for span in spans]} ended"
            time.sleep(0.01)
        return spans

    def tree(self) -> list[dict[str, Any]]:
        """The only request and then its legs, in the order of leg and attempt."""
        root, *legs = sorted(
            self.spans(), key=lambda s: (s.parent is not None and s.name == "pd.leg", leg_key(s))
        )
        for leg in legs:
            assert leg.parent is not None and leg.parent.span_id == root.context.span_id
        return [as_dict(span) for span in (root, *legs)]


def leg_key(span: ReadableSpan) -> tuple[str, int]:
    """Order of the legs of one request."""
    attributes = dict(span.attributes or {})
    return str(attributes.get("pd.leg", "")), int(str(attributes.get("pd.attempt", 0)))


def as_dict(span: ReadableSpan) -> dict[str, Any]:
    """A span with times relative to the clock's zero."""
    assert span.start_time is not None and span.end_time is not None
    return {
        "name": span.name,
        "kind": span.kind.name,
        "status": span.status.status_code.name,
        "start": span.start_time - WALL_NS,
        "end": span.end_time - WALL_NS,
        "attributes": dict(span.attributes or {}),
        "events": [(each.name, each.timestamp - WALL_NS) for each in span.events],
    }


def expected_request(**changes: Any) -> dict[str, Any]:
    """The `pd.request` of a concurrent push, but for the changes."""
    attributes: dict[str, Any] = {
        "pd.request.id": "r1",
        "pd.transfer.mode": "push",
        "pd.router.policy": "round_robin",
        "pd.dispatch": "concurrent",
        "gen_ai.request.model": "m",
        "gen_ai.usage.input_tokens": 7,
        "http.response.status_code": 200,
    }
    return {
        "name": "pd.request",
        "kind": "SERVER",
        "status": "UNSET",
        "start": 0,
        "end": 0,
        "attributes": {**attributes, **changes},
        "events": [("pd.first_token", 0)],
    }


def expected_leg(leg: str, engine: FakeEngine, **changes: Any) -> dict[str, Any]:
    """The `pd.leg` to an engine, but for the changes."""
    attributes: dict[str, Any] = {
        "pd.request.id": "r1",
        "pd.transfer.mode": "push",
        "gen_ai.request.model": "m",
        "pd.leg": leg,
        "server.address": "127.0.0.1",
        "server.port": engine.port,
        "pd.attempt": 1,
    }
    return {
        "name": "pd.leg",
        "kind": "CLIENT",
        "status": "UNSET",
        "start": 0,
        "end": 0,
        "attributes": {**attributes, **changes},
        "events": [("pd.first_byte", 0)],
    }


def failed(span: dict[str, Any], error_type: str, events: bool = False) -> dict[str, Any]:
    """The same span as an error, by default without its events."""
    attributes = {**span["attributes"], "error.type": error_type}
    kept = span["events"] if events else []
    return {**span, "status": "ERROR", "attributes": attributes, "events": kept}


def error_message(answer: httpx.Response) -> str:
    """Of an answer that is an error."""
    message: str = answer.json()["error"]["message"]
    return message
