"""Engines that answer the router like vLLM's API server, by script."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

WAIT_S = 10.0
"""What any condition may take on a busy machine."""

ScriptItem = bytes | asyncio.Event | Exception | Callable[[], object]
"""A piece of a streamed answer, or what happens before the next one."""


def event(payload: dict[str, Any]) -> bytes:
    """One server-sent event."""
    return b"data: " + json.dumps(payload).encode() + b"\n\n"


def token(text: str) -> bytes:
    """A chunk of a streamed completion."""
    return event({"choices": [{"index": 0, "text": text}]})


DONE = b"data: [DONE]\n\n"
TWO_TOKENS: list[ScriptItem] = [token("a"), token("b"), DONE]


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
        self.before: Callable[[], Awaitable[object]] | None = None
        """Awaited before an answer begins."""
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
        """Where it is served."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def bodies(self) -> list[dict[str, Any]]:
        """Bodies of the requests so far."""
        return [body for _, body in self.requests]

    async def asked(self) -> None:
        """Until it has been sent a request."""
        await asyncio.wait_for(self.received.wait(), WAIT_S)

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
        """Both kinds of completion."""
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

    async def _unless_gone(self, request: Request, wait: Awaitable[object]) -> None:
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
