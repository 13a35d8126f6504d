"""Connectors other than NIXL, and NIXL inside MultiConnector, on real engines."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from engines import complete, text
from multi_connector import connector_flag, multi_flags

from pdtrace.analysis.records import SpanRecord
from pdtrace.analysis.store import read_spans
from pdtrace.connector.cluster import Cluster
from pdtrace.connector.cluster_settings import ClusterSettings, Mode
from pdtrace.connector.processes import EngineServer
from pdtrace.tracing import semconv as sc

pytestmark = pytest.mark.e2e

PROMPT = "seven grey herons by the canal " * 8
REQUESTS = 3
ALONE = {sc.SPAN_PREFILL_QUEUE: 1, sc.SPAN_PREFILL: 1, sc.SPAN_DECODE: 1}


@dataclass(frozen=True)
class Seen:
    """What the client and the store saw of requests `seen-0`, `seen-1`, …"""

    texts: list[str]
    records: list[SpanRecord]

    def names(self, request_id: str) -> Counter[str]:
        """How many spans of each name a request has."""
        return Counter(span.name for span in self.of(request_id))

    def of(self, request_id: str) -> list[SpanRecord]:
        """The spans of a request."""
        return [r for r in self.records if r.attributes[sc.REQUEST_ID] == request_id]

    def span(self, request_id: str, name: str) -> SpanRecord:
        """The request's one span of a name."""
        (found,) = [span for span in self.of(request_id) if span.name == name]
        return found


def serve(settings: ClusterSettings, server: EngineServer, prompts: list[str]) -> Seen:
    """One request after the other, to the router if there is one."""
    with Cluster(settings, server) as cluster:
        url = cluster.router_url or cluster.engines[0].url
        answers = [
            complete(url, cluster.model, prompt, f"seen-{number}")
            for number, prompt in enumerate(prompts)
        ]
    return Seen([text(answer) for answer in answers], list(read_spans([cluster.store]).records))


def alone(tmp_path: Path, **config: Any) -> ClusterSettings:
    """One engine with some connector."""
    flag = connector_flag(kv_connector_module_path="pdtrace.connector.any", **config)
    return ClusterSettings(mode="none", flags=(flag,), run_dir=tmp_path, prefix_caching=False)


@pytest.mark.covers("any-connector", "none", on="engines")
def test_a_store_that_loads_inside_the_forward_pass(
    engine_server: EngineServer, tmp_path: Path
) -> None:
    """ExampleConnector: the second time the prompt comes from the store, and the spans say so."""
    extra = {"connector": "ExampleConnector", "shared_storage_path": str(tmp_path / "kv")}
    settings = alone(
        tmp_path, kv_connector="TracedConnector", kv_role="kv_both", kv_connector_extra_config=extra
    )
    seen = serve(settings, engine_server, [PROMPT, PROMPT])
    assert seen.texts[0] == seen.texts[1] != ""
    prefills = [seen.span(f"seen-{number}", sc.SPAN_PREFILL).attributes for number in range(2)]
    loaded = [prefill.get(sc.EXTERNAL_TOKENS) for prefill in prefills]
    assert loaded[0] is None and isinstance(loaded[1], int)
    assert 0 < loaded[1] < int(str(prefills[1][sc.INPUT_TOKENS]))
    assert [prefill[sc.PREFILL_CACHED_TOKENS] for prefill in prefills] == [0, loaded[1]]
    for request_id in ("seen-0", "seen-1"):
        assert seen.names(request_id) == ALONE
    for record in seen.records:
        assert record.resource[sc.CONNECTOR] == "ExampleConnector"
        assert record.attributes[sc.MODE] == sc.MODE_NONE
        assert record.status != 2


@pytest.mark.covers("any-connector", "none", on="engines")
def test_a_connector_with_hybrid_memory(engine_server: EngineServer, tmp_path: Path) -> None:
    """DecodeBenchConnector by its own name: it fills the KV cache of all but the last token."""
    settings = alone(tmp_path, kv_connector="DecodeBenchConnector", kv_role="kv_both")
    seen = serve(settings, engine_server, [PROMPT])
    prefill = seen.span("seen-0", sc.SPAN_PREFILL)
    assert prefill.resource[sc.CONNECTOR] == "DecodeBenchConnector"
    assert seen.names("seen-0") == ALONE
    prompt = int(str(prefill.attributes[sc.INPUT_TOKENS]))
    assert prefill.attributes[sc.EXTERNAL_TOKENS] == prompt - 1
    log = (tmp_path / "engine-0.log").read_text(encoding="utf-8")
    assert "does not support it" not in log


def multi(tmp_path: Path, mode: Mode, child: dict[str, Any], **more: Any) -> ClusterSettings:
    """MultiConnector with a NIXL child and, on each engine, a store of its own."""
    return ClusterSettings(
        mode=mode, run_dir=tmp_path, prefix_caching=False, **multi_flags(tmp_path, child), **more
    )


HANDOFF = Counter(
    [
        sc.SPAN_REQUEST, sc.SPAN_LEG, sc.SPAN_LEG, sc.SPAN_PREFILL_QUEUE, sc.SPAN_PREFILL,
        sc.SPAN_PREFILL_END, sc.SPAN_LEASE, sc.SPAN_DECODE_ADMISSION, sc.SPAN_KV_WAIT,
        sc.SPAN_DECODE_START, sc.SPAN_FIRST_DECODE, sc.SPAN_DECODE,
    ]
)  # fmt: skip
PUSHED = HANDOFF + Counter(
    [sc.SPAN_REGISTRATION, sc.SPAN_MATCH, sc.SPAN_WRITE_SUBMIT, sc.SPAN_WRITE_COMPLETE]
)
PULLED = HANDOFF + Counter([sc.SPAN_READ_SUBMIT, sc.SPAN_READ_COMPLETE])
PROMPTS = [f"{number} {PROMPT}" for number in range(REQUESTS)]


@pytest.mark.covers("multi-connector", "push", on="engines")
def test_push_as_a_child_of_a_multi_connector(engine_server: EngineServer, tmp_path: Path) -> None:
    """By the plugin, beside a child without hybrid memory: every span, and the workers' notes."""
    child = {"kv_connector": "NixlPushConnector"}
    seen = serve(multi(tmp_path, "push", child, traced="plugin"), engine_server, PROMPTS)
    assert_all_handed_over(seen, PUSHED, sc.LEASE_WRITTEN)
    for number in range(REQUESTS):
        wait = seen.span(f"seen-{number}", sc.SPAN_KV_WAIT)
        assert [event.name for event in wait.events] == [sc.EVENT_NOTIFICATION_SEEN]


@pytest.mark.covers("multi-connector", "pull", on="engines")
def test_pull_as_a_child_of_a_multi_connector(engine_server: EngineServer, tmp_path: Path) -> None:
    """By the child's module path, beside a child without hybrid memory."""
    child = {
        "kv_connector": "NixlPullConnector",
        "kv_connector_module_path": "pdtrace.connector.pull",
    }
    seen = serve(multi(tmp_path, "pull", child), engine_server, PROMPTS)
    assert_all_handed_over(seen, PULLED, sc.LEASE_READ)
    for number in range(REQUESTS):
        lease = seen.span(f"seen-{number}", sc.SPAN_LEASE)
        assert [event.name for event in lease.events] == [sc.EVENT_NOTIFICATION_SEEN]


def assert_all_handed_over(seen: Seen, expected: Counter[str], outcome: str) -> None:
    """Each request has each span once, a lease with evidence, and the child's name."""
    for number in range(REQUESTS):
        names = seen.names(f"seen-{number}")
        names.pop(sc.SPAN_HANDSHAKE, None)
        assert names == expected
        lease = seen.span(f"seen-{number}", sc.SPAN_LEASE)
        assert lease.attributes[sc.LEASE_OUTCOME] == outcome
        assert str(lease.resource[sc.CONNECTOR]).startswith("Nixl")
    assert [span.name for span in seen.records if span.status == 2] == []
