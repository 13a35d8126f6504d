"""A failed load under vLLM's policy `recompute`: D computes the prompt, and the trace says so."""

from collections.abc import Iterator
from typing import cast

import pytest
from faults import Pair, settings, unanswered, warm_pair

from pdtrace.connector.cluster_settings import Mode
from pdtrace.connector.processes import EngineServer
from pdtrace.tracing import semconv as sc

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module", params=["push", "pull"])
def pair(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    engine_server: EngineServer,
) -> Iterator[Pair]:
    """A pair that recomputes what it cannot load."""
    mode = cast(Mode, request.param)
    policy = {"kv_load_failure_policy": "recompute"}
    made = settings(mode, tmp_path_factory.mktemp(mode), kv_config=policy)
    with warm_pair(made, engine_server) as pair:
        yield pair


@pytest.mark.covers("recompute", "push", "pull", on="engines")
@pytest.mark.covers("computed-on-decode", "push", "pull", on="engines")
def test_a_prompt_that_could_not_be_loaded_is_computed(pair: Pair) -> None:
    """The answer is that of a good handoff; the wait failed, and D's own prefill says for what."""
    assert pair.decode("recomputed", pair.nowhere("recomputed")) == pair.hand_off("loaded")
    transfer = sc.SPAN_REGISTRATION if pair.mode == "push" else sc.SPAN_READ_SUBMIT
    computed = {
        sc.SPAN_DECODE_START: "",
        sc.SPAN_PREFILL: sc.ERROR_LOAD_FAILED_RECOMPUTE,
        sc.SPAN_DECODE: "",
    }
    pair.expect("recomputed", unanswered(transfer) | computed)
