"""The reference router: OpenAI's completion endpoints over prefill and decode engines, traced.

    python -m pdtrace.connector.router --mode push --prefill URL --decode URL --port 8000

`create_app` is the ASGI application, `serve` runs it. How one request meets two engines is in
`router_exchange`.
"""

import argparse
import asyncio
import contextlib
import json
import signal
import socket
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Final

import aiohttp
import uvicorn
from opentelemetry.trace import Tracer
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from pdtrace.connector.router_completions import CompletionEndpoint
from pdtrace.connector.router_engines import Engine, EnginePool
from pdtrace.connector.router_errors import NoEngine
from pdtrace.connector.router_exchange import Backends
from pdtrace.connector.router_reply import answer_headers, engine_headers, error_body
from pdtrace.connector.router_settings import (
    DISPATCHES,
    MODES,
    POLICIES,
    ROUND_ROBIN,
    RouterSettings,
    Timeouts,
)
from pdtrace.connector.router_spans import DerivedIdGenerator
from pdtrace.tracing import semconv
from pdtrace.tracing.clock import Clock, process_clock
from pdtrace.tracing.provider import open_provider
from pdtrace.tracing.settings import ConfigurationError

COMPLETION_PATHS: Final = ("/v1/completions", "/v1/chat/completions")
# vLLM's server closes an idle connection after 5 s; the router must be the first to let go of it.
_KEEPALIVE_S: Final = 2.0
_PROBE: Final = aiohttp.ClientTimeout(total=2.0)
_READ_BYTES: Final = 2**20


def create_app(settings: RouterSettings, tracer: Tracer, clock: Clock | None = None) -> Starlette:
    """The ASGI application; it opens and closes its connections with the server's lifespan."""
    clock = clock or process_clock()
    backends = _backends(settings, clock)

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with _open_client(settings.timeouts) as backends.client:
            yield

    completions = CompletionEndpoint(backends, tracer, clock)
    plain = PlainEndpoints(backends)
    return Starlette(
        routes=[
            *(Route(path, completions, methods=["POST"]) for path in COMPLETION_PATHS),
            Route("/v1/models", plain.models),
            Route("/health", plain.health),
        ],
        lifespan=lifespan,
    )


def _backends(settings: RouterSettings, clock: Clock) -> Backends:
    prefill, decode = (
        EnginePool(role, urls, settings.policy, clock.mono_ns, settings.timeouts.down_s)
        for role, urls in (
            (semconv.ROLE_PREFILL, settings.prefill_urls),
            (semconv.ROLE_DECODE, settings.decode_urls),
        )
    )
    return Backends(settings, prefill, decode)


def _open_client(times: Timeouts) -> aiohttp.ClientSession:
    """Adds nothing to a request and keeps nothing of an answer: a cookie would mix users."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEPALIVE_S),
        timeout=aiohttp.ClientTimeout(connect=times.connect_s, sock_read=times.silence_s),
        cookie_jar=aiohttp.DummyCookieJar(),
        skip_auto_headers=("accept", "accept-encoding", "user-agent"),
        auto_decompress=False,
        read_bufsize=_READ_BYTES,
    )


class PlainEndpoints:
    """What needs no legs and no spans."""

    def __init__(self, backends: Backends) -> None:
        self._backends = backends

    async def models(self, request: Request) -> Response:
        """A decode engine's answer."""
        tried: list[Engine] = []
        headers = engine_headers(request.headers)
        while True:
            try:
                engine = self._backends.decode.pick(tried)
            except NoEngine as error:
                return Response(error_body(error), error.status, media_type="application/json")
            tried.append(engine)
            with contextlib.suppress(aiohttp.ClientError, TimeoutError):
                async with self._probe(engine, "/v1/models", headers) as answer:
                    body, kept = await answer.content.read(), answer_headers(answer.raw_headers)
                return Response(body, answer.status, kept)

    async def health(self, _: Request) -> Response:
        """200 when at least one engine of each role is healthy; else which role has none."""
        pools = (self._backends.prefill, self._backends.decode)
        alive = await asyncio.gather(*(self._any_healthy(pool) for pool in pools))
        missing = [pool.role for pool, ok in zip(pools, alive, strict=True) if not ok]
        if not missing:
            return JSONResponse({"status": "ok"})
        error = NoEngine(f"no healthy engine: {', '.join(missing)}")
        return Response(error_body(error), error.status, media_type="application/json")

    async def _any_healthy(self, pool: EnginePool) -> bool:
        return any(await asyncio.gather(*(self._healthy(engine) for engine in pool.engines)))

    async def _healthy(self, engine: Engine) -> bool:
        with contextlib.suppress(aiohttp.ClientError, TimeoutError):
            async with self._probe(engine, "/health") as answer:
                return answer.status == 200
        return False

    def _probe(
        self, engine: Engine, path: str, headers: Mapping[str, str] | None = None
    ) -> contextlib.AbstractAsyncContextManager[aiohttp.ClientResponse]:
        return self._backends.client.get(
            engine.url + path, headers=headers, timeout=_PROBE, allow_redirects=False
        )


class _Server(uvicorn.Server):
    """Tells through a file when and where it listens."""

    def __init__(self, config: uvicorn.Config, ready_file: Path | None) -> None:
        super().__init__(config)
        self._ready_file = ready_file

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self._ready_file is not None and self.started:
            host, port = self.servers[0].sockets[0].getsockname()[:2]
            partial = self._ready_file.with_name(self._ready_file.name + ".part")
            partial.write_text(json.dumps({"url": f"http://{host}:{port}"}))
            partial.replace(self._ready_file)


def serve(
    settings: RouterSettings,
    tracer: Tracer,
    host: str = "127.0.0.1",
    port: int = 8000,
    ready_file: Path | None = None,
    clock: Clock | None = None,
) -> None:
    """Until SIGTERM or SIGINT; then requests have `drain_s` to finish and are cancelled."""
    config = uvicorn.Config(
        create_app(settings, tracer, clock),
        host=host,
        port=port,
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=max(1, round(settings.timeouts.drain_s)),
    )
    # uvicorn raises the signal once more when it has stopped: the caller must still flush spans.
    previous = {
        number: signal.signal(number, lambda *_: None) for number in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        _Server(config, ready_file).run()
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def main(argv: list[str] | None = None) -> int:
    """`python -m pdtrace.connector.router`; spans go where the OTEL_EXPORTER_OTLP_* say."""
    args = _arguments().parse_args(argv)
    settings = RouterSettings(
        mode=args.mode,
        prefill_urls=tuple(args.prefill),
        decode_urls=tuple(args.decode),
        policy=args.policy,
        dispatch=args.dispatch,
        timeouts=Timeouts(silence_s=args.silence_s, request_s=args.request_s),
    )
    try:
        telemetry = open_provider(role=semconv.ROLE_ROUTER, id_generator=DerivedIdGenerator())
    except ConfigurationError as error:
        raise SystemExit(f"pdtrace router: {error}") from error
    try:
        serve(settings, telemetry.tracer, args.host, args.port, args.ready_file)
    finally:
        telemetry.shutdown()
    return 0


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m pdtrace.connector.router")
    parser.add_argument("--mode", choices=MODES, required=True)
    parser.add_argument("--prefill", action="append", required=True, metavar="URL")
    parser.add_argument("--decode", action="append", required=True, metavar="URL")
    parser.add_argument("--policy", choices=POLICIES, default=ROUND_ROBIN)
    parser.add_argument("--dispatch", choices=("", *DISPATCHES), default="")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000, help="0 takes a free one")
    parser.add_argument("--ready-file", type=Path, help="receives the URL as JSON once it listens")
    parser.add_argument("--silence-s", type=float, default=Timeouts().silence_s)
    parser.add_argument("--request-s", type=float, default=Timeouts().request_s)
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
