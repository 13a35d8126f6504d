"""For tests of what a recorder's own threads do: something to record, and to wait for them."""

import time
from collections.abc import Callable

from pdtrace.tracing import events as ev
from pdtrace.tracing.recorder import Recorder


def one_request(recorder: Recorder, request_id: str) -> None:
    """A request with one span."""
    recorder.record(ev.OPENED, request_id, ev.RequestContext("", {}))
    recorder.record(ev.PREFILL_ARRIVED, request_id)
    recorder.record(ev.PREFILL_SCHEDULED, request_id)


def eventually(condition: Callable[[], object]) -> None:
    """Wait, bounded, until a condition of another thread holds."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "not within 60 s"
        time.sleep(0.02)
