"""The collector over real sockets, with the exporters of the real SDK."""

import errno
import gzip
import io
import json
import os
import socket
import urllib.error
import urllib.request
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter

from pdtrace.analysis.collect import Collector, ListenError
from pdtrace.analysis.framing import framed
from pdtrace.analysis.otlp import json_to_protobuf
from pdtrace.analysis.receive import (
    MAX_MESSAGE_BYTES,
    MAX_UNDER_WAY_BYTES,
    Counts,
    Invalid,
    Room,
    TooLarge,
    decompressed,
)
from pdtrace.analysis.segments import segment_paths
from pdtrace.analysis.store import StoreError, StoreWriter, read_spans

SERVICE = "/opentelemetry.proto.collector.{}Service/Export"
TRACES = SERVICE.format("trace.v1.Trace")
PROTOBUF = {"Content-Type": "application/x-protobuf"}
GZIPPED = PROTOBUF | {"Content-Encoding": "gzip"}
JSON = {"Content-Type": "application/json; charset=utf-8"}


def document(number: int) -> dict[str, Any]:
    span = {
        "traceId": f"{number:032x}",
        "spanId": f"{number:016x}",
        "name": "pd.match",
        "startTimeUnixNano": "1795946400000000000",
        "endTimeUnixNano": "1795946400000000001",
    }
    return {"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]}


def message(number: int = 1) -> bytes:
    return json_to_protobuf(document(number))


class FullDisk(io.FileIO):
    """A fake that injects a failure: nothing can be written while `full`."""

    full = False

    def write(self, data: Any, /) -> int:
        if FullDisk.full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().write(data)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def collector(store: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    monkeypatch.setattr(FullDisk, "full", False)
    writer = StoreWriter(store, open_segment=lambda path: FullDisk(path, "xb"))
    with Collector(writer, grpc_port=0, http_port=0) as collector:
        yield collector


def post(
    collector: Collector, body: bytes, headers: dict[str, str], path: str = "/v1/traces"
) -> tuple[int, str, bytes]:
    """Status, content type and body of the answer to one POST."""
    request = urllib.request.Request(collector.http_address + path, body, headers)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, answer.headers["content-type"], answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers["content-type"], error.read()


def call(
    collector: Collector,
    body: bytes,
    method: str = TRACES,
    compression: grpc.Compression = grpc.Compression.NoCompression,
) -> bytes:
    options = (("grpc.max_send_message_length", -1),)
    with grpc.insecure_channel(collector.grpc_address, options) as channel:
        answer: bytes = channel.unary_unary(method, None, None)(
            body, timeout=30, compression=compression
        )
        return answer


def refused(collector: Collector, body: bytes, method: str = TRACES, **how: Any) -> grpc.RpcError:
    with pytest.raises(grpc.RpcError) as caught:
        call(collector, body, method, **how)
    return caught.value


def export(exporter: SpanExporter, name: str) -> None:
    """Send one span with the SDK."""
    provider = TracerProvider(resource=Resource.create({"pd.role": "decode"}))
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    with provider.get_tracer("pdtrace").start_as_current_span(name) as span:
        span.set_attribute("pd.block_count", 12)
        span.add_event("pd.refused")
    provider.shutdown()


def stored(store: Path) -> bytes:
    return b"".join(path.read_bytes() for path in segment_paths(store))


def test_sdk_exporters_reach_the_store(collector: Collector, store: Path) -> None:
    """gRPC and HTTP, plain and compressed: every span of the real SDK is in the store."""
    traces = f"{collector.http_address}/v1/traces"
    address = collector.grpc_address
    exporters: dict[str, SpanExporter] = {
        "grpc": GrpcExporter(address, insecure=True),
        "grpc-gzip": GrpcExporter(address, insecure=True, compression=grpc.Compression.Gzip),
        "http": HttpExporter(traces),
        "http-gzip": HttpExporter(traces, compression=Compression.Gzip),
        "http-deflate": HttpExporter(traces, compression=Compression.Deflate),
    }
    for name, exporter in exporters.items():
        export(exporter, name)
    records = read_spans([store]).records
    assert [record.name for record in records] == list(exporters)
    for record in records:
        assert record.attributes == {"pd.block_count": 12}
        assert record.resource["pd.role"] == "decode"
        assert [event.name for event in record.events] == ["pd.refused"]
    assert collector.counts == Counts(messages=5, spans=5)


def test_protobuf_is_stored_untouched(collector: Collector, store: Path) -> None:
    """Bytes stay as sent, also fields that this version of OTLP does not know."""
    unknown = message() + b"\xfa\x3e\x03new"  # field 1007
    assert call(collector, unknown) == b""
    assert post(collector, unknown, PROTOBUF) == (200, "application/x-protobuf", b"")
    assert stored(store) == framed(unknown) * 2


def test_acknowledged_means_in_the_file(collector: Collector, store: Path) -> None:
    """Right after each answer, before any stop, the message can be read from the file."""
    for number in range(1, 4):
        ExportTraceServiceResponse.FromString(call(collector, message(number)))
        assert len(read_spans([store]).records) == number


def test_json_is_converted(collector: Collector, store: Path) -> None:
    """OTLP JSON is stored as protobuf and answered in JSON, also compressed."""
    body = json.dumps(document(1)).encode()
    assert post(collector, body, JSON) == (200, "application/json", b"{}")
    zipped = gzip.compress(json.dumps(document(2)).encode())
    assert post(collector, zipped, JSON | {"Content-Encoding": "gzip"})[0] == 200
    assert stored(store) == framed(message(1)) + framed(message(2))


def test_empty_request_is_accepted(collector: Collector, store: Path) -> None:
    """An exporter's empty probe is a success; there is nothing to keep."""
    assert call(collector, b"") == b""
    assert post(collector, b"{}", JSON)[0] == 200
    assert (stored(store), collector.counts.messages) == (b"", 2)


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        pytest.param(b"\xff\xff", PROTOBUF, 400, id="no protobuf"),
        pytest.param(b"{", JSON, 400, id="no JSON"),
        pytest.param(b'{"resourceLogs": []}', JSON, 400, id="logs"),
        pytest.param(b"not gzip", GZIPPED, 400, id="no gzip"),
        pytest.param(gzip.compress(message())[:-9], GZIPPED, 400, id="cut gzip"),
        pytest.param(
            message(), PROTOBUF | {"Content-Encoding": "zstd"}, 400, id="other compression"
        ),
        pytest.param(message(), {"Content-Type": "text/plain"}, 415, id="other type"),
    ],
)
def test_invalid_http_message(
    collector: Collector, store: Path, body: bytes, headers: dict[str, str], status: int
) -> None:
    """A message that no retry will mend is refused, counted, and not stored."""
    assert post(collector, body, headers)[0] == status
    assert (stored(store), collector.counts) == (b"", Counts(rejected=1))


def test_errors_are_a_status_in_the_senders_encoding(collector: Collector) -> None:
    """Protobuf in, google.rpc.Status out; JSON in, the same as JSON."""
    from google.rpc import status_pb2

    code, kind, body = post(collector, b"\xff\xff", PROTOBUF)
    assert (code, kind) == (400, "application/x-protobuf")
    status = status_pb2.Status.FromString(body)
    assert (status.code, "ExportTraceServiceRequest" in status.message) == (3, True)
    code, kind, body = post(collector, b"{", JSON)
    assert (code, kind, json.loads(body)["code"]) == (400, "application/json", 3)


def test_invalid_grpc_message(collector: Collector, store: Path) -> None:
    """Undecodable bytes are INVALID_ARGUMENT."""
    assert refused(collector, b"\xff\xff").code() is grpc.StatusCode.INVALID_ARGUMENT
    assert (stored(store), collector.counts) == (b"", Counts(rejected=1))


def test_full_disk_asks_the_sender_to_retry(collector: Collector, store: Path) -> None:
    """While the disk is full: 503 and UNAVAILABLE, nothing half-written; then all is well."""
    call(collector, message(1))
    FullDisk.full = True
    assert post(collector, message(2), PROTOBUF)[0] == 503
    error = refused(collector, message(2))
    assert error.code() is grpc.StatusCode.UNAVAILABLE
    assert "No space left" in str(error.details())
    FullDisk.full = False
    call(collector, message(2))
    assert stored(store) == framed(message(1)) + framed(message(2))
    assert collector.counts == Counts(messages=2, spans=2, unavailable=2)


def test_oversize_is_refused(collector: Collector, store: Path) -> None:
    """Bodies and decompressed bodies above the limit: 413 and RESOURCE_EXHAUSTED."""
    huge = bytes(MAX_MESSAGE_BYTES + 1)
    bomb = gzip.compress(huge)
    assert post(collector, huge, PROTOBUF)[0] == 413
    assert post(collector, bomb, PROTOBUF | {"Content-Encoding": "gzip"})[0] == 413
    for compression in (grpc.Compression.NoCompression, grpc.Compression.Gzip):
        error = refused(collector, huge, compression=compression)
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert stored(store) == b""


def test_what_comes_beyond_the_room_is_refused_for_now(collector: Collector, store: Path) -> None:
    """While much is under way: 503 with Retry-After and RESOURCE_EXHAUSTED; then all is well."""
    receiver = collector._receiver
    assert receiver is not None
    small, large = message(1), message(1) * 5
    with Room(receiver) as room:
        room.take(MAX_UNDER_WAY_BYTES - len(small))
        call(collector, small)
        assert refused(collector, large).code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        request = urllib.request.Request(collector.http_address + "/v1/traces", large, PROTOBUF)
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(request, timeout=30)
        with caught.value as answer:
            assert (answer.code, answer.headers["retry-after"]) == (503, "1")
        packed = gzip.compress(large)
        assert len(packed) <= len(small) + 60
        assert post(collector, packed, PROTOBUF | {"Content-Encoding": "gzip"})[0] == 503
    call(collector, large)
    assert stored(store) == framed(small) + framed(large)
    assert collector.counts == Counts(messages=2, spans=6, busy=3)


def test_decompression_stops_at_the_limit() -> None:
    """However much a body would become, no more than the limit is made of it."""
    assert decompressed(gzip.compress(b"x" * 9), "gzip", limit=9) == b"x" * 9
    assert decompressed(zlib.compress(b"x"), "deflate") == b"x"
    assert decompressed(gzip.compress(b"x") + gzip.compress(b"y"), "gzip") == b"xy"
    for bomb in (gzip.compress(b"x" * 10), gzip.compress(b"x" * 5) * 2):
        with pytest.raises(TooLarge):
            decompressed(bomb, "gzip", limit=9)
    with pytest.raises(Invalid):
        decompressed(gzip.compress(b"x") + b"tail", "gzip")


@pytest.mark.parametrize("signal", ["metrics", "logs"])
def test_other_signals_are_declined_in_words(collector: Collector, signal: str) -> None:
    """Metrics and logs: 404 and UNIMPLEMENTED, and why."""
    code, _, body = post(collector, b"{}", JSON, f"/v1/{signal}")
    assert (code, json.loads(body)["message"]) == (404, "this collector keeps traces only")
    error = refused(collector, b"", SERVICE.format(f"{signal}.v1.{signal.title()}"))
    assert error.code() is grpc.StatusCode.UNIMPLEMENTED
    assert error.details() == "this collector keeps traces only"


def test_unknown_paths_and_methods(collector: Collector) -> None:
    """Anything else is not found, or not allowed."""
    assert post(collector, b"", {}, "/elsewhere")[0] == 404
    assert refused(collector, b"", "/a.B/C").code() is grpc.StatusCode.UNIMPLEMENTED
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(f"{collector.http_address}/v1/traces", timeout=30)
    with caught.value as error:
        assert error.code == 405


def test_healthz_tells_the_counts(collector: Collector) -> None:
    """A probe sees that the collector lives and what it has received."""
    call(collector, message())
    with urllib.request.urlopen(f"{collector.http_address}/healthz", timeout=30) as answer:
        health = json.load(answer)
    assert health == {
        "status": "ok",
        "messages": 1,
        "spans": 1,
        "rejected": 0,
        "unavailable": 0,
        "busy": 0,
    }


def test_sender_that_hangs_up(collector: Collector, store: Path) -> None:
    """A body that never comes whole is not stored, and the collector goes on."""
    port = int(collector.http_address.rpartition(":")[2])
    head = b"POST /v1/traces HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-protobuf\r\n"
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(head + b"Content-Length: 100\r\n\r\nhalf")
    call(collector, message())
    assert stored(store) == framed(message())


def test_used_port_is_named(collector: Collector, tmp_path: Path) -> None:
    """A port in use is one clear error, and leaves neither lock nor listener behind."""
    grpc_port, http_port = (
        int(address.rpartition(":")[2])
        for address in (collector.grpc_address, collector.http_address)
    )
    for ports in ((grpc_port, 0), (0, http_port)):
        with pytest.raises(ListenError, match=f"127.0.0.1:{max(ports)}: Address already in use"):
            Collector(tmp_path / "other", "127.0.0.1", *ports).start()
    StoreWriter(tmp_path / "other").close()


def test_store_with_a_writer_is_refused(collector: Collector, store: Path) -> None:
    """Two collectors cannot share a store."""
    with pytest.raises(StoreError, match="already has a writer"):
        Collector(store, grpc_port=0, http_port=0).start()


def test_stop_frees_everything_and_may_be_repeated(store: Path) -> None:
    """After `stop` the same ports and the same store can be used at once."""
    first = Collector(store, grpc_port=0, http_port=0).start()
    call(first, message(1))
    grpc_port, http_port = (
        int(a.rpartition(":")[2]) for a in (first.grpc_address, first.http_address)
    )
    first.stop()
    first.stop()
    with Collector(store, "127.0.0.1", grpc_port, http_port) as second:
        call(second, message(2))
    assert len(read_spans([store]).records) == 2
    assert first.counts == Counts(messages=1, spans=1)
