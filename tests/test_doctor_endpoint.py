"""Doctor's probe of real endpoints: our collector, and servers that are wrong in one way each."""

import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pdtrace.analysis.collect import Collector
from pdtrace.connector import doctor_otlp
from pdtrace.connector.doctor import Finding, Verdict
from pdtrace.connector.doctor_otlp import endpoint_findings
from pdtrace.connector.readiness import free_ports

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
PROTOCOL = "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"


@pytest.fixture(scope="module")
def collector(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Collector]:
    """Both ports of a real collector."""
    with Collector(tmp_path_factory.mktemp("doctor") / "store", "127.0.0.1", 0, 0) as running:
        yield running


def answers(address: str, protocol: str, **more: str) -> Finding:
    """The last finding: whether the endpoint answers."""
    endpoint = address if "://" in address else f"http://{address}"
    return list(endpoint_findings({ENDPOINT: endpoint, PROTOCOL: protocol, **more}))[-1]


def problem(address: str, protocol: str, **more: str) -> str:
    """What is said behind the address."""
    finding = answers(address, protocol, **more)
    assert (finding.item, finding.verdict) == ("answers", Verdict.PROBLEM)
    return finding.value.split(": ", 1)[1]


def test_a_collector_takes_spans_over_either_protocol(collector: Collector) -> None:
    """And nothing is stored: the export is empty."""
    grpc, http = collector.grpc_address, collector.http_address
    assert answers(grpc, "grpc").value.endswith(": takes spans")
    found = answers(http, "http/protobuf")
    assert (found.value, found.verdict) == (f"{http}/v1/traces: takes spans", Verdict.OK)
    assert collector.counts.spans == 0


def test_the_port_of_the_other_protocol(collector: Collector) -> None:
    """What most often is wrong, with what to do about it."""
    expected = "it speaks {}, not {}: set OTEL_EXPORTER_OTLP_TRACES_PROTOCOL={}"
    assert problem(collector.http_address, "grpc") == expected.format(
        "http/protobuf", "grpc", "http/protobuf"
    )
    assert problem(collector.grpc_address, "http/protobuf") == expected.format(
        "grpc", "http/protobuf", "grpc"
    )


def test_http_and_grpc_where_tls_is_asked_for(collector: Collector) -> None:
    """An https endpoint of a server without TLS."""
    address = collector.http_address.replace("http://", "https://")
    told = "it does not speak TLS: the endpoint has to begin with http://"
    assert problem(address, "http/protobuf") == told


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_a_port_on_which_nothing_listens(protocol: str) -> None:
    """The kernel refuses."""
    (port,) = free_ports(1)
    assert problem(f"127.0.0.1:{port}", protocol) == "refused: nothing listens on that port"


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_a_server_that_never_answers(protocol: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is given up after a time."""
    monkeypatch.setattr(doctor_otlp, "_SECONDS", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as server:
        told = problem(f"127.0.0.1:{server.getsockname()[1]}", protocol)
    assert told.startswith("it takes the connection and does not answer within")


def test_a_host_that_is_not_known() -> None:
    """Names end in `.invalid` for this."""
    assert problem("collector.invalid:4317", "grpc") == "the host 'collector.invalid' is not known"


@pytest.mark.parametrize(
    ("status", "told"),
    [
        (401, "it refuses the credentials (401): see OTEL_EXPORTER_OTLP_HEADERS"),
        (404, "it answers, but has no such path (404)"),
        (503, "it answers with HTTP status 503"),
    ],
)
def test_statuses_in_words(answering: Callable[[int, bytes], str], status: int, told: str) -> None:
    """The common ones; others by number."""
    assert problem(answering(status, b""), "http/protobuf") == told


def test_without_an_endpoint_nothing_is_traced() -> None:
    """A problem, after the four variables."""
    found = list(endpoint_findings({}))
    assert [finding.value for finding in found[:4]] == ["unset"] * 4
    assert found[4] == Finding("endpoint", "configured", "no: nothing is traced", Verdict.PROBLEM)


def test_a_protocol_that_is_none() -> None:
    """The exporter's own sentence."""
    found = list(endpoint_findings({ENDPOINT: "http://h:1", PROTOCOL: "http/json"}))[-1]
    assert found.verdict is Verdict.PROBLEM
    assert "'http/json' is not supported" in found.value


def test_the_specification_s_rules_for_urls() -> None:
    """The general endpoint gets the path, the one for traces is taken as it is."""
    from pdtrace.connector.doctor_otlp import target_of

    general = {ENDPOINT: "http://h:9/base/", "OTEL_EXPORTER_OTLP_HEADERS": "A=b%20c,d=e"}
    target = target_of(general, general[ENDPOINT])
    assert (target.url, target.host, target.port) == ("http://h:9/base/v1/traces", "h", 9)
    assert target.headers == (("a", "b c"), ("d", "e"))
    own = {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "https://h/x"}
    target = target_of(own, "https://h/x")
    assert (target.url, target.port, target.secure) == ("https://h/x", 443, True)


def test_nothing_is_left_of_a_probe(tmp_path: Path) -> None:
    """The collector of one test can be closed while doctor's channel is closed already."""
    with Collector(tmp_path / "store", "127.0.0.1", 0, 0) as running:
        assert answers(running.grpc_address, "grpc").verdict is Verdict.OK
