"""Steps of a request on two traced workers with real NIXL agents, and what their spans show."""

import operator
from collections.abc import Callable
from functools import partial
from typing import Any

from nixl_pair import Side, carried, eventually
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.metadata import RemoteMeta, ReqMeta

from pdtrace.tracing import semconv as sc
from pdtrace.tracing.testing import SettableClock

P_ID, D_ID = "cmpl-a-0-00000001", "cmpl-a-0-00000002"
CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
Spans = list[dict[str, Any]]


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
            agent.__dict__.clear()
            agent.__dict__.update(plain)
            agent.get_new_notifs()


Make = Callable[..., Pair]


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
    pair.d.step({D_ID: carried("push", at)}, push_registrations=staged)
    pair.at(at + 10)
    pair.d.worker.writer_turn()


def hand_over(pair: Pair, blocks: list[int], at: int) -> None:
    """P's request finished at `at` and reaches the worker 5 later."""
    pair.at(at + 5)
    pair.p.worker._reqs_to_process.add(P_ID)
    finished = {P_ID: ([*blocks],)}
    carriers = {P_ID: carried("push", at)}
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


def shake_hands_of_decode(pair: Pair) -> None:
    """Only D knows P."""
    worker = pair.d.worker
    worker._ensure_handshake(
        "engine-p", "127.0.0.1", pair.p.worker.port, 1, notif_agents_only=True
    ).result(60)
    eventually(lambda: "engine-p" in worker._remote_agents)


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
    carriers = {D_ID: carried("pull", 20)}
    pair.d.step(carriers, reqs_to_recv={D_ID: wanted(pair, local, remote, port)})


def received(pair: Pair) -> None:
    """Step D until the READ is complete."""
    eventually(lambda: D_ID in pair.d.worker.get_transfer_results().finished_recving)


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
