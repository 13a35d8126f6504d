"""What nothing ends on real engines is ended by its limit; the request is served all the same."""

from pathlib import Path

import pytest
from faults import P_SERVED, Pair, settings, stopped, waited, warm_pair

from pdtrace.connector.cluster_settings import ClusterSettings, Mode
from pdtrace.connector.processes import EngineServer
from pdtrace.tracing import semconv as sc

pytestmark = pytest.mark.e2e

ABANDONED = sc.ERROR_ABANDONED
P_ABANDONED = P_SERVED | {sc.SPAN_LEASE: ABANDONED}


def patient(mode: Mode, directory: Path) -> ClusterSettings:
    """vLLM's own long terms, and a short limit of ours."""
    extra = {"kv_connector_extra_config": {"pdtrace": {"span_limit_s": 3}}}
    return settings(mode, directory, kv_config=extra)


def held_for_nobody(pair: Pair) -> None:
    """P holds blocks that no D asks for."""
    pair.prefill("held")
    pair.expect("held", P_ABANDONED)


@pytest.mark.covers("span-limit", "push", on="engines")
def test_a_registration_that_nobody_answers(tmp_path: Path, engine_server: EngineServer) -> None:
    """D's wait and P's lease are given up long before vLLM gives up either."""
    with warm_pair(patient("push", tmp_path), engine_server, abandons=True) as pair:
        client = pair.connect(pair.d, "orphan", pair.told("orphan"))
        held_for_nobody(pair)
        pair.expect("orphan", waited(ABANDONED) | {sc.SPAN_REGISTRATION: ""})
        client.leave()


@pytest.mark.covers("span-limit", "pull", on="engines")
def test_a_read_that_takes_too_long(tmp_path: Path, engine_server: EngineServer) -> None:
    """Wait and READ are given up while P stands still; what comes late changes nothing of that."""
    with warm_pair(patient("pull", tmp_path), engine_server, abandons=True) as pair:
        held_for_nobody(pair)
        params = pair.prefill("slow")
        pair.span("slow", sc.SPAN_PREFILL_END)
        with stopped(pair.p):
            answer = pair.decode_later("slow", params)
            wait, read = (
                pair.span("slow", sc.SPAN_KV_WAIT),
                pair.span("slow", sc.SPAN_READ_COMPLETE),
            )
        assert {span.attributes[sc.ERROR_TYPE] for span in (wait, read)} == {ABANDONED}
        assert answer.result().status == 200
        given_up = {sc.SPAN_READ_SUBMIT: "", sc.SPAN_READ_COMPLETE: ABANDONED}
        pair.expect_all("slow", waited(ABANDONED) | given_up)
