"""The router samples as the engines do, and keeps what it knows to be slow or failed."""

from typing import Any

import pytest
from opentelemetry.sdk.resources import Resource

from pdtrace.connector.router_engines import Engine
from pdtrace.connector.router_spans import DerivedIdGenerator, RequestSpan, Timeline
from pdtrace.tracing import semconv as sc
from pdtrace.tracing.ids import derived_trace_id
from pdtrace.tracing.propagation import TraceContext, parse_traceparent
from pdtrace.tracing.provider import Telemetry
from pdtrace.tracing.sampling import Sampler
from pdtrace.tracing.settings import Settings
from pdtrace.tracing.testing import CapturingExporter, SettableClock

MS = 10**6
CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-"
NONE = Sampler(0.0)


class Served:
    """One request through the router's spans: what engines are told, what is exported."""

    def __init__(
        self,
        sampler: Sampler,
        settings: Settings | None = None,
        token_ms: int = 5,
        end_ms: int = 500,
        error: str | None = None,
        caller: str = "",
        request_id: str = "a",
    ) -> None:
        exporter, clock = CapturingExporter(), SettableClock()
        telemetry = Telemetry(
            Resource({}), exporter, DerivedIdGenerator(), settings or Settings(), sampler
        )
        headers = {"traceparent": caller} if caller else {}
        common = {sc.REQUEST_ID: request_id}
        span = RequestSpan(telemetry.tracer, Timeline(clock), common, {}, headers)
        leg = span.leg(Engine(sc.ROLE_PREFILL, "http://p:1"), 1)
        self.told = parse_traceparent(leg.carrier()["traceparent"])
        clock.mono = token_ms * MS
        span.mark(sc.EVENT_FIRST_TOKEN)
        leg.end(error)
        clock.mono = end_ms * MS
        span.end()
        telemetry.shutdown()
        self.names = sorted(exported.name for exported in exporter.spans)
        self.values: list[Any] = [dict(exported.attributes or {}) for exported in exporter.spans]


BOTH = [sc.SPAN_LEG, sc.SPAN_REQUEST]


@pytest.mark.parametrize("ratio", [0.0, 0.3, 0.7, 1.0])
def test_the_router_decides_as_the_engines(ratio: float) -> None:
    """By the id that both derive from the request's, and it tells them so."""
    sampler = Sampler(ratio)
    for number in range(20):
        request_id = f"request-{number}"
        trace_id = derived_trace_id(request_id)
        expected = sampler.decides(TraceContext(trace_id, 0, True))
        served = Served(sampler, request_id=request_id)
        assert served.names == (BOTH if expected else [])
        assert served.told is not None
        assert (served.told.trace_id, served.told.sampled) == (trace_id, expected)
        assert all(values[sc.REQUEST_ID] == request_id for values in served.values)


@pytest.mark.parametrize(("flag", "names"), [("01", BOTH), ("00", [])])
def test_the_clients_decision_is_kept_and_passed_on(flag: str, names: list[str]) -> None:
    """Whatever our own ratio."""
    for ratio in (0.0, 1.0):
        served = Served(Sampler(ratio), caller=CALLER + flag)
        assert served.names == names
        assert served.told is not None and served.told.sampled is (flag == "01")


def test_a_request_with_a_failed_leg_is_kept_whole() -> None:
    """Also when the request itself succeeded by a second attempt."""
    assert Served(NONE, error="500").names == BOTH
    assert Served(NONE, Settings(keep_errors=False), error="500").names == []


@pytest.mark.parametrize(("token_ms", "names"), [(100, []), (101, BOTH)])
def test_a_request_that_waited_for_its_first_token_is_kept(token_ms: int, names: list[str]) -> None:
    """A long answer alone is not slow."""
    assert Served(NONE, Settings(slow_ms=100), token_ms).names == names


def test_without_an_endpoint_the_router_passes_a_clients_context_on() -> None:
    """It records nothing and claims no span of its own."""
    telemetry = Telemetry(Resource({}), None)
    common = {sc.REQUEST_ID: "a"}
    headers = {"traceparent": CALLER + "01"}
    span = RequestSpan(telemetry.tracer, Timeline(SettableClock()), common, {}, headers)
    assert span.leg(Engine(sc.ROLE_PREFILL, "http://p:1"), 1).carrier() == headers
    span.end("500")
    telemetry.shutdown()
