"""Several recorders in one process: one thread that makes spans, one connection that sends them."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from opentelemetry.sdk.resources import Resource
from recorder_threads import eventually, one_request

from pdtrace.analysis.collect import Collector
from pdtrace.analysis.store import read_spans
from pdtrace.tracing import semconv as sc
from pdtrace.tracing.background import Background
from pdtrace.tracing.clock import Clock
from pdtrace.tracing.provider import Telemetry, open_provider
from pdtrace.tracing.recorder import Recorder
from pdtrace.tracing.settings import Settings
from pdtrace.tracing.testing import CapturingExporter, CountedIds


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Collector]:
    """Where the environment sends spans to."""
    with Collector(tmp_path, grpc_port=0, http_port=0) as running:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://{running.grpc_address}")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
        yield running


def ours() -> list[str]:
    """Names of our threads that run, without those of a flush."""
    names = [thread.name for thread in threading.enumerate()]
    return sorted(name for name in names if name in ("pdtrace-recorder", "pdtrace-sender"))


def test_recorders_of_one_process_share_threads_and_connection(
    collector: Collector, tmp_path: Path
) -> None:
    """Each has its own resource, buffer and open requests; what one leaves behind goes on."""
    settings = Settings(send_every_s=3600)
    before = ours()
    scheduler = Recorder(open_provider("decode", settings=settings, shared=True))
    worker = Recorder(open_provider("decode", {sc.TP_RANK: 1}, settings=settings, shared=True))
    assert worker._background is scheduler._background
    assert ours() == sorted([*before, "pdtrace-recorder", "pdtrace-sender"])

    one_request(scheduler, "a")
    one_request(worker, "a")
    worker.shutdown()
    assert not scheduler._background.closed
    one_request(scheduler, "b")
    scheduler.shutdown()
    assert scheduler._background.closed
    records = read_spans([tmp_path]).records
    found = [(r.attributes[sc.REQUEST_ID], r.name, sc.TP_RANK in r.resource) for r in records]
    names = (sc.SPAN_PREFILL, sc.SPAN_PREFILL_QUEUE)
    sides = (("a", False), ("a", True), ("b", False))
    expected = [(request_id, name, ranked) for request_id, ranked in sides for name in names]
    assert sorted(found, key=str) == sorted(expected, key=str)

    again = open_provider("decode", settings=settings, shared=True)
    assert again.background is not scheduler._background
    again.shutdown()


@pytest.mark.usefixtures("collector")
def test_nothing_is_shared_with_other_settings_or_unasked() -> None:
    """A program of its own may close its exporter when it likes."""
    one, other = Settings(queue_spans=1000), Settings(queue_spans=2000)
    made = [
        open_provider("decode", settings=one, shared=True),
        open_provider("decode", settings=other, shared=True),
        open_provider("decode", settings=one),
        open_provider("decode", settings=one),
    ]
    assert len({id(telemetry.background) for telemetry in made}) == 4
    for telemetry in made:
        telemetry.shutdown()


def test_a_recorder_that_fails_does_not_keep_the_others_from_working() -> None:
    """The thread goes on; the error is counted where it happened."""
    exporter = CapturingExporter()
    background = Background(exporter, Settings(send_every_s=0.1))
    broken, sound = (
        Recorder(
            Telemetry(Resource({}), None, CountedIds(), background=background), Clock(), start=False
        )
        for _ in range(2)
    )
    broken.clock.refresh = broken.clock.mono_ns = None  # type: ignore[method-assign, assignment]
    broken._last_refresh = 0
    one_request(sound, "a")
    background._tick(0)
    background.sender.flush()
    assert [span.name for span in exporter.spans] == [sc.SPAN_PREFILL_QUEUE]
    assert (broken.guard.errors, sound.guard.errors) == ({"recorder": 1}, {})


def test_a_report_that_fails_does_not_end_the_thread() -> None:
    """Spans go on being made; the error is counted."""

    class FakeForgetfulRecorder(Recorder):
        """Injects a failure: cannot say what it lost."""

        def lost(self) -> dict[str, int]:
            """Raise."""
            raise RuntimeError("injected")

    exporter = CapturingExporter()
    telemetry = Telemetry(Resource({}), exporter, CountedIds(), Settings(send_every_s=0.1))
    background = telemetry.background
    background._last_report = float("-inf")
    recorder = FakeForgetfulRecorder(telemetry, start=False)
    background.start()
    eventually(lambda: background.guard.errors["background"] > 0)
    one_request(recorder, "a")
    eventually(lambda: exporter.spans)
    background._stop.set()
    background.sender.finish(1)


def test_events_rest_as_long_as_the_buffer_allows() -> None:
    """They are fetched when it is time to send, and sooner from a buffer that fills faster."""
    telemetry = Telemetry(Resource({}), None, CountedIds(), Settings(buffer_events=96))
    background, recorder = telemetry.background, Recorder(telemetry, start=False)
    assert background._next_wait_s() == 5.0
    for number in range(16):
        one_request(recorder, f"{number}")
    assert recorder.fill() == 0.5
    assert background._next_wait_s() == 5.0 / 4
    background._wait_s = 0.02
    assert background._next_wait_s() == 0.01
    recorder.flush()
    assert background._next_wait_s() == 5.0
