"""The part of `pdtrace doctor` that asks whether the OTLP endpoint answers, and says why not.

One export without spans is sent, as the SDK would send it. When that fails, the other protocol and
TLS are tried as well, because a wrong protocol is what most often is wrong.
"""

import os
import socket
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from pdtrace.connector.doctor import Finding, Verdict
from pdtrace.tracing.export import protocol_of
from pdtrace.tracing.settings import ConfigurationError, endpoint_of

GRPC: Final = "grpc"
HTTP: Final = "http/protobuf"
_SECONDS: Final = 3.0
_METHOD: Final = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
_PATH: Final = "/v1/traces"
_VARIABLES: Final = (
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL",
    "OTEL_EXPORTER_OTLP_PROTOCOL",
)
_HTTP_WORDS: Final = {
    401: "it refuses the credentials (401): see OTEL_EXPORTER_OTLP_HEADERS",
    403: "it refuses the credentials (403): see OTEL_EXPORTER_OTLP_HEADERS",
    404: "it answers, but has no such path (404)",
    405: "it answers, but takes no OTLP there (405)",
}
_GRPC_WORDS: Final = {
    "UNAUTHENTICATED": "it refuses the credentials: see OTEL_EXPORTER_OTLP_HEADERS",
    "PERMISSION_DENIED": "it refuses the credentials: see OTEL_EXPORTER_OTLP_HEADERS",
    "UNIMPLEMENTED": "it speaks gRPC, but takes no OTLP traces",
    "DEADLINE_EXCEEDED": f"it takes the connection and does not answer within {_SECONDS:g} s",
}


@dataclass(frozen=True, slots=True)
class Target:
    """Where to send to."""

    host: str
    port: int
    secure: bool
    url: str
    """For HTTP."""
    headers: tuple[tuple[str, str], ...] = ()
    certificate: str = ""


def endpoint_findings(environment: Mapping[str, str] = os.environ) -> Iterator[Finding]:
    """The variables, what they come to, and whether that answers."""
    for name in _VARIABLES:
        yield Finding("endpoint", name, environment.get(name) or "unset")
    endpoint = endpoint_of(environment)
    if not endpoint:
        yield Finding("endpoint", "configured", "no: nothing is traced", Verdict.PROBLEM)
        return
    try:
        protocol = protocol_of(environment)
        target = target_of(environment, endpoint)
    except (ConfigurationError, ValueError) as error:
        yield Finding("endpoint", "configured", str(error), Verdict.PROBLEM)
        return
    yield Finding("endpoint", "protocol", protocol, Verdict.OK)
    fault = probe(protocol, target)
    where = target.url if protocol == HTTP else f"{target.host}:{target.port}"
    value = f"{where}: {fault or 'takes spans'}"
    yield Finding("endpoint", "answers", value, Verdict.PROBLEM if fault else Verdict.OK)


def target_of(environment: Mapping[str, str], endpoint: str) -> Target:
    """Host, port and headers, by the rules of the OTLP specification."""
    has_scheme = "://" in endpoint
    parts = urlsplit(endpoint if has_scheme else f"//{endpoint}")
    insecure = _value(environment, "INSECURE").lower() == "true"
    secure = parts.scheme == "https" or (not has_scheme and not insecure)
    own = environment.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") == endpoint
    url = endpoint if own else endpoint.rstrip("/") + _PATH
    pairs = [pair.partition("=") for pair in _value(environment, "HEADERS").split(",") if pair]
    headers = tuple((name.strip().lower(), unquote(value.strip())) for name, _, value in pairs)
    port = parts.port or (443 if secure else 4317 if not has_scheme else 80)
    return Target(
        parts.hostname or "", port, secure, url, headers, _value(environment, "CERTIFICATE")
    )


def _value(environment: Mapping[str, str], name: str) -> str:
    names = (f"OTEL_EXPORTER_OTLP_TRACES_{name}", f"OTEL_EXPORTER_OTLP_{name}")
    return next((environment[key] for key in names if environment.get(key)), "")


def probe(protocol: str, target: Target) -> str:
    """What is wrong, as the end of a sentence; "" when an export is taken."""
    unreachable = connect(target)
    if unreachable:
        return unreachable
    fault = speak(protocol, target)
    if not fault:
        return ""
    other = GRPC if protocol == HTTP else HTTP
    if not speak(other, _plain_url(target)):
        return f"it speaks {other}, not {protocol}: set OTEL_EXPORTER_OTLP_TRACES_PROTOCOL={other}"
    if not target.secure and _has_tls(target):
        return "it expects TLS: the endpoint has to begin with https://"
    return fault


def _plain_url(target: Target) -> Target:
    """The same place, at OTLP's usual path."""
    scheme = "https" if target.secure else "http"
    url = f"{scheme}://{_bracketed(target.host)}:{target.port}{_PATH}"
    return Target(target.host, target.port, target.secure, url, target.headers, target.certificate)


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def connect(target: Target) -> str:
    """Whether anything listens there."""
    try:
        socket.create_connection((target.host, target.port), _SECONDS).close()
    except socket.gaierror:
        return f"the host {target.host!r} is not known"
    except ConnectionRefusedError:
        return "refused: nothing listens on that port"
    except TimeoutError:
        return f"no connection within {_SECONDS:g} s: a firewall, or a wrong address"
    except OSError as error:
        return f"no connection: {error.strerror or error}"
    return ""


def speak(protocol: str, target: Target) -> str:
    """Send one export without spans; what is wrong, or ""."""
    return _speak_grpc(target) if protocol == GRPC else _speak_http(target)


def _speak_http(target: Target) -> str:
    request = urllib.request.Request(
        target.url,
        b"",
        {**dict(target.headers), "Content-Type": "application/x-protobuf"},
    )
    context = _tls_context(target) if target.url.startswith("https://") else None
    try:
        with urllib.request.urlopen(request, timeout=_SECONDS, context=context):
            return ""
    except urllib.error.HTTPError as error:
        return _HTTP_WORDS.get(error.code, f"it answers with HTTP status {error.code}")
    except urllib.error.URLError as error:
        return _network_words(error.reason)
    except (OSError, ValueError) as error:
        return _network_words(error)
    except Exception as error:  # what is no HTTP at all raises from http.client
        return f"it does not speak HTTP ({type(error).__name__})"


def _network_words(error: Any) -> str:
    if isinstance(error, TimeoutError):
        return _GRPC_WORDS["DEADLINE_EXCEEDED"]
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return "it does not speak TLS: the endpoint has to begin with http://"
    return f"it closes the connection: {error}"


def _tls_context(target: Target) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=target.certificate or None)


def _speak_grpc(target: Target) -> str:
    import grpc

    address = f"{_bracketed(target.host)}:{target.port}"
    if target.secure:
        roots = Path(target.certificate).read_bytes() if target.certificate else None
        channel = grpc.secure_channel(address, grpc.ssl_channel_credentials(roots))
    else:
        channel = grpc.insecure_channel(address)
    with channel:
        export = channel.unary_unary(_METHOD, request_serializer=bytes, response_deserializer=bytes)
        try:
            export(b"", timeout=_SECONDS, metadata=target.headers, wait_for_ready=False)
        except grpc.RpcError as error:
            name: str = error.code().name
            details = " ".join(str(error.details()).split())
            return _GRPC_WORDS.get(name, f"it does not speak gRPC there ({name}: {details[:120]})")
    return ""


def _has_tls(target: Target) -> bool:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with (
            socket.create_connection((target.host, target.port), _SECONDS) as plain,
            context.wrap_socket(plain, server_hostname=target.host),
        ):
            return True
    except OSError:
        return False
