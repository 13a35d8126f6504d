"""End to end on real vLLM engines with real NIXL between them, both modes, both layouts.

Every run serves the same requests through the router; `recorded_runs` makes each run once.
"""

import pytest
from recorded_runs import OUTPUT_TOKENS, REQUESTS, Arm, Run, Runs

from pdtrace.tracing import semconv as sc
from pdtrace.tracing.ids import derived_trace_id

pytestmark = pytest.mark.e2e

PUSH = Arm("push")
PULL = Arm("pull")
PUSH_MP = Arm("push", "mp", "plugin")
PULL_MP = Arm("pull", "mp", "plugin")
MANY = [Arm("push", engines=2), Arm("pull", engines=2)]
TRACED = [PUSH, PULL, PUSH_MP, PULL_MP, *MANY]

ROUTER = {sc.SPAN_REQUEST: 1, sc.SPAN_LEG: 2}
SCHEDULERS = {
    sc.SPAN_PREFILL_QUEUE: 1,
    sc.SPAN_PREFILL: 1,
    sc.SPAN_PREFILL_END: 1,
    sc.SPAN_LEASE: 1,
    sc.SPAN_DECODE_ADMISSION: 1,
    sc.SPAN_KV_WAIT: 1,
    sc.SPAN_DECODE_START: 1,
    sc.SPAN_FIRST_DECODE: 1,
    sc.SPAN_DECODE: 1,
}
WORKERS = {
    "push": {
        sc.SPAN_REGISTRATION: 1,
        sc.SPAN_MATCH: 1,
        sc.SPAN_WRITE_SUBMIT: 1,
        sc.SPAN_WRITE_COMPLETE: 1,
    },
    "pull": {sc.SPAN_READ_SUBMIT: 1, sc.SPAN_READ_COMPLETE: 1},
}
IDS = [f"run-{number}" for number in range(REQUESTS)]


@pytest.fixture(params=TRACED, ids=str)
def run(request: pytest.FixtureRequest, runs: Runs) -> Run:
    """Each traced run."""
    return runs.get(request.param)


def test_every_request_is_answered(run: Run) -> None:
    """200, text, and as many tokens as asked for unless the model stopped by itself."""
    assert [result.error for result in run.results] == [None] * REQUESTS
    assert all(0 < result.token_count <= OUTPUT_TOKENS for result in run.results)


@pytest.mark.parametrize("arm", [*TRACED, Arm("pull", traced=False)], ids=str)
def test_tokens_are_those_of_one_plain_engine(arm: Arm, runs: Runs) -> None:
    """Neither the handoff nor the tracing changes a token; and different prompts differ."""
    plain = runs.get(Arm("none", traced=False))
    assert [r.text for r in runs.get(arm).results] == [r.text for r in plain.results]
    assert len({r.text for r in plain.results}) == REQUESTS


@pytest.mark.covers("completions", "push", "pull", on="engines")
@pytest.mark.covers("chat", "push", "pull", on="engines")
def test_every_request_has_each_of_its_spans_once(run: Run) -> None:
    """Router, both schedulers and both workers; a handshake only where one was waited for.

    The last request is a chat, the others are completions.
    """
    expected = {**ROUTER, **SCHEDULERS, **WORKERS[run.arm.mode]}
    for request_id in IDS:
        found: dict[str, int] = {}
        for span in run.spans(request_id):
            found[span.name] = found.get(span.name, 0) + 1
        found.pop(sc.SPAN_HANDSHAKE, None)
        assert found == expected, request_id


def test_nothing_else_is_reported(run: Run) -> None:
    """No request that nobody sent, no span in error."""
    assert {span.attributes[sc.REQUEST_ID] for span in run.records} == set(IDS)
    assert [span.name for span in run.records if span.status == 2] == []


def test_one_trace_a_request_with_engine_spans_under_the_legs(run: Run) -> None:
    """The router's context reaches schedulers and workers of both engines."""
    for request_id in IDS:
        spans = run.spans(request_id)
        legs = {s.attributes[sc.LEG]: s.span_id for s in spans if s.name == sc.SPAN_LEG}
        (root,) = [s.span_id for s in spans if s.name == sc.SPAN_REQUEST]
        parents = {sc.ROLE_PREFILL: legs["prefill"], sc.ROLE_DECODE: legs["decode"]}
        for span in spans:
            assert span.trace_id == f"{derived_trace_id(request_id):032x}"
            if span.name == sc.SPAN_LEG:
                assert span.parent_id == root
            elif span.name != sc.SPAN_REQUEST:
                assert span.parent_id == parents[str(span.resource[sc.ROLE])], span.name


@pytest.mark.covers("cold-decode", "push", "pull", on="engines")
@pytest.mark.covers("cold-prefill", "push", on="engines")
@pytest.mark.covers("warm", "push", "pull", on="engines")
def test_the_first_requests_wait_for_handshakes_and_later_ones_do_not(run: Run) -> None:
    """A pair of engines is cold once: D shakes hands with P, and in push P with D too."""
    handshakes = [span for span in run.records if span.name == sc.SPAN_HANDSHAKE]
    assert all(span.attributes[sc.HANDSHAKE_COLD] is True for span in handshakes)
    first = [s for s in handshakes if s.attributes[sc.REQUEST_ID] == "run-0"]
    both_sides = {sc.ROLE_PREFILL, sc.ROLE_DECODE}
    expected = both_sides if run.arm.mode == "push" else {sc.ROLE_DECODE}
    assert {span.resource[sc.ROLE] for span in first} == expected
    assert "cold_handshake" in run.splits["run-0"]["flags"]
    if run.arm.engines == 1:
        assert handshakes == first
        assert all("cold_handshake" not in run.splits[i]["flags"] for i in IDS[1:])


def test_engine_ids_and_peers_name_the_pair(run: Run) -> None:
    """P and D know each other; in push P learns its peer from the registration."""
    for request_id in IDS:
        wait = run.span(request_id, sc.SPAN_KV_WAIT)
        prefill = run.span(request_id, sc.SPAN_PREFILL)
        assert wait.attributes[sc.PEER_ENGINE_ID] == prefill.resource[sc.ENGINE_ID]
        if run.arm.mode == "push":
            write = run.span(request_id, sc.SPAN_WRITE_COMPLETE)
            assert write.attributes[sc.PEER_ENGINE_ID] == wait.resource[sc.ENGINE_ID]


@pytest.mark.covers("one-process", "push", "pull", on="engines")
@pytest.mark.covers("many-processes", "push", "pull", on="engines")
def test_the_layout_shows_in_the_process_ids(run: Run) -> None:
    """`mp`: scheduler and worker hooks are in different processes; `uni`: in one."""
    for request_id in IDS:
        scheduler = run.span(request_id, sc.SPAN_KV_WAIT).resource[sc.PROCESS_PID]
        name = sc.SPAN_REGISTRATION if run.arm.mode == "push" else sc.SPAN_READ_SUBMIT
        worker = run.span(request_id, name).resource[sc.PROCESS_PID]
        assert (scheduler == worker) == (run.arm.layout == "uni")


def test_transfers_carry_the_prompts_blocks(run: Run) -> None:
    """Bytes are whole blocks, the same number per block for every request, at least one each."""
    name = sc.SPAN_WRITE_SUBMIT if run.arm.mode == "push" else sc.SPAN_READ_SUBMIT
    per_block = set()
    for request_id in IDS:
        blocks = int(str(run.span(request_id, sc.SPAN_PREFILL_END).attributes[sc.BLOCK_COUNT]))
        moved = int(str(run.span(request_id, name).attributes[sc.TRANSFER_BYTES]))
        assert blocks > 0 and moved % blocks == 0
        per_block.add(moved // blocks)
    assert len(per_block) == 1


def test_leases_end_with_evidence(run: Run) -> None:
    """`written` after the WRITE completed on P, `read` after D's notification."""
    outcome = sc.LEASE_WRITTEN if run.arm.mode == "push" else sc.LEASE_READ
    for request_id in IDS:
        lease = run.span(request_id, sc.SPAN_LEASE)
        assert lease.attributes[sc.LEASE_OUTCOME] == outcome
        seen = [event.name for event in lease.events]
        assert seen == ([] if run.arm.mode == "push" else [sc.EVENT_NOTIFICATION_SEEN])


def test_instants_stand_in_causal_order(run: Run) -> None:
    """Scheduler instants of D adjoin to the nanosecond; the KV wait has its evidence inside."""
    for request_id in IDS:
        chain = [
            run.span(request_id, name)
            for name in (
                sc.SPAN_DECODE_ADMISSION,
                sc.SPAN_KV_WAIT,
                sc.SPAN_DECODE_START,
                sc.SPAN_FIRST_DECODE,
                sc.SPAN_DECODE,
            )
        ]
        for before, after in zip(chain, chain[1:], strict=False):
            assert before.end_ns == after.start_ns
        assert [event.name for event in chain[0].events] == [sc.EVENT_FIRST_ATTEMPT]
        if run.arm.mode == "push":
            wait = chain[1]
            (seen,) = [e for e in wait.events if e.name == sc.EVENT_NOTIFICATION_SEEN]
            assert wait.start_ns < seen.time_ns <= wait.end_ns


def test_the_split_is_exact_and_complete(run: Run) -> None:
    """Classes and phases sum to TTFT to the nanosecond, and next to nothing is unattributed."""
    assert set(run.splits) == set(IDS)
    shares = []
    for line in run.splits.values():
        assert sum(line["classes"].values()) == line["ttft_ns"]
        assert sum(line["phases"].values()) == line["ttft_ns"]
        assert line["lower_bound"] is False and line["clock_halfwidth_ns"] == 0
        assert set(line["flags"]) <= {"cold_handshake"}
        assert line["mode"] == run.arm.mode
        shares.append(line["classes"]["unattributed"] / line["ttft_ns"])
    assert sorted(shares)[len(shares) // 2] <= 0.01
    assert max(shares) <= 0.05


BEFORE_LANDING = {"hop", "admission", "registration", "handshake", "submit"}


@pytest.mark.covers("sequential", "push", on="engines")
@pytest.mark.covers("concurrent", "push", on="engines")
def test_concurrent_dispatch_can_hide_what_sequential_dispatch_exposes(runs: Runs) -> None:
    """The first request of a push pair is dispatched sequentially, all others concurrently.

    Can: a short prompt may be computed before D's registration is there.
    """
    first, *others = (runs.get(PUSH).splits[request_id] for request_id in IDS)
    assert first["dispatch"] == "sequential"
    assert not BEFORE_LANDING & set(first["hidden"])
    assert {line["dispatch"] for line in others} == {"concurrent"}
    assert any(line["hidden"].get("registration", 0) > 0 for line in others)


@pytest.mark.covers("sequential", "pull", on="engines")
def test_a_pull_hides_nothing(runs: Runs) -> None:
    """D's leg begins when P has answered."""
    for line in runs.get(PULL).splits.values():
        assert line["dispatch"] == "sequential"
        assert not {*BEFORE_LANDING, "match"} & set(line["hidden"])


def test_the_clients_stopwatch_contains_the_traces_ttft(run: Run) -> None:
    """The trace's window ends before the client's answer does, and about when its first token came.

    About: the router reads its clock when it has written, and may have lost its core meanwhile.
    """
    beyond = []
    for result in run.results:
        assert result.ttft_ns is not None
        traced_ns = run.splits[result.request_id]["ttft_ns"]
        assert 0 < traced_ns < result.e2e_ns
        beyond.append((result.ttft_ns - traced_ns) / result.ttft_ns)
    assert -0.1 < sorted(beyond)[len(beyond) // 2] < 0.75


@pytest.mark.covers("n-by-m", "push", "pull", on="engines")
@pytest.mark.parametrize("arm", MANY, ids=str)
def test_several_pairs_share_the_load(arm: Arm, runs: Runs) -> None:
    """Two by two engines: every engine serves."""
    lines = runs.get(arm).splits.values()
    assert {line["prefill_engine"] for line in lines} == {"prefill-0", "prefill-1"}
    assert {line["decode_engine"] for line in lines} == {"decode-0", "decode-1"}


def test_no_prompt_and_no_answer_is_in_any_span(run: Run) -> None:
    """Span and resource values carry no text of a user."""
    words = {word for result in run.results for word in [result.text] if len(word) > 3}
    for span in run.records:
        for value in [*span.attributes.values(), *span.resource.values()]:
            assert not any(word in str(value) for word in words)
            assert "amber" not in str(value) and "cedar" not in str(value)
