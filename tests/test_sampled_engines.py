"""Sampling and the end of a process on real engines: half of the requests are wanted.

Which ones is known beforehand: the trace id of a request is derived from its id.
"""

import http.client
import json
import signal
import threading
import time
from collections.abc import Iterator
from itertools import count, islice
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import pytest
from engines import complete

from pdtrace.analysis.store import read_spans
from pdtrace.connector.cluster import Cluster
from pdtrace.connector.cluster_settings import ClusterSettings, Layout, Mode
from pdtrace.connector.processes import EngineServer
from pdtrace.tracing import semconv as sc
from pdtrace.tracing.ids import derived_trace_id
from pdtrace.tracing.propagation import TraceContext
from pdtrace.tracing.sampling import Sampler

pytestmark = pytest.mark.e2e

RATIO, SLOW_S, STOP_S = 0.5, 3.0, 4.0
# A stop of 5 s would outlast vLLM's idle connections: the router's request would be refused.
ROLES = {sc.ROLE_PREFILL, sc.ROLE_DECODE, sc.ROLE_ROUTER}
COMMON = {
    sc.SPAN_REQUEST, sc.SPAN_LEG, sc.SPAN_PREFILL_QUEUE, sc.SPAN_PREFILL, sc.SPAN_PREFILL_END,
    sc.SPAN_LEASE, sc.SPAN_DECODE_ADMISSION, sc.SPAN_KV_WAIT, sc.SPAN_DECODE_START,
    sc.SPAN_FIRST_DECODE, sc.SPAN_DECODE,
}  # fmt: skip
TRANSFER = {
    "push": {sc.SPAN_REGISTRATION, sc.SPAN_MATCH, sc.SPAN_WRITE_SUBMIT, sc.SPAN_WRITE_COMPLETE},
    "pull": {sc.SPAN_READ_SUBMIT, sc.SPAN_READ_COMPLETE},
}


def ids(name: str, sampled: bool) -> Iterator[str]:
    """Request ids that are sampled, or are not."""
    for number in count():
        trace = TraceContext(derived_trace_id(f"{name}-{number}"), 0, True)
        if Sampler(RATIO).decides(trace) is sampled:
            yield f"{name}-{number}"


class Seen(NamedTuple):
    """What the store has after the engines were terminated."""

    mode: Mode
    roles: dict[str, set[object]]
    """Request id to the roles that exported a span of it."""
    names: dict[str, set[str]]
    errors: dict[str, set[object]]
    ended: list[int | None]
    """How each engine ended."""
    unwanted: list[str]
    """Requests that were not sampled, and not slow either."""


WANTED = list(islice(ids("wanted", True), 3))
UNWANTED = list(islice(ids("unwanted", False), 12))
LEFT = next(ids("left", False))
SLOW = next(ids("slow", False))
LAST = next(ids("last", True))


def quick(cluster: Cluster, wanted: int) -> list[str]:
    """Send requests that are not sampled until so many were not slow: a busy machine has those."""
    found: list[str] = []
    for request_id in UNWANTED:
        began = time.monotonic()
        complete(cluster.router_url or "", cluster.model, request_id, request_id, max_tokens=4)
        if time.monotonic() - began < SLOW_S:
            found.append(request_id)
        if len(found) == wanted:
            break
    return found


def leave(cluster: Cluster, request_id: str) -> None:
    """A client that hangs up after the first token."""
    assert cluster.router_url is not None
    address = urlsplit(cluster.router_url)
    client = http.client.HTTPConnection(address.hostname or "", address.port, timeout=60)
    body = {
        "model": cluster.model, "prompt": "never mind", "max_tokens": 800, "stream": True,
        "temperature": 0, "ignore_eos": True,
    }  # fmt: skip
    headers = {"Content-Type": "application/json", "X-Request-Id": request_id}
    client.request("POST", "/v1/completions", json.dumps(body), headers)
    answer = client.getresponse()
    assert answer.status == 200 and answer.read(20)
    client.close()


def stand_still(cluster: Cluster, request_id: str) -> None:
    """A request during which the engine that the other one waits for stands still.

    Push: P stops, D waits for its blocks. Pull: D stops, P waits for the READ.
    """
    mode = cluster.settings.mode
    stopped = (cluster.prefills if mode == "push" else cluster.decodes)[0].process
    stopped.send_signal(signal.SIGSTOP, group=True)
    going_on = threading.Timer(STOP_S, stopped.send_signal, [signal.SIGCONT], {"group": True})
    going_on.start()
    try:
        complete(cluster.router_url or "", cluster.model, "slow", request_id)
    finally:
        going_on.join()


def stored(cluster: Cluster) -> dict[str, set[object]]:
    """Request id to roles, as the store has it now."""
    found: dict[str, set[object]] = {}
    for record in read_spans([cluster.store]).records:
        found.setdefault(str(record.attributes[sc.REQUEST_ID]), set()).add(record.resource[sc.ROLE])
    return found


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(("push", "uni"), marks=pytest.mark.covers("sampled", "push", on="engines")),
        pytest.param(("pull", "mp"), marks=pytest.mark.covers("sampled", "pull", on="engines")),
    ],
    ids=lambda param: "-".join(param),
)
def seen(
    request: pytest.FixtureRequest,
    engine_server: EngineServer,
    tmp_path_factory: pytest.TempPathFactory,
) -> Seen:
    """All the requests, and SIGTERM to both engines right behind the last one."""
    mode: Mode
    layout: Layout
    mode, layout = request.param
    settings = ClusterSettings(
        mode=mode,
        layout=layout,
        run_dir=tmp_path_factory.mktemp("sampled"),
        env={
            "PDTRACE_SAMPLE_RATIO": str(RATIO),
            "PDTRACE_SLOW_MS": str(SLOW_S * 1000),
        },
    )
    with Cluster(settings, engine_server) as cluster:
        url = cluster.router_url or ""
        for number, request_id in enumerate(WANTED):
            complete(url, cluster.model, f"{number} or so", request_id, max_tokens=4)
        unwanted = quick(cluster, 3)
        leave(cluster, LEFT)
        stand_still(cluster, SLOW)
        complete(url, cluster.model, "the last one", LAST, max_tokens=4)
        for engine in cluster.engines:
            engine.process.send_signal(signal.SIGTERM)
        ended = [engine.process.wait(30) for engine in cluster.engines]
        store: Path = cluster.store
    roles: dict[str, set[object]] = {}
    names: dict[str, set[str]] = {}
    errors: dict[str, set[object]] = {}
    for record in read_spans([store]).records:
        request_id = str(record.attributes[sc.REQUEST_ID])
        roles.setdefault(request_id, set()).add(record.resource[sc.ROLE])
        names.setdefault(request_id, set()).add(record.name)
        if record.status == 2:
            errors.setdefault(request_id, set()).add(record.attributes.get(sc.ERROR_TYPE))
    return Seen(mode, roles, names, errors, ended, unwanted)


def test_all_sides_export_the_same_requests_and_only_those(seen: Seen) -> None:
    """Router, P and D each have every sampled request and none of the others."""
    assert {i: seen.roles.get(i) for i in WANTED} == dict.fromkeys(WANTED, ROLES)
    assert len(seen.unwanted) == 3
    assert {i: seen.roles.get(i) for i in seen.unwanted} == dict.fromkeys(seen.unwanted, None)


def test_a_sampled_request_has_all_its_spans(seen: Seen) -> None:
    """The workers decide as their schedulers."""
    for request_id in WANTED:
        expected = COMMON | TRANSFER[seen.mode]
        assert seen.names[request_id] - {sc.SPAN_HANDSHAKE} == expected


def test_a_failed_request_is_kept_where_it_failed(seen: Seen) -> None:
    """The client hung up while D generated: D and the router know; for P all went well."""
    assert seen.roles[LEFT] >= {sc.ROLE_DECODE, sc.ROLE_ROUTER}
    assert sc.ERROR_ABORTED in seen.errors[LEFT]


def test_a_slow_request_is_kept_where_it_was_slow(seen: Seen) -> None:
    """The engine that waited and the router know; the one that stood still does not."""
    waited = sc.ROLE_DECODE if seen.mode == "push" else sc.ROLE_PREFILL
    assert seen.roles[SLOW] >= {waited, sc.ROLE_ROUTER}
    assert SLOW not in seen.errors


@pytest.mark.covers("terminated", "push", "pull", on="engines")
def test_spans_of_the_last_request_are_sent_before_the_engines_end(seen: Seen) -> None:
    """SIGTERM came right after its answer."""
    assert seen.ended == [0, 0]
    assert seen.names[LAST] == COMMON | TRANSFER[seen.mode]
    assert LAST not in seen.errors
