"""What a process has once, however much it records: a thread that makes spans, one that sends them.

An engine's process may hold several recorders (scheduler and worker side of a connector, children
of a MultiConnector). Each wake-up and each export costs far more than the spans it is for, so they
share both, and events rest until it is time to send; sooner where buffers fill faster than that.
"""

import logging
import threading
import time
from collections import Counter
from collections.abc import Mapping
from typing import Final, Protocol

from opentelemetry.sdk.trace.export import SpanExporter

from pdtrace.tracing import semconv as sc
from pdtrace.tracing.guard import Guard
from pdtrace.tracing.sender import Sender
from pdtrace.tracing.settings import Settings

_log = logging.getLogger("pdtrace")
_FILL: Final = 1 / 8
"""How much of a buffer may be taken when its events are fetched: it may fill eight times as fast
before the next time."""
_LEAST_WAIT_S: Final = 0.01
_LONGEST_SWEEP_S: Final = 10.0
_REPORT_S: Final = 60.0


class Recording(Protocol):
    """A recorder, as its background sees it; `work` and `expire` only while `lock` is held."""

    guard: Guard
    closed: bool
    recorded: int

    def fill(self) -> float:
        """How much of its buffer is taken, from 0 to 1."""

    def work(self) -> None:
        """Make spans of the events so far and offer them to the sender."""

    def expire(self) -> None:
        """End spans that have been open for too long."""

    def lost(self) -> dict[str, int]:
        """Events and spans that were lost before they were offered, by reason."""


class Background:
    """The threads behind the recorders of one process, and the exporter they use.

    Nothing runs before `start`. When the last recorder has left, the exporter is closed.
    """

    def __init__(
        self, exporter: SpanExporter | None, settings: Settings, shared: bool = False
    ) -> None:
        self.exporter = exporter
        self.shared = shared
        self.guard = Guard(error_limit=settings.hook_error_limit)
        self.sender = Sender(exporter, settings.queue_spans, self.guard, settings.send_every_s)
        self.lock = threading.Lock()
        """Held by whoever makes spans."""
        limit_s = min(settings.span_limit_s, settings.decode_limit_s)
        self._sweep_s = min(_LONGEST_SWEEP_S, limit_s / 4)
        self._send_every_s = settings.send_every_s
        self._wait_s = self._longest_wait_s = min(self._send_every_s, self._sweep_s)
        self._last_sweep = self._last_report = time.monotonic()
        self._recorders: list[Recording] = []
        self._running = False
        self._stop = threading.Event()

    @property
    def closed(self) -> bool:
        """Whether nothing is sent any more."""
        return self._stop.is_set()

    def join(self, recorder: Recording) -> None:
        """One recorder more."""
        with self.lock:
            self._recorders.append(recorder)

    def start(self) -> None:
        """Start both threads, if they do not run yet."""
        if not self._running:
            self._running = True
            self.sender.start()
            threading.Thread(target=self._run, name="pdtrace-recorder", daemon=True).start()

    def leave(self, timeout_s: float) -> None:
        """After a recorder has closed: send what waits, for at most about `timeout_s`; with the
        last one everything ends."""
        if all(recorder.closed for recorder in self._recorders):
            self.close(timeout_s)
        else:
            self.sender.drain(timeout_s)

    def close(self, timeout_s: float) -> None:
        """Send what waits, for at most about `timeout_s`, and nothing after that. Idempotent."""
        if self._stop.is_set():
            return
        self._stop.set()
        self.sender.finish(timeout_s)
        if self.exporter is not None:
            self.exporter.shutdown()
        self.report()

    def report(self) -> None:
        """One line about losses and failing hooks; none while there are none."""
        lost, errors = Counter(self.sender.dropped), Counter(self.guard.errors)
        for recorder in self._recorders:
            lost.update(recorder.lost())
            # A copy is one step of the interpreter; engine threads add to the counter meanwhile.
            errors.update(dict(recorder.guard.errors))
        del lost["no_endpoint"]
        parts = [f"{sc.METRIC_EVENTS_DROPPED}: {_listed(lost)}"] if lost else []
        if errors:
            parts.append(f"{sc.METRIC_HOOK_ERRORS}: {_listed(errors)}")
        if parts:
            _log.warning(
                "pdtrace: %s: %d; %d spans exported; %s",
                sc.METRIC_EVENTS_RECORDED,
                sum(recorder.recorded for recorder in self._recorders),
                self.sender.exported,
                "; ".join(parts),
            )

    def _run(self) -> None:
        while not self._stop.wait(self._wait_s):
            rested_s = self._wait_s
            try:
                with self.lock:
                    self._wait_s = self._next_wait_s()
                    self._tick(time.monotonic())
                if rested_s >= self._send_every_s:
                    self.sender.hurry()
            except Exception:
                self.guard.failed("background")

    def _next_wait_s(self) -> float:
        """Until a buffer is filled to `_FILL`, if it fills as fast as during the last wait."""
        fill = max((recorder.fill() for recorder in self._recorders), default=0)
        wait_s = self._wait_s * _FILL / fill if fill else self._longest_wait_s
        return min(max(wait_s, _LEAST_WAIT_S), self._longest_wait_s)

    def _tick(self, now_s: float) -> None:
        sweeping = now_s - self._last_sweep >= self._sweep_s
        if sweeping:
            self._last_sweep = now_s
        for recorder in self._recorders:
            if recorder.closed:
                continue
            try:
                if sweeping:
                    recorder.expire()
                recorder.work()
            except Exception:
                recorder.guard.failed("recorder")
        if now_s - self._last_report >= _REPORT_S:
            self._last_report = now_s
            self.report()


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {number}" for name, number in sorted(counts.items()))
