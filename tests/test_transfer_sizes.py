"""Bytes and descriptors of transfers, as vLLM's worker gives them to a real NIXL agent."""

import numpy as np
import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")
pytest.importorskip("nixl", reason="NIXL is not installed")

from nixl_pair import PushWorker
from pair_steps import Make, Pair, hand_over, moved, register, shake_hands, turn_until, written

from pdtrace.connector.descriptors import DescriptorLengths
from pdtrace.connector.push import PushWorkerHooks
from pdtrace.tracing import semconv as sc

pytestmark = pytest.mark.nixl


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
    before = set(push.p.hooks._descriptors.prepared)
    shake_hands(push)
    assert len(push.p.hooks._descriptors.prepared) == len(before) + 1
    push.p.worker._remote_agents["engine-d"], kept = {}, push.p.worker._remote_agents["engine-d"]
    (handle,) = push.p.worker.dst_xfer_side_handles.pop("engine-d").values()
    push.p.worker.nixl_wrapper.release_dlist_handle(handle)
    push.p.worker._remote_agents["engine-d"] = kept
    assert set(push.p.hooks._descriptors.prepared) == before


@pytest.mark.parametrize(
    ("rows", "indices", "expected"),
    [
        ([[0, 512, 0, 512, 2], [9, 512, 0, 512, 3]], [0, 4], 1024),
        ([[0, 512, 0, 512, 2], [9, 100, 0, 100, 3]], [1, 2, 4], 712),
        ([[0, 512, 0], [9, 100, 0]], [0, 1], 612),
    ],
)
def test_rows_that_are_prepared_without_being_described(
    rows: list[list[int]], indices: list[int], expected: int
) -> None:
    """vLLM 0.33 does so, and one row may stand for several descriptors."""
    lengths, handle = DescriptorLengths(), object()
    lengths.prepare(handle, "agent", np.array(rows, dtype=np.uint64), mem_type="DRAM")
    assert lengths.total(handle, np.array(indices)) == expected
    assert lengths.total(object(), np.array(indices)) is None
