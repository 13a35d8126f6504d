"""D's stream on its way to the client: bytes untouched, watched only until the first token."""

import asyncio
from typing import Any

from pdtrace.connector.router_legs import Leg
from pdtrace.connector.router_reply import Reply
from pdtrace.connector.router_spans import RequestSpan
from pdtrace.connector.sse import EventParser, carries_content, error_of, stream_error
from pdtrace.tracing.semconv import EVENT_FIRST_TOKEN

PrefillTask = asyncio.Task[dict[str, Any]]


async def forward_stream(
    leg: Leg, first: bytes, reply: Reply, span: RequestSpan, prefill: PrefillTask | None
) -> str | None:
    """Until D's stream ends; returns the code of an error event when D sent one.

    P's failure counts until the first token: after that D has the KV cache and needs P no more.
    """
    watch = _FirstToken(span)
    error: str | None = None
    chunk: bytes | None = first
    while chunk is not None:
        await reply.chunk(chunk)
        if watch.seen:
            error = error or stream_error(chunk)
            chunk = await leg.next_chunk()
        else:
            error = error or watch.feed(chunk)
            chunk = await (leg.next_chunk() if watch.seen else _next_or_failure(leg, prefill))
    await reply.finish()
    return error


async def stopped(task: asyncio.Task[Any]) -> None:
    """Cancels a task, waits until it has ended, and takes note of its error."""
    task.cancel()
    await asyncio.wait({task})
    if not task.cancelled():
        task.exception()


class _FirstToken:
    """Looks for the first chunk that carries content, then costs nothing."""

    def __init__(self, span: RequestSpan) -> None:
        self.seen = False
        self._span = span
        self._parser = EventParser()

    def feed(self, chunk: bytes) -> str | None:
        """Marks `pd.first_token` when this chunk has it; the code of an error event instead."""
        # Read before parsing: the chunk has just left.
        left_ns = self._span.timeline.wall_ns()
        for payload in self._parser.feed(chunk):
            if error := error_of(payload):
                return error[0]
            if not self.seen and carries_content(payload):
                self.seen = True
                self._span.mark(EVENT_FIRST_TOKEN, left_ns)
        return None


async def _next_or_failure(leg: Leg, prefill: PrefillTask | None) -> bytes | None:
    """D's next chunk, or P's error when that comes first."""
    if prefill is None or prefill.done():
        if prefill is not None:
            prefill.result()
        return await leg.next_chunk()
    reading = asyncio.create_task(leg.next_chunk())
    try:
        await asyncio.wait({reading, prefill}, return_when=asyncio.FIRST_COMPLETED)
        if not reading.done():
            prefill.result()
        return await reading
    finally:
        await stopped(reading)
