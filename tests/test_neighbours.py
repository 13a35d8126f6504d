"""Real engines beside an untraced peer, and behind routers that forward less than ours does.

One cluster a mode: `prefill-0` and `decode-1` are traced, `prefill-1` and `decode-0` are vLLM as it
comes. Our router sends requests in turn to (prefill-0, decode-0) and (prefill-1, decode-1); legs by
hand go from prefill-0 to decode-1.
"""

import asyncio
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, cast

import pytest
from engines import complete, text
from traces import Traces, assert_exact_and_complete

from pdtrace.connector.cluster import Cluster
from pdtrace.connector.cluster_settings import ClusterSettings, Mode
from pdtrace.connector.processes import EngineServer
from pdtrace.connector.workload import WorkloadRequest, mixed_prompts, run_workload
from pdtrace.tracing import semconv as sc
from pdtrace.tracing.ids import derived_trace_id

pytestmark = pytest.mark.e2e

PREFILL_SPANS = {sc.SPAN_PREFILL_QUEUE, sc.SPAN_PREFILL, sc.SPAN_PREFILL_END, sc.SPAN_LEASE}
DECODE_SPANS = {
    sc.SPAN_DECODE_ADMISSION, sc.SPAN_KV_WAIT, sc.SPAN_DECODE_START, sc.SPAN_FIRST_DECODE,
    sc.SPAN_DECODE,
}  # fmt: skip
ON_P = {"push": {sc.SPAN_MATCH, sc.SPAN_WRITE_SUBMIT, sc.SPAN_WRITE_COMPLETE}, "pull": set[str]()}
ON_D = {"push": {sc.SPAN_REGISTRATION}, "pull": {sc.SPAN_READ_SUBMIT, sc.SPAN_READ_COMPLETE}}
ROUTER = {sc.SPAN_REQUEST, sc.SPAN_LEG}
UNTRACED = ("untraced-decode", "untraced-prefill")
"""Requests that our router sends, in this order, twice (a cold and a warm pair)."""
PREFIXED = "___prefill_addr_127.0.0.1:1___decode_addr_127.0.0.1:2_" + uuid.uuid4().hex
ON_EACH_LEG = ("leg-of-prefill", "leg-of-decode")
TOKENS = 6


@dataclass(frozen=True, kw_only=True)
class Neighbours(Traces):
    """What a mode's cluster answered, by request id, beside what one plain engine says."""

    mode: Mode
    answers: dict[str, str]
    plain: dict[str, str]

    def names(self, request_id: str) -> set[str]:
        """Spans of a request, without the handshakes of whoever came first."""
        return set(self.count(request_id)) - {sc.SPAN_HANDSHAKE}


def by_hand(cluster: Cluster, prompt: str, of_prefill: str, of_decode: str) -> str:
    """Both legs with nothing but an `X-Request-Id`: P first, then D with what P returned."""
    prefill, decode = cluster.prefills[0].url, cluster.decodes[1].url
    ask = {"do_remote_decode": True, "do_remote_prefill": False}
    first = complete(
        prefill, cluster.model, prompt, of_prefill, max_tokens=1, kv_transfer_params=ask
    )
    told = first["kv_transfer_params"]
    return text(
        complete(
            decode, cluster.model, prompt, of_decode, max_tokens=TOKENS, kv_transfer_params=told
        )
    )


def through_router(cluster: Cluster, prompts: dict[str, str]) -> dict[str, str]:
    """Answers of requests sent one by one, so that the pairs take turns."""
    assert cluster.router_url is not None
    requests = [
        WorkloadRequest(model=cluster.model, max_tokens=TOKENS, prompt=prompt, request_id=name)
        for name, prompt in prompts.items()
    ]
    results = asyncio.run(run_workload(cluster.router_url, requests, 1))
    assert [result.error for result in results] == [None] * len(results)
    return {result.request_id: result.text for result in results}


@pytest.fixture(scope="module")
def prompts() -> dict[str, str]:
    """A prompt for each request id; that of the legs with ids of their own is decode's."""
    routed = [f"{name}-{turn}" for turn in range(2) for name in UNTRACED]
    names = [*routed, "by-hand", PREFIXED, ON_EACH_LEG[1]]
    return dict(zip(names, mixed_prompts(11, len(names), 20, 60), strict=True))


@pytest.fixture(scope="module")
def plain(
    engine_server: EngineServer,
    prompts: dict[str, str],
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, str]:
    """What one engine without any connector says."""
    settings = ClusterSettings(run_dir=tmp_path_factory.mktemp("plain"))
    with Cluster.plain(settings, engine_server) as cluster:
        url, model = cluster.engines[0].url, cluster.model

        def one(prompt: str) -> str:
            return text(complete(url, model, prompt, max_tokens=TOKENS))

        with ThreadPoolExecutor(4) as pool:
            return dict(zip(prompts, pool.map(one, prompts.values()), strict=True))


@pytest.fixture(scope="module", params=["push", "pull"])
def found(
    request: pytest.FixtureRequest,
    engine_server: EngineServer,
    prompts: dict[str, str],
    plain: dict[str, str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Neighbours]:
    """Each mode's cluster, after all requests."""
    mode = cast(Mode, request.param)
    settings = ClusterSettings(
        mode=mode,
        prefills=2,
        decodes=2,
        untraced=frozenset({"prefill-1", "decode-0"}),
        prefix_caching=False,
        run_dir=tmp_path_factory.mktemp(f"neighbours-{mode}"),
    )
    routed = {name: prompt for name, prompt in prompts.items() if name.startswith("untraced")}
    with Cluster(settings, engine_server) as cluster:
        answers = through_router(cluster, routed)
        for name in ("by-hand", PREFIXED):
            answers[name] = by_hand(cluster, prompts[name], name, name)
        if mode == "pull":  # push pairs its legs by the id
            name = ON_EACH_LEG[1]
            answers[name] = by_hand(cluster, prompts[name], *ON_EACH_LEG)
    yield Neighbours.of(cluster.store, mode=mode, answers=answers, plain=plain)


def test_the_answers_are_those_of_one_engine(found: Neighbours) -> None:
    """Whoever is traced, and whatever a router forwards."""
    assert found.answers == {name: found.plain[name] for name in found.answers}
    assert len(set(found.answers.values())) == len(found.answers)


def missing(line: dict[str, Any]) -> set[str]:
    """What the split says is missing of a request."""
    return {flag for flag in line["flags"] if flag.startswith("missing")}


@pytest.mark.covers("untraced-decode", "push", "pull", on="engines")
def test_an_untraced_decode_engine(found: Neighbours) -> None:
    """Router and P are traced; D is named as missing, and what it did is unattributed."""
    for name in ("untraced-decode-0", "untraced-decode-1"):
        assert found.names(name) == ROUTER | PREFILL_SPANS | ON_P[found.mode]
        line = found.splits[name]
        assert_exact_and_complete(line, most_unattributed=1.0)
        assert "missing_decode" in missing(line) and "missing_prefill" not in missing(line)
        assert (line["prefill_engine"], line["lower_bound"]) == ("prefill-0", False)
        assert line["phases"]["prefill"] > 0 and line["classes"]["unattributed"] > 0


@pytest.mark.covers("untraced-prefill", "push", "pull", on="engines")
def test_an_untraced_prefill_engine(found: Neighbours) -> None:
    """Router and D are traced; P is named as missing, and no phase of P's is made up."""
    for name in ("untraced-prefill-0", "untraced-prefill-1"):
        assert found.names(name) == ROUTER | DECODE_SPANS | ON_D[found.mode]
        line = found.splits[name]
        assert_exact_and_complete(line, most_unattributed=1.0)
        assert "missing_prefill" in missing(line) and "missing_decode" not in missing(line)
        assert (line["decode_engine"], line["lower_bound"]) == ("decode-1", False)
        assert not {"prefill", "prefill_queue"} & set(line["phases"])
        assert line["phases"]["first_decode"] > 0


@pytest.mark.covers("no-traceparent", "push", "pull", on="engines")
@pytest.mark.covers("changed-id", "push", "pull", on="engines")
@pytest.mark.parametrize("name", ["by-hand", PREFIXED], ids=["plain", "prefixed"])
def test_legs_with_nothing_but_one_request_id(found: Neighbours, name: str) -> None:
    """Both engines derive one trace from the id, however it looks; TTFT is a lower bound."""
    expected = PREFILL_SPANS | DECODE_SPANS | ON_P[found.mode] | ON_D[found.mode]
    assert found.names(name) == expected
    spans = found.spans(name)
    assert {span.trace_id for span in spans} == {f"{derived_trace_id(name):032x}"}
    assert {span.parent_id for span in spans} == {""}
    line = found.splits[name]
    assert_exact_and_complete(line)
    assert line["lower_bound"] is True and missing(line) == {"missing_router"}
    assert (line["prefill_engine"], line["decode_engine"]) == ("prefill-0", "decode-1")


@pytest.mark.covers("changed-id", "pull", on="engines")
def test_legs_with_ids_of_their_own(found: Neighbours) -> None:
    """In pull D names P's leg, which joins what neither id nor trace would. Push cannot do it."""
    if found.mode == "push":
        assert not {*ON_EACH_LEG} & {span.attributes[sc.REQUEST_ID] for span in found.records}
        return
    of_prefill, of_decode = ON_EACH_LEG
    assert found.names(of_prefill) == PREFILL_SPANS
    assert found.names(of_decode) == DECODE_SPANS | ON_D["pull"]
    assert of_prefill not in found.splits
    line = found.splits[of_decode]
    assert_exact_and_complete(line)
    assert missing(line) == {"missing_router"}
    assert line["phases"]["prefill"] > 0
