"""A small load client: sends requests to a router and keeps each answer with its client's times.

Not a benchmark: `pdtrace.connector.bench` drives vLLM's own. This one is for the demo and the
tests, which need the text, the ids and the client's stopwatch of every single request.
"""

import asyncio
import random
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import aiohttp
import orjson

from pdtrace.connector.sse import EventParser, carries_content, content_of, error_of
from pdtrace.tracing.clock import Clock

_TIMEOUT_S: Final = 300.0
_CONNECT_S: Final = 5.0
_PROBE_S: Final = 2.0
_RETRY_S: Final = 0.1
# Servers drop idle connections after about 5 s; the client must let go first.
_KEEPALIVE_S: Final = 2.0
_READ_BYTES: Final = 2**20
_WORDS: Final = (
    "amber basin cedar delta ember fjord garnet harbor island juniper kettle lantern meadow nectar "
    "orchid pepper quartz river saddle timber umber valley willow xenon yarrow zephyr anchor birch "
    "copper dune eagle falcon granite hollow ivory jasper kelp linen maple north olive prairie"
).split()


@dataclass(frozen=True, slots=True)
class WorkloadRequest:
    """One request: either `prompt` (completions) or `messages` (chat)."""

    model: str
    max_tokens: int
    prompt: str | None = None
    messages: tuple[dict[str, str], ...] = ()
    request_id: str = field(default_factory=lambda: str(uuid.uuid4()))
    stream: bool = True
    temperature: float = 0.0
    seed: int | None = None
    ignore_eos: bool | None = None
    traceparent: str | None = None
    """As a gateway sends it that has begun a trace."""

    def __post_init__(self) -> None:
        if (self.prompt is None) == (not self.messages):
            raise ValueError(f"request {self.request_id}: give either a prompt or messages")

    @property
    def path(self) -> str:
        return "/v1/chat/completions" if self.messages else "/v1/completions"

    def body(self) -> dict[str, Any]:
        """The JSON body; a stream asks for the token counts at its end."""
        body: dict[str, Any] = {
            "model": self.model,
            "max_tokens": self.max_tokens,
            "temperature": self.temperature,
            "stream": self.stream,
        }
        body |= {"messages": list(self.messages)} if self.messages else {"prompt": self.prompt}
        if self.stream:
            body["stream_options"] = {"include_usage": True}
        optional = {"seed": self.seed, "ignore_eos": self.ignore_eos}
        return body | {key: value for key, value in optional.items() if value is not None}


@dataclass(frozen=True, slots=True)
class WorkloadResult:
    """What came back; durations by the client's monotonic clock."""

    request_id: str
    status: int
    """HTTP status; 0 when no answer came."""
    text: str
    token_count: int
    """As the engine counted, else the number of chunks with content."""
    ttft_ns: int | None
    """From just before sending to the first chunk with content; of a whole body: to its arrival."""
    e2e_ns: int
    sent_wall_ns: int
    error: str | None = None
    """One sentence; None when the request succeeded."""

    @property
    def ok(self) -> bool:
        return self.error is None


async def run_workload(
    base_url: str,
    requests: Sequence[WorkloadRequest],
    concurrency: int = 1,
    on_done: Callable[[WorkloadResult], None] | None = None,
    timeout_s: float = _TIMEOUT_S,
    think_s: float = 0.0,
) -> list[WorkloadResult]:
    """Sends all requests, at most `concurrency` at a time; results in the order of the requests.

    Each of the `concurrency` callers rests `think_s` before its next request.
    A failed request is a result with an error, never an exception.
    """
    clock = Clock()
    slots = asyncio.Semaphore(concurrency)
    async with aiohttp.ClientSession(
        base_url=base_url,
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEPALIVE_S),
        timeout=aiohttp.ClientTimeout(total=timeout_s, sock_connect=_CONNECT_S),
        read_bufsize=_READ_BYTES,
    ) as client:

        async def one(request: WorkloadRequest) -> WorkloadResult:
            async with slots:
                result = await _Attempt(client, request, clock).run(timeout_s)
                if on_done is not None:
                    on_done(result)
                await asyncio.sleep(think_s)
            return result

        return list(await asyncio.gather(*(one(request) for request in requests)))


async def wait_healthy(url: str, timeout_s: float, path: str = "/health") -> None:
    """Returns once `path` answers 200; TimeoutError names the last thing seen."""
    seen = "no answer"
    deadline = time.monotonic() + timeout_s
    timeout = aiohttp.ClientTimeout(total=_PROBE_S)
    async with aiohttp.ClientSession(base_url=url, timeout=timeout) as client:
        while True:
            try:
                async with client.get(path) as answer:
                    if answer.status == 200:
                        return
                    seen = f"status {answer.status}: {(await answer.text())[:200]}"
            except (aiohttp.ClientError, TimeoutError) as error:
                seen = _reason(error)
            if time.monotonic() >= deadline:
                raise TimeoutError(f"{url}{path} was not healthy after {timeout_s:g} s ({seen})")
            await asyncio.sleep(_RETRY_S)


def mixed_prompts(seed: int, count: int, short: int, long: int) -> list[str]:
    """`count` prompts of `short` or `long` words, alternating at random; the same for one seed.

    Each begins with its own words, so that no prompt is answered from another one's prefix cache.
    """
    choose = random.Random(seed)
    prompts = []
    for index in range(count):
        length = choose.choice((short, long))
        words = [f"{seed}.{index}", *choose.choices(_WORDS, k=max(0, length - 1))]
        prompts.append(" ".join(words))
    return prompts


class _Attempt:
    """One request under way, with its stopwatch."""

    def __init__(
        self, client: aiohttp.ClientSession, request: WorkloadRequest, clock: Clock
    ) -> None:
        self._client = client
        self._request = request
        self._clock = clock
        self._status = 0
        self._text: list[str] = []
        self._chunks = 0
        self._counted: int | None = None
        self._ttft_ns: int | None = None
        self._error: str | None = None
        self._sent_ns = 0

    async def run(self, timeout_s: float) -> WorkloadResult:
        body = orjson.dumps(self._request.body())
        headers = {
            "content-type": "application/json",
            "x-request-id": self._request.request_id,
        }
        if self._request.traceparent is not None:
            headers["traceparent"] = self._request.traceparent
        self._sent_ns = self._clock.mono_ns()
        try:
            async with self._client.post(
                self._request.path, data=body, headers=headers
            ) as response:
                self._status = response.status
                await self._receive(response)
        except TimeoutError:
            self._error = f"no complete answer within {timeout_s:g} s"
        except aiohttp.ClientError as error:
            self._error = _reason(error)
        return self._result()

    async def _receive(self, response: aiohttp.ClientResponse) -> None:
        if not (self._request.stream and response.status == 200):
            self._take_whole(await response.read())
            return
        parser = EventParser()
        async for chunk in response.content.iter_any():
            for payload in parser.feed(chunk):
                self._take(payload, carries_content(payload))

    def _take(self, payload: dict[str, Any], has_content: bool) -> None:
        """One event of a stream, or a whole answer."""
        if has_content:
            self._chunks += 1
            if self._ttft_ns is None:
                self._ttft_ns = self._elapsed_ns()
        self._text.append(content_of(payload))
        if error := error_of(payload):
            self._error = error[1]
        counted = (payload.get("usage") or {}).get("completion_tokens")
        if isinstance(counted, int):
            self._counted = counted

    def _take_whole(self, body: bytes) -> None:
        try:
            payload = orjson.loads(body)
        except orjson.JSONDecodeError:
            payload = None
        if isinstance(payload, dict):
            self._take(payload, has_content=self._status == 200)
        if self._status != 200 or not isinstance(payload, dict):
            self._error = self._error or f"status {self._status}: {body[:200]!r}"

    def _elapsed_ns(self) -> int:
        return self._clock.mono_ns() - self._sent_ns

    def _result(self) -> WorkloadResult:
        e2e_ns = self._elapsed_ns()
        if self._error is None and self._ttft_ns is None:
            self._error = "the answer carried no token"
        return WorkloadResult(
            request_id=self._request.request_id,
            status=self._status,
            text="".join(self._text),
            token_count=self._chunks if self._counted is None else self._counted,
            ttft_ns=self._ttft_ns,
            e2e_ns=e2e_ns,
            sent_wall_ns=self._clock.anchor().to_wall_ns(self._sent_ns),
            error=self._error,
        )


def _reason(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
