"""The collector: OTLP/gRPC and OTLP/HTTP in, a store on disk out.

A message is acknowledged only after it is in the file. Protobuf is stored as received.
"""

import asyncio
import logging
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NoReturn, Self

import grpc
import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from pdtrace.analysis.otlp import status_message
from pdtrace.analysis.receive import (
    MAX_MESSAGE_BYTES,
    RETRY_S,
    Busy,
    Counts,
    Invalid,
    Receiver,
    Room,
    TooLarge,
    Unavailable,
    decompressed,
)
from pdtrace.analysis.security import Tls, Token
from pdtrace.analysis.segments import StoreWriter

_log = logging.getLogger("pdtrace")
GRPC_PORT: Final = 4317
HTTP_PORT: Final = 4318
STOP_SECONDS: Final = 1.0
"""Requests under way get this long when the collector stops."""

_GRPC_THREADS: Final = 4
_GRPC_CALLS: Final = 64
"""At a time; gRPC itself refuses more (RESOURCE_EXHAUSTED), and so bounds what it holds for us."""
_SERVICE: Final = "/opentelemetry.proto.collector.{0}.v1.{1}Service/Export"
_TRACES: Final = _SERVICE.format("trace", "Trace")
_OTHER_SIGNALS: Final = (_SERVICE.format("metrics", "Metrics"), _SERVICE.format("logs", "Logs"))
_TRACES_ONLY: Final = "this collector keeps traces only"
_NO_TOKEN: Final = "this collector wants the header 'authorization: Bearer …' with its token"
_PROTOBUF: Final = "application/x-protobuf"
_JSON: Final = "application/json"


class ListenError(Exception):
    """An address that cannot be listened on; one sentence that names it."""


class Collector:
    """Receives OTLP into a store, in threads of this process; port 0 takes a free one.

    Ready when `start` returns or the `with` block is entered. A `StoreWriter` given in place of
    a path is closed by `stop`. With `tls` both ways are encrypted, with `token` senders must know
    it; `/healthz` asks for none, it tells counts only.
    """

    def __init__(
        self,
        store: str | Path | StoreWriter,
        host: str = "127.0.0.1",
        grpc_port: int = GRPC_PORT,
        http_port: int = HTTP_PORT,
        tls: Tls | None = None,
        token: Token | None = None,
    ) -> None:
        self._store = store
        self._tls, self._token = tls, token
        self._host = host
        self._ports = (grpc_port, http_port)
        self._grpc: _GrpcServer | None = None
        self._http: _HttpServer | None = None
        self._writer: StoreWriter | None = None
        self._receiver: Receiver | None = None
        self._refused = ""

    def start(self) -> Self:
        """Open the store and listen. Raises `StoreError`, `ListenError` or `SecurityError`, with
        nothing left."""
        store = self._store
        self._writer = store if isinstance(store, StoreWriter) else StoreWriter(store)
        self._receiver = Receiver(self._writer)
        try:
            if self._tls is not None:
                self._tls.check()
            grpc_port, http_port = self._ports
            guarded = (self._receiver, self._tls, self._token)
            self._http = _HttpServer(*guarded, self._host, http_port)
            self._grpc = _GrpcServer(*guarded, self._host, grpc_port)
        except BaseException:
            self.stop()
            raise
        return self

    def tidy(self) -> None:
        """Let the store close and remove what is due (`Retention`); to be called from time to time.

        What the disk refuses is said once in the log, and tried again the next time.
        """
        assert self._writer is not None, "the collector has not been started"
        try:
            self._writer.tidy()
        except OSError as error:
            if str(error) != self._refused:
                _log.warning("pdtrace: the store cannot be tidied: %s", error)
            self._refused = str(error)
        else:
            self._refused = ""

    def stop(self) -> None:
        """Finish what is under way, stop listening, close the store; may be repeated."""
        if self._grpc is not None:
            self._grpc.begin_stop()
        if self._http is not None:
            self._http.stop()
        if self._grpc is not None:
            self._grpc.finish_stop()
        if self._writer is not None:
            self._writer.close()

    @property
    def grpc_address(self) -> str:
        """`host:port` of OTLP/gRPC."""
        assert self._grpc is not None, "the collector has not been started"
        return _authority(self._host, self._grpc.port)

    @property
    def http_address(self) -> str:
        """`http://host:port` of OTLP/HTTP (`https` with TLS), without `/v1/traces`."""
        assert self._http is not None, "the collector has not been started"
        scheme = "http" if self._tls is None else "https"
        return f"{scheme}://{_authority(self._host, self._http.port)}"

    @property
    def counts(self) -> Counts:
        """What has been received; stays readable after `stop`."""
        return self._receiver.counts if self._receiver is not None else Counts()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


def _authority(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=128)
    except OSError as error:
        why = str(error.strerror or error).partition(" (while ")[0]  # drop create_server's aside
        raise ListenError(f"cannot listen on {_authority(host, port)}: {why}") from error


class _GrpcServer:
    """OTLP/gRPC; handlers see the raw bytes, so that these are what is stored."""

    def __init__(
        self, receiver: Receiver, tls: Tls | None, token: Token | None, host: str, port: int
    ) -> None:
        self._threads = ThreadPoolExecutor(_GRPC_THREADS, thread_name_prefix="pdtrace-grpc")
        self._server = grpc.server(
            self._threads,
            handlers=[_Handlers(receiver, token)],
            maximum_concurrent_rpcs=_GRPC_CALLS,
            options=(
                ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
                ("grpc.so_reuseport", 0),
            ),
        )
        self.port = self._bind(host, port, tls)
        self._server.start()

    def begin_stop(self) -> None:
        self._stopped = self._server.stop(STOP_SECONDS)

    def finish_stop(self) -> None:
        self._stopped.wait()
        self._threads.shutdown()

    def _bind(self, host: str, port: int, tls: Tls | None) -> int:
        if port:  # a socket of our own says why it cannot bind; gRPC only that it cannot
            _listen(host, port).close()
        where = _authority(host, port)
        try:
            if tls is not None:
                return self._server.add_secure_port(where, tls.of_grpc())
            return self._server.add_insecure_port(where)
        except RuntimeError as error:
            raise ListenError(f"cannot listen on {where}: gRPC refused it") from error


class _Handlers(grpc.GenericRpcHandler):  # type: ignore[type-arg]  # generic in stubs only
    """Trace export; the other signals are declined in words."""

    def __init__(self, receiver: Receiver, token: Token | None) -> None:
        self._receiver, self._token = receiver, token

    def service(self, handler_call_details: Any) -> Any:
        method = handler_call_details.method
        if self._token is not None:
            said = handler_call_details.invocation_metadata
            headers = {key: value for key, value in said if isinstance(value, str)}
            if not self._token.allows(headers):
                self._receiver.count_rejected()
                return grpc.unary_unary_rpc_method_handler(_refuse)
        if method == _TRACES:
            return grpc.unary_unary_rpc_method_handler(self._export)
        if method in _OTHER_SIGNALS:
            return grpc.unary_unary_rpc_method_handler(_decline)
        return None

    def _export(self, message: bytes, context: grpc.ServicerContext) -> bytes:
        try:
            with Room(self._receiver) as room:
                room.take(len(message))
                self._receiver.accept(message)
        except Invalid as error:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except Busy as error:
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error))
        except Unavailable as error:
            context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
        return b""  # an ExportTraceServiceResponse without fields


def _refuse(_message: bytes, context: grpc.ServicerContext) -> NoReturn:
    context.abort(grpc.StatusCode.UNAUTHENTICATED, _NO_TOKEN)
    raise AssertionError("abort has raised")


def _decline(_message: bytes, context: grpc.ServicerContext) -> NoReturn:
    context.abort(grpc.StatusCode.UNIMPLEMENTED, _TRACES_ONLY)
    raise AssertionError("abort has raised")


class _Uvicorn(uvicorn.Server):
    """Says when it serves: told to stop before that, uvicorn would leave its socket open."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.settled = threading.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.settled.set()


class _HttpServer:
    """OTLP/HTTP in a thread with an event loop of its own."""

    def __init__(
        self, receiver: Receiver, tls: Tls | None, token: Token | None, host: str, port: int
    ) -> None:
        self._socket = _listen(host, port)
        self.port = int(self._socket.getsockname()[1])
        config = uvicorn.Config(
            _http_app(receiver, token),
            lifespan="off",
            ws="none",
            log_config=None,
            log_level=logging.WARNING,
            access_log=False,
            timeout_graceful_shutdown=int(STOP_SECONDS),
            **({} if tls is None else tls.of_uvicorn()),
        )
        self._server = _Uvicorn(config)
        self._thread = threading.Thread(target=self._run, name="pdtrace-http", daemon=True)
        self._thread.start()
        self._server.settled.wait()

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join()
        self._socket.close()

    def _run(self) -> None:
        try:
            self._server.run(sockets=[self._socket])
        finally:
            self._server.settled.set()


def _http_app(receiver: Receiver, token: Token | None) -> Starlette:
    async def traces(request: Request) -> Response:
        if token is not None and not token.allows(request.headers):
            receiver.count_rejected()
            answer = _answer(request, 401, grpc.StatusCode.UNAUTHENTICATED, _NO_TOKEN)
            answer.headers["www-authenticate"] = "Bearer"
            return answer
        return await _export_http(receiver, request)

    async def healthz(_request: Request) -> Response:
        counts = receiver.counts
        return JSONResponse({"status": "ok"} | {n: getattr(counts, n) for n in counts.__slots__})

    async def other_signal(request: Request) -> Response:
        return _answer(request, 404, grpc.StatusCode.UNIMPLEMENTED, _TRACES_ONLY)

    return Starlette(
        routes=[
            Route("/v1/traces", traces, methods=["POST"]),
            Route("/v1/metrics", other_signal, methods=["POST"]),
            Route("/v1/logs", other_signal, methods=["POST"]),
            Route("/healthz", healthz),
        ]
    )


async def _export_http(receiver: Receiver, request: Request) -> Response:
    kind = _content_type(request)
    if kind not in (_PROTOBUF, _JSON):
        receiver.count_rejected()
        text = f"content type {kind!r} is neither {_PROTOBUF} nor {_JSON}"
        return _answer(request, 415, grpc.StatusCode.INVALID_ARGUMENT, text)
    try:
        with Room(receiver) as room:
            body = await _limited_body(receiver, request, room)
            await run_in_threadpool(_accept_body, receiver, request, body, room)
    except TooLarge as error:
        return _answer(request, 413, grpc.StatusCode.RESOURCE_EXHAUSTED, str(error))
    except (Invalid, ClientDisconnect) as error:
        return _answer(request, 400, grpc.StatusCode.INVALID_ARGUMENT, str(error))
    except Unavailable as error:
        return _later(request, str(error))
    except asyncio.CancelledError:  # the grace of `stop` is over: the sender should retry
        return _later(request, "the collector is stopping")
    # An ExportTraceServiceResponse without fields.
    return Response(b"{}" if kind == _JSON else b"", media_type=kind)


def _later(request: Request, text: str) -> Response:
    answer = _answer(request, 503, grpc.StatusCode.UNAVAILABLE, text)
    answer.headers["retry-after"] = str(RETRY_S)
    return answer


def _accept_body(receiver: Receiver, request: Request, body: bytes, room: Room) -> None:
    encoding = request.headers.get("content-encoding", "").strip().lower()
    try:
        message = decompressed(body, encoding)
    except Invalid:
        receiver.count_rejected()
        raise
    if encoding:
        room.take(len(message))
    if _content_type(request) == _JSON:
        receiver.accept_json(message)
    else:
        receiver.accept(message)


async def _limited_body(receiver: Receiver, request: Request, room: Room) -> bytes:
    body = bytearray()
    async for chunk in request.stream():
        room.take(len(chunk))
        body += chunk
        if len(body) > MAX_MESSAGE_BYTES:
            receiver.count_rejected()
            raise TooLarge(f"more than {MAX_MESSAGE_BYTES} bytes")
    return bytes(body)


def _content_type(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def _answer(request: Request, http: int, code: grpc.StatusCode, text: str) -> Response:
    """An error as OTLP wants it: a google.rpc.Status in the request's own encoding."""
    number = int(code.value[0])
    if _content_type(request) == _JSON:
        return JSONResponse({"code": number, "message": text}, status_code=http)
    return Response(status_message(number, text), status_code=http, media_type=_PROTOBUF)
