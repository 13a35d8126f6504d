"""vLLM 0.30.0: a WRITE completes, P never reports it, and its lease runs out."""

from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")
pytest.importorskip("nixl", reason="NIXL is not installed")

from nixl_pair import PushWorker
from pair_steps import P_ID, Make, hand_over, register, shake_hands, turn_until
from scheduler_engine import COMPUTED, ID, PREFILL, Engine, request, span
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.base_worker import NixlBaseConnectorWorker

from pdtrace.connector.compat import UNREPORTED
from pdtrace.connector.notes import WorkerNotes
from pdtrace.connector.push import PushWorkerHooks
from pdtrace.tracing import semconv as sc

pytestmark = pytest.mark.nixl


class FakeUnreportingWorker(PushWorker):
    """As in 0.30.0, finished WRITEs are taken from the table and told to nobody."""

    def get_transfer_results(self: Any) -> Any:
        """Results without them."""
        results = NixlBaseConnectorWorker.get_transfer_results(self)
        with self._sending_transfers_lock:
            self._pop_done_transfers(self._sending_transfers)
        return results


@pytest.mark.covers(
    "write-unreported", "push", on="classes", why="that vLLM is not the one installed"
)
def test_a_write_that_vllm_never_reports_is_an_expired_lease_with_a_note(make: Make) -> None:
    """The WRITE's own span ends well; the lease does not, and says why that is no loss."""
    pair = make(FakeUnreportingWorker, PushWorkerHooks)
    shake_hands(pair)
    register(pair, [3])
    turn_until(pair.p, lambda: pair.p.worker._pending_d_registrations)
    hand_over(pair, [1], at=50)
    pair.p.worker.writer_turn()

    def stepped() -> bool:
        assert pair.p.worker.get_transfer_results().finished_sending == set()
        return P_ID not in pair.p.worker._sending_transfers

    turn_until(pair.p, stepped)
    assert pair.p.finish()[-1]["name"] == sc.SPAN_WRITE_COMPLETE
    assert pair.p.hooks.take_notes().outcomes == {}

    pair.p.worker._reqs_to_send[P_ID] = 0.0
    assert pair.p.worker.get_transfer_results().finished_sending == {P_ID}
    assert pair.p.hooks.take_notes().outcomes == {P_ID: UNREPORTED}
    assert [s for s in pair.p.finish() if sc.ERROR_TYPE in s["attributes"]] == []


def test_the_note_reaches_the_lease() -> None:
    """On the scheduler's side, from whichever rank says the worst."""
    engine, leg = Engine("push"), request(PREFILL)
    engine.arrive(10, leg)
    engine.allocate(20, leg, 0)
    engine.step(21, r=5)
    engine.finish(40, leg, held=True)
    engine.step(50)
    one, other = WorkerNotes([], {ID: UNREPORTED}), WorkerNotes([], {ID: sc.LEASE_WRITTEN})
    merged = one.aggregate(other)
    assert merged.outcomes == other.aggregate(one).outcomes == {ID: UNREPORTED}
    engine.output(60, merged, finished_sending={ID})
    assert engine.spans()[1:] == [
        span(sc.SPAN_PREFILL, 20, 40, "push", COMPUTED),
        span(
            sc.SPAN_LEASE,
            40,
            60,
            "push",
            {
                sc.LEASE_OUTCOME: sc.LEASE_EXPIRED,
                sc.ERROR_TYPE: sc.ERROR_LEASE_EXPIRED,
                sc.LEASE_NOTE: sc.NOTE_UNREPORTED,
            },
        ),
    ]
