"""One leg: an HTTP request to an engine with its span, its place in the engine's count, its errors.

A leg is closed exactly once, however it ends. Closing one whose answer is incomplete closes its
connection, which is how vLLM learns to abort the request. (In push, D keeps the blocks of an
aborted request for as long as P may still write to them: that is vLLM's own limit.)
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Final

import aiohttp
import orjson

from pdtrace.connector.router_engines import Engine
from pdtrace.connector.router_errors import (
    EngineUnreachable,
    Refused,
    RouterError,
    error_type_of,
)
from pdtrace.connector.router_spans import LegSpan
from pdtrace.connector.sse import error_of
from pdtrace.tracing.semconv import ERROR_PEER_LOST, ERROR_TIMEOUT, EVENT_FIRST_BYTE

_MESSAGE_LIMIT: Final = 300


class Leg:
    """Made when its engine is chosen, so that the engine's count is right at once."""

    def __init__(
        self,
        engine: Engine,
        span: LegSpan,
        send: Callable[[], Awaitable[aiohttp.ClientResponse]],
        silence_s: float,
    ) -> None:
        self.engine = engine
        self.span = span
        self._send = send
        self._silence_s = silence_s
        self._response: aiohttp.ClientResponse | None = None
        self._closed = False
        engine.outstanding += 1

    @property
    def response(self) -> aiohttp.ClientResponse:
        """The engine's answer; its body may still be on the way."""
        assert self._response is not None, "the leg was not opened"
        return self._response

    async def whole(self) -> bytes:
        """Sends the request and returns the whole body; the leg is then finished."""
        try:
            await self._open()
            body = await self._rest()
        except BaseException as error:
            self.close(error_type_of(error))
            raise
        self.close()
        return body

    async def first_chunk(self) -> bytes:
        """Sends the request and returns the first piece of the body."""
        try:
            await self._open()
        except BaseException as error:
            self.close(error_type_of(error))
            raise
        chunk = await self.next_chunk()
        if chunk is None:
            self.close(ERROR_PEER_LOST)
            raise RouterError(502, ERROR_PEER_LOST, self._sentence("sent an empty answer"))
        return chunk

    async def next_chunk(self) -> bytes | None:
        """The next piece as it came from the engine; None at the end, the leg is then finished."""
        try:
            chunk = await self._read()
        except BaseException as error:
            self.close(error_type_of(error))
            raise
        if not chunk:
            self.close()
        return chunk or None

    def close(self, error_type: str | None = None) -> None:
        """Ends span, count and connection; does nothing the second time."""
        if self._closed:
            return
        self._closed = True
        self.engine.outstanding -= 1
        self.span.end(error_type)
        if self._response is not None:
            self._response.close()

    async def _open(self) -> None:
        with self._translated():
            self._response = await self._send()
        if self._response.status >= 400:
            await self._raise_for_answer(self._response)

    async def _read(self) -> bytes:
        """What has come, at least a byte; nothing at the end."""
        with self._translated():
            # aiohttp's own limit stops counting at a malformed chunk and never wakes the reader.
            async with asyncio.timeout(self._silence_s):
                chunk = await self.response.content.readany()
        if chunk:
            self.span.mark(EVENT_FIRST_BYTE)
        return chunk

    async def _rest(self) -> bytes:
        pieces = []
        while chunk := await self._read():
            pieces.append(chunk)
        return b"".join(pieces)

    async def _raise_for_answer(self, response: aiohttp.ClientResponse) -> None:
        body = await self._rest()
        self.span.mark(EVENT_FIRST_BYTE)
        status = response.status
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
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise EngineUnreachable(self._sentence("cannot be reached")) from error
        except TimeoutError as error:
            timeout = RouterError(504, ERROR_TIMEOUT, self._sentence("sent nothing in time"))
            raise timeout from error
        except aiohttp.ClientError as error:
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
