"""The way back to the client: the engine's bytes as they come, or an error in OpenAI's shape."""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

import orjson
from starlette.types import Send

from pdtrace.connector.router_errors import Refused, RouterError

REQUEST_ID_HEADER: Final = "x-request-id"
HOP_BY_HOP: Final = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
# The router's own server writes date and server; the length holds only for an unchanged body.
_REPLACED: Final = HOP_BY_HOP | {"content-length", "date", "server", REQUEST_ID_HEADER}
_NOT_FORWARDED: Final = HOP_BY_HOP | {
    "host",
    "expect",
    "content-length",
    "content-type",
    "accept-encoding",
    "traceparent",
    "tracestate",
    REQUEST_ID_HEADER,
}
_JSON: Final = "application/json"
_EVENT_END: Final = b"\n\n"


def error_body(error: RouterError) -> bytes:
    """OpenAI's error object."""
    kind = "invalid_request_error" if error.status < 500 else "server_error"
    return orjson.dumps({"error": {"message": str(error), "type": kind, "code": error.status}})


def answer_headers(raw: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """An engine's headers for the client: lower-case names, repeated ones as one list."""
    kept: dict[str, str] = {}
    for raw_name, raw_value in raw:
        name, value = raw_name.decode("latin-1").lower(), raw_value.decode("latin-1")
        if name not in _REPLACED:
            kept[name] = f"{kept[name]}, {value}" if name in kept else value
    return kept


def engine_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """The client's headers for an engine: all but those of this hop and those each leg sets."""
    kept = {name: value for name, value in headers.items() if name not in _NOT_FORWARDED}
    # Compressed chunks could not be searched for the first token.
    return {**kept, "content-type": _JSON, "accept-encoding": "identity"}


class Reply:
    """One HTTP answer; knows whether it began, so that an error can still find its form."""

    def __init__(self, send: Send, request_id: str, now_ns: Callable[[], int]) -> None:
        self._send = send
        self._now_ns = now_ns
        self._request_id = request_id
        self._tail = _EVENT_END
        self.status: int | None = None
        """As sent; None before the answer began."""
        self.finishing = False
        """The last bytes are on their way: a client that leaves now has its answer."""
        self.finished_ns: int | None = None
        """Unix time at which the last byte had left."""

    async def start(self, status: int, headers: Mapping[str, str]) -> None:
        pairs = {**headers, REQUEST_ID_HEADER: self._request_id}
        raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in pairs.items()]
        self.status = status
        await self._send({"type": "http.response.start", "status": status, "headers": raw})

    async def chunk(self, body: bytes) -> None:
        self._tail = body[-2:]
        await self._send({"type": "http.response.body", "body": body, "more_body": True})

    async def finish(self, body: bytes = b"") -> None:
        """The last bytes; the client may go or send its next request."""
        self.finishing = True
        await self._send({"type": "http.response.body", "body": body, "more_body": False})
        self.finished_ns = self._now_ns()

    async def whole(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        await self.start(status, {**headers, "content-length": str(len(body))})
        await self.finish(body)

    async def fail(self, error: RouterError) -> None:
        """An error answer, or an error event when the stream has begun."""
        if self.finishing:
            return
        if self.status is not None:
            gap = b"" if self._tail == _EVENT_END else _EVENT_END
            await self.finish(gap + b"data: " + error_body(error) + _EVENT_END)
        elif isinstance(error, Refused):
            await self.whole(error.status, {"content-type": error.content_type}, error.body)
        else:
            await self.whole(error.status, {"content-type": _JSON}, error_body(error))
