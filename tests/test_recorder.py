"""The recorder: never blocks, counts every loss, survives fork and a dead endpoint."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from recorder_threads import eventually, one_request

from pdtrace.tracing import events as ev
from pdtrace.tracing import semconv as sc
from pdtrace.tracing.provider import Telemetry
from pdtrace.tracing.recorder import Recorder
from pdtrace.tracing.settings import Settings
from pdtrace.tracing.testing import CapturingExporter, CountedIds, make_recorder

SOON = Settings(send_every_s=0.1)
"""So that nobody waits for the threads."""


def test_a_full_buffer_drops_the_newest_and_counts() -> None:
    """Capacity 5, ten events: five are lost and counted, and the rest become spans."""
    recorder, exporter = make_recorder(settings=Settings(buffer_events=5))
    one_request(recorder, "a")
    for _ in range(7):
        recorder.record_at(ev.LEASE_BEGUN, 1, "a")
    recorder.flush()
    assert [span.name for span in exporter.spans] == ["pd.prefill_queue"]
    assert recorder.losses() == {"buffer_full": 5}
    assert recorder.recorded == 5


def test_threads_lose_nothing_below_capacity() -> None:
    """Four threads record at once; every span arrives."""
    recorder, exporter = make_recorder(settings=Settings(buffer_events=100_000))

    def many(name: int) -> None:
        for i in range(500):
            one_request(recorder, f"{name}-{i}")

    threads = [threading.Thread(target=many, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    recorder.flush()
    found = {span.attributes[sc.REQUEST_ID] for span in exporter.spans if span.attributes}
    assert found == {f"{n}-{i}" for n in range(4) for i in range(500)}
    assert recorder.losses() == {}


def test_a_refusing_exporter_costs_spans_not_memory() -> None:
    """What it does not take is dropped and counted."""
    recorder, exporter = make_recorder()
    exporter.result = SpanExportResult.FAILURE
    one_request(recorder, "a")
    recorder.flush()
    one_request(recorder, "b")
    recorder.flush()
    assert recorder.losses() == {"export_failed": 2}
    assert recorder._assembler.finished == []


class FakeHangingExporter(CapturingExporter):
    """Injects a failure: every export hangs until `release` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.release = threading.Event()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Hang."""
        self.release.wait(60)
        return super().export(spans)


def test_a_hanging_exporter_neither_blocks_events_nor_shutdown() -> None:
    """Events go on becoming spans; shutdown gives up after its time and counts what is left."""
    exporter = FakeHangingExporter()
    recorder = Recorder(Telemetry(Resource({}), exporter, CountedIds(), SOON))
    one_request(recorder, "first")
    eventually(lambda: recorder._sender._of_exporter.locked())
    for i in range(200):
        one_request(recorder, f"later-{i}")
    eventually(lambda: len(recorder._sender._queue) == 200)
    stopper = threading.Thread(target=recorder.shutdown, kwargs={"timeout_s": 0.2})
    stopper.start()
    stopper.join(20)
    assert not stopper.is_alive()
    # Each request has a second span that was open.
    assert recorder.losses() == {"abandoned": 201, "not_sent": 401}
    exporter.release.set()


def test_the_background_thread_exports_by_itself() -> None:
    """Nobody calls flush in an engine."""
    exporter = CapturingExporter()
    recorder = Recorder(Telemetry(Resource({}), exporter, CountedIds(), SOON))
    one_request(recorder, "a")
    eventually(lambda: exporter.spans)
    assert exporter.spans[0].name == "pd.prefill_queue"
    recorder.shutdown()


def test_shutdown_ends_what_is_open_and_can_be_called_twice() -> None:
    """An engine that is stopped in the middle of a request leaves ended spans."""
    exporter = CapturingExporter()
    recorder = Recorder(Telemetry(Resource({}), exporter, CountedIds()))
    recorder.record(ev.OPENED, "a", ev.RequestContext("", {}))
    recorder.record(ev.DECODE_ARRIVED, "a")
    recorder.shutdown()
    recorder.shutdown()
    (span,) = exporter.spans
    assert span.attributes is not None
    assert span.attributes[sc.ERROR_TYPE] == sc.ERROR_ABANDONED


def test_a_broken_event_is_isolated_and_counted() -> None:
    """The next event is taken as if nothing had been."""
    exporter = CapturingExporter()
    recorder = Recorder(Telemetry(Resource({}), exporter, CountedIds()), start=False)
    recorder.record(ev.OPENED, "a", "no context")
    one_request(recorder, "b")
    recorder.flush()
    assert recorder.guard.errors == {"assembly": 1}
    assert len(exporter.spans) == 1


def test_losses_and_hook_errors_are_reported_in_one_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """At the end, and once a minute before it; a recorder without any says nothing."""
    quiet = Recorder(Telemetry(Resource({}), CapturingExporter(), CountedIds()), start=False)
    one_request(quiet, "a")
    quiet.flush()
    quiet._background.report()
    assert caplog.messages == []

    settings = Settings(buffer_events=3)
    recorder = Recorder(
        Telemetry(Resource({}), CapturingExporter(), CountedIds(), settings), start=False
    )
    one_request(recorder, "a")
    one_request(recorder, "b")
    recorder.guard.errors.update({"on_new_request": 2})
    recorder.flush()
    recorder._background.report()
    assert caplog.messages == [
        "pdtrace: pd_events_recorded_total: 3; 1 spans exported; "
        "pd_events_dropped_total: buffer_full 3; pd_hook_errors_total: on_new_request 2"
    ]


FORKING = r"""
import json, os
from pdtrace.tracing import events as ev
from pdtrace.tracing.provider import open_provider
from pdtrace.tracing.recorder import Recorder

recorder = Recorder(open_provider("prefill", shared=True))
idle = Recorder(open_provider("prefill", shared=True))

def request(name):
    recorder.record(ev.OPENED, name, ev.RequestContext("", {}))
    recorder.record(ev.PREFILL_ARRIVED, name)
    recorder.record(ev.PREFILL_SCHEDULED, name)
    recorder.record(ev.CLOSED, name)

recorder.flush()
child = os.fork()
request("child" if child == 0 else "parent")
assert recorder._background is idle._background and not recorder._background.closed
idle.shutdown(10)
recorder.shutdown(10)
told = json.dumps(["child" if child == 0 else "parent", os.getpid(), recorder.guard.errors])
os.write(1, told.encode() + b"\n")  # one write: both processes have this output
if child == 0:
    os._exit(0)
os.waitpid(child, 0)
"""


SPAWNING = r"""
import multiprocessing, os
from pdtrace.tracing import events as ev
from pdtrace.tracing.provider import open_provider
from pdtrace.tracing.recorder import Recorder

def request(name):
    recorder = Recorder(open_provider("prefill"))
    recorder.record(ev.OPENED, name, ev.RequestContext("", {}))
    recorder.record(ev.PREFILL_ARRIVED, name)
    recorder.record(ev.PREFILL_SCHEDULED, name)
    recorder.record(ev.CLOSED, name)
    os.write(1, f'["{name}", {os.getpid()}, {{}}]\n'.encode())

if __name__ == "__main__":
    request("parent")
    child = multiprocessing.get_context("spawn").Process(target=request, args=("child",))
    child.start()
    child.join()
"""


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
@pytest.mark.parametrize("program", [FORKING, SPAWNING], ids=["fork", "spawn"])
def test_a_child_process_exports_its_own(tmp_path: Path, program: str, protocol: str) -> None:
    """Parent and child each send their own request once, with their own process id.

    Forked while the recorder's threads run; spawned, and left without calling anything at the end.
    """
    from pdtrace.analysis.collect import Collector
    from pdtrace.analysis.store import read_spans

    script = tmp_path / "program.py"
    script.write_text(program)
    store = tmp_path / "store"
    with Collector(store, grpc_port=0, http_port=0) as collector:
        grpc, http = f"http://{collector.grpc_address}", collector.http_address
        environment = {
            **os.environ,
            "OTEL_EXPORTER_OTLP_ENDPOINT": grpc if protocol == "grpc" else http,
            "OTEL_EXPORTER_OTLP_PROTOCOL": protocol,
            "GRPC_ENABLE_FORK_SUPPORT": "1",
        }
        done = subprocess.run(
            [sys.executable, str(script)],
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert done.returncode == 0, done.stderr
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert [errors for _, _, errors in told] == [{}, {}]
    records = read_spans([store]).records
    found = sorted((r.attributes[sc.REQUEST_ID], r.resource[sc.PROCESS_PID]) for r in records)
    assert found == sorted((name, pid) for name, pid, _ in told for _ in ("queue", "prefill"))
