"""Worker hooks on vLLM's own methods, with two real NIXL agents that move real memory."""

import operator
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")
pytest.importorskip("nixl", reason="NIXL is not installed")

from nixl_pair import (
    PullWorker,
    PushWorker,
    Side,
    carried,
    eventually,
    make_agent,
)
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.metadata import RemoteMeta, ReqMeta

from pdtrace.connector.attach import Attachment
from pdtrace.connector.pull import PullWorkerHooks
from pdtrace.connector.push import NixlPushConnector, PushWorkerHooks
from pdtrace.tracing import semconv as sc
from pdtrace.tracing.guard import Guard
from pdtrace.tracing.ids import derived_trace_id
from pdtrace.tracing.testing import SettableClock, make_recorder

pytestmark = pytest.mark.nixl

P_ID, D_ID = "cmpl-a-0-00000001", "cmpl-a-0-00000002"
CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
Spans = list[dict[str, Any]]


@pytest.fixture(scope="module")
def agents() -> tuple[Any, Any]:
    """Two agents for the whole module: UCX takes a second to start."""
    return make_agent("prefill-agent"), make_agent("decode-agent")


class Pair:
    """Prefill engine `p` and decode engine `d`, each traced; one clock for both."""

    def __init__(self, agents: tuple[Any, Any], worker: Any, hooks: Any, lengths: Any) -> None:
        self.clock = SettableClock()
        peers: dict[int, Any] = {}
        names, sides = ("engine-p", "engine-d"), []
        self._plain = [dict(agent.__dict__) for agent in agents]
        self._agents = agents
        for name, agent in zip(names, agents, strict=True):
            sides.append(Side(worker(name, agent, lengths, peers), hooks, self.clock))
        self.p, self.d = sides
        for region in self.p.worker.memory:
            for block in range(len(region)):
                region[block] = block + 1

    def at(self, mono: int) -> None:
        """Set the clock."""
        self.clock.mono = mono

    def close(self) -> None:
        """Unhook the agents and give everything back."""
        for side in (self.p, self.d):
            side.worker.close()
        for agent, plain in zip(self._agents, self._plain, strict=True):
            agent.get_new_notifs()
            agent.__dict__.clear()
            agent.__dict__.update(plain)


Make = Callable[..., Pair]


@pytest.fixture
def make(agents: tuple[Any, Any]) -> Iterator[Make]:
    """Make pairs that are taken down afterwards."""
    made: list[Pair] = []

    def make(worker: Any, hooks: Any, lengths: tuple[int, ...] = (4096,)) -> Pair:
        made.append(Pair(agents, worker, hooks, lengths))
        return made[-1]

    yield make
    for pair in made:
        pair.close()


@pytest.fixture
def push(make: Make) -> Pair:
    """A pair in push mode."""
    return make(PushWorker, PushWorkerHooks)


@pytest.fixture
def pull(make: Make) -> Pair:
    """A pair in pull mode."""
    return make(PullWorker, PullWorkerHooks)


def registration(pair: Pair, blocks: list[int], **more: Any) -> dict[str, Any]:
    """What D's scheduler stages in vLLM 0.32, with our context as `_tell_peer` adds it."""
    return {
        "request_id": D_ID,
        "decode_engine_id": "engine-d",
        "decode_host": "127.0.0.1",
        "decode_port": pair.d.worker.port,
        "decode_tp_size": 1,
        "local_block_ids": [blocks],
        "remote_engine_id": "engine-p",
        "remote_host": "127.0.0.1",
        "remote_port": pair.p.worker.port,
        "remote_tp_size": 1,
        sc.REGISTRATION_KEY: {sc.PARAM_TRACEPARENT: CALLER},
        **more,
    }


def shake_hands(pair: Pair) -> None:
    """Let both sides know each other before the request comes."""
    for one, other in ((pair.d, pair.p), (pair.p, pair.d)):
        worker, peer = one.worker, other.worker
        future = worker._ensure_handshake(peer.engine_id, "127.0.0.1", peer.port, 1)
        if future is not None:
            future.result(60)
        known, engine_id = worker._remote_agents, peer.engine_id
        eventually(partial(operator.contains, known, engine_id))


def register(pair: Pair, blocks: list[int], at: int = 20) -> None:
    """D's scheduler allocated at `at`; its writer sends the registration 10 later."""
    pair.at(at + 5)
    staged = {D_ID: registration(pair, blocks)}
    pair.d.step({D_ID: carried("a", "push", at)}, push_registrations=staged)
    pair.at(at + 10)
    pair.d.worker.writer_turn()


def hand_over(pair: Pair, blocks: list[int], at: int) -> None:
    """P's request finished at `at` and reaches the worker 5 later."""
    pair.at(at + 5)
    pair.p.worker._reqs_to_process.add(P_ID)
    finished = {P_ID: ([*blocks],)}
    carriers = {P_ID: carried("a", "push", at)}
    pair.p.step(carriers, push_finished_blocks=finished, reqs_to_send={P_ID: 1e12})


def turn_until(side: Side, condition: Callable[[], object]) -> None:
    """Let a writer look for notifications until something is so: they come by another thread."""

    def looked() -> object:
        side.worker.writer_turn()
        return condition()

    eventually(looked)


def written(pair: Pair) -> None:
    """Step P until it has seen its WRITE complete."""

    def stepped() -> bool:
        return P_ID in pair.p.worker.get_transfer_results().finished_sending

    eventually(stepped)


def common(side: str, **more: Any) -> dict[str, Any]:
    """Attributes of every span of one side in push mode."""
    request_id = P_ID if side == "p" else D_ID
    own = {sc.REQUEST_ID: "a", sc.ENGINE_REQUEST_ID: request_id, sc.MODE: "push"}
    return {**own, **more}


def shape(spans: Spans) -> list[tuple[str, int, int]]:
    """Name, start and end."""
    return [(span["name"], span["start"], span["end"]) for span in spans]


def without_durations(attributes: dict[str, Any]) -> dict[str, Any]:
    """NIXL's own measurements are integers of microseconds, whatever they are."""
    kept = dict(attributes)
    for key in (sc.NIXL_POST_US, sc.NIXL_XFER_US):
        assert type(kept[key]) is int and kept.pop(key) >= 0
    return kept


def moved(pair: Pair, source: list[int], target: list[int]) -> int:
    """Bytes that are really at D; asserts that they are P's."""
    total = 0
    for theirs, ours in zip(pair.p.worker.memory, pair.d.worker.memory, strict=True):
        for from_block, to_block in zip(source, target, strict=True):
            assert (theirs[from_block] == ours[to_block]).all()
            assert ours[to_block].any()
            total += ours[to_block].nbytes
    return total


def test_push_with_the_registration_first(push: Pair) -> None:
    """The match begins when it is received and ends when the blocks come; D's context is adopted.

    ::

        d  registration 20..30
        p      received 40 | match 40..55 | write_submit 60..60 | write_complete 60..70
    """
    shake_hands(push)
    register(push, [3, 4])
    push.at(40)
    turn_until(push.p, lambda: push.p.worker._pending_d_registrations)
    hand_over(push, [1, 2], at=50)
    push.at(60)
    push.p.worker.writer_turn()
    push.at(70)
    written(push)

    trace, parent = int(CALLER[3:35], 16), int(CALLER[36:52], 16)
    (sent,) = push.d.finish()
    sent_bytes = sent["attributes"].pop(sc.REGISTRATION_BYTES)
    assert sent_bytes > 200
    assert sent == {
        "name": sc.SPAN_REGISTRATION,
        "trace": derived_trace_id("a"),
        "parent": None,
        "start": 20,
        "end": 30,
        "attributes": common("d"),
    }
    handed, match, submit, complete = push.p.finish()
    assert handed == {
        "name": sc.SPAN_PREFILL_END,
        "trace": derived_trace_id("a"),
        "parent": None,
        "start": 50,
        "end": 55,
        "attributes": common("p", **{sc.BLOCK_COUNT: 2}),
    }
    later = {"trace": trace, "parent": parent}
    peer = {sc.PEER_ENGINE_ID: "engine-d", sc.PEER_ENGINE_REQUEST_ID: D_ID}
    assert match == {
        **later,
        "name": sc.SPAN_MATCH,
        "start": 40,
        "end": 55,
        "attributes": common("p", **peer, **{sc.MATCH_FIRST: sc.MATCH_REGISTRATION}),
        "events": [(sc.EVENT_REGISTRATION_RECEIVED, 40, {})],
    }
    size = {sc.TRANSFER_DESCRIPTORS: 2, sc.PEER_TP_RANKS: 1}
    assert submit == {
        **later,
        "name": sc.SPAN_WRITE_SUBMIT,
        "start": 60,
        "end": 60,
        "attributes": common(
            "p", **peer, **size, **{sc.TRANSFER_BYTES: moved(push, [1, 2], [3, 4])}
        ),
    }
    complete["attributes"] = without_durations(complete["attributes"])
    assert complete == {
        **later,
        "name": sc.SPAN_WRITE_COMPLETE,
        "start": 60,
        "end": 70,
        "attributes": common("p", **peer, **{sc.OBSERVED_BY: sc.OBSERVED_BY_STEP}),
    }
    assert push.p.hooks.take_notes() == ([], {P_ID: sc.LEASE_WRITTEN})


def test_push_with_the_blocks_first(push: Pair) -> None:
    """The match begins with the blocks; D sees the notification and says from which rank."""
    shake_hands(push)
    hand_over(push, [5, 6, 7], at=10)
    push.at(17)
    push.p.worker.writer_turn()
    register(push, [0, 1, 2])
    push.at(40)
    turn_until(push.p, lambda: push.p.worker._sending_transfers)
    push.at(50)
    written(push)
    _, match, submit, _ = push.p.finish()
    assert shape([match, submit]) == [(sc.SPAN_MATCH, 15, 40), (sc.SPAN_WRITE_SUBMIT, 40, 40)]
    assert match["attributes"][sc.MATCH_FIRST] == sc.MATCH_BLOCKS
    assert submit["attributes"][sc.TRANSFER_BYTES] == moved(push, [5, 6, 7], [0, 1, 2])

    push.at(60)
    turn_until(push.d, lambda: not push.d.worker._pending_completion_notifs.empty())
    ((request_id, at_ns, rank),), outcomes = push.d.hooks.take_notes()
    assert (request_id, at_ns, rank, outcomes) == (
        D_ID,
        push.d.recorder.wall_ns(60),
        0,
        {},
    )


def test_push_after_a_prefix_hit_counts_only_what_moves(push: Pair) -> None:
    """D registers the blocks that it lacks; P WRITEs that tail of its own."""
    shake_hands(push)
    register(push, [3])
    turn_until(push.p, lambda: push.p.worker._pending_d_registrations)
    hand_over(push, [1, 2], at=50)
    push.p.worker.writer_turn()
    written(push)
    handed, _, submit, _ = push.p.finish()
    assert handed["attributes"][sc.BLOCK_COUNT] == 2
    assert submit["attributes"][sc.TRANSFER_DESCRIPTORS] == 1
    assert submit["attributes"][sc.TRANSFER_BYTES] == moved(push, [2], [3])


def test_descriptors_of_unequal_lengths_are_counted_exactly(make: Make) -> None:
    """Two regions of memory whose blocks differ in size."""
    pair = make(PushWorker, PushWorkerHooks, (4096, 512))
    shake_hands(pair)
    register(pair, [3, 4])
    turn_until(pair.p, lambda: pair.p.worker._pending_d_registrations)
    hand_over(pair, [1, 2], at=50)
    pair.p.worker.writer_turn()
    written(pair)
    submit = pair.p.finish()[2]
    assert submit["attributes"][sc.TRANSFER_DESCRIPTORS] == 4
    assert submit["attributes"][sc.TRANSFER_BYTES] == moved(pair, [1, 2], [3, 4]) == 2 * 4608


@pytest.mark.parametrize("lengths", [(4096,), (4096, 512)])
def test_a_descriptor_list_of_tuples_is_counted_too(make: Make, lengths: tuple[int, ...]) -> None:
    """vLLM passes one where heads are split among ranks (P's tensor parallel size above D's)."""
    pair = make(PushWorker, PushWorkerHooks, lengths)
    shake_hands(pair)
    worker = pair.p.worker
    agent = worker.nixl_wrapper
    agent.release_dlist_handle(worker.src_xfer_handles_by_block_size.pop(16))
    rows = [tuple(row) for row in worker.rows().tolist()]
    prepared = agent.prep_xfer_dlist("NIXL_INIT_AGENT", agent.get_xfer_descs(rows, "DRAM"))
    worker.src_xfer_handles_by_block_size[16] = prepared
    register(pair, [3, 4])
    turn_until(pair.p, lambda: worker._pending_d_registrations)
    hand_over(pair, [1, 2], at=50)
    worker.writer_turn()
    written(pair)
    submit = pair.p.finish()[2]
    assert submit["attributes"][sc.TRANSFER_BYTES] == moved(pair, [1, 2], [3, 4])


def test_released_descriptor_lists_are_forgotten(push: Pair) -> None:
    """A peer that is evicted leaves nothing behind in the hooks."""
    before = set(push.p.hooks._descriptor_bytes)
    shake_hands(push)
    assert len(push.p.hooks._descriptor_bytes) == len(before) + 1
    push.p.worker._remote_agents["engine-d"], kept = {}, push.p.worker._remote_agents["engine-d"]
    (handle,) = push.p.worker.dst_xfer_side_handles.pop("engine-d").values()
    push.p.worker.nixl_wrapper.release_dlist_handle(handle)
    push.p.worker._remote_agents["engine-d"] = kept
    assert set(push.p.hooks._descriptor_bytes) == before
    assert push.p.hooks._described_bytes == {}


def test_a_cold_pair_shakes_hands_on_both_sides(push: Pair) -> None:
    """Asked for when the call had to leave its request waiting, usable when it comes back."""
    push.d.worker.may_shake_hands.clear()
    register(push, [3])
    push.d.worker.may_shake_hands.set()
    eventually(lambda: not push.d.worker._reg_send_inbox.empty())
    push.at(37)
    push.d.worker.writer_turn()

    push.p.worker.may_shake_hands.clear()
    turn_until(push.p, lambda: push.p.worker._pending_d_registrations)
    hand_over(push, [1], at=50)
    push.at(60)
    push.p.worker.writer_turn()
    push.p.worker.may_shake_hands.set()
    eventually(lambda: not push.p.worker._deferred_push_inbox.empty())
    push.at(80)
    push.p.worker.writer_turn()
    push.at(90)
    written(push)

    d_spans, p_spans = push.d.finish(), push.p.finish()
    assert shape(d_spans) == [(sc.SPAN_HANDSHAKE, 30, 37), (sc.SPAN_REGISTRATION, 20, 37)]
    assert d_spans[0]["attributes"] == common(
        "d", **{sc.PEER_ENGINE_ID: "engine-p", sc.HANDSHAKE_COLD: True}
    )
    assert shape(p_spans) == [
        (sc.SPAN_PREFILL_END, 50, 55),
        (sc.SPAN_MATCH, 37, 55),
        (sc.SPAN_HANDSHAKE, 60, 80),
        (sc.SPAN_WRITE_SUBMIT, 60, 80),
        (sc.SPAN_WRITE_COMPLETE, 80, 90),
    ]
    assert p_spans[2]["attributes"] == common(
        "p",
        **{
            sc.PEER_ENGINE_ID: "engine-d",
            sc.PEER_ENGINE_REQUEST_ID: D_ID,
            sc.HANDSHAKE_COLD: True,
        },
    )


def test_every_registration_of_a_request_is_an_event(push: Pair) -> None:
    """Several decode ranks register with one prefill rank; the first that came matches."""
    shake_hands(push)
    register(push, [3], at=20)
    turn_until(push.p, lambda: push.p.worker._pending_d_registrations)
    push.at(40)
    push.d.worker._do_send_reg_notif(D_ID, registration(push, [3]))
    received = push.p.hooks._received
    turn_until(push.p, lambda: len(received[D_ID]) == 2)
    hand_over(push, [1], at=50)
    push.p.worker.writer_turn()
    written(push)
    match = push.p.finish()[1]
    assert (match["start"], match["end"]) == (30, 55)
    assert match["events"] == [
        (sc.EVENT_REGISTRATION_RECEIVED, 30, {}),
        (sc.EVENT_REGISTRATION_RECEIVED, 40, {}),
    ]
    assert received == {}


def test_an_untraced_peer_is_served_and_traced_on_one_side(push: Pair) -> None:
    """Its registration has no context; P's spans then stay in the derived trace."""
    shake_hands(push)
    plain = registration(push, [3])
    del plain[sc.REGISTRATION_KEY]
    push.d.worker._do_send_reg_notif(D_ID, plain)
    turn_until(push.p, lambda: push.p.worker._pending_d_registrations)
    hand_over(push, [1], at=50)
    push.p.worker.writer_turn()
    written(push)
    spans = push.p.finish()
    assert len(spans) == 4
    assert {(span["trace"], span["parent"]) for span in spans} == {(derived_trace_id("a"), None)}


def test_a_completion_that_another_thread_sees_first_is_reported_once(push: Pair) -> None:
    """The engine's thread may poll between the last post and the writer's return from it."""
    shake_hands(push)
    register(push, [3])
    turn_until(push.p, lambda: push.p.worker._pending_d_registrations)
    worker = push.p.worker
    posted, may_return = threading.Event(), threading.Event()
    post = worker.nixl_wrapper.transfer

    def post_and_linger(handle: Any) -> Any:
        state = post(handle)
        with worker._sending_transfers_lock:  # vLLM publishes it a moment later
            worker._sending_transfers[P_ID].append(handle)
        posted.set()
        assert may_return.wait(60)
        return state

    worker.nixl_wrapper.transfer = post_and_linger
    hand_over(push, [1], at=50)
    push.at(60)
    writer = threading.Thread(target=worker.writer_turn)
    writer.start()
    assert posted.wait(60)
    push.at(64)
    written(push)
    push.at(66)
    worker._sending_transfers = _Forgetful()
    may_return.set()
    writer.join(60)
    spans = push.p.finish()
    assert shape(spans)[2:] == [
        (sc.SPAN_WRITE_SUBMIT, 60, 66),
        (sc.SPAN_WRITE_COMPLETE, 66, 66),
    ]
    assert push.p.hooks._transfers == {}
    assert push.p.hooks.take_notes()[1] == {P_ID: sc.LEASE_WRITTEN}


class _Forgetful(dict[str, list[Any]]):
    """Takes the handle that was published already."""

    def __missing__(self, key: str) -> list[Any]:
        return []


def fake_failure(*_: Any, **__: Any) -> None:
    """Injected where a call of NIXL is to fail."""
    raise RuntimeError("injected")


def error_of(spans: Spans) -> list[tuple[str, Any]]:
    """Name and error of each span that has one."""
    return [
        (s["name"], s["attributes"][sc.ERROR_TYPE])
        for s in spans
        if "error" in s and sc.ERROR_TYPE in s["attributes"]
    ]


def test_a_write_that_cannot_be_posted(push: Pair) -> None:
    """The open span fails, and the lease that then runs out is no success."""
    shake_hands(push)
    register(push, [3])
    turn_until(push.p, lambda: push.p.worker._pending_d_registrations)
    hand_over(push, [1], at=50)
    push.p.worker.nixl_wrapper.transfer = fake_failure
    push.p.worker.writer_turn()
    assert error_of(push.p.spans()) == [(sc.SPAN_WRITE_SUBMIT, sc.ERROR_WRITE_FAILED)]
    push.p.worker._reqs_to_send[P_ID] = 0.0
    assert push.p.worker.get_transfer_results().finished_sending == {P_ID}
    assert push.p.hooks.take_notes() == ([], {P_ID: sc.LEASE_EXPIRED})
    assert len(push.p.finish()) == 3


def test_a_failed_write_beside_a_good_one_is_not_a_success(push: Pair) -> None:
    """Of two ranks' WRITEs one is refused: the other completes, but the lease has no evidence."""
    shake_hands(push)
    register(push, [3])
    turn_until(push.p, lambda: push.p.worker._pending_d_registrations)
    hand_over(push, [1], at=50)
    worker = push.p.worker
    write_one, post, calls = worker._xfer_blocks, worker.nixl_wrapper.transfer, []

    def fake_first_post_fails(handle: Any) -> Any:
        calls.append(handle)
        return post(handle) if len(calls) > 1 else fake_failure()

    def write_two(**kwargs: Any) -> Any:
        write_one(**kwargs)
        return write_one(**kwargs)

    worker.nixl_wrapper.transfer, worker._xfer_blocks = fake_first_post_fails, write_two
    worker.writer_turn()

    def polled() -> bool:
        worker.get_transfer_results()
        return not worker._sending_transfers

    eventually(polled)
    assert len(calls) == 2
    worker._reqs_to_send[P_ID] = 0.0
    worker.get_transfer_results()
    assert push.p.hooks.take_notes() == ([], {P_ID: sc.LEASE_EXPIRED})
    assert error_of(push.p.finish()) == [(sc.SPAN_WRITE_SUBMIT, sc.ERROR_WRITE_FAILED)]
    assert push.p.hooks._transfers == {}


def test_a_write_that_fails_on_the_way(push: Pair) -> None:
    """The poll raises (its peer is gone): the wait for completion ends as failed."""
    shake_hands(push)
    register(push, [3])
    turn_until(push.p, lambda: push.p.worker._pending_d_registrations)
    hand_over(push, [1], at=50)
    push.p.worker.writer_turn()
    push.p.worker.nixl_wrapper.check_xfer_state = fake_failure
    push.at(99)
    push.p.worker.get_transfer_results()
    spans = push.p.finish()
    assert error_of(spans) == [(sc.SPAN_WRITE_COMPLETE, sc.ERROR_WRITE_FAILED)]
    assert spans[-1]["end"] == 99


def test_a_registration_that_cannot_be_sent(push: Pair) -> None:
    """vLLM logs it and goes on; so does the span, as an error."""
    shake_hands(push)
    # Under the hook that counts bytes, as NIXL itself would fail.
    push.d.worker.nixl_wrapper.send_notif = fake_failure
    register(push, [3])
    assert error_of(push.d.finish()) == [(sc.SPAN_REGISTRATION, sc.ERROR_REGISTRATION_FAILED)]


def test_a_registration_without_a_peer_to_send_it_to(push: Pair) -> None:
    """The engine was forgotten between handshake and sending: vLLM only writes a line."""
    shake_hands(push)
    known = push.d.worker._remote_agents["engine-p"]
    push.d.worker._remote_agents["engine-p"] = {}
    register(push, [3])
    push.d.worker._remote_agents["engine-p"] = known
    assert error_of(push.d.finish()) == [(sc.SPAN_REGISTRATION, sc.ERROR_REGISTRATION_FAILED)]


@pytest.mark.parametrize("side", ["d", "p"])
def test_a_handshake_with_nobody(push: Pair, side: str) -> None:
    """Both that wait for it end with the handshake's error."""
    hooks = push.d.hooks if side == "d" else push.p.hooks
    if side == "d":
        push.at(25)
        staged = {D_ID: registration(push, [3], remote_port=99)}
        push.d.step({D_ID: carried("a", "push", 20)}, push_registrations=staged)
        push.d.worker.writer_turn()
        eventually(lambda: not push.d.worker._failed_recv_reqs.empty())
        found, waiting = push.d, sc.SPAN_REGISTRATION
    else:
        shake_hands_of_decode(push)
        push.d.worker._do_send_reg_notif(D_ID, registration(push, [3], decode_port=99))
        turn_until(push.p, lambda: push.p.worker._pending_d_registrations)
        hand_over(push, [1], at=50)
        push.p.worker.writer_turn()
        eventually(lambda: not push.p.worker._handshake_futures)
        eventually(lambda: not hooks._asked)
        found, waiting = push.p, sc.SPAN_WRITE_SUBMIT
    failed = sc.ERROR_HANDSHAKE_FAILED
    assert sorted(error_of(found.finish())) == sorted(
        [(waiting, failed), (sc.SPAN_HANDSHAKE, failed)]
    )


def shake_hands_of_decode(pair: Pair) -> None:
    """Only D knows P."""
    worker = pair.d.worker
    worker._ensure_handshake(
        "engine-p", "127.0.0.1", pair.p.worker.port, 1, notif_agents_only=True
    ).result(60)
    eventually(lambda: "engine-p" in worker._remote_agents)


def test_a_lease_that_nobody_used(push: Pair) -> None:
    """D never registers: P frees the blocks and says that nothing proves a transfer."""
    hand_over(push, [1], at=50)
    push.p.worker.writer_turn()
    assert push.p.hooks._handed
    push.p.worker._reqs_to_send[P_ID] = 0.0
    push.p.worker.get_transfer_results()
    assert push.p.hooks.take_notes() == ([], {P_ID: sc.LEASE_EXPIRED})
    assert shape(push.p.finish()) == [(sc.SPAN_PREFILL_END, 50, 55)]
    assert push.p.hooks._handed == {}


# --- pull ---


def wanted(pair: Pair, local: list[int], remote: list[int], port: int | None = None) -> ReqMeta:
    """What D's scheduler hands its worker."""
    where = pair.p.worker.port if port is None else port
    return ReqMeta(
        local_block_ids=(local,),
        local_physical_block_ids=(local,),
        tp_size=1,
        remote=RemoteMeta((remote,), "127.0.0.1", where, "engine-p", P_ID),
        awaiting_kvs=bool(local),
    )


def read(pair: Pair, local: list[int], remote: list[int], port: int | None = None) -> None:
    """D allocated at 20; its worker has the request at 25."""
    pair.at(25)
    carriers = {D_ID: carried("a", "pull", 20)}
    pair.d.step(carriers, reqs_to_recv={D_ID: wanted(pair, local, remote, port)})


def received(pair: Pair) -> None:
    """Step D until the READ is complete."""
    eventually(lambda: D_ID in pair.d.worker.get_transfer_results().finished_recving)


def test_pull_of_a_warm_pair(pull: Pair) -> None:
    """Two adjacent spans on D with what was really read; P has proof from the notification."""
    shake_hands(pull)
    pull.p.worker._reqs_to_process.add(P_ID)
    pull.p.worker._reqs_to_send[P_ID] = 1e12
    read(pull, [3, 4], [1, 2])
    pull.at(40)
    received(pull)
    submit, complete = pull.d.finish()
    own = {sc.REQUEST_ID: "a", sc.ENGINE_REQUEST_ID: D_ID, sc.MODE: "pull"}
    trace = {"trace": derived_trace_id("a"), "parent": None}
    assert submit == {
        **trace,
        "name": sc.SPAN_READ_SUBMIT,
        "start": 25,
        "end": 25,
        "attributes": {
            **own,
            sc.TRANSFER_DESCRIPTORS: 2,
            sc.PEER_TP_RANKS: 1,
            sc.TRANSFER_BYTES: moved(pull, [1, 2], [3, 4]),
        },
    }
    complete["attributes"] = without_durations(complete["attributes"])
    assert complete == {
        **trace,
        "name": sc.SPAN_READ_COMPLETE,
        "start": 25,
        "end": 40,
        "attributes": {**own, sc.OBSERVED_BY: sc.OBSERVED_BY_STEP},
    }
    assert pull.d.hooks._evidence == {}

    pull.at(50)
    eventually(lambda: pull.p.worker.get_transfer_results().finished_sending == {P_ID})
    seen, outcomes = pull.p.hooks.take_notes()
    assert seen == [(P_ID, pull.p.recorder.wall_ns(50), 0)]
    assert outcomes == {P_ID: sc.LEASE_READ}
    assert pull.p.finish() == []


def test_pull_of_a_cold_pair(pull: Pair) -> None:
    """The handshake lies inside the submission, which a later step goes on with."""
    read(pull, [3], [1])
    eventually(lambda: not pull.d.worker._ready_requests.empty())
    pull.at(30)
    pull.d.step()
    pull.at(40)
    received(pull)
    handshake, submit, complete = pull.d.finish()
    assert shape([handshake, submit, complete]) == [
        (sc.SPAN_HANDSHAKE, 25, 30),
        (sc.SPAN_READ_SUBMIT, 25, 30),
        (sc.SPAN_READ_COMPLETE, 30, 40),
    ]
    assert handshake["attributes"][sc.PEER_ENGINE_ID] == "engine-p"
    assert submit["attributes"][sc.TRANSFER_BYTES] == moved(pull, [1], [3])


def test_a_full_local_hit_only_notifies(pull: Pair) -> None:
    """D's scheduler waits for nothing and hands no context over: no span, and nothing lost."""
    shake_hands(pull)
    pull.d.step(reqs_to_recv={D_ID: wanted(pull, [], [1])})
    assert pull.d.finish() == []


def test_a_read_that_cannot_be_posted(pull: Pair) -> None:
    """D's scheduler hears of it later; the span ends now."""
    shake_hands(pull)
    pull.d.worker.nixl_wrapper.transfer = fake_failure
    read(pull, [3], [1])
    assert error_of(pull.d.finish()) == [(sc.SPAN_READ_SUBMIT, sc.ERROR_READ_FAILED)]
    assert pull.d.worker.get_transfer_results().failed_recving == {D_ID}
    assert pull.d.finish() and pull.d.hooks._loading == {}


def test_a_read_that_fails_on_the_way(pull: Pair) -> None:
    """P dies during the READ: the poll raises."""
    shake_hands(pull)
    read(pull, [3], [1])
    pull.d.worker.nixl_wrapper.check_xfer_state = fake_failure
    pull.d.worker.get_transfer_results()
    assert error_of(pull.d.finish()) == [(sc.SPAN_READ_COMPLETE, sc.ERROR_READ_FAILED)]


def test_a_read_from_a_peer_that_is_known_bad(pull: Pair) -> None:
    """vLLM turns it away without a word in the log."""
    shake_hands(pull)
    pull.d.worker._invalid_remote_engines.add("engine-p")
    read(pull, [3], [1])
    assert error_of(pull.d.finish()) == [(sc.SPAN_READ_SUBMIT, sc.ERROR_READ_FAILED)]


def test_a_pull_handshake_with_nobody(pull: Pair) -> None:
    """The request fails on D with the handshake's error."""
    read(pull, [3], [1], port=99)
    eventually(lambda: not pull.d.worker._failed_recv_reqs.empty())
    failed = sc.ERROR_HANDSHAKE_FAILED
    assert sorted(error_of(pull.d.finish())) == [
        (sc.SPAN_HANDSHAKE, failed),
        (sc.SPAN_READ_SUBMIT, failed),
    ]
    assert pull.d.worker.get_transfer_results().failed_recving == {D_ID}
    assert len(pull.d.finish()) == 2


def test_a_pull_lease_that_nobody_used(pull: Pair) -> None:
    """P's worker never opened the request, so nothing of it is lost."""
    pull.p.worker._reqs_to_process.add(P_ID)
    pull.p.worker._reqs_to_send[P_ID] = 0.0
    pull.p.worker.get_transfer_results()
    assert pull.p.hooks.take_notes() == ([], {P_ID: sc.LEASE_EXPIRED})
    assert pull.p.finish() == []


def test_no_notes_are_lost_between_threads(push: Pair) -> None:
    """The writer drains notifications while the engine's thread takes the notes."""
    stop, taken = threading.Event(), []

    def take() -> None:
        while not stop.is_set():
            taken.extend(push.d.hooks.take_notes()[0])
            time.sleep(0)

    taker = threading.Thread(target=take)
    taker.start()
    for i in range(2000):
        push.d.hooks._drained({"prefill-agent": [f"{i}:1".encode()]})
    stop.set()
    taker.join(60)
    taken.extend(push.d.hooks.take_notes()[0])
    assert [request_id for request_id, _, _ in taken] == [str(i) for i in range(2000)]


def test_what_never_comes_is_bounded(push: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Registrations nobody prefilled, blocks nobody registered for, notes nobody takes."""
    monkeypatch.setattr("pdtrace.connector.worker._MAX_TRACKED", 3)
    hooks = push.p.hooks
    for i in range(9):
        push.p.worker._pop_matching_finished_blocks(f"d-{i}")
        hooks._handed[f"p-{i}"] = i
        hooks.keep_evidence(f"e-{i}")
    push.p.step(push_finished_blocks={"p-9": ([1],)})
    assert list(hooks._received) == ["d-6", "d-7", "d-8"]
    assert list(hooks._handed) == ["p-7", "p-8", "p-9"]
    assert list(hooks._evidence) == ["e-6", "e-7", "e-8"]
    assert hooks._seen.maxlen is not None


def test_the_registration_carries_decodes_context() -> None:
    """Put into what vLLM staged; a request that staged nothing is left alone."""
    staged: dict[str, dict[str, Any]] = {D_ID: {"request_id": D_ID}}
    scheduler = SimpleNamespace(_push_pending_registrations=staged)
    connector: Any = SimpleNamespace(connector_scheduler=scheduler)
    for request_id in (D_ID, "another"):
        request = SimpleNamespace(
            request_id=request_id, trace_headers=None, kv_transfer_params={"traceparent": CALLER}
        )
        NixlPushConnector._tell_peer(connector, None, request, None, 4)
    assert staged == {
        D_ID: {"request_id": D_ID, sc.REGISTRATION_KEY: {sc.PARAM_TRACEPARENT: CALLER}}
    }


def test_notes_that_cannot_be_made_do_not_reach_the_engine() -> None:
    """The worker goes on with vLLM's own metadata, and the error is counted."""
    recorder, _ = make_recorder()
    recorder.guard = Guard()
    hooks: Any = SimpleNamespace(take_notes=fake_failure)
    assert Attachment(recorder, hooks).notes() is None
    assert recorder.guard.errors == {"notes": 1}
    assert Attachment(None, None).notes() is None


PULL_HOOKS = (
    "_ensure_handshake",
    "get_transfer_results",
    "make_prepped_xfer",
    "get_xfer_telemetry",
    "get_new_notifs",
    "_read_blocks_for_req",
    "_get_new_notifs",
)


@pytest.fixture
def fake_failing_hooks(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], list[str]]:
    """Injects a failure into both hooks of one method; gives the list of errors told."""
    observe = Guard.observe

    def arm(broken: str) -> list[str]:
        told: list[str] = []

        def observe_with_failure(self: Guard, target: Any, method: str, **hooks: Any) -> bool:
            if method == broken:
                hooks = {"before": fake_failure, "after": fake_failure}
            return observe(self, target, method, **hooks)

        monkeypatch.setattr(Guard, "observe", observe_with_failure)
        monkeypatch.setattr(Guard, "failed", lambda self, hook: told.append(hook))
        return told

    return arm


@pytest.mark.parametrize("broken", PULL_HOOKS)
def test_a_pull_arrives_whichever_hook_fails(
    make: Make, fake_failing_hooks: Callable[[str], list[str]], broken: str
) -> None:
    """D has its blocks and P frees its own."""
    told = fake_failing_hooks(broken)
    pair = make(PullWorker, PullWorkerHooks)
    pair.p.worker._reqs_to_process.add(P_ID)
    pair.p.worker._reqs_to_send[P_ID] = 1e12
    read(pair, [3], [1])
    eventually(lambda: not pair.d.worker._ready_requests.empty())
    pair.d.step()
    received(pair)
    eventually(lambda: P_ID in pair.p.worker.get_transfer_results().finished_sending)
    assert moved(pair, [1], [3]) == 4096
    assert set(told) == {broken}
