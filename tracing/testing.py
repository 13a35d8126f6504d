"""Helpers to test what a recorder or a hook emits: a clock to set, counted ids, spans as dicts."""

from collections.abc import Sequence
from typing import Any

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.id_generator import IdGenerator

from pdtrace.tracing.clock import Clock
from pdtrace.tracing.guard import Guard
from pdtrace.tracing.provider import Telemetry
from pdtrace.tracing.recorder import Recorder
from pdtrace.tracing.sampling import Sampler
from pdtrace.tracing.settings import Settings

EPOCH_NS = 1_800_000_000_000_000_000
"""Unix nanoseconds at which a `SettableClock` begins."""


class SettableClock(Clock):
    """A clock that stands still: set `mono` (ns); the wall clock is `mono + EPOCH_NS + step`."""

    def __init__(self) -> None:
        self.mono = 0
        self.step = 0
        super().__init__(lambda: self.mono + EPOCH_NS + self.step, lambda: self.mono)


class CountedIds(IdGenerator):
    """Span and trace ids 1, 2, 3, …"""

    def __init__(self) -> None:
        self._last = 0

    def generate_span_id(self) -> int:
        """The next number."""
        self._last += 1
        return self._last

    def generate_trace_id(self) -> int:
        """The next number."""
        return self.generate_span_id()


class CapturingExporter(SpanExporter):
    """Keeps spans in memory; `result` is what it answers."""

    def __init__(self) -> None:
        self.spans: list[ReadableSpan] = []
        self.result = SpanExportResult.SUCCESS

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Keep and answer."""
        self.spans.extend(spans)
        return self.result


def make_recorder(
    clock: Clock | None = None,
    settings: Settings | None = None,
    sampler: Sampler | None = None,
) -> tuple[Recorder, CapturingExporter]:
    """A recorder without its thread: call `flush` to get spans; hooks' errors are raised."""
    exporter = CapturingExporter()
    telemetry = Telemetry(Resource({}), exporter, CountedIds(), settings, sampler)
    recorder = Recorder(telemetry, clock or Clock(), Guard(strict=True), start=False)
    return recorder, exporter


def span_dict(span: ReadableSpan) -> dict[str, Any]:
    """What a test compares: times relative to `EPOCH_NS`, ids as numbers, empty parts left out."""
    assert span.context is not None and span.start_time is not None and span.end_time is not None
    found: dict[str, Any] = {
        "name": span.name,
        "trace": span.context.trace_id,
        "parent": span.parent.span_id if span.parent else None,
        "start": span.start_time - EPOCH_NS,
        "end": span.end_time - EPOCH_NS,
        "attributes": dict(span.attributes or {}),
    }
    if span.events:
        found["events"] = [
            (event.name, event.timestamp - EPOCH_NS, dict(event.attributes or {}))
            for event in span.events
        ]
    if not span.status.is_ok:
        found["error"] = True
    return found
