"""One leg: an HTTP request to an engine with its span, its place in the engine's count, its errors.

A leg is closed exactly once, however it ends. Closing one whose answer is incomplete closes its
connection, which is how vLLM learns to abort the request. (In push, D keeps the blocks of an
aborted request for as long as P may still write to them: that is vLLM's own limit.)
"""

from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from typing import Final

import httpx
import orjson

from pdtrace.connector.router_engines import Engine
from pdtrace.connector.router_errors import (
    ERROR_TIMEOUT,
    EngineUnreachable,
    Refused,
    RouterError,
    error_type_of,
)
from pdtrace.connector.router_spans import LegSpan
from pdtrace.connector.sse import error_of
from pdtrace.tracing.semconv import ERROR_PEER_LOST, EVENT_FIRST_BYTE

_MESSAGE_LIMIT: Final = 300


class Leg:
    """Made when its engine is chosen, so that the engine's count is right at once."""

    def __init__(
        self,
        transport: httpx.AsyncBaseTransport,
        engine: Engine,
        span: LegSpan,
        request: httpx.Request,
    ) -> None:
        self.engine = engine
        self.span = span
        self._transport = transport
        self._request = request
        self._response: httpx.Response | None = None
        self._chunks: AsyncGenerator[bytes] | None = None
        self._closed = False
        engine.outstanding += 1

    @property
    def response(self) -> httpx.Response:
        """The engine's answer; its body may still be on the way."""
        assert self._response is not None, "the leg was not opened"
        return self._response

    async def whole(self) -> bytes:
        """Sends the request and returns the whole body; the leg is then finished."""
        try:
            await self._open()
            body = b"".join([chunk async for chunk in self._reading()])
        except BaseException as error:
            await self.close(error_type_of(error))
            raise
        await self.close()
        return body

    async def first_chunk(self) -> bytes:
        """Sends the request and returns the first piece of the body."""
        try:
            await self._open()
        except BaseException as error:
            await self.close(error_type_of(error))
            raise
        chunk = await self.next_chunk()
        if chunk is None:
            await self.close(ERROR_PEER_LOST)
            raise RouterError(502, ERROR_PEER_LOST, self._sentence("sent an empty answer"))
        return chunk

    async def next_chunk(self) -> bytes | None:
        """The next piece as it came from the engine; None at the end, the leg is then finished."""
        if self._chunks is None:
            self._chunks = self._reading()
        try:
            chunk = await anext(self._chunks, None)
        except BaseException as error:
            await self.close(error_type_of(error))
            raise
        if chunk is None:
            await self.close()
        return chunk

    async def close(self, error_type: str | None = None) -> None:
        """Ends span, count and connection; does nothing the second time."""
        if self._closed:
            return
        self._closed = True
        self.engine.outstanding -= 1
        self.span.end(error_type)
        if self._chunks is not None:
            await self._chunks.aclose()
        if self._response is not None:
            await self._response.aclose()

    async def _open(self) -> None:
        with self._translated():
            self._response = await self._transport.handle_async_request(self._request)
        if self._response.status_code >= 400:
            await self._raise_for_answer(self._response)

    async def _reading(self) -> AsyncGenerator[bytes]:
        with self._translated():
            async for chunk in self.response.aiter_raw():
                self.span.mark(EVENT_FIRST_BYTE)
                yield chunk

    async def _raise_for_answer(self, response: httpx.Response) -> None:
        with self._translated():
            body = await response.aread()
        self.span.mark(EVENT_FIRST_BYTE)
        status = response.status_code
        sentence = self._sentence(f"answered {status}{_message(body)}")
        if status < 500:
            content_type = response.headers.get("content-type", "application/json")
            raise Refused(status, sentence, body, content_type)
        raise RouterError(502, str(status), sentence)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Errors of the HTTP client as sentences about this engine."""
        try:
            yield
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise EngineUnreachable(self._sentence("cannot be reached")) from error
        except httpx.TimeoutException as error:
            timeout = RouterError(504, ERROR_TIMEOUT, self._sentence("sent nothing in time"))
            raise timeout from error
        except (httpx.HTTPError, httpx.StreamError) as error:
            sentence = self._sentence("broke the connection")
            raise RouterError(502, ERROR_PEER_LOST, sentence) from error

    def _sentence(self, what: str) -> str:
        return f"{self.engine.role} leg: engine {self.engine.url} {what}"


def _message(body: bytes) -> str:
    """The engine's own words, when it gave any."""
    try:
        payload = orjson.loads(body)
    except orjson.JSONDecodeError:
        return ""
    error = error_of(payload) if isinstance(payload, dict) else None
    return f": {error[1][:_MESSAGE_LIMIT]}" if error else ""
