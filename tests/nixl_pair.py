"""Two of vLLM's NIXL workers in one process, cut down to what moves a request's blocks.

The agents, the registered memory, the transfers and the notifications are real, and so are vLLM's
methods. Left out is what needs a model and an engine: the attributes that vLLM's constructor
derives from them are set by hand, and a handshake hands the agent's metadata over in memory.
"""

# mypy: disable-error-code="var-annotated"

import queue
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import engine_imports  # noqa: F401  # first of all
import numpy as np
from vllm.distributed.kv_transfer.kv_connector.utils import EngineTransferInfo, TransferTopology
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.metadata import NixlConnectorMetadata
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.pull_worker import NixlPullConnectorWorker
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.push_worker import NixlPushConnectorWorker
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.stats import NixlKVConnectorStats
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.tp_mapping import compute_tp_mapping
from vllm.v1.kv_cache_interface import FullAttentionSpec

from pdtrace.connector import carrier, cpu_rig
from pdtrace.connector.compat import Place
from pdtrace.connector.seams import Seams
from pdtrace.connector.worker import WorkerHooks
from pdtrace.tracing import semconv as sc
from pdtrace.tracing.testing import EPOCH_NS, SettableClock, make_recorder, span_dict

BLOCKS = 8


def eventually(condition: Callable[[], object]) -> None:
    """Wait, bounded, until a condition of another thread or agent holds."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "not within 60 s"
        time.sleep(0.002)


def make_agent(name: str) -> Any:
    """A real agent whose progress thread does not spin on a whole core."""
    import nixl._api as api

    plain = api.nixlBind.nixlAgentConfig
    cpu_rig.calm_progress_thread()
    try:
        return api.nixl_agent(name, api.nixl_agent_config(capture_telemetry=True))
    finally:
        api.nixlBind.nixlAgentConfig = plain


class _OneTurn:
    """A stop flag that lets the writer's loop run once."""

    def __init__(self) -> None:
        self._asked = False

    def is_set(self) -> bool:
        """False once."""
        asked, self._asked = self._asked, True
        return asked

    def wait(self, timeout: float) -> None:
        """The loop's pause."""


class _Small:
    """State of either worker; `lengths` are the bytes of one block in each region of memory."""

    def build(
        self: Any, engine_id: str, agent: Any, lengths: tuple[int, ...], peers: dict[int, Any]
    ) -> None:
        self.engine_id, self.nixl_wrapper, self.lengths = engine_id, agent, lengths
        self.port = len(peers)
        peers[self.port] = self
        self.peers = peers
        self.stages, self.layers = [self], slice(None)
        self.tp_rank = self.pcp_rank = 0
        self.world_size = self.dcp_size = self.pp_size = 1
        self.pcp_dcp_sharded = self.use_mla = self.use_host_buffer = False
        self._has_mamba = self._is_csa_linear = self._mixed_mem_types = False
        self._is_hma_required = self._uses_region_group_mapping = False
        self._bidirectional_kv_xfer_enabled = self._hb_handshake_notif_only = False
        self.enable_permute_local_kv = self.enable_heterogeneous_attn_post_process = False
        self._transfer_layer_group_ids = ()
        self._physical_blocks_per_logical_kv_block = 1
        self._group_spec_types = (FullAttentionSpec,)
        self.kv_cache_config = SimpleNamespace(transfer_groups=[None])
        self.block_size = 16
        self.num_regions = len(lengths)
        self.block_len_per_layer = list(lengths)
        self.region_group_ids = [0] * len(lengths)
        self.transfer_topo = TransferTopology(0, 1, 16, engine_id, False, False, 1, [])
        self.tp_mappings, self.dst_num_blocks = {}, {engine_id: BLOCKS}
        self.dst_region_num_blocks = {engine_id: [BLOCKS] * len(lengths)}
        self.dst_region_group_ids = {engine_id: self.region_group_ids}
        self.dst_uses_region_group_mapping = {engine_id: False}
        self.dst_xfer_side_handles = defaultdict(dict)
        self.src_xfer_handles_by_tp_ratio = {}
        self._remote_agents = defaultdict(dict)
        self._failed_remote_engines, self._invalid_remote_engines = set(), set()
        self._invalid_engine_backoff, self._engine_by_address = {}, {}
        self._engine_clock_offset, self._engine_last_active, self._engine_ttl = {}, {}, 0.0
        self._recving_metadata, self._recving_transfers = {}, defaultdict(list)
        self._reqs_to_send, self._reqs_to_process = {}, set()
        self._replicated_pcp_done_sending, self._recv_failures = set(), set()
        self._invalid_block_ids, self._failed_recv_reqs = queue.Queue(), queue.Queue()
        self._ready_requests, self._pending_recv_notifs = queue.Queue(), {}
        self.consumer_notification_counts_by_req = defaultdict(int)
        self.expected_consumer_notifications_by_req = {}
        self.xfer_stats = NixlKVConnectorStats()
        self._handshake_futures, self._handshake_lock = {}, threading.RLock()
        self._handshake_initiation_executor = ThreadPoolExecutor(1)
        self.may_shake_hands = threading.Event()
        self.may_shake_hands.set()
        self.memory = [np.zeros((BLOCKS, length), dtype=np.uint8) for length in lengths]

    def register(self: Any) -> None:
        """Pin the memory and prepare our own descriptors; the hooks are on by now."""
        agent = self.nixl_wrapper
        regions = [(m.ctypes.data, m.nbytes, 0, "") for m in self.memory]
        self.registered = agent.get_reg_descs(regions, "DRAM")
        agent.register_memory(self.registered)
        own = agent.get_xfer_descs(self.rows(), "DRAM")
        prepared = agent.prep_xfer_dlist("NIXL_INIT_AGENT", own)
        self.src_xfer_handles_by_block_size = {16: prepared}

    def rows(self: Any, layers: slice = slice(None)) -> Any:
        """(address, bytes, device) of every block, region after region (one is a layer)."""
        found = [
            (m.ctypes.data + block * m.shape[1], m.shape[1], 0)
            for m in self.memory[layers]
            for block in range(BLOCKS)
        ]
        return np.array(found, dtype=np.uint64)

    def _nixl_handshake(
        self: Any,
        host: str,
        port: int,
        tp_size: int,
        engine_id: str,
        dcp_size: int = 1,
        pp_size: int = 1,
        notif_agents_only: bool = False,
    ) -> tuple[dict[tuple[int, int], str], float]:
        assert self.may_shake_hands.wait(60)
        if port not in self.peers:
            raise ConnectionError("injected: nobody listens there")
        peer, agent = self.peers[port], self.nixl_wrapper
        names = [
            agent.add_remote_agent(stage.nixl_wrapper.get_agent_metadata())
            for stage in peer.stages[:pp_size]
        ]
        info = EngineTransferInfo(
            remote_tp_size=1,
            remote_block_len=peer.lengths[0],
            remote_block_size=16,
            remote_physical_blocks_per_logical=1,
        )
        self.transfer_topo.register_remote_engine(engine_id, info)
        if not notif_agents_only:
            self.tp_mappings[engine_id] = compute_tp_mapping(
                self.transfer_topo, 1, self._group_spec_types
            )
            self.dst_num_blocks[engine_id] = BLOCKS
            self.dst_region_num_blocks[engine_id] = [BLOCKS] * len(peer.lengths[self.layers])
            self.dst_region_group_ids[engine_id] = peer.region_group_ids[self.layers]
            self.dst_uses_region_group_mapping[engine_id] = False
            theirs = agent.get_xfer_descs(peer.rows(self.layers), "DRAM")
            self.dst_xfer_side_handles[engine_id][0] = agent.prep_xfer_dlist(names[0], theirs)
        return {(stage, 0): name for stage, name in enumerate(names)}, 0.0

    def close(self: Any) -> None:
        """Give everything back."""
        self._handshake_initiation_executor.shutdown()
        agent = self.nixl_wrapper
        for handles in self.dst_xfer_side_handles.values():
            for handle in handles.values():
                agent.release_dlist_handle(handle)
        for handle in self.src_xfer_handles_by_block_size.values():
            agent.release_dlist_handle(handle)
        for agents in self._remote_agents.values():
            for name in agents.values():
                agent.remove_remote_agent(name)
        agent.deregister_memory(self.registered)

    def shutdown(self) -> None:
        """vLLM's destructor calls this."""


class PushWorker(_Small, NixlPushConnectorWorker):  # type: ignore[misc]
    """vLLM's push worker; its writer's loop runs when a test says so."""

    def __init__(self: Any, *args: Any) -> None:
        self.build(*args)
        self._sending_transfers, self._send_failures = defaultdict(list), set()
        self._sending_transfers_lock = threading.Lock()
        self._push_finished_blocks, self._pending_d_registrations = {}, {}
        self._reg_send_inbox, self._finished_blocks_inbox = queue.Queue(), queue.Queue()
        self._pending_completion_notifs, self._evict_finished_inbox = queue.Queue(), queue.Queue()
        self._deferred_push_inbox = queue.Queue()
        self._push_writer_wake = threading.Event()

    def writer_turn(self: Any) -> None:
        """The writer's loop, once."""
        self._push_writer_stop = _OneTurn()
        self._push_writer_wake.set()
        self._push_writer_loop()


class PullWorker(_Small, NixlPullConnectorWorker):  # type: ignore[misc]
    """vLLM's pull worker."""

    def __init__(self: Any, *args: Any) -> None:
        self.build(*args)


class Side:
    """One traced engine's worker: its recorder, its hooks and a clock that stands still."""

    def __init__(self, worker: Any, hooks: type[WorkerHooks], clock: SettableClock) -> None:
        self.clock, self.worker = clock, worker
        self.recorder, self.exporter = make_recorder(clock)
        self.hooks: Any = hooks(self.recorder, worker)
        targets = {Place.WORKER: worker, Place.AGENT: worker.nixl_wrapper}
        seams = Seams(worker._TRANSFER_MODE, targets)
        assert seams.gaps == ()
        self.hooks.install(seams, self.recorder.guard)
        worker.register()

    def step(self, carriers: dict[str, carrier.RequestCarrier] | None = None, **parts: Any) -> None:
        """One engine step: metadata arrives, work begins."""
        metadata = NixlConnectorMetadata()
        for name, value in parts.items():
            setattr(metadata, name, value)
        if carriers:
            carrier.attach(metadata, carriers)
        self.hooks.step(metadata)
        self.worker.start_load_kv(metadata)

    def spans(self) -> list[dict[str, Any]]:
        """All spans so far; no hook has failed and no event was lost on the way."""
        self.recorder.flush()
        assert dict(self.recorder.guard.errors) == {}
        assert self.recorder.losses() == {}
        return [span_dict(span) for span in self.exporter.spans]

    def finish(self) -> list[dict[str, Any]]:
        """All spans, and nothing is left open."""
        found = self.spans()
        assert len(self.recorder._assembler) == 0
        return found


def carried(mode: str, since: int, traceparent: str = "") -> carrier.RequestCarrier:
    """A request as the scheduler side hands it over, with its instant on the test's clock."""
    return carrier.RequestCarrier(traceparent, EPOCH_NS + since, {sc.MODE: mode})
