"""A recorder to feed event by event, with a clock that stands still and counted ids."""

from typing import Any

from pdtrace.tracing import events as ev
from pdtrace.tracing import semconv as sc
from pdtrace.tracing.sampling import Sampler
from pdtrace.tracing.settings import Settings
from pdtrace.tracing.testing import SettableClock, make_recorder, span_dict

ENGINE_ID = "cmpl-abc-0-0123abcd"
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Bench:
    """A recorder without its thread, fed at chosen instants."""

    def __init__(self, settings: Settings | None = None, sampler: Sampler | None = None) -> None:
        self.clock = SettableClock()
        self.recorder, self.exporter = make_recorder(self.clock, settings, sampler)

    def open(self, traceparent: str = "", request_id: str = ENGINE_ID) -> None:
        """Make a request known."""
        context = ev.RequestContext(traceparent, {sc.MODE: "push"})
        self.recorder.record(ev.OPENED, request_id, context)

    def at(
        self, mono: int, kind: ev.EventKind, data: Any = None, request_id: str = ENGINE_ID
    ) -> None:
        """Record an event at an instant."""
        self.clock.mono = mono
        self.recorder.record(kind, request_id, data)

    def expire(self, mono: int) -> None:
        """What the recorder's thread does every few seconds."""
        self.clock.mono = mono
        self.recorder.flush()
        self.recorder._assembler.expire(mono)

    def spans(self) -> list[dict[str, Any]]:
        """All spans so far."""
        self.recorder.flush()
        return [span_dict(span) for span in self.exporter.spans]
