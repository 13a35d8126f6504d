"""Spans of a program with OpenTelemetry's tracer (the router), sampled and sent as an engine's.

The sampled flag that such a program passes on is its own decision, so that engines follow it.
"""

from collections.abc import Sequence
from typing import Any

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
from opentelemetry.sdk.trace import sampling as sdk
from opentelemetry.trace import SpanKind
from opentelemetry.util.types import Attributes

from pdtrace.tracing import semconv as sc
from pdtrace.tracing.propagation import TraceContext
from pdtrace.tracing.sampling import Keeper, Sampler
from pdtrace.tracing.sender import Sender


class RequestSampler(sdk.Sampler):
    """Our decision in the SDK's terms; a request that may be kept after all is recorded."""

    def __init__(self, sampler: Sampler, keeper: Keeper) -> None:
        self._decides = sampler.decides
        self._otherwise = sdk.Decision.RECORD_ONLY if keeper.can_keep else sdk.Decision.DROP

    def should_sample(
        self,
        parent_context: Context | None,
        trace_id: int,
        name: str,
        kind: SpanKind | None = None,
        attributes: Attributes = None,
        *_: Any,
        **__: Any,
    ) -> sdk.SamplingResult:
        """By the parent in the context, or by the trace id."""
        parent = trace.get_current_span(parent_context).get_span_context()
        parent_id = parent.span_id if parent.is_valid else 0
        sampled = self._decides(TraceContext(trace_id, parent_id, parent.trace_flags.sampled))
        decision = sdk.Decision.RECORD_AND_SAMPLE if sampled else self._otherwise
        return sdk.SamplingResult(decision, attributes, parent.trace_state)

    def get_description(self) -> str:
        """For the SDK's own messages."""
        return "pdtrace"


class RequestProcessor(SpanProcessor):
    """Offers ended spans to a sender: those of a request that is not sampled with its root, if
    `Keeper` says so, else not at all."""

    def __init__(self, sender: Sender, keeper: Keeper) -> None:
        self._sender = sender
        self._keeper = keeper
        self._held: dict[int, list[ReadableSpan]] = {}
        """Ended children by the span id of their root."""

    def on_end(self, span: ReadableSpan) -> None:
        """Queue, hold or drop; returns at once."""
        assert span.context is not None
        if span.context.trace_flags.sampled:
            self._sender.offer([span])
        elif span.parent is not None and not span.parent.is_remote:
            self._held.setdefault(span.parent.span_id, []).append(span)
        else:
            spans = [*self._held.pop(span.context.span_id, ()), span]
            failed = any(not one.status.is_ok for one in spans)
            if self._keeper.keeps(failed, _answered_ns(span) - (span.start_time or 0)):
                self._sender.offer(spans)


def _answered_ns(span: ReadableSpan) -> int:
    """When the first token left, or the end."""
    tokens: Sequence[int] = [e.timestamp for e in span.events if e.name == sc.EVENT_FIRST_TOKEN]
    return min(tokens, default=span.end_time or 0)
