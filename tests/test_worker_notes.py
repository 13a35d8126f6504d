"""What a worker tells its scheduler; what of the hooks' own failures reaches the engine."""

import threading
import time
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")
pytest.importorskip("nixl", reason="NIXL is not installed")

from pair_steps import Pair, fake_failure
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.metadata import PUSH_REG_NOTIF_PREFIX

from pdtrace.connector.attach import Attachment
from pdtrace.connector.seams import Seams
from pdtrace.tracing.guard import Guard
from pdtrace.tracing.testing import make_recorder

pytestmark = pytest.mark.nixl


def test_no_notes_are_lost_between_threads(push: Pair) -> None:
    """The writer drains notifications while the engine's thread takes the notes."""
    stop, taken = threading.Event(), []

    def take() -> None:
        while not stop.is_set():
            taken.extend(push.d.hooks.take_notes().seen)
            time.sleep(0)

    taker = threading.Thread(target=take)
    taker.start()
    for i in range(2000):
        push.d.hooks._drained({"prefill-agent": [f"{i}:1".encode()]})
    stop.set()
    taker.join(60)
    taken.extend(push.d.hooks.take_notes().seen)
    assert [request_id for request_id, _, _ in taken] == [str(i) for i in range(2000)]


def test_what_never_comes_is_bounded(push: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Registrations nobody prefilled, blocks nobody registered for, notes nobody takes."""
    monkeypatch.setattr("pdtrace.connector.worker._MAX_TRACKED", 3)
    hooks = push.p.hooks
    for i in range(9):
        unmatched = PUSH_REG_NOTIF_PREFIX + msgspec.msgpack.encode({"request_id": f"d-{i}"})
        push.p.worker._handle_push_reg_notif(unmatched)
        hooks._handed[f"p-{i}"] = i
        hooks.keep_evidence(f"e-{i}")
    push.p.step(push_finished_blocks={"p-9": ([1],)})
    assert list(hooks._received) == ["d-6", "d-7", "d-8"]
    assert list(hooks._handed) == ["p-7", "p-8", "p-9"]
    assert list(hooks._evidence) == ["e-6", "e-7", "e-8"]
    assert hooks._seen.maxlen is not None


def test_notes_that_cannot_be_made_do_not_reach_the_engine() -> None:
    """The worker goes on with vLLM's own metadata, and the error is counted."""
    recorder, _ = make_recorder()
    recorder.guard = Guard()
    hooks: Any = SimpleNamespace(has_notes=True, take_notes=fake_failure)
    none = Seams("push", {})
    assert Attachment(none, recorder, hooks).notes() is None
    assert recorder.guard.errors == {"notes": 1}
    assert Attachment(none, None, None).notes() is None
