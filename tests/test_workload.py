"""The workload client against a small real server."""

import asyncio
import json
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from pdtrace.connector.readiness import free_ports
from pdtrace.connector.workload import (
    WorkloadRequest,
    WorkloadResult,
    mixed_prompts,
    run_workload,
    wait_healthy,
)


class FakeServer:
    """Answers by the prompt's name; counts connections' worth of requests in flight."""

    def __init__(self) -> None:
        self.bodies: dict[str, dict[str, Any]] = {}
        self.now = 0
        self.most = 0
        self.healthy_after = 0
        self.app = Starlette(
            routes=[
                Route("/v1/completions", self.complete, methods=["POST"]),
                Route("/v1/chat/completions", self.complete, methods=["POST"]),
                Route("/health", self.health),
            ]
        )

    async def health(self, _: Request) -> Response:
        self.healthy_after -= 1
        return Response(status_code=503 if self.healthy_after >= 0 else 200)

    async def complete(self, request: Request) -> Response:
        body = await request.json()
        self.bodies[request.headers["x-request-id"]] = body
        self.now += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(0.02)
        self.now -= 1
        if body.get("prompt") == "refuse":
            return JSONResponse({"error": {"message": "too long", "code": 400}}, 400)
        if not body["stream"]:
            usage = {"completion_tokens": 2}
            return JSONResponse({"choices": [{"text": "ab"}], "usage": usage})
        return StreamingResponse(self._stream(body), media_type="text/event-stream")

    async def _stream(self, body: dict[str, Any]) -> AsyncIterator[bytes]:
        if body.get("prompt") == "empty":
            yield b"data: [DONE]\n\n"
            return
        events: list[dict[str, Any]]
        if "messages" in body:
            deltas = [{"role": "assistant"}, {"content": "a"}, {"content": "b"}]
            events = [{"choices": [{"delta": delta}]} for delta in deltas]
        else:
            events = [{"choices": [{"text": text}]} for text in "ab"]
        if body.get("prompt") == "break":
            events[1:] = [{"error": {"message": "lost the engine", "code": 502}}]
        elif body.get("prompt") == "counted":
            events.append({"choices": [], "usage": {"completion_tokens": 5}})
        for event in events:
            yield b"data: " + json.dumps(event).encode() + b"\n\n"


@pytest.fixture
def server() -> Iterator[tuple[FakeServer, str]]:
    fake = FakeServer()
    listener = socket.create_server(("127.0.0.1", 0))
    running = uvicorn.Server(uvicorn.Config(fake.app, log_level="critical"))
    thread = threading.Thread(target=running.run, args=([listener],))
    thread.start()
    yield fake, f"http://127.0.0.1:{listener.getsockname()[1]}"
    running.should_exit = True
    thread.join(10)


def run(url: str, *requests: WorkloadRequest, **more: Any) -> list[WorkloadResult]:
    return asyncio.run(run_workload(url, requests, **more))


def request(prompt: str, **more: Any) -> WorkloadRequest:
    return WorkloadRequest(model="m", max_tokens=2, prompt=prompt, request_id=prompt, **more)


def test_results_keep_the_order_and_the_text(server: tuple[FakeServer, str]) -> None:
    """Streamed, chat and whole answers; at most two in flight; every end is reported."""
    fake, url = server
    chat = WorkloadRequest(
        model="m", max_tokens=2, messages=({"role": "user", "content": "p"},), request_id="chat"
    )
    sent = [request("counted"), chat, request("whole", stream=False), request("s")]
    done: list[str] = []

    results = run(url, *sent, concurrency=2, on_done=lambda result: done.append(result.request_id))

    ids = ["counted", "chat", "whole", "s"]
    assert [result.request_id for result in results] == ids
    assert sorted(done) == sorted(ids)
    assert [(r.ok, r.status, r.text, r.token_count) for r in results] == [
        (True, 200, "ab", 5),
        (True, 200, "ab", 2),
        (True, 200, "ab", 2),
        (True, 200, "ab", 2),
    ]
    for result in results:
        assert result.ttft_ns is not None
        assert 0 < result.ttft_ns <= result.e2e_ns
        assert result.sent_wall_ns > 0
    assert fake.most == 2


def test_bodies(server: tuple[FakeServer, str]) -> None:
    fake, url = server

    run(url, request("a", seed=3, ignore_eos=True), request("b", stream=False))

    common = {"model": "m", "max_tokens": 2, "temperature": 0.0}
    assert fake.bodies == {
        "a": {
            **common,
            "prompt": "a",
            "stream": True,
            "stream_options": {"include_usage": True},
            "seed": 3,
            "ignore_eos": True,
        },
        "b": {**common, "prompt": "b", "stream": False},
    }


@pytest.mark.parametrize(
    ("prompt", "status", "error"),
    [
        ("refuse", 400, "too long"),
        ("break", 200, "lost the engine"),
        ("empty", 200, "the answer carried no token"),
    ],
)
def test_failed_request_is_a_result(
    server: tuple[FakeServer, str], prompt: str, status: int, error: str
) -> None:
    [result] = run(server[1], request(prompt))

    assert (result.ok, result.status, result.error) == (False, status, error)


def test_no_server_is_a_result() -> None:
    (port,) = free_ports(1)

    [result] = run(f"http://127.0.0.1:{port}", request("a"))

    assert (result.status, result.ttft_ns, result.text) == (0, None, "")
    assert result.error is not None and result.error.startswith("ClientConnectorError")


def test_request_needs_either_prompt_or_messages() -> None:
    with pytest.raises(ValueError, match="either a prompt or messages"):
        WorkloadRequest(model="m", max_tokens=1)


def test_wait_healthy(server: tuple[FakeServer, str]) -> None:
    fake, url = server
    fake.healthy_after = 2
    asyncio.run(wait_healthy(url, 10))

    fake.healthy_after = 1_000_000
    with pytest.raises(TimeoutError, match="status 503"):
        asyncio.run(wait_healthy(url, 0.0))


def test_mixed_prompts_are_the_same_for_one_seed() -> None:
    prompts = mixed_prompts(seed=1, count=20, short=8, long=64)

    assert prompts == mixed_prompts(seed=1, count=20, short=8, long=64)
    assert prompts != mixed_prompts(seed=2, count=20, short=8, long=64)
    assert {len(prompt.split()) for prompt in prompts} == {8, 64}
    assert len({prompt.split()[0] for prompt in prompts}) == 20
