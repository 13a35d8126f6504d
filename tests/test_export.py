"""From settings to bytes on a socket: exporters, provider and what a dead endpoint costs."""

import os
import random
import socket
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

import pdtrace.tracing.export as export_module
from pdtrace.analysis.collect import Collector
from pdtrace.analysis.records import SpanRecord
from pdtrace.analysis.store import read_spans
from pdtrace.tracing import events as ev
from pdtrace.tracing import semconv as sc
from pdtrace.tracing.encode import encode_request
from pdtrace.tracing.export import make_exporter, protocol_of
from pdtrace.tracing.guard import Guard
from pdtrace.tracing.provider import OwnRandomIds, Telemetry, make_resource, open_provider
from pdtrace.tracing.recorder import Recorder
from pdtrace.tracing.settings import ConfigurationError, endpoint_of
from pdtrace.tracing.span import readable
from pdtrace.tracing.testing import CapturingExporter, CountedIds

PROTOCOLS = ("grpc", "http/protobuf")


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """None of the developer's own settings."""
    for name in list(os.environ):
        if name.startswith("OTEL_"):
            monkeypatch.delenv(name)
    return monkeypatch


@pytest.fixture(scope="module")
def collector(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A collector on free ports, one for the module."""
    store = tmp_path_factory.mktemp("store")
    with Collector(store, grpc_port=0, http_port=0) as running:
        yield SimpleNamespace(
            path=store, grpc_address=running.grpc_address, http_address=running.http_address
        )


def point_at(
    environment: pytest.MonkeyPatch, protocol: str, collector: Any, compression: str = ""
) -> None:
    """Standard settings for one protocol."""
    http = protocol != "grpc"
    address = collector.http_address if http else f"http://{collector.grpc_address}"
    environment.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", address)
    environment.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", protocol)
    environment.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", compression)


def request(recorder: Recorder, base_id: str) -> None:
    """A decode leg with attributes of several types, an event and an error."""
    caller = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    recorder.record(ev.OPENED, base_id, ev.RequestContext(caller, {sc.MODE: "push"}))
    recorder.record(ev.DECODE_ARRIVED, base_id)
    recorder.record(ev.DECODE_ATTEMPTED, base_id)
    recorder.record(ev.DECODE_ALLOCATED, base_id)
    recorder.record(ev.NOTIFICATION_SEEN, base_id, {sc.PEER_TP_RANK: 3})
    recorder.record(ev.KV_COMPLETE, base_id, {sc.EXTERNAL_TOKENS: 99})
    recorder.record(ev.DECODE_FINISHED, base_id, {sc.ERROR_TYPE: sc.ERROR_ABORTED})


def stored(collector: Any, base_id: str) -> list[SpanRecord]:
    """What the collector keeps of one request."""
    records = read_spans([Path(collector.path)]).records
    return [r for r in records if r.attributes[sc.REQUEST_ID] == base_id]


@pytest.mark.parametrize("compression", ["", "none", "gzip"])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_spans_arrive_as_they_were_made(
    environment: pytest.MonkeyPatch, collector: Any, protocol: str, compression: str
) -> None:
    """Over a real socket, through the SDK's transport and our encoder."""
    point_at(environment, protocol, collector, compression)
    telemetry = open_provider("decode", {sc.ENGINE_ID: "engine-d", sc.TP_RANK: 1})
    sent = CapturingExporter()
    recorder = Recorder(telemetry, guard=Guard(strict=True), start=False)
    base_id = f"{protocol}-{compression}"
    request(recorder, base_id)
    recorder._drain()
    sent.spans = readable(recorder._assembler.finished)
    recorder.flush()
    recorder.shutdown()
    assert (recorder.exported, recorder.losses()) == (3, {})

    found = stored(collector, base_id)
    assert [r.name for r in found] == [s.name for s in sent.spans]
    for record, span in zip(found, sent.spans, strict=True):
        assert span.context is not None and span.parent is not None
        assert record.trace_id == f"{span.context.trace_id:032x}"
        assert record.span_id == f"{span.context.span_id:016x}"
        assert record.parent_id == f"{span.parent.span_id:016x}"
        assert (record.start_ns, record.end_ns) == (span.start_time, span.end_time)
        assert record.status == (2 if sc.ERROR_TYPE in record.attributes else 0)
        assert dict(record.attributes) == dict(span.attributes or {})
        assert [(e.name, e.time_ns, dict(e.attributes)) for e in record.events] == [
            (e.name, e.timestamp, dict(e.attributes or {})) for e in span.events
        ]
        assert dict(record.resource) == dict(telemetry.resource.attributes)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_exporters_use_our_encoder(
    environment: pytest.MonkeyPatch, collector: Any, protocol: str
) -> None:
    """Not the SDK's, which costs an engine's threads more."""
    point_at(environment, protocol, collector)
    encoded = []

    def encode(spans: Any) -> bytes:
        encoded.append(len(spans))
        return encode_request(spans)

    environment.setattr(export_module, "encode_request", encode)
    recorder = Recorder(open_provider("decode"), start=False)
    request(recorder, f"ours-{protocol}")
    recorder.flush()
    recorder.shutdown()
    assert encoded == [3]
    assert len(stored(collector, f"ours-{protocol}")) == 3


def _plain(protocol: str) -> type[SpanExporter]:
    """The SDK's own exporter."""
    if protocol == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as Grpc

        return Grpc
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as Http

    return Http


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_an_sdk_without_the_places_for_our_encoder_still_exports(
    environment: pytest.MonkeyPatch, collector: Any, protocol: str
) -> None:
    """Its own encoder is used then: slower, the same spans."""
    point_at(environment, protocol, collector)
    fake_other_sdk(environment, protocol)
    telemetry = open_provider("decode")
    assert type(telemetry.exporter) is _plain(protocol)
    recorder = Recorder(telemetry, start=False)
    request(recorder, f"plain-{protocol}")
    recorder.flush()
    recorder.shutdown()
    assert (recorder.exported, recorder.losses()) == (3, {})
    assert len(stored(collector, f"plain-{protocol}")) == 3


def fake_other_sdk(environment: pytest.MonkeyPatch, protocol: str) -> None:
    """An SDK version without one of the private places: the attribute has another name there."""
    import builtins

    missing = {"grpc": "_channel", "http/protobuf": "_client"}[protocol]

    def fake_hasattr(target: object, name: str) -> bool:
        if name in (missing, "export") and not isinstance(target, type):
            return False
        return builtins.hasattr(target, name)

    environment.setattr(export_module, "hasattr", fake_hasattr, raising=False)


def test_without_an_endpoint_there_is_no_exporter() -> None:
    """Telemetry is then a tracer that records nothing."""
    assert make_exporter() is None
    telemetry = open_provider("prefill")
    assert telemetry.exporter is None
    with telemetry.tracer.start_as_current_span("unused"):
        pass
    telemetry.shutdown()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"}, "'http/json' is not supported"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:port"}, "'http://collector:port'"),
        (
            {
                "OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:port",
                "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
            },
            "'http://collector:port'",
        ),
        (
            {
                "OTEL_EXPORTER_OTLP_ENDPOINT": "collector:4318",
                "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
            },
            "'collector:4318'",
        ),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "ftp://collector:4317"}, "'ftp://collector:4317'"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://"}, "'http://'"),
        ({"OTEL_EXPORTER_OTLP_TIMEOUT": "soon"}, "soon"),
        ({"OTEL_EXPORTER_OTLP_COMPRESSION": "zip"}, "zip"),
    ],
)
def test_a_setting_that_cannot_be_used_is_refused_at_the_start(
    environment: pytest.MonkeyPatch, settings: dict[str, str], words: str
) -> None:
    """With one sentence that has the value in it; never later, inside an engine."""
    environment.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4317")
    for name, value in settings.items():
        environment.setenv(name, value)
    with pytest.raises(ConfigurationError) as refused:
        open_provider("prefill")
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("endpoint", "named", "expected"),
    [
        ("http://c:4318", "", "http/protobuf"),
        ("http://c:4317", "", "grpc"),
        ("http://c", "", "grpc"),
        ("c:4317", "", "grpc"),
        ("c:4318", "", "grpc"),
        ("http://c:4317", "http/protobuf", "http/protobuf"),
        ("http://c:4318", "grpc", "grpc"),
    ],
)
def test_which_protocol_an_endpoint_means(endpoint: str, named: str, expected: str) -> None:
    """A named one wins; 4318 in a URL is HTTP; an address without a scheme can only be gRPC's."""
    environment = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint,
        "OTEL_EXPORTER_OTLP_PROTOCOL": named,
    }
    assert protocol_of(environment) == expected


def test_the_signals_own_variables_win() -> None:
    """As the specification of OTLP exporters has it."""
    environment = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://general:4318",
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://traces:4317",
        "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
        "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf",
    }
    assert endpoint_of(environment) == "http://traces:4317"
    assert protocol_of(environment) == "http/protobuf"


def test_the_users_resource_settings_win(environment: pytest.MonkeyPatch) -> None:
    """Service name and attributes from the environment replace ours; the rest stays."""
    ours = make_resource("prefill", {sc.ENGINE_ID: "e"}).attributes
    assert (ours[sc.SERVICE_NAME], ours[sc.ROLE]) == ("vllm-prefill", "prefill")
    assert ours[sc.SCHEMA] == 1
    environment.setenv("OTEL_SERVICE_NAME", "mine")
    environment.setenv("OTEL_RESOURCE_ATTRIBUTES", f"zone=a,{sc.SERVICE_INSTANCE_ID}=i")
    theirs = make_resource("prefill", {sc.ENGINE_ID: "e"}).attributes
    assert (theirs[sc.SERVICE_NAME], theirs["zone"]) == ("mine", "a")
    assert theirs[sc.SERVICE_INSTANCE_ID] == "i"
    assert (theirs[sc.ENGINE_ID], theirs[sc.ROLE]) == ("e", "prefill")


@pytest.fixture
def dead_port() -> int:
    """A port on which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_dead_endpoint_costs_spans_and_is_counted(
    environment: pytest.MonkeyPatch, dead_port: int, protocol: str
) -> None:
    """The export gives up by itself; nothing is kept for ever, and nothing is raised."""
    environment.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{dead_port}")
    environment.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", protocol)
    environment.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    recorder = Recorder(open_provider("decode"), start=False)
    request(recorder, "lost")
    exporting = threading.Thread(target=recorder.flush)
    exporting.start()
    exporting.join(60)
    assert not exporting.is_alive()
    assert recorder.losses() == {"export_failed": 3}
    assert recorder.guard.errors == {}
    recorder.shutdown()


class FakeRaisingExporter(CapturingExporter):
    """Injects a failure: an exporter that raises instead of answering."""

    def export(self, spans: Any) -> SpanExportResult:
        """Raise."""
        raise RuntimeError("injected")


def test_an_exporter_that_raises_is_isolated_and_its_spans_are_counted() -> None:
    """The next batch is tried again."""
    telemetry = Telemetry(Resource({}), FakeRaisingExporter(), CountedIds())
    recorder = Recorder(telemetry, start=False)
    for base_id in ("a", "b"):
        request(recorder, base_id)
        recorder.flush()
    assert recorder.losses() == {"export_failed": 6}
    assert telemetry.background.guard.errors == {"export": 2}


def test_the_global_tracer_provider_is_left_alone(
    environment: pytest.MonkeyPatch, collector: Any
) -> None:
    """vLLM or the operator may set it, before or after us."""
    before = trace.get_tracer_provider()
    point_at(environment, "grpc", collector)
    telemetry = open_provider("decode")
    with telemetry.tracer.start_as_current_span("own", attributes={sc.REQUEST_ID: "own"}):
        pass
    telemetry.shutdown()
    assert trace.get_tracer_provider() is before
    assert [r.name for r in stored(collector, "own")] == ["own"]


def test_ids_do_not_repeat_when_the_global_random_is_seeded() -> None:
    """Engines and benchmarks seed it with 0 in every run."""
    found = set()
    for _ in range(3):
        random.seed(0)
        ids = OwnRandomIds()
        found |= {ids.generate_span_id(), ids.generate_trace_id()}
    assert len(found) == 6
