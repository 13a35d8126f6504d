"""A conversation of two turns on real engines: P reads back what D computed in the first one."""

from typing import Any

import pytest
from engines import complete
from legs import TO_PREFILL, prompt_of
from traces import Traces, assert_exact_and_complete

from pdtrace.connector.cluster import Cluster
from pdtrace.connector.cluster_settings import SERVED_MODEL, ClusterSettings
from pdtrace.connector.processes import EngineServer
from pdtrace.tracing import semconv as sc

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.covers("bidirectional", "pull", on="engines"),
]

FIRST, MORE = prompt_of(300, seed=1), prompt_of(100, seed=2)


def answer(engine: Any, tokens: list[int], request_id: str, params: Any, **more: Any) -> Any:
    """One leg by token ids: text need not come back as the tokens that it was made of."""
    return complete(engine.url, SERVED_MODEL, tokens, request_id, kv_transfer_params=params, **more)


@pytest.fixture(scope="module")
def turns(engine_server: EngineServer) -> Traces:
    """Turn 2 goes to P with what D said at the end of turn 1."""
    extra = {"bidirectional_kv_xfer": True, "kv_lease_duration": 600}
    settings = ClusterSettings(
        mode="pull",
        router=False,
        prefix_caching=False,
        kv_config={"kv_connector_extra_config": extra},
    )
    with Cluster(settings, engine_server) as cluster:
        p, d = cluster.prefills[0], cluster.decodes[0]
        tokens, params = list(FIRST.encode()), dict(TO_PREFILL)
        for turn in ("turn-1", "turn-2"):
            handed = answer(p, tokens, turn, params, max_tokens=1)["kv_transfer_params"]
            given = answer(d, tokens, turn, handed)
            assert given["choices"][0]["text"]
            tokens += [*given["choices"][0]["text"].encode(), *MORE.encode()]
            params = given["kv_transfer_params"]
            assert params["do_remote_decode"] is True
        store = cluster.store
    return Traces.of(store)


def test_the_second_turn_is_loaded_on_prefill_before_it_computes(turns: Traces) -> None:
    """Both directions are there, and only the way back says so."""
    for name in (sc.SPAN_KV_WAIT, sc.SPAN_READ_SUBMIT, sc.SPAN_READ_COMPLETE):
        back = turns.span("turn-2", name, sc.ROLE_PREFILL)
        there = turns.span("turn-2", name, sc.ROLE_DECODE)
        assert back.attributes[sc.TRANSFER_DIRECTION] == sc.DIRECTION_READ_BACK
        assert back.attributes[sc.PEER_ENGINE_ID] == "decode-0"
        assert sc.TRANSFER_DIRECTION not in there.attributes
        assert there.attributes[sc.PEER_ENGINE_ID] == "prefill-0"
        assert back.end_ns < there.start_ns
        assert [s.resource[sc.ROLE] for s in turns.spans("turn-1", name)] == [sc.ROLE_DECODE]


def test_prefill_computes_only_what_decode_did_not_have(turns: Traces) -> None:
    """The tokens that were read back count as cached, and the spans of P adjoin."""
    chain = [
        turns.span("turn-2", name, sc.ROLE_PREFILL)
        for name in (
            sc.SPAN_PREFILL_QUEUE,
            sc.SPAN_KV_WAIT,
            sc.SPAN_DECODE_START,
            sc.SPAN_PREFILL,
            sc.SPAN_PREFILL_END,
        )
    ]
    for before, after in zip(chain, chain[1:], strict=False):
        assert before.end_ns == after.start_ns
    loaded = int(str(chain[1].attributes[sc.EXTERNAL_TOKENS]))
    # D never computed its last token, nor what the user said next.
    assert len(FIRST) < loaded < int(str(chain[0].attributes[sc.INPUT_TOKENS])) - len(MORE)
    assert chain[3].attributes[sc.PREFILL_CACHED_TOKENS] == loaded
    size = turns.span("turn-2", sc.SPAN_READ_SUBMIT, sc.ROLE_PREFILL).attributes
    assert int(str(size[sc.TRANSFER_BYTES])) > 0


def test_decode_keeps_its_blocks_until_they_are_read(turns: Traces) -> None:
    """A lease of D's own begins with the end of its answer and ends with P's notification."""
    lease = turns.span("turn-1", sc.SPAN_LEASE, sc.ROLE_DECODE)
    assert lease.attributes[sc.LEASE_OUTCOME] == sc.LEASE_READ
    assert [event.name for event in lease.events] == [sc.EVENT_NOTIFICATION_SEEN]
    assert lease.start_ns == turns.span("turn-1", sc.SPAN_DECODE).end_ns
    posted = turns.span("turn-2", sc.SPAN_READ_SUBMIT, sc.ROLE_PREFILL)
    assert posted.start_ns < lease.events[0].time_ns <= lease.end_ns


def test_both_turns_are_split_exactly(turns: Traces) -> None:
    """Reading back lies before prefill, and the handoff after it."""
    assert set(turns.splits) == {"turn-1", "turn-2"}
    for line in turns.splits.values():
        assert_exact_and_complete(line)
        assert (line["prefill_engine"], line["decode_engine"]) == ("prefill-0", "decode-0")
