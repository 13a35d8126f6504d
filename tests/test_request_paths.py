"""What a request can be and how its legs can meet, on real engines: legs by hand, or a router's."""

import json
from dataclasses import dataclass

import pytest
from engines import complete, text
from legs import PATIENT, decode, decode_first, prefill, prompt_of
from traces import Traces, assert_exact_and_complete

from pdtrace.connector.cluster import Cluster
from pdtrace.connector.cluster_settings import ClusterSettings, Mode
from pdtrace.connector.processes import EngineServer
from pdtrace.tracing import semconv as sc

pytestmark = pytest.mark.e2e

CHUNK = 256
SHORT = prompt_of(300, seed=1)
LONG = SHORT + prompt_of(300, seed=2)
FRESH = prompt_of(len(LONG), seed=3)
BY_HAND = ("short", "longer", "again", "fresh")
"""Legs one after the other, with nothing but one X-Request-Id on both."""


@dataclass(frozen=True, kw_only=True)
class Served(Traces):
    """What one pair of engines left of all the requests of this module."""

    mode: Mode
    texts: dict[str, list[str]]

    def blocks_moved(self, request_id: str) -> int:
        """Blocks that the request's transfer carried."""
        name = sc.SPAN_WRITE_SUBMIT if self.mode == "push" else sc.SPAN_READ_SUBMIT
        moved = int(str(self.span(request_id, name).attributes[sc.TRANSFER_BYTES]))
        whole = int(str(self.span("fresh", name).attributes[sc.TRANSFER_BYTES]))
        per_block = whole // blocks(len(FRESH), self.block_size())
        assert moved % per_block == 0
        return moved // per_block

    def block_size(self) -> int:
        """Tokens a block."""
        config = json.loads(str(self.span("fresh", sc.SPAN_PREFILL).resource[sc.CONFIG]))
        return int(config["block_size"])

    def cached(self, request_id: str) -> int:
        """Tokens that P found in its prefix cache."""
        attributes = self.span(request_id, sc.SPAN_PREFILL).attributes
        return int(str(attributes[sc.PREFILL_CACHED_TOKENS]))

    def loaded(self, request_id: str) -> int:
        """Tokens that D waited for."""
        attributes = self.span(request_id, sc.SPAN_KV_WAIT).attributes
        return int(str(attributes[sc.EXTERNAL_TOKENS]))


def blocks(tokens: int, block_size: int) -> int:
    """How many blocks hold so many tokens."""
    return -(-tokens // block_size)


@pytest.fixture(scope="module", params=["push", "pull"])
def served(request: pytest.FixtureRequest, engine_server: EngineServer) -> Served:
    """All requests of this module, one after the other, on one pair of engines."""
    mode: Mode = request.param
    settings = ClusterSettings(
        mode=mode, prefill_flags=(f"--max-num-batched-tokens={CHUNK}",), kv_config=PATIENT
    )
    with Cluster(settings, engine_server) as cluster:
        texts = serve(cluster, mode)
        store = cluster.store
    return Served.of(store, mode=mode, texts=texts)


def serve(cluster: Cluster, mode: Mode) -> dict[str, list[str]]:
    """The texts by request id; the first request meets cold engines."""
    p, d = cluster.prefills[0], cluster.decodes[0]
    prompts = {"short": SHORT, "longer": LONG, "again": LONG, "fresh": FRESH}
    texts = {i: [decode(d, t, i, prefill(p, t, i))] for i, t in prompts.items()}
    if mode == "push":
        early = prompt_of(len(LONG), seed=4)
        texts["registered"] = [decode_first(cluster.store, p, d, early, "registered")]
    texts["alone"] = [text(complete(d.url, cluster.model, FRESH, "alone"))]
    assert cluster.router_url is not None
    answer = complete(
        cluster.router_url, cluster.model, SHORT, "choices", n=2, temperature=0.9, seed=5
    )
    texts["choices"] = [choice["text"] for choice in answer["choices"]]
    return texts


def test_every_request_is_split_exactly(served: Served) -> None:
    """Whatever its path was; and none is in error."""
    assert set(served.splits) == set(served.texts)
    for request_id, line in served.splits.items():
        assert_exact_and_complete(line)
        assert line["mode"] == ("none" if request_id == "alone" else served.mode)
    assert [span.name for span in served.records if span.status == 2] == []


@pytest.mark.covers("no-handoff", "none", on="engines")
def test_a_request_without_a_handoff(served: Served) -> None:
    """One engine for both, though it has a connector: the prompt is computed where it decodes."""
    assert served.count("alone") == {
        sc.SPAN_PREFILL_QUEUE: 1,
        sc.SPAN_PREFILL: 1,
        sc.SPAN_DECODE: 1,
    }
    line = served.splits["alone"]
    assert line["flags"] == ["missing_router"]
    assert line["classes"]["coordination"] == 0
    assert served.texts["alone"] == served.texts["fresh"]


@pytest.mark.covers("blocks-first", "push", on="engines")
@pytest.mark.parametrize("served", ["push"], indirect=True)
def test_blocks_before_the_registration(served: Served) -> None:
    """Sequential legs: P's blocks wait for D's registration, and all of it is exposed."""
    for request_id in BY_HAND:
        match = served.span(request_id, sc.SPAN_MATCH)
        assert match.attributes[sc.MATCH_FIRST] == sc.MATCH_BLOCKS
        assert match.start_ns == served.span(request_id, sc.SPAN_PREFILL_END).end_ns
        assert [event.time_ns for event in match.events] == [match.end_ns]


@pytest.mark.covers("registration-first", "push", on="engines")
@pytest.mark.parametrize("served", ["push"], indirect=True)
def test_the_registration_before_the_blocks(served: Served) -> None:
    """D registers before P has the request: nothing of it is exposed after prefill."""
    match = served.span("registered", sc.SPAN_MATCH)
    assert match.attributes[sc.MATCH_FIRST] == sc.MATCH_REGISTRATION
    assert [event.time_ns for event in match.events] == [match.start_ns]
    assert match.end_ns == served.span("registered", sc.SPAN_PREFILL_END).end_ns
    line = served.splits["registered"]
    assert line["dispatch"] == sc.DISPATCH_CONCURRENT
    assert "registration" not in line["phases"]


@pytest.mark.covers("hit-on-prefill", "push", "pull", on="engines")
def test_a_prefix_cache_hit_on_prefill(served: Served) -> None:
    """P computes only what it does not have; D is handed the whole prompt all the same."""
    size = served.block_size()
    assert served.cached("short") == served.cached("fresh") == 0
    assert served.cached("longer") == len(SHORT) // size * size
    assert served.cached("again") == (len(LONG) - 1) // size * size
    handed = served.span("again", sc.SPAN_PREFILL_END).attributes[sc.BLOCK_COUNT]
    assert handed == blocks(len(LONG), size)


@pytest.mark.covers("hit-on-decode", "push", "pull", on="engines")
def test_a_partial_prefix_cache_hit_on_decode(served: Served) -> None:
    """Only the blocks that D lacks are moved, and D's wait says how many tokens they hold."""
    size = served.block_size()
    hit = len(SHORT) // size
    assert served.loaded("longer") == len(LONG) - hit * size
    assert served.blocks_moved("longer") == blocks(len(LONG), size) - hit
    assert served.loaded("fresh") == len(FRESH)


@pytest.mark.covers("full-hit-on-decode", "push", "pull", on="engines")
def test_a_complete_prefix_cache_hit_on_decode(served: Served) -> None:
    """vLLM never hits the last token's block: that one is moved, and the answer is the same."""
    size = served.block_size()
    hit = (len(LONG) - 1) // size
    assert served.loaded("again") == len(LONG) - hit * size
    assert served.blocks_moved("again") == 1
    assert served.texts["again"] == served.texts["longer"]
    if served.mode == "push":
        assert len(served.spans("again", sc.SPAN_REGISTRATION)) == 1


@pytest.mark.covers("chunked", "push", "pull", on="engines")
def test_a_prompt_in_chunks_is_one_prefill(served: Served) -> None:
    """Steps are counted, also of what is left after a hit."""
    steps = {i: served.span(i, sc.SPAN_PREFILL).attributes[sc.PREFILL_STEPS] for i in BY_HAND}
    expected = {
        "short": blocks(len(SHORT), CHUNK),
        "longer": blocks(len(LONG) - served.cached("longer"), CHUNK),
        "again": 1,
        "fresh": blocks(len(FRESH), CHUNK),
    }
    assert steps == expected


@pytest.mark.covers("choices", "push", "pull", on="engines")
def test_several_choices_are_one_request(served: Served) -> None:
    """Each choice is a leg of its own on D; all of them carry the caller's id."""
    assert len(set(served.texts["choices"])) == 2
    legs = {
        str(span.attributes[sc.ENGINE_REQUEST_ID]).partition("_")[0]
        for span in served.spans("choices", sc.SPAN_DECODE)
    }
    assert legs == {"0", "1"}
    assert sum(line["request_id"] == "choices" for line in served.splits.values()) == 1
