"""OTLP exporters from the standard `OTEL_EXPORTER_OTLP_*` variables, with our encoder inside.

Transport, retries, TLS, headers and compression are the SDK's. Only the step from spans to bytes is
replaced; where an SDK version has no place for that, its own encoder is used: slower, same spans.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from pdtrace.tracing.encode import encode_request
from pdtrace.tracing.settings import ConfigurationError, endpoint_of

_PROTOCOLS: Final = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_COMPRESSIONS: Final = (
    "OTEL_EXPORTER_OTLP_TRACES_COMPRESSION",
    "OTEL_EXPORTER_OTLP_COMPRESSION",
)
_HTTP_PORT: Final = 4318
_EXPORT_METHOD: Final = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"


def _first(names: Sequence[str], environment: Mapping[str, str]) -> str:
    return next((environment[name] for name in names if environment.get(name)), "")


def protocol_of(environment: Mapping[str, str] = os.environ) -> str:
    """`grpc` or `http/protobuf`; without the variable, port 4318 means HTTP and all else gRPC.

    vLLM's default is gRPC too, so that one endpoint variable serves both.
    """
    named = _first(_PROTOCOLS, environment)
    if named in ("grpc", "http/protobuf"):
        return named
    if named:
        raise ConfigurationError(
            f"OTLP protocol {named!r} is not supported: use 'grpc' or 'http/protobuf'"
        )
    return "http/protobuf" if _port_of(endpoint_of(environment)) == _HTTP_PORT else "grpc"


def _port_of(endpoint: str) -> int | None:
    """The port in a URL; raises for what is none. `host:port`, without a scheme, has none."""
    try:
        parts = urlsplit(endpoint)
        port = parts.port
    except ValueError as error:
        raise ConfigurationError(f"OTLP endpoint {endpoint!r} is no URL: {error}") from error
    if "://" in endpoint and (parts.scheme not in ("http", "https") or not parts.hostname):
        raise ConfigurationError(
            f"OTLP endpoint {endpoint!r} cannot be used: it must be http://host:port or https://…"
        )
    return port


def make_exporter() -> SpanExporter | None:
    """The exporter that the environment asks for; None without an endpoint.

    Raises `ConfigurationError` for a setting that cannot be used.
    """
    endpoint = endpoint_of()
    if not endpoint:
        return None
    _port_of(endpoint)
    protocol = protocol_of()
    if protocol != "grpc" and "://" not in endpoint:
        raise ConfigurationError(
            f"OTLP endpoint {endpoint!r} cannot be used: over HTTP it must be http://host:port"
        )
    try:
        return _grpc_exporter() if protocol == "grpc" else _http_exporter()
    except Exception as error:
        raise ConfigurationError(
            f"the OTEL_EXPORTER_OTLP_* settings cannot be used: {error}"
        ) from error


def _same(data: bytes) -> bytes:
    return data


class _RawStub:
    """The trace service taking bytes that are encoded already."""

    def __init__(self, channel: Any) -> None:
        self.Export: Callable[..., Any] = channel.unary_unary(
            _EXPORT_METHOD, request_serializer=_same, response_deserializer=_same
        )


def _grpc_compression(environment: Mapping[str, str] = os.environ) -> Any:
    """gRPC's number for "none", else None: the SDK reads the variables, but refuses that value."""
    named = _first(_COMPRESSIONS, environment).strip().lower()
    is_set = any(name in environment for name in _COMPRESSIONS)
    return 0 if named == "none" or (is_set and not named) else None


def _grpc_exporter() -> SpanExporter:
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter

    class GrpcExporter(OTLPSpanExporter):
        takes_records = True

        def _translate_data(self, data: Sequence[ReadableSpan]) -> Any:
            return encode_request(data)

    exporter: Any = OTLPSpanExporter(compression=_grpc_compression())
    places = ("_stub", "_translate_data", "_initialize_channel_and_stub", "_channel")
    if all(hasattr(exporter, name) for name in places):
        exporter.__class__ = GrpcExporter
        exporter._channel.close()
        exporter._stub = _RawStub
        exporter._initialize_channel_and_stub()
    own: SpanExporter = exporter
    return own


def _http_exporter() -> SpanExporter:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    class HttpExporter(OTLPSpanExporter):
        takes_records = True

        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            sent = self._client.export(encode_request(spans))
            return SpanExportResult.SUCCESS if sent.success else SpanExportResult.FAILURE

    exporter = OTLPSpanExporter()
    if hasattr(getattr(exporter, "_client", None), "export"):
        exporter.__class__ = HttpExporter
    return exporter
