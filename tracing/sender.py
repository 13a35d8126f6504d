"""Finished spans to the endpoint: a bounded queue, and a thread that sends from it.

One export may take as long as `OTEL_EXPORTER_OTLP_TIMEOUT` (10 s) says, with the SDK's retries in
it. What the endpoint did not take by then is dropped, counted as `export_failed`, and the next
batch is tried: so an endpoint that comes back is found by itself, and gets what still waits. When
the queue is full its oldest spans are dropped, counted as `queue_full`: after an outage the newest
tell most. Nothing here is ever called by an engine's thread.
"""

import threading
from collections import Counter, deque
from collections.abc import Sequence
from typing import Any, Final

from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from pdtrace.tracing.guard import Guard
from pdtrace.tracing.settings import Settings
from pdtrace.tracing.span import Finished, readable

_BATCH_SPANS: Final = 512


class Sender:
    """Sends what is offered within `interval_s`, as soon as a whole batch waits, or at `hurry`.

    Its thread runs from `start` on. Without an exporter everything is dropped, as `no_endpoint`.
    """

    def __init__(
        self,
        exporter: SpanExporter | None,
        capacity: int,
        guard: Guard,
        interval_s: float = Settings().send_every_s,
    ) -> None:
        self.exported = 0
        self.dropped: Counter[str] = Counter()
        """Spans by the reason for which they were lost."""
        self._exporter = exporter
        self._capacity = capacity
        self._interval_s = interval_s
        self._guard = guard
        self._queue: deque[Finished] = deque()
        self._of_queue = threading.Lock()
        self._of_exporter = threading.Lock()
        self._offered = threading.Event()
        self._due = threading.Event()
        self._closed = threading.Event()

    def start(self) -> None:
        """Start the thread; once."""
        threading.Thread(target=self._run, name="pdtrace-sender", daemon=True).start()

    def offer(self, spans: Sequence[Finished]) -> None:
        """Queue spans; returns at once."""
        with self._of_queue:
            self._queue.extend(spans)
            waiting = len(self._queue)
            excess = waiting - self._capacity
            for _ in range(excess):
                self._queue.popleft()
        if excess > 0:
            self.dropped["queue_full"] += excess
        if waiting >= _BATCH_SPANS:
            self._due.set()
        self._offered.set()

    def hurry(self) -> None:
        """Send what waits now: it was gathered before it was offered."""
        if self._queue:
            self._due.set()

    def flush(self) -> None:
        """Send everything that is queued, in the caller's thread."""
        with self._of_exporter:
            while not self._closed.is_set() and (batch := self._take()):
                self._send(batch)

    def drain(self, timeout_s: float) -> None:
        """Send what waits, for at most about `timeout_s`."""
        flusher = threading.Thread(target=self.flush, name="pdtrace-finish", daemon=True)
        flusher.start()
        flusher.join(timeout_s)

    def finish(self, timeout_s: float) -> None:
        """Send what waits, for at most about `timeout_s`, and nothing after that.

        What is not sent by then is dropped, as `not_sent`. Idempotent.
        """
        self.drain(timeout_s)
        self._closed.set()
        self._due.set()
        self._offered.set()
        with self._of_queue:
            unsent = len(self._queue)
            self._queue.clear()
        if unsent:
            self.dropped["not_sent"] += unsent

    def _run(self) -> None:
        while not self._closed.is_set():
            self._offered.wait()
            # Spans that end together leave together: an export costs as much as many spans.
            self._due.wait(self._interval_s)
            self._due.clear()
            self._offered.clear()
            try:
                self.flush()
            except Exception:
                self._guard.failed("sender")

    def _take(self) -> list[Finished]:
        with self._of_queue:
            queue = self._queue
            return [queue.popleft() for _ in range(min(len(queue), _BATCH_SPANS))]

    def _send(self, batch: list[Finished]) -> None:
        if self._exporter is None:
            self.dropped["no_endpoint"] += len(batch)
            return
        try:
            ours = getattr(self._exporter, "takes_records", False)
            spans: Any = batch if ours else readable(batch)
            sent = self._exporter.export(spans) is SpanExportResult.SUCCESS
        except Exception:
            self._guard.failed("export")
            sent = False
        if sent:
            self.exported += len(batch)
        else:
            self.dropped["export_failed"] += len(batch)
