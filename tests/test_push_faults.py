"""Faults that a pair of real engines survives in push: the client gets what vLLM alone gives, and
every open span ends with the right error.

In push D hears nothing of a failure on P: vLLM lets it wait for as long as its client does.
"""

import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import ExitStack
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
    SERVER_ERROR,
    WRITTEN,
    Answer,
    Client,
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

SENT = {sc.SPAN_REGISTRATION: ""}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where faults are switched on."""
    return tmp_path_factory.mktemp("push-faults")


@pytest.fixture(scope="module")
def pair(directory: Path, engine_server: EngineServer) -> Iterator[Pair]:
    """One pair for all of them."""
    with warm_pair(settings("push", directory, **LARGE), engine_server) as pair:
        yield pair


@dataclass(frozen=True)
class Begun:
    """What runs into one of vLLM's own terms, seconds later."""

    refused: "Future[Answer]"
    lost: Client
    unwritten: Client
    late: "Future[Answer]"
    expired: dict[str, Any]
    """What P returned."""


@pytest.fixture(scope="module", autouse=True)
def begun(pair: Pair, directory: Path) -> Begun:
    """Begun together and looked at in the end, so that the terms run beside the other tests."""
    refused = pair.decode_later("refused", pair.nowhere("refused"))
    with fault(directory, "registration.decode-0.0"):
        lost = pair.connect(pair.d, "lost", pair.told("lost"))
        pair.span("lost", sc.SPAN_REGISTRATION)
    pair.prefill("lost")
    with fault(directory, "transfer.prefill-0.0"):
        unwritten = pair.connect(pair.d, "unwritten", pair.told("unwritten"))
        pair.prefill("unwritten")
        pair.span("unwritten", sc.SPAN_WRITE_SUBMIT)
    late = pair.decode_later("late", pair.told("late"))
    return Begun(refused, lost, unwritten, late, pair.prefill("expired"))


@pytest.fixture(scope="module")
def undisturbed(pair: Pair) -> Answer:
    """What is answered when nobody stands still."""
    return pair.hand_off("moving", LONG)


def expect_long_write(pair: Pair, request_id: str, still_standing_ns: int) -> None:
    """Every span ends well, and the WRITE, from its submission on, only after this instant."""
    pair.expect(request_id, P_SERVED | D_SERVED | WRITTEN)
    complete = pair.span(request_id, sc.SPAN_WRITE_COMPLETE)
    assert complete.start_ns == pair.span(request_id, sc.SPAN_WRITE_SUBMIT).end_ns
    assert complete.end_ns > still_standing_ns


@pytest.mark.covers("transfer-stopped", "push", on="engines")
def test_decode_that_stands_still_during_a_write(pair: Pair, undisturbed: Answer) -> None:
    """The answer is the same and comes later; the WRITE is as long as D stood."""
    answer = pair.decode_later("d-stands", pair.told("d-stands"), LONG)
    pair.span("d-stands", sc.SPAN_REGISTRATION)
    with stopped(pair.d):
        pair.prefill("d-stands", LONG)
        pair.span("d-stands", sc.SPAN_WRITE_SUBMIT)
        still_standing_ns = time.time_ns()
    assert answer.result() == undisturbed
    expect_long_write(pair, "d-stands", still_standing_ns)


@pytest.mark.covers("transfer-stopped", "push", on="engines")
def test_prefill_that_stands_still_during_its_write(pair: Pair, undisturbed: Answer) -> None:
    """D serves others meanwhile, and answers when P goes on.

    D stands first, so that P is sure to be stopped before it is done.
    """
    answer = pair.decode_later("p-stands", pair.told("p-stands"), LONG)
    pair.span("p-stands", sc.SPAN_REGISTRATION)
    with ExitStack() as standing:
        with stopped(pair.d):
            pair.prefill("p-stands", LONG)
            pair.span("p-stands", sc.SPAN_WRITE_SUBMIT)
            standing.enter_context(stopped(pair.p))
        assert pair.decode("meanwhile", None).status == 200
        assert not answer.done()
        still_standing_ns = time.time_ns()
    assert answer.result() == undisturbed
    expect_long_write(pair, "p-stands", still_standing_ns)


@pytest.mark.covers("abort-before", "push", on="engines")
def test_a_client_that_leaves_before_the_transfer(pair: Pair) -> None:
    """D's waiting ends as aborted; P, which nobody tells, still writes into its blocks."""
    client = pair.connect(pair.d, "early", pair.told("early"))
    pair.span("early", sc.SPAN_REGISTRATION)
    client.leave()
    pair.expect("early", waited(sc.ERROR_ABORTED) | SENT)
    pair.prefill("early")
    pair.expect("early", P_SERVED | waited(sc.ERROR_ABORTED) | WRITTEN)


@pytest.mark.covers("abort-during", "push", on="engines")
def test_a_client_that_leaves_during_the_transfer(pair: Pair) -> None:
    """D's waiting ends as aborted although its KV is on the way and arrives."""
    client = pair.connect(pair.d, "during", pair.told("during"), LONG)
    pair.span("during", sc.SPAN_REGISTRATION)
    with stopped(pair.d):
        pair.prefill("during", LONG)
        pair.span("during", sc.SPAN_WRITE_SUBMIT)
        client.leave()
    pair.expect("during", P_SERVED | waited(sc.ERROR_ABORTED) | WRITTEN)


@pytest.mark.covers("abort-after", "push", on="engines")
def test_a_client_that_leaves_while_it_is_answered(pair: Pair) -> None:
    """Decoding ends as aborted, everything before it ended well."""
    pair.leave_answer(pair.d, "after", pair.prefill("after"))
    pair.expect("after", P_SERVED | D_SERVED | WRITTEN | {sc.SPAN_DECODE: sc.ERROR_ABORTED})


@pytest.mark.covers("abort-before", "push", on="engines")
def test_a_client_that_leaves_prefill(pair: Pair) -> None:
    """P's span ends as aborted, and no blocks are held for anybody."""
    pair.leave_answer(pair.p, "left-p", {"do_remote_decode": True})
    pair.expect("left-p", {sc.SPAN_PREFILL_QUEUE: "", sc.SPAN_PREFILL: sc.ERROR_ABORTED})


@pytest.mark.covers("phantom", "push", on="engines")
def test_what_vllm_submits_after_a_rejected_request_is_no_request(pair: Pair) -> None:
    """It has no span, and reaches nobody else; a request with an id like its own is traced."""
    assert pair.decode("rejected", pair.told("rejected"), max_tokens=5000).status == 400
    assert pair.hand_off("0123456789abcdef").status == 200
    pair.expect("0123456789abcdef", P_SERVED | D_SERVED | WRITTEN)
    assert pair.seen() <= pair.asked - {"rejected"}


@pytest.mark.covers("computed-on-decode", "push", on="engines")
def test_a_prompt_that_decode_computes_itself(pair: Pair) -> None:
    """A request without a handoff, on the same engine: as on one that serves both."""
    assert pair.decode("plain", None) == pair.hand_off("elsewhere")
    pair.expect("plain", {sc.SPAN_PREFILL_QUEUE: "", sc.SPAN_PREFILL: "", sc.SPAN_DECODE: ""})


@pytest.mark.covers("lease-expired", "push", on="engines")
def test_a_lease_that_ends_before_the_registration(pair: Pair, begun: Begun) -> None:
    """P has freed its blocks and ignores D, which waits until its own watchdog."""
    lease = pair.span("expired", sc.SPAN_LEASE)
    assert lease.attributes[sc.LEASE_OUTCOME] == sc.LEASE_EXPIRED
    client = pair.connect(pair.d, "expired", begun.expired)
    pair.expect("expired", P_UNREAD | waited(sc.ERROR_REGISTRATION_EXPIRED) | SENT)
    client.leave()


@pytest.mark.covers("handshake-refused", "push", on="engines")
def test_a_handshake_that_nobody_answers(pair: Pair, begun: Begun) -> None:
    """vLLM gives up after five seconds; the registration that waited for it was never sent."""
    assert begun.refused.result() == SERVER_ERROR
    pair.expect("refused", unanswered(sc.SPAN_REGISTRATION))


@pytest.mark.covers("registration-lost", "push", on="engines")
def test_a_registration_that_is_lost(pair: Pair, begun: Begun) -> None:
    """P never hears of D and frees its blocks; D's waiting ends at the watchdog, saying why."""
    failed = sc.ERROR_REGISTRATION_FAILED
    pair.expect("lost", P_UNREAD | waited(failed) | {sc.SPAN_REGISTRATION: failed})
    begun.lost.leave()


@pytest.mark.covers("transfer-failed", "push", on="engines")
def test_a_write_that_fails(pair: Pair, begun: Begun) -> None:
    """P's lease runs out, D's registration too: nobody tells it."""
    at_p = {sc.SPAN_MATCH: "", sc.SPAN_WRITE_SUBMIT: sc.ERROR_WRITE_FAILED}
    at_d = waited(sc.ERROR_REGISTRATION_EXPIRED) | SENT
    pair.expect("unwritten", P_UNREAD | at_p | at_d)
    begun.unwritten.leave()


@pytest.mark.covers("registration-expired", "push", on="engines")
def test_a_registration_that_is_late(pair: Pair, begun: Begun) -> None:
    """vLLM's watchdog forgets it and D waits on: when P's WRITE comes after all, D answers."""
    expected = pair.hand_off("in-time")
    wait = pair.span("late", sc.SPAN_KV_WAIT)
    assert wait.attributes[sc.ERROR_TYPE] == sc.ERROR_REGISTRATION_EXPIRED
    pair.prefill("late")
    assert begun.late.result() == expected
    late = {sc.SPAN_KV_WAIT: sc.ERROR_REGISTRATION_EXPIRED}
    pair.expect("late", P_SERVED | D_SERVED | WRITTEN | late)
