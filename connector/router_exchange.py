"""One user request through P and D: concurrent or sequential legs, retries, the first token.

How a router learns where P is (engine id, side channel, sizes): P tells it in the answer of every
prefill leg. A separate warm-up request would do harm: vLLM holds even a one-token prompt's block
until the lease ends (30 s), P steps every millisecond for as long, and its engine spans would be a
request nobody made, ended by `lease_expired`. So the first user request that meets a P of unknown
identity is its own warm-up: it is dispatched sequentially, and `pd.dispatch` says so. The same
happens after a failed leg. When the answer shows that P was restarted under the same address while
D was already sent to the old identity, D's leg is sent again (`pd.attempt` 2).
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import aiohttp
import orjson

from pdtrace.connector.router_engines import Engine, EnginePool
from pdtrace.connector.router_errors import EngineUnreachable, Refused, RouterError
from pdtrace.connector.router_legs import Leg
from pdtrace.connector.router_params import (
    PARAMS,
    answered_push_params,
    decode_body,
    identity_of,
    prefill_body,
    push_params,
)
from pdtrace.connector.router_reply import REQUEST_ID_HEADER, Reply, answer_headers
from pdtrace.connector.router_settings import RouterSettings
from pdtrace.connector.router_spans import LegSpan, RequestSpan
from pdtrace.connector.router_stream import forward_stream, stopped
from pdtrace.tracing.semconv import (
    DISPATCH,
    DISPATCH_CONCURRENT,
    DISPATCH_SEQUENTIAL,
    ERROR_ABORTED,
    ERROR_NO_TRANSFER_PARAMS,
    EVENT_FIRST_TOKEN,
    INPUT_TOKENS,
    MODE_PULL,
    PARAM_TRACEPARENT,
)

_SETTLE_S: Final = 1.0
"""After D's last byte: how long P's own answer, which must be there by then, is waited for."""


@dataclass(slots=True)
class Backends:
    """What all requests share."""

    settings: RouterSettings
    prefill: EnginePool
    decode: EnginePool
    client: aiohttp.ClientSession = field(init=False)
    """Belongs to the server's event loop, so it is opened and closed with the server."""


@dataclass(frozen=True, slots=True)
class UserRequest:
    """What came in."""

    request_id: str
    path: str
    headers: Mapping[str, str]
    """Those to pass on."""
    body: dict[str, Any]

    @property
    def stream(self) -> bool:
        return self.body.get("stream") is True


class Exchange:
    """The state of one user request between reception and last byte."""

    def __init__(self, backends: Backends, request: UserRequest, span: RequestSpan) -> None:
        self._backends = backends
        self._request = request
        self._span = span
        self._legs: list[Leg] = []
        self._prefill: asyncio.Task[dict[str, Any]] | None = None
        self._decode_attempts = 0
        self._decode_leg: Leg | None = None

    async def run(self, reply: Reply) -> str | None:
        """Answers the client; returns `error.type` when an engine reported an error in its stream.

        Raises `RouterError` for what the client must still be told. `settle` must follow.
        """
        chunk = await self._first_chunk()
        leg = self._decode_leg
        assert leg is not None
        headers = answer_headers(leg.response.raw_headers)
        if self._request.stream:
            await reply.start(leg.response.status, headers)
            return await forward_stream(leg, chunk, reply, self._span, self._prefill)
        # The first token is inside a whole body: its arrival is an upper bound.
        await reply.whole(leg.response.status, headers, chunk)
        self._span.mark(EVENT_FIRST_TOKEN)
        return None

    async def settle(self, complete: bool) -> None:
        """Ends what is still open: after success P's answer may be a moment late, not longer."""
        if self._prefill is not None:
            if complete:
                await asyncio.wait({self._prefill}, timeout=_SETTLE_S)
            await stopped(self._prefill)
        for leg in self._legs:
            leg.close(None if complete else ERROR_ABORTED)

    async def _first_chunk(self) -> bytes:
        """Tries prefill engines until one can be reached; D's first piece of the answer."""
        tried: list[Engine] = []
        while True:
            engine = self._backends.prefill.pick(tried)
            tried.append(engine)
            concurrent = self._backends.settings.dispatch == DISPATCH_CONCURRENT
            try:
                if concurrent and engine.identity is not None:
                    return await self._concurrent(engine, engine.identity, len(tried))
                return await self._sequential(engine, len(tried))
            except EngineUnreachable:
                self._backends.prefill.mark_down(engine)

    async def _sequential(self, engine: Engine, attempt: int) -> bytes:
        self._span.set(DISPATCH, DISPATCH_SEQUENTIAL)
        answer = await self._start_prefill(engine, attempt)
        return await self._decode(self._answered(answer))

    async def _concurrent(self, engine: Engine, identity: dict[str, Any], attempt: int) -> bytes:
        self._span.set(DISPATCH, DISPATCH_CONCURRENT)
        prefill = self._start_prefill(engine, attempt)
        decode = asyncio.create_task(self._decode(push_params(identity, self._request.request_id)))
        try:
            await asyncio.wait({prefill, decode}, return_when=asyncio.FIRST_COMPLETED)
            if not decode.done():
                answer = prefill.result()
                if identity_of(answer) != identity:
                    await stopped(decode)
                    return await self._decode(self._answered(answer))
            return await decode
        except RouterError as error:
            if not isinstance(error, Refused):
                engine.identity = None
            raise
        finally:
            await stopped(decode)

    def _answered(self, answer: dict[str, Any]) -> dict[str, Any]:
        if self._backends.settings.mode == MODE_PULL:
            return answer
        return answered_push_params(answer, self._request.request_id)

    def _start_prefill(self, engine: Engine, attempt: int) -> asyncio.Task[dict[str, Any]]:
        span = self._span.leg(engine, attempt)
        traceparent = span.carrier().get(PARAM_TRACEPARENT)
        leg = self._leg(engine, span, prefill_body(self._request.body, traceparent))
        self._prefill = asyncio.create_task(self._prefill_answer(leg))
        return self._prefill

    async def _prefill_answer(self, leg: Leg) -> dict[str, Any]:
        """P's `kv_transfer_params`; learns P's identity and the prompt's length on the way."""
        try:
            payload, params, identity = _read_answer(leg.engine, await leg.whole())
        except RouterError as error:
            if not isinstance(error, Refused):
                leg.engine.identity = None
            raise
        leg.engine.identity = identity
        tokens = (payload.get("usage") or {}).get("prompt_tokens")
        if isinstance(tokens, int):
            self._span.set_common(INPUT_TOKENS, tokens)
        return params

    async def _decode(self, params: dict[str, Any]) -> bytes:
        """Tries decode engines until one can be reached; its first piece (or whole answer)."""
        pool = self._backends.decode
        tried: list[Engine] = []
        while True:
            engine = pool.pick(tried)
            tried.append(engine)
            self._decode_attempts += 1
            span = self._span.leg(engine, self._decode_attempts)
            traceparent = span.carrier().get(PARAM_TRACEPARENT)
            leg = self._leg(engine, span, decode_body(self._request.body, params, traceparent))
            self._decode_leg = leg
            try:
                return await (leg.first_chunk() if self._request.stream else leg.whole())
            except EngineUnreachable:
                pool.mark_down(engine)

    def _leg(self, engine: Engine, span: LegSpan, body: dict[str, Any]) -> Leg:
        headers = {
            **self._request.headers,
            **span.carrier(),
            REQUEST_ID_HEADER: self._request.request_id,
        }
        send = partial(
            self._backends.client.post,
            engine.url + self._request.path,
            data=orjson.dumps(body),
            headers=headers,
            allow_redirects=False,
        )
        leg = Leg(engine, span, send, self._backends.settings.timeouts.silence_s)
        self._legs.append(leg)
        return leg


def _read_answer(engine: Engine, body: bytes) -> tuple[dict[str, Any], dict[str, Any], Any]:
    """P's answer, its transfer parameters, and its identity."""
    try:
        payload = orjson.loads(body)
        params = dict(payload[PARAMS])
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError):
        params = {}
    identity = identity_of(params)
    if identity is None:
        sentence = f"prefill leg: engine {engine.url} returned no usable {PARAMS}"
        raise RouterError(502, ERROR_NO_TRANSFER_PARAMS, sentence)
    return payload, params, identity
