"""The sender and endpoints that are down, hang, are slow or refuse: real sockets, both protocols.

Whatever the endpoint does, events are recorded, memory is bounded, what is lost is counted by
reason, and an endpoint that comes back gets spans again by itself.
"""

import http.server
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
from opentelemetry.sdk.trace.export import SpanExportResult
from recorder_threads import eventually, one_request

from pdtrace.analysis.collect import Collector
from pdtrace.analysis.store import read_spans
from pdtrace.tracing import events as ev
from pdtrace.tracing import semconv as sc
from pdtrace.tracing.guard import Guard
from pdtrace.tracing.provider import open_provider
from pdtrace.tracing.recorder import Recorder
from pdtrace.tracing.sender import Sender
from pdtrace.tracing.settings import Settings
from pdtrace.tracing.testing import CapturingExporter, make_recorder

PROTOCOLS = ("grpc", "http/protobuf")
Made = Callable[..., Recorder]


def request(recorder: Recorder, name: str) -> None:
    """Four events, two spans."""
    one_request(recorder, name)
    recorder.record(ev.PREFILL_FINISHED, name)


def free_port() -> int:
    """A port on which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def recorder_to(monkeypatch: pytest.MonkeyPatch) -> Iterator[Made]:
    """Make recorders with their threads that export to a port; each attempt has a second."""
    for name in list(os.environ):
        if name.startswith("OTEL_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    made: list[Recorder] = []

    def make(protocol: str, port: int, queue_spans: int = 16_384) -> Recorder:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{port}")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", protocol)
        given = Settings(send_every_s=0.1, queue_spans=queue_spans)
        made.append(Recorder(open_provider("decode", settings=given)))
        return made[-1]

    yield make
    for recorder in made:
        recorder.shutdown(0.2)


@contextmanager
def collecting(store: Path, protocol: str, port: int) -> Iterator[None]:
    """Our collector on a given port, for one protocol."""
    grpc_port, http_port = (port, 0) if protocol == "grpc" else (0, port)
    with Collector(store, grpc_port=grpc_port, http_port=http_port):
        yield


def stored(store: Path) -> set[object]:
    """Ids of the requests in a store."""
    return {record.attributes[sc.REQUEST_ID] for record in read_spans([store]).records}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_an_endpoint_that_is_restarted_is_found_again(
    recorder_to: Made, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, protocol: str
) -> None:
    """On the same port, after spans were lost; nobody tells the recorder."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "4")  # time for one retry
    port = free_port()
    recorder = recorder_to(protocol, port)
    with collecting(tmp_path, protocol, port):
        request(recorder, "before")
        eventually(lambda: recorder.exported == 2)
    request(recorder, "meanwhile")
    eventually(lambda: recorder.losses().get("export_failed") == 2)
    with collecting(tmp_path, protocol, port):
        request(recorder, "after")
        eventually(lambda: recorder.exported == 4)
    assert stored(tmp_path) == {"before", "after"}
    assert recorder.losses() == {"export_failed": 2}
    assert recorder.guard.errors == {}


@contextmanager
def hanging_socket() -> Iterator[int]:
    """Accepts connections by its backlog and never reads or answers."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_hanging_endpoint_holds_up_neither_events_nor_spans_nor_the_end(
    recorder_to: Made, protocol: str
) -> None:
    """The queue keeps the newest spans and counts the oldest; no event is lost."""
    with hanging_socket() as port:
        recorder = recorder_to(protocol, port, queue_spans=512)
        request(recorder, "first")
        eventually(lambda: recorder._sender._of_exporter.locked())
        for number in range(1000):
            request(recorder, str(number))
        eventually(lambda: recorder.recorded == 4004)
        eventually(lambda: recorder.losses().get("queue_full", 0) > 0)
        assert len(recorder._sender._queue) <= 512
        assert "buffer_full" not in recorder.losses()
        began = time.monotonic()
        recorder.shutdown(0.5)
        assert time.monotonic() - began < 20
        eventually(lambda: sum(recorder.losses().values()) == 2002)
    assert recorder.exported == 0
    assert set(recorder.losses()) <= {"queue_full", "export_failed", "not_sent"}


@contextmanager
def grpc_answering(code: grpc.StatusCode, wait: threading.Event | None = None) -> Iterator[int]:
    """A gRPC server that answers every call with this code, after `wait` if there is one."""

    def answer(_: bytes, context: Any) -> bytes:
        if wait is not None:
            wait.wait(60)
        if code is not grpc.StatusCode.OK:
            context.abort(code, "planted")
        return b""

    class Everything(grpc.GenericRpcHandler):  # type: ignore[type-arg]
        """Any method of any service."""

        def service(self, _: Any) -> Any:
            """Bytes in, bytes out."""
            return grpc.unary_unary_rpc_method_handler(answer)

    with futures.ThreadPoolExecutor(2) as pool:
        server = grpc.server(pool, [Everything()])
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            yield port
        finally:
            server.stop(None).wait()


@contextmanager
def http_answering(status: int, wait: threading.Event | None = None) -> Iterator[int]:
    """An HTTP server that answers every POST with this status, after `wait` if there is one."""

    class Handler(http.server.BaseHTTPRequestHandler):
        """One planted answer."""

        def do_POST(self) -> None:
            """Read and answer."""
            self.rfile.read(int(self.headers["Content-Length"]))
            if wait is not None:
                wait.wait(60)
            self.send_response(status)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Quiet."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def failed(recorder: Recorder, spans: int) -> bool:
    """Whether so many spans were refused, and nothing else was lost."""
    return recorder.losses() == {"export_failed": spans}


REFUSALS = [
    pytest.param("grpc", lambda: grpc_answering(grpc.StatusCode.UNAVAILABLE), id="UNAVAILABLE"),
    pytest.param("grpc", lambda: grpc_answering(grpc.StatusCode.UNIMPLEMENTED), id="UNIMPLEMENTED"),
    pytest.param("http/protobuf", lambda: http_answering(503), id="503"),
    pytest.param("http/protobuf", lambda: http_answering(400), id="400"),
]


@pytest.mark.parametrize(("protocol", "server"), REFUSALS)
def test_an_endpoint_that_answers_with_errors_costs_its_spans(
    recorder_to: Made, protocol: str, server: Any
) -> None:
    """They are counted, batch after batch; nothing piles up, and no hook is blamed."""
    with server() as port:
        recorder = recorder_to(protocol, port)
        for lost in (2, 4):
            request(recorder, str(lost))
            eventually(partial(failed, recorder, lost))
    assert len(recorder._sender._queue) == 0
    assert recorder.guard.errors == {}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_slow_endpoint_loses_nothing_that_the_queue_can_hold(
    recorder_to: Made, monkeypatch: pytest.MonkeyPatch, protocol: str
) -> None:
    """Spans wait while an export takes its time, and go with the next ones."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "60")
    released = threading.Event()
    with ExitStack() as stack:
        if protocol == "grpc":
            port = stack.enter_context(grpc_answering(grpc.StatusCode.OK, released))
        else:
            port = stack.enter_context(http_answering(200, released))
        recorder = recorder_to(protocol, port)
        request(recorder, "first")
        eventually(lambda: recorder._sender._of_exporter.locked())
        for number in range(300):
            request(recorder, str(number))
        eventually(lambda: recorder.recorded == 1204)
        assert recorder.exported == 0
        released.set()
        eventually(lambda: recorder.exported == 602)
    assert recorder.losses() == {}


def test_recording_never_touches_the_endpoint() -> None:
    """By construction: what runs on an engine's thread knows the buffer and the clock alone."""
    recorder, _ = make_recorder()
    cells = [cell.cell_contents for cell in recorder.record.__closure__ or ()]
    assert recorder._events.append in cells and recorder.now in cells
    assert {type(cell).__name__ for cell in cells} == {
        "builtin_function_or_method", "int", "deque", "list", "count",
    }  # fmt: skip
    assert not any(cell in (recorder._sender, recorder._telemetry.exporter) for cell in cells)


class CountingExporter(CapturingExporter):
    """Also keeps the size of each export."""

    def __init__(self) -> None:
        super().__init__()
        self.exports: list[int] = []

    def export(self, spans: Any) -> SpanExportResult:
        """Keep and answer."""
        self.exports.append(len(spans))
        return super().export(spans)


def test_the_oldest_are_dropped_when_the_queue_is_full() -> None:
    """Newest kept, in order."""
    exporter = CapturingExporter()
    sender = Sender(exporter, 3, Guard())
    spans: list[Any] = ["a", "b", "c", "d", "e"]
    sender.offer(spans[:2])
    sender.offer(spans[2:])
    sender.flush()
    assert exporter.spans == spans[2:]
    assert (sender.exported, sender.dropped) == (3, {"queue_full": 2})


def test_what_is_not_sent_in_time_is_counted_at_the_end() -> None:
    """An exporter that never answers, and a second batch behind the first."""

    class FakeStuckExporter(CapturingExporter):
        """Injects a failure: never answers."""

        def export(self, spans: Any) -> SpanExportResult:
            """Wait."""
            released.wait(60)
            return SpanExportResult.FAILURE

    released = threading.Event()
    sender = Sender(FakeStuckExporter(), 10_000, Guard())
    many: list[Any] = ["x"] * 600
    sender.offer(many)
    sender.finish(0.1)
    assert sender.dropped == {"not_sent": 88}
    sender.offer(many[:5])
    sender.finish(0.1)
    assert sender.dropped == {"not_sent": 93}
    released.set()


def test_spans_that_end_together_leave_together() -> None:
    """The first waits for the others; a whole batch waits for nobody."""
    exporter = CountingExporter()
    sender = Sender(exporter, 10_000, Guard(), interval_s=0.5)
    sender.start()
    one: list[Any] = ["x"]
    for _ in range(3):
        sender.offer(one)
    eventually(lambda: sender.exported)
    assert exporter.exports == [3]

    patient = Sender(exporter, 10_000, Guard(), interval_s=3600)
    patient.start()
    patient.offer(one * 511)
    patient.offer(one)
    eventually(lambda: patient.exported)
    assert exporter.exports == [3, 512]
    sender.finish(1)
    patient.finish(1)


def test_what_was_gathered_elsewhere_is_sent_at_once() -> None:
    """Whoever offered it need not wait for others; with nothing to send nothing is hurried."""
    recorder, exporter = make_recorder(settings=Settings(send_every_s=3600))
    sender = recorder._sender
    sender.start()
    sender.hurry()
    assert not sender._due.is_set()
    one_request(recorder, "a")
    recorder.work()
    sender.hurry()
    eventually(lambda: sender.exported)
    sender.finish(1)
    assert [span.name for span in exporter.spans] == [sc.SPAN_PREFILL_QUEUE]
