"""The router over real loopback HTTP; scripted engines inject order and faults."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from pdtrace.connector.router import create_app
from pdtrace.connector.router_settings import RouterSettings, Timeouts
from pdtrace.connector.router_spans import DerivedIdGenerator
from pdtrace.tracing.clock import Clock
from pdtrace.tracing.ids import derived_trace_id

WALL_NS = 1_800_000_000_000_000_000
WAIT_S = 10.0
PROMPT = {"model": "m", "prompt": "p", "max_tokens": 2}
STREAM = {**PROMPT, "stream": True}
CHAT = {"model": "m", "messages": [{"role": "user", "content": "p"}], "stream": True}

ScriptItem = bytes | asyncio.Event | Exception | Callable[[], object]


def event(payload: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(payload).encode() + b"\n\n"


def token(text: str) -> bytes:
    return event({"choices": [{"index": 0, "text": text}]})


DONE = b"data: [DONE]\n\n"
TWO_TOKENS: list[ScriptItem] = [token("a"), token("b"), DONE]


class HandClock(Clock):
    """Stands still until the test moves it."""

    def __init__(self) -> None:
        self.now_ns = 0
        super().__init__(wall_ns=lambda: WALL_NS + self.now_ns, mono_ns=lambda: self.now_ns)

    def move_to(self, now_ns: int) -> Callable[[], None]:
        """A script item."""
        return lambda: setattr(self, "now_ns", now_ns)


class FakeEngine:
    """Answers like vLLM's API server, by script; keeps what it was sent."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.port = 0
        self.engine_id = f"{name}-1"
        self.requests: list[tuple[dict[str, str], dict[str, Any]]] = []
        self.received = asyncio.Event()
        self.cancelled = threading.Event()
        self.error: tuple[int, bytes] | None = None
        self.before: Callable[[], Awaitable[None]] | None = None
        self.script: list[ScriptItem] = TWO_TOKENS
        self.app = Starlette(
            routes=[
                Route("/v1/completions", self.complete, methods=["POST"]),
                Route("/v1/chat/completions", self.complete, methods=["POST"]),
                Route("/v1/models", lambda _: JSONResponse({"data": [{"id": "m"}]})),
                Route("/health", lambda _: Response()),
            ]
        )

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def bodies(self) -> list[dict[str, Any]]:
        return [body for _, body in self.requests]

    def params(self) -> dict[str, Any]:
        """What a prefill engine returns."""
        return {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_block_ids": [[1, 2]],
            "remote_engine_id": self.engine_id,
            "remote_request_id": "cmpl-internal-0-0123abcd",
            "remote_host": "127.0.0.1",
            "remote_port": 5600,
            "tp_size": 1,
            "pp_size": 1,
        }

    async def complete(self, request: Request) -> Response:
        body = await request.json()
        self.requests.append((dict(request.headers), body))
        self.received.set()
        if self.before is not None:
            await self._unless_gone(request, self.before())
        if self.error is not None:
            return Response(self.error[1], self.error[0], media_type="application/json")
        if body.get("stream"):
            return StreamingResponse(self._play(), media_type="text/event-stream")
        answer: dict[str, Any] = {"choices": [{"text": "ab", "index": 0}]}
        answer["usage"] = {"prompt_tokens": 7, "completion_tokens": 2}
        if body["kv_transfer_params"]["do_remote_decode"]:
            answer["kv_transfer_params"] = self.params()
        return JSONResponse(answer)

    async def _unless_gone(self, request: Request, wait: Awaitable[None]) -> None:
        """vLLM aborts a request whose connection is closed."""
        waiting = asyncio.ensure_future(wait)
        while not waiting.done():
            if await request.is_disconnected():
                waiting.cancel()
                self.cancelled.set()
                return
            await asyncio.wait({waiting}, timeout=0.01)
        await waiting

    async def _play(self) -> AsyncIterator[bytes]:
        try:
            for item in self.script:
                if isinstance(item, bytes):
                    yield item
                elif isinstance(item, asyncio.Event):
                    await item.wait()
                elif isinstance(item, Exception):
                    raise item
                else:
                    item()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise


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
            engine.port = free_port() if engine in down else self._serve(engine.app)
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
        for server, _ in reversed(self._servers):
            server.should_exit = True
        for _, future in reversed(self._servers):
            future.result(WAIT_S)

    def set(self, gate: asyncio.Event) -> None:
        self.loop.call_soon_threadsafe(gate.set)

    def post(
        self, body: Any = STREAM, path: str = "/v1/completions", **headers: str
    ) -> httpx.Response:
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        content = body if isinstance(body, bytes) else json.dumps(body)
        with httpx.Client(base_url=self.url, trust_env=False, timeout=WAIT_S) as client:
            return client.post(path, content=content, headers=sent)

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
        deadline = time.monotonic() + WAIT_S
        while not any(
            span.attributes and span.attributes.get("pd.leg") == role
            for span in self.exporter.get_finished_spans()
        ):
            assert time.monotonic() < deadline, f"no {role} leg ended"
            time.sleep(0.01)

    def spans(self, requests: int = 1) -> list[ReadableSpan]:
        """All finished spans, once this many `pd.request` are among them."""
        finished = threading.Event()
        for _ in range(round(WAIT_S / 0.01)):
            spans = list(self.exporter.get_finished_spans())
            if sum(span.name == "pd.request" for span in spans) >= requests:
                return spans
            finished.wait(0.01)
        raise AssertionError("the request's span was not ended")

    def tree(self) -> list[dict[str, Any]]:
        """The only request and then its legs, in the order of leg and attempt."""
        root, *legs = sorted(
            self.spans(), key=lambda s: (s.parent is not None and s.name == "pd.leg", leg_key(s))
        )
        for leg in legs:
            assert leg.parent is not None and leg.parent.span_id == root.context.span_id
        return [as_dict(span) for span in (root, *legs)]


def leg_key(span: ReadableSpan) -> tuple[str, int]:
    attributes = dict(span.attributes or {})
    return str(attributes.get("pd.leg", "")), int(str(attributes.get("pd.attempt", 0)))


def as_dict(span: ReadableSpan) -> dict[str, Any]:
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


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield loop
    loop.call_soon_threadsafe(loop.stop)
    thread.join(WAIT_S)
    loop.close()


@pytest.fixture
def rig(loop: asyncio.AbstractEventLoop) -> Iterator[Rig]:
    rig = Rig(loop)
    yield rig
    rig.stop()


def expected_request(**changes: Any) -> dict[str, Any]:
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
    message: str = answer.json()["error"]["message"]
    return message


# --- both legs ---


def test_push_sends_the_decode_leg_before_the_prefill_leg_ends(rig: Rig) -> None:
    """P answers only after D has been asked; the span tree is whole."""
    rig.start()
    rig.learn()
    (p,), (d,) = rig.prefill, rig.decode

    async def decode_is_asked() -> None:
        await asyncio.wait_for(d.received.wait(), WAIT_S)

    p.before = decode_is_asked
    gate = asyncio.Event()
    d.script = [gate, *TWO_TOKENS]
    rig.loop.call_later(0.1, gate.set)

    answer = rig.post(x_request_id="r1")

    assert answer.content == token("a") + token("b") + DONE
    assert answer.headers["x-request-id"] == "r1"
    assert rig.tree() == [
        expected_request(),
        expected_leg("decode", d),
        expected_leg("prefill", p),
    ]


def test_push_learns_where_p_is_from_the_first_request(rig: Rig) -> None:
    """The first request is sequential and teaches; the second is concurrent."""
    rig.start()

    rig.post(PROMPT)
    rig.post(PROMPT)

    spans = rig.spans(2)
    dispatched = [(s.attributes or {}).get("pd.dispatch") for s in spans if s.name == "pd.request"]
    assert dispatched == ["sequential", "concurrent"]


def test_legs_carry_ids_context_and_transfer_parameters(rig: Rig) -> None:
    """One request id and trace id on both legs; each leg's span is its engine's parent."""
    rig.start()
    rig.learn()
    (p,), (d,) = rig.prefill, rig.decode
    body = {**STREAM, "stream_options": {"include_usage": True}, "min_tokens": 2}

    rig.post(body, x_request_id="r1", authorization="Bearer x", te="trailers")

    carriers = {}
    for span in rig.spans():
        context = span.context
        name = str((span.attributes or {}).get("pd.leg"))
        carriers[name] = f"00-{context.trace_id:032x}-{context.span_id:016x}-01"
        assert context.trace_id == derived_trace_id("r1")
    [(p_headers, p_body)], [(d_headers, d_body)] = p.requests, d.requests
    for leg, headers in (("prefill", p_headers), ("decode", d_headers)):
        assert headers["x-request-id"] == "r1"
        assert headers["authorization"] == "Bearer x"
        assert headers["traceparent"] == carriers[leg]
        assert "te" not in headers
    assert p_body == {
        **PROMPT,
        "stream": False,
        "max_tokens": 1,
        "min_tokens": 1,
        "kv_transfer_params": {
            "do_remote_prefill": False,
            "do_remote_decode": True,
            "traceparent": carriers["prefill"],
        },
    }
    assert d_body == {
        **body,
        "kv_transfer_params": {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_engine_id": "P-1",
            "remote_request_id": "r1",
            "remote_host": "127.0.0.1",
            "remote_port": 5600,
            "tp_size": 1,
            "pp_size": 1,
            "traceparent": carriers["decode"],
        },
    }


def test_pull_hands_over_all_that_p_returned(rig: Rig) -> None:
    rig.start("pull")
    (p,), (d,) = rig.prefill, rig.decode

    answer = rig.post(x_request_id="r1")

    assert answer.status_code == 200
    sent = dict(d.bodies[0]["kv_transfer_params"])
    del sent["traceparent"]
    assert sent == p.params()
    mode = {"pd.transfer.mode": "pull"}
    known = {"gen_ai.usage.input_tokens": 7}
    assert rig.tree() == [
        expected_request(**mode, **{"pd.dispatch": "sequential"}),
        expected_leg("decode", d, **mode, **known),
        expected_leg("prefill", p, **mode),
    ]


def test_incoming_context_is_the_parent(rig: Rig) -> None:
    rig.start()
    trace_id, span_id = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"

    rig.post(PROMPT, traceparent=f"00-{trace_id}-{span_id}-01", tracestate="a=b")

    spans = rig.spans()
    assert {f"{span.context.trace_id:032x}" for span in spans} == {trace_id}
    (root,) = (span for span in spans if span.name == "pd.request")
    assert root.parent is not None and f"{root.parent.span_id:016x}" == span_id
    assert {headers["tracestate"] for headers, _ in rig.decode[0].requests} == {"a=b"}


@pytest.mark.parametrize("given", ["", "has space", "x" * 201, 'quo"te'])
def test_unfit_request_id_is_replaced(rig: Rig, given: str) -> None:
    rig.start()

    answer = rig.post(PROMPT, x_request_id=given)

    made = answer.headers["x-request-id"]
    assert made != given and len(made) == 36
    assert {headers["x-request-id"] for headers, _ in rig.prefill[0].requests} == {made}


def test_non_streamed_answer(rig: Rig) -> None:
    rig.start()
    rig.learn()

    answer = rig.post(PROMPT, x_request_id="r1")

    assert answer.json()["choices"][0]["text"] == "ab"
    assert rig.tree()[0] == expected_request()


def test_role_only_chunk_is_not_the_first_token(rig: Rig) -> None:
    """The event lies where the content came, not where the chat stream was opened."""
    rig.start()
    rig.learn()
    role_seen = asyncio.Event()
    role = event({"choices": [{"delta": {"role": "assistant", "content": ""}}]})
    content = event({"choices": [{"delta": {"content": "a"}}]})
    # The content event arrives in two pieces.
    pieces: list[ScriptItem] = [content[:20], content[20:], DONE]
    rig.decode[0].script = [role, role_seen, rig.clock.move_to(500), *pieces]

    with (
        httpx.Client(base_url=rig.url, trust_env=False) as client,
        client.stream("POST", "/v1/chat/completions", json=CHAT) as answer,
    ):
        chunks = answer.iter_raw()
        assert next(chunks) == role
        rig.set(role_seen)
        assert b"".join(chunks) == content + DONE

    root = rig.tree()[0]
    assert root["events"] == [("pd.first_token", 500)]
    assert (root["start"], root["end"]) == (0, 500)
    assert rig.prefill[0].bodies[0]["messages"] == CHAT["messages"]


# --- several engines ---


def test_least_outstanding_avoids_the_busy_engine(rig: Rig) -> None:
    """While D1 holds a stream open, all other requests go to D2."""
    rig.decode = [FakeEngine("D1"), FakeEngine("D2")]
    gate = asyncio.Event()
    rig.decode[0].script = [token("a"), gate, DONE]
    rig.start(policy="least_outstanding")

    with (
        httpx.Client(base_url=rig.url, trust_env=False) as client,
        client.stream("POST", "/v1/completions", json=STREAM) as held,
    ):
        chunks = held.iter_raw()
        next(chunks)
        for _ in range(3):
            rig.post(STREAM)
        rig.set(gate)
        list(chunks)

    assert [len(engine.requests) for engine in rig.decode] == [1, 3]


def test_round_robin_alternates(rig: Rig) -> None:
    rig.prefill = [FakeEngine("P1"), FakeEngine("P2")]
    rig.decode = [FakeEngine("D1"), FakeEngine("D2"), FakeEngine("D3")]
    rig.start()

    for _ in range(6):
        rig.post(PROMPT)

    assert [len(engine.requests) for engine in rig.prefill] == [3, 3]
    assert [len(engine.requests) for engine in rig.decode] == [2, 2, 2]


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_another_engine_is_tried_when_one_is_down(rig: Rig, role: str) -> None:
    engines = [FakeEngine("gone"), FakeEngine("here")]
    setattr(rig, role, engines)
    rig.start(down=(engines[0],))

    assert rig.post(PROMPT).status_code == 200

    legs = [span for span in rig.tree() if span["attributes"].get("pd.leg") == role]
    states = [(leg["status"], leg["attributes"]["pd.attempt"]) for leg in legs]
    assert states == [("ERROR", 1), ("UNSET", 2)]


def test_decode_leg_is_sent_again_when_p_was_restarted(rig: Rig) -> None:
    """P's answer shows a new engine id while D still waits for the old one."""
    rig.start()
    rig.learn()
    (p,), (d,) = rig.prefill, rig.decode
    p.engine_id = "P-2"
    never = asyncio.Event()

    async def decode_is_asked() -> None:
        await asyncio.wait_for(d.received.wait(), WAIT_S)

    async def first_attempt_hangs() -> None:
        if len(d.requests) == 1:
            await never.wait()

    p.before, d.before = decode_is_asked, first_attempt_hangs

    assert rig.post(x_request_id="r1").status_code == 200

    ids = [body["kv_transfer_params"]["remote_engine_id"] for body in d.bodies]
    assert ids == ["P-1", "P-2"]
    assert d.cancelled.wait(WAIT_S)
    assert rig.tree() == [
        expected_request(),
        failed(expected_leg("decode", d), "aborted"),
        expected_leg("decode", d, **{"pd.attempt": 2, "gen_ai.usage.input_tokens": 7}),
        expected_leg("prefill", p),
    ]


# --- failures ---


def test_prefill_engine_down(rig: Rig) -> None:
    rig.start(down=(rig.prefill[0],))

    answer = rig.post(x_request_id="r1")

    assert answer.status_code == 503
    url = rig.prefill[0].url
    sentence = f"prefill leg: no prefill engine is reachable (tried {url})"
    assert answer.json() == {"error": {"message": sentence, "type": "server_error", "code": 503}}
    root = expected_request(
        **{"pd.dispatch": "sequential", "http.response.status_code": 503},
    )
    del root["attributes"]["gen_ai.usage.input_tokens"]
    assert rig.tree() == [
        failed(root, "peer_lost"),
        failed(expected_leg("prefill", rig.prefill[0]), "peer_lost"),
    ]


def test_prefill_engine_down_after_it_was_known(rig: Rig) -> None:
    """D's leg, already sent, is cancelled."""
    never = asyncio.Event()
    rig.start()
    rig.learn()
    rig.decode[0].before = wait_on(never)
    server, future = rig._servers.pop(0)
    server.should_exit = True
    future.result(WAIT_S)

    answer = rig.post(x_request_id="r1")

    assert answer.status_code == 503
    root, *legs = rig.tree()
    assert root["attributes"]["error.type"] == "peer_lost"
    assert [leg["attributes"]["error.type"] for leg in legs] == ["aborted", "peer_lost"]


def test_decode_engine_down(rig: Rig) -> None:
    rig.start("pull", down=(rig.decode[0],))

    answer = rig.post()

    assert answer.status_code == 503
    assert error_message(answer).startswith("decode leg: no decode engine is reachable")


def wait_on(gate: asyncio.Event) -> Callable[[], Awaitable[None]]:
    async def wait() -> None:
        await gate.wait()

    return wait


def test_prefill_error_cancels_the_decode_leg(rig: Rig) -> None:
    rig.start()
    rig.learn()
    (p,), (d,) = rig.prefill, rig.decode

    async def decode_is_asked() -> None:
        await asyncio.wait_for(d.received.wait(), WAIT_S)

    p.before, d.before = decode_is_asked, wait_on(asyncio.Event())
    p.error = (500, b'{"error": {"message": "out of luck", "code": 500}}')

    answer = rig.post(x_request_id="r1")

    assert answer.status_code == 502
    assert error_message(answer) == f"prefill leg: engine {p.url} answered 500: out of luck"
    assert d.cancelled.wait(WAIT_S)
    root = expected_request(**{"http.response.status_code": 502})
    del root["attributes"]["gen_ai.usage.input_tokens"]
    assert rig.tree() == [
        failed(root, "500"),
        failed(expected_leg("decode", d), "aborted"),
        failed(expected_leg("prefill", p), "500", events=True),
    ]


def test_decode_error_cancels_the_prefill_leg(rig: Rig) -> None:
    rig.start()
    rig.learn()
    (p,), (d,) = rig.prefill, rig.decode
    p.before = wait_on(asyncio.Event())
    d.error = (500, b"no json")

    async def prefill_is_asked() -> None:
        await asyncio.wait_for(p.received.wait(), WAIT_S)

    d.before = prefill_is_asked

    answer = rig.post()

    assert answer.status_code == 502
    assert error_message(answer) == f"decode leg: engine {d.url} answered 500"
    assert p.cancelled.wait(WAIT_S)


def test_decode_engine_breaks_the_stream(rig: Rig) -> None:
    """The stream that began ends with an error event."""
    rig.start()
    rig.learn()
    gate = asyncio.Event()
    rig.decode[0].script = [token("a"), gate, RuntimeError("scripted")]

    with (
        httpx.Client(base_url=rig.url, trust_env=False, timeout=WAIT_S) as client,
        client.stream("POST", "/v1/completions", json=STREAM) as answer,
    ):
        chunks = answer.iter_raw()
        assert next(chunks) == token("a")
        rig.wait_for_leg("prefill")
        rig.set(gate)
        ended = b"".join(chunks)

    assert answer.status_code == 200
    sentence = json.loads(ended.removeprefix(b"data: "))["error"]["message"]
    assert sentence == f"decode leg: engine {rig.decode[0].url} broke the connection"
    root, decode, prefill = rig.tree()
    assert (root["status"], root["attributes"]["error.type"]) == ("ERROR", "peer_lost")
    assert (decode["status"], prefill["status"]) == ("ERROR", "UNSET")


def test_prefill_error_after_an_empty_opening_chunk(rig: Rig) -> None:
    """Until the first token P's failure ends the stream, with an error event."""
    rig.start()
    rig.learn()
    (p,), (d,) = rig.prefill, rig.decode
    opened = asyncio.Event()
    p.before, p.error = wait_on(opened), (500, b"")
    role = event({"choices": [{"delta": {"role": "assistant"}}]})
    d.script = [role, asyncio.Event()]

    with (
        httpx.Client(base_url=rig.url, trust_env=False, timeout=WAIT_S) as client,
        client.stream("POST", "/v1/chat/completions", json=CHAT) as answer,
    ):
        chunks = answer.iter_raw()
        assert next(chunks) == role
        rig.set(opened)
        assert b"".join(chunks).startswith(b'data: {"error"')

    assert d.cancelled.wait(WAIT_S)


@pytest.mark.parametrize("before", [[], [token("a")]])
def test_error_event_of_an_engine_is_an_error(rig: Rig, before: list[ScriptItem]) -> None:
    """vLLM reports a failed load inside a stream that began with 200."""
    rig.start()
    rig.learn()
    failure = event({"error": {"message": "KV load failed", "code": 500}})
    gate = asyncio.Event()
    rig.loop.call_later(0.05, gate.set)
    rig.decode[0].script = [*before, gate, failure, DONE]

    answer = rig.post()

    assert answer.content.endswith(failure + DONE)
    root = rig.tree()[0]
    assert (root["status"], root["attributes"]["error.type"]) == ("ERROR", "500")


def test_bad_request_is_passed_on_unchanged(rig: Rig) -> None:
    rig.start()
    refusal = b'{"error":{"message":"no such model","code":404}}'
    rig.prefill[0].error = (404, refusal)

    answer = rig.post()

    assert (answer.status_code, answer.content) == (404, refusal)
    assert rig.tree()[0]["attributes"]["error.type"] == "404"


@pytest.mark.parametrize("body", [b"{", b"[1]", b""])
def test_malformed_json(rig: Rig, body: bytes) -> None:
    rig.start()

    answer = rig.post(body)

    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "invalid_request_error"
    assert rig.prefill[0].requests == []


def test_prefill_without_transfer_parameters(rig: Rig) -> None:
    """An engine that was started without a connector."""
    rig.start()
    p = rig.prefill[0]
    p.params = dict  # type: ignore[method-assign]

    answer = rig.post()

    assert answer.status_code == 502
    sentence = f"prefill leg: engine {p.url} returned no usable kv_transfer_params"
    assert error_message(answer) == sentence


def test_silent_decode_engine_times_out(rig: Rig) -> None:
    rig.start(timeouts=Timeouts(silence_s=0.2))
    d = rig.decode[0]
    d.before = wait_on(asyncio.Event())

    answer = rig.post()

    assert answer.status_code == 504
    assert error_message(answer) == f"decode leg: engine {d.url} sent nothing in time"
    assert d.cancelled.wait(WAIT_S)
    assert rig.tree()[0]["attributes"]["error.type"] == "timeout"


def test_malformed_chunk_ends_the_stream(rig: Rig) -> None:
    """The HTTP client does not wake its reader then: the limit on silence does."""
    d = rig.decode[0]
    rig.start("pull", down=(d,), timeouts=Timeouts(silence_s=0.2))

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
        writer.write(head + b"%x\r\n%s\r\n" % (len(token("a")), token("a")))
        await asyncio.sleep(0.05)
        writer.write(b"no length\r\n")
        await reader.read()
        writer.close()

    serving = asyncio.start_server(answer, "127.0.0.1", d.port)
    server = asyncio.run_coroutine_threadsafe(serving, rig.loop).result(WAIT_S)

    content = rig.post().content

    rig.loop.call_soon_threadsafe(server.close)
    assert content.startswith(token("a") + b'data: {"error"')
    assert f"engine {d.url} sent nothing in time".encode() in content


def test_headers_pass_as_they_are(rig: Rig) -> None:
    """Legs get no header of the HTTP client and no cookie; one that D repeats is kept whole."""
    rig.start()
    d = rig.decode[0]
    pairs = [("x-own", "1"), ("x-own", "2"), ("set-cookie", "a=b")]

    async def complete(request: Request) -> Response:
        d.requests.append((dict(request.headers), await request.json()))
        response = JSONResponse({})
        for name, value in pairs:
            response.headers.append(name, value)
        return response

    d.app.router.routes.insert(0, Route("/v1/completions", complete, methods=["POST"]))

    for _ in range(2):
        with httpx.Client(base_url=rig.url, trust_env=False) as client:
            client.headers.clear()
            answer = client.post("/v1/completions", json=PROMPT)
            assert (answer.headers["x-own"], answer.headers["set-cookie"]) == ("1, 2", "a=b")

    each_leg_sets = {"accept-encoding", "content-type", "traceparent", "x-request-id"}
    sent = each_leg_sets | {"host", "content-length"}
    assert [set(headers) for headers, _ in d.requests] == [sent, sent]


def test_request_has_a_deadline_of_its_own(rig: Rig) -> None:
    rig.start(timeouts=Timeouts(request_s=0.2))
    rig.prefill[0].before = wait_on(asyncio.Event())

    answer = rig.post()

    assert answer.status_code == 504
    assert rig.prefill[0].cancelled.wait(WAIT_S)
    assert rig.tree()[0]["attributes"]["error.type"] == "timeout"


@pytest.mark.parametrize("begun", [True, False])
def test_client_hangs_up(rig: Rig, begun: bool) -> None:
    """The decode leg's connection is closed and the span is ended as aborted."""
    rig.start()
    rig.learn()
    d = rig.decode[0]
    d.script = [*([token("a")] if begun else []), asyncio.Event()]

    with socket.create_connection(("127.0.0.1", int(rig.url.rsplit(":", 1)[1]))) as client:
        body = json.dumps(STREAM)
        head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
        client.sendall((head + body).encode())
        if begun:
            client.recv(1)
        else:
            asked = asyncio.run_coroutine_threadsafe(d.received.wait(), rig.loop)
            asked.result(WAIT_S)

    assert d.cancelled.wait(WAIT_S)
    root, decode, *_ = rig.tree()
    assert (root["status"], root["attributes"]["error.type"]) == ("ERROR", "aborted")
    assert (decode["status"], decode["attributes"]["error.type"]) == ("ERROR", "aborted")


# --- around the requests ---


def test_models_come_from_a_decode_engine(rig: Rig) -> None:
    rig.decode = [FakeEngine("gone"), FakeEngine("here")]
    rig.start(down=(rig.decode[0],))

    answer = httpx.get(f"{rig.url}/v1/models", trust_env=False)

    assert answer.json() == {"data": [{"id": "m"}]}


def test_health_names_the_role_without_an_engine(rig: Rig) -> None:
    rig.start(down=(rig.prefill[0],))

    answer = httpx.get(f"{rig.url}/health", trust_env=False)

    assert answer.status_code == 503
    assert error_message(answer) == "no healthy engine: prefill"


def test_sigterm_stops_the_server_and_returns(tmp_path: Path) -> None:
    """The ready file tells the address; after SIGTERM the caller can still flush."""
    ready = tmp_path / "ready"
    code = (
        "from pathlib import Path\n"
        "from opentelemetry.trace import NoOpTracer\n"
        "from pdtrace.connector.router import serve\n"
        "from pdtrace.connector.router_settings import RouterSettings\n"
        "settings = RouterSettings('push', ('http://127.0.0.1:9',), ('http://127.0.0.1:9',))\n"
        f"serve(settings, NoOpTracer(), port=0, ready_file=Path({str(ready)!r}))\n"
        "print('flushed')\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    with process:
        try:
            pause = threading.Event()
            for _ in range(600):
                if ready.exists():
                    break
                pause.wait(0.05)
            url = json.loads(ready.read_text())["url"]
            answer = httpx.post(f"{url}/v1/completions", json=PROMPT, trust_env=False)
            assert answer.status_code == 503
            os.kill(process.pid, signal.SIGTERM)
            output, _ = process.communicate(timeout=30)
        finally:
            process.kill()
    assert (process.returncode, output) == (0, "flushed\n")
