"""The completion endpoints: reception, span, deadline and end of one user request."""

import asyncio
import contextlib
import re
import uuid
from collections.abc import Coroutine, Mapping
from typing import Any, Final

import orjson
from opentelemetry.trace import Tracer
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive, Scope, Send

from pdtrace.connector.router_errors import (
    ClientLeft,
    RouterError,
    error_type_of,
)
from pdtrace.connector.router_exchange import Backends, Exchange, UserRequest
from pdtrace.connector.router_reply import REQUEST_ID_HEADER, Reply, engine_headers
from pdtrace.connector.router_spans import RequestSpan, Timeline
from pdtrace.connector.router_stream import stopped
from pdtrace.tracing import semconv
from pdtrace.tracing.clock import Clock

_REQUEST_ID: Final = re.compile(r"[A-Za-z0-9_.:@/+=~-]{1,200}")
_FAREWELL_S: Final = 5.0
"""For an error answer to a client that may not be reading."""


class CompletionEndpoint:
    """Reception, span, deadline and end of one user request."""

    def __init__(self, backends: Backends, tracer: Tracer, clock: Clock) -> None:
        self._backends = backends
        self._tracer = tracer
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        timeline = Timeline(self._clock)
        request = Request(scope, receive)
        request_id = accepted_request_id(request.headers)
        span = self._span(timeline, request_id, request.headers)
        reply = Reply(send, request_id, timeline.wall_ns)
        error_type: str | None = None
        try:
            error_type = await self._answer(request, request_id, span, reply)
        except BaseException as error:
            error_type = error_type_of(error)
            raise
        finally:
            if reply.status is not None:
                span.set(semconv.HTTP_STATUS, reply.status)
            span.end(error_type, reply.finished_ns)

    def _span(self, timeline: Timeline, request_id: str, headers: Headers) -> RequestSpan:
        settings = self._backends.settings
        common = {semconv.REQUEST_ID: request_id, semconv.MODE: settings.mode}
        own = {semconv.ROUTER_POLICY: settings.policy}
        return RequestSpan(self._tracer, timeline, common, own, headers)

    async def _answer(
        self, request: Request, request_id: str, span: RequestSpan, reply: Reply
    ) -> str | None:
        """The client's answer in any case; returns `error.type` when it is not a success."""
        try:
            async with asyncio.timeout(self._backends.settings.timeouts.request_s):
                return await self._exchange(request, request_id, span, reply)
        except TimeoutError:
            error = RouterError(504, semconv.ERROR_TIMEOUT, "the request did not finish in time")
        except ClientDisconnect:
            error = ClientLeft()
        except RouterError as caught:
            error = caught
        if not isinstance(error, ClientLeft):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_FAREWELL_S):
                    await reply.fail(error)
        return error.error_type

    async def _exchange(
        self, request: Request, request_id: str, span: RequestSpan, reply: Reply
    ) -> str | None:
        body = _parsed(await request.body())
        if isinstance(model := body.get("model"), str):
            span.set_common(semconv.MODEL, model)
        user = UserRequest(request_id, request.url.path, engine_headers(request.headers), body)
        exchange = Exchange(self._backends, user, span)
        try:
            error_type = await _while_client_listens(exchange.run(reply), request.receive, reply)
        except BaseException:
            await exchange.settle(complete=False)
            raise
        await exchange.settle(complete=True)
        return error_type


def accepted_request_id(headers: Mapping[str, str]) -> str:
    """The client's X-Request-Id when it is fit for a header and an engine's id, else a new one."""
    given = headers.get(REQUEST_ID_HEADER, "")
    return given if _REQUEST_ID.fullmatch(given) else str(uuid.uuid4())


def _parsed(body: bytes) -> dict[str, Any]:
    try:
        parsed = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise RouterError(400, "400", f"the request body is not JSON: {error}") from error
    if not isinstance(parsed, dict):
        raise RouterError(400, "400", "the request body is not a JSON object")
    return parsed


async def _while_client_listens(
    work: Coroutine[Any, Any, str | None], receive: Receive, reply: Reply
) -> str | None:
    """Runs the work; when the client hangs up first, cancels it."""
    working = asyncio.create_task(work)
    leaving = asyncio.create_task(_client_left(receive))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done() and not reply.finishing:
            raise ClientLeft()
        return await working
    finally:
        await stopped(working)
        await stopped(leaving)


async def _client_left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
