"""The hot path: one clock read and one append per event, on whatever thread has it.

Everything else happens on two threads of the process (see `background`): one turns events into
spans, one sends spans. The buffer is bounded and the newest event is dropped when it is full,
because the older ones complete requests that are known already; nothing here blocks, and every loss
is counted. An endpoint that does not answer holds up the sender alone.
"""

import atexit
import os
import time
import weakref
from collections import Counter, deque
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from itertools import count
from multiprocessing import util as multiprocessing_util
from typing import Any, Final

from pdtrace.tracing.assembly import Assembler
from pdtrace.tracing.clock import Clock, process_clock
from pdtrace.tracing.encode import give_way
from pdtrace.tracing.events import Event, EventKind
from pdtrace.tracing.guard import Guard
from pdtrace.tracing.provider import Telemetry

_HAND_OVER_SPANS: Final = 512
_REFRESH_S: Final = 1.0
# The thread gives the interpreter away after so many events, so that an engine's thread never
# waits a whole switch interval for it.
_SLICE_EVENTS: Final = 32

Record = Callable[..., None]


def make_record(
    events: "deque[Event]", capacity: int, now: Callable[[], int], dropped: list[int]
) -> Record:
    """`record(kind, request_id, data=None)`, with everything it needs in its closure.

    `len` and `append` of a deque and `next` of a count are single steps of the interpreter, so no
    lock is needed; the buffer may exceed its capacity by as many events as there are threads.
    `dropped[0]` is the number of events that found the buffer full.
    """
    append = events.append
    drops = count(1)

    def record(kind: EventKind, request_id: str, data: Any = None) -> None:
        if len(events) >= capacity:
            dropped[0] = next(drops)
            return
        append((kind, now(), request_id, data))

    return record


class Recorder:
    """Collects events of one engine process and exports their spans.

    `record(kind, request_id, data)` takes the instant now; `record_at(kind, mono_ns, request_id,
    data)` one that was taken before. `data` must not be changed after the call.
    """

    def __init__(
        self,
        telemetry: Telemetry,
        clock: Clock | None = None,
        guard: Guard | None = None,
        start: bool = True,
        absent: frozenset[str] = frozenset(),
    ) -> None:
        """`absent` names spans that this process cannot tell; they are never begun."""
        self.clock = clock or process_clock()
        settings = telemetry.settings
        self.guard = guard or Guard()
        self.now: Callable[[], int] = self.clock.mono_ns
        self.dropped: Counter[str] = Counter()
        self.ignored: Counter[str] = Counter()
        """What is no request of anybody's and was left out on purpose: no loss."""
        self.recorded = 0
        self.closed = False
        self._telemetry = telemetry
        self._capacity = settings.buffer_events
        self._events: deque[Event] = deque()
        self._buffer_full = [0]
        self.record: Record = make_record(self._events, self._capacity, self.now, self._buffer_full)
        self._absent = absent
        self._last_refresh = time.monotonic()
        self._begin(start)
        if start:
            _keep_through_fork_and_exit(self)

    def record_at(self, kind: EventKind, mono_ns: int, request_id: str, data: Any = None) -> None:
        """Record an event whose instant was taken earlier."""
        if len(self._events) >= self._capacity:
            self.record(kind, request_id, data)  # counts the loss
            return
        self._events.append((kind, mono_ns, request_id, data))

    def wall_ns(self, mono_ns: int) -> int:
        """Unix nanoseconds of an instant of this process, to tell another one."""
        return self.clock.anchor().to_wall_ns(mono_ns)

    def mono_ns(self, wall_ns: int) -> int:
        """An instant that another process told, by the monotonic clock of this one."""
        return wall_ns - self.clock.anchor().offset_ns

    @property
    def exported(self) -> int:
        """Spans of this process that the endpoint has taken."""
        return self._sender.exported

    def flush(self) -> None:
        """Turn all events so far into spans and export them, in the caller's thread."""
        with self._background.lock:
            self._drain()
            self._hand_over()
        self._sender.flush()

    def shutdown(self, timeout_s: float = 2.0) -> None:
        """End what is open, send what is buffered, wait at most about `timeout_s`. Idempotent."""
        if self.closed:
            return
        try:
            with self._background.lock:
                self.closed = True
                self._drain()
                self._assembler.close(self.now())
                self._hand_over()
        except Exception:
            self.guard.failed("recorder")
        self._background.leave(timeout_s)

    def fill(self) -> float:
        """How much of the buffer is taken, from 0 to 1 (or a little more, see `make_record`)."""
        return len(self._events) / self._capacity

    def work(self) -> None:
        """Events so far become spans; a clock that is a second old is read again."""
        self._drain()
        if time.monotonic() - self._last_refresh >= _REFRESH_S:
            self._last_refresh = time.monotonic()
            self.clock.refresh()
        self._hand_over()

    def expire(self) -> None:
        """End spans that have been open for too long."""
        self._assembler.expire(self.now())

    def _begin(self, start: bool) -> None:
        """What is open, and the threads behind it: a process has its own."""
        telemetry = self._telemetry
        self._assembler = Assembler(
            telemetry.resource,
            telemetry.ids,
            _version(),
            telemetry.settings,
            telemetry.sampler,
            absent=self._absent,
        )
        self._background = telemetry.background
        self._sender = self._background.sender
        self._background.join(self)
        if start:
            self._background.start()

    def _drain(self) -> None:
        while self._apply_slice():
            give_way()

    def _apply_slice(self) -> bool:
        """A few events become spans; False when there was none."""
        taken = min(len(self._events), _SLICE_EVENTS)
        self._assembler.apply(self._events, taken, self.clock.anchor(), self.guard)
        self.recorded += taken
        if len(self._assembler.finished) >= _HAND_OVER_SPANS:
            self._hand_over()
        return taken > 0

    def _hand_over(self) -> None:
        finished = self._assembler.finished
        if finished:
            self._sender.offer(finished)
            finished.clear()

    def lost(self) -> dict[str, int]:
        """What was lost before it was offered to be sent, by reason: events or spans."""
        lost = {"buffer_full": self._buffer_full[0], **self.dropped, **self._assembler.counts}
        return {reason: number for reason, number in lost.items() if number}

    def losses(self) -> dict[str, int]:
        """Everything that was lost so far, by reason; the sender's is that of the process."""
        return {**self.lost(), **self._sender.dropped}

    def _restart_in_child(self) -> None:
        """After a fork only the forking thread lives on, and the parent keeps what it recorded."""
        self._events.clear()
        self._telemetry = self._telemetry.reopened()
        self._begin(start=True)


def _version() -> str:
    try:
        return version("pdtrace")
    except PackageNotFoundError:
        return ""


def _keep_through_fork_and_exit(recorder: Recorder) -> None:
    """Restart in a forked child; flush at exit.

    A child of multiprocessing leaves without running `atexit`, so its own finalizers are used too.
    """
    reference = weakref.ref(recorder)

    def in_child() -> None:
        alive = reference()
        if alive is not None and not alive.closed:
            alive._restart_in_child()

    def at_exit() -> None:
        alive = reference()
        if alive is not None:
            alive.shutdown()

    os.register_at_fork(after_in_child=in_child)
    atexit.register(at_exit)
    multiprocessing_util.Finalize(recorder, at_exit, exitpriority=10)
