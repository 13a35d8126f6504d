"""Faults that a pair of real engines survives in pull: the client gets what vLLM alone gives, and
every open span ends with the right error.
"""

from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from faults import (
    D_SERVED,
    LARGE,
    LONG,
    P_SERVED,
    P_UNREAD,
    READ,
    SERVER_ERROR,
    Answer,
    Pair,
    fault,
    settings,
    stopped,
    unanswered,
    waited,
    warm_pair,
)

from pdtrace.connector.processes import EngineServer
from pdtrace.tracing import semconv as sc

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where faults are switched on."""
    return tmp_path_factory.mktemp("pull-faults")


@pytest.fixture(scope="module")
def pair(directory: Path, engine_server: EngineServer) -> Iterator[Pair]:
    """One pair for all of them."""
    with warm_pair(settings("pull", directory, **LARGE), engine_server) as pair:
        yield pair


@dataclass(frozen=True)
class Begun:
    """What runs into one of vLLM's own terms, seconds later."""

    refused: "Future[Answer]"
    late: dict[str, Any]
    """What P returned."""


@pytest.fixture(scope="module", autouse=True)
def begun(pair: Pair) -> Begun:
    """Begun together and looked at in the end, so that the terms run beside the other tests."""
    refused = pair.decode_later("refused", pair.nowhere("refused"))
    return Begun(refused, pair.prefill("late"))


@pytest.mark.covers("transfer-failed", "pull", on="engines")
def test_a_read_that_fails(pair: Pair, directory: Path) -> None:
    """D fails the request. vLLM's own cleaning up then tells P that D is done with the blocks."""
    params = pair.prefill("unread")
    with fault(directory, "transfer.decode-0.0"):
        assert pair.decode("unread", params) == SERVER_ERROR
    failed = sc.ERROR_READ_FAILED
    pair.expect("unread", P_SERVED | waited(failed) | {sc.SPAN_READ_SUBMIT: failed})


@pytest.mark.covers("transfer-stopped", "pull", on="engines")
def test_a_peer_that_stands_still_during_a_read(pair: Pair) -> None:
    """The answer is the same and comes later; the READ is as long as P stood."""
    expected = pair.hand_off("moving", LONG)
    params = pair.prefill("standing", LONG)
    with stopped(pair.p):
        answer = pair.decode_later("standing", params, LONG)
        submitted = pair.span("standing", sc.SPAN_READ_SUBMIT)
        # Another request's spans take at least as long to arrive as P stands still.
        assert not answer.done()
    assert answer.result() == expected
    pair.expect("standing", P_SERVED | D_SERVED | READ)
    complete = pair.span("standing", sc.SPAN_READ_COMPLETE)
    assert complete.start_ns == submitted.end_ns


@pytest.mark.covers("abort-before", "pull", on="engines")
def test_a_client_that_leaves_during_the_handshake(pair: Pair) -> None:
    """D ends the waiting at once; its worker goes on until the handshake fails."""
    client = pair.connect(pair.d, "early", pair.nowhere("early", "nobody-yet"))
    pair.span("early", sc.SPAN_DECODE_ADMISSION)
    client.leave()
    pair.expect("early", unanswered(sc.SPAN_READ_SUBMIT) | waited(sc.ERROR_ABORTED))


@pytest.mark.covers("abort-during", "pull", on="engines")
def test_a_client_that_leaves_during_the_read(pair: Pair) -> None:
    """The waiting ends as aborted, the READ and P's lease end well."""
    params = pair.prefill("during", LONG)
    with stopped(pair.p):
        client = pair.connect(pair.d, "during", params, LONG)
        pair.span("during", sc.SPAN_READ_SUBMIT)
        client.leave()
        assert pair.span("during", sc.SPAN_KV_WAIT).attributes[sc.ERROR_TYPE] == sc.ERROR_ABORTED
    pair.expect("during", P_SERVED | waited(sc.ERROR_ABORTED) | READ)


@pytest.mark.covers("abort-after", "pull", on="engines")
def test_a_client_that_leaves_while_it_is_answered(pair: Pair) -> None:
    """Decoding ends as aborted, everything before it ended well."""
    pair.leave_answer(pair.d, "after", pair.prefill("after"))
    pair.expect("after", P_SERVED | D_SERVED | READ | {sc.SPAN_DECODE: sc.ERROR_ABORTED})


@pytest.mark.covers("abort-before", "pull", on="engines")
def test_a_client_that_leaves_prefill(pair: Pair) -> None:
    """P's span ends as aborted, and no blocks are held for anybody."""
    pair.leave_answer(pair.p, "left-p", {"do_remote_decode": True})
    pair.expect("left-p", {sc.SPAN_PREFILL_QUEUE: "", sc.SPAN_PREFILL: sc.ERROR_ABORTED})


@pytest.mark.covers("phantom", "pull", on="engines")
def test_what_vllm_submits_after_a_rejected_request_is_no_request(pair: Pair) -> None:
    """It frees P's blocks and has no span; a request with an id like its own is traced."""
    params = pair.prefill("rejected")
    assert pair.decode("rejected", params, max_tokens=5000).status == 400
    pair.expect("rejected", P_SERVED)
    assert pair.hand_off("0123456789abcdef").status == 200
    pair.expect("0123456789abcdef", P_SERVED | D_SERVED | READ)
    assert pair.seen() <= pair.asked


@pytest.mark.covers("computed-on-decode", "pull", on="engines")
def test_a_prompt_that_decode_computes_itself(pair: Pair) -> None:
    """A request without a handoff, on the same engine: as on one that serves both."""
    assert pair.decode("plain", None) == pair.hand_off("elsewhere")
    pair.expect("plain", {sc.SPAN_PREFILL_QUEUE: "", sc.SPAN_PREFILL: "", sc.SPAN_DECODE: ""})


@pytest.mark.covers("lease-expired", "pull", on="engines")
def test_blocks_that_are_read_after_their_lease(pair: Pair, begun: Begun) -> None:
    """D answers 200 from blocks that P had freed: nothing but the trace shows it."""
    lease = pair.span("late", sc.SPAN_LEASE)
    assert lease.attributes[sc.LEASE_OUTCOME] == sc.LEASE_EXPIRED
    assert pair.decode("late", begun.late).status == 200
    pair.expect("late", P_UNREAD | D_SERVED | READ)
    assert "lease_expired" in pair.flags("late")


@pytest.mark.covers("handshake-refused", "pull", on="engines")
def test_a_handshake_that_nobody_answers(pair: Pair, begun: Begun) -> None:
    """vLLM gives up after five seconds; the READ that waited for it says why there was none."""
    assert begun.refused.result() == SERVER_ERROR
    pair.expect("refused", unanswered(sc.SPAN_READ_SUBMIT))
