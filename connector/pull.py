"""`NixlPullConnector` (also `NixlConnector`) with hooks: D READs P's blocks after prefill."""

from functools import partial
from typing import Any

# The one name that every vLLM has; from 0.24 on it stands for `NixlPullConnector`.
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.connector import (
    NixlConnector as _NixlPullConnector,
)

from pdtrace.connector import compat
from pdtrace.connector.attach import attach
from pdtrace.connector.seams import Seams
from pdtrace.connector.worker import WorkerHooks, bound
from pdtrace.tracing import events as ev
from pdtrace.tracing import semconv as sc
from pdtrace.tracing.guard import Guard


class PullWorkerHooks(WorkerHooks):
    """What a pull worker knows: requests to load, the READs, and on P who has read."""

    posted = ev.READ_POSTED
    done = ev.READ_DONE
    transfer_error = sc.ERROR_READ_FAILED
    proven = sc.LEASE_READ

    def __init__(self, recorder: Any, worker: Any) -> None:
        super().__init__(recorder, worker)
        self._loading: dict[str, None] = {}
        """Requests of D that wait for KV; a full local hit passes through the same calls."""

    def install(self, seams: Seams, guard: Guard) -> None:
        super().install(seams, guard)
        observe = partial(seams.observe, guard)
        observe(compat.HANDSHAKE_ASKED, before=self._asking)
        observe(compat.READS, before=self._reading, after=self._read)
        observe(compat.READ_GIVEN_UP, before=self._given_up)
        observe(compat.READS_NOTIFIED, after=self._notified)

    def step(self, metadata: Any) -> None:
        """D's worker has the requests that are to be loaded."""
        for request_id in self.open_requests(metadata):
            if request_id in metadata.reqs_to_recv:
                self._loading[request_id] = None
                bound(self._loading)
                self._record(ev.READ_BEGUN, request_id)

    def _asking(self, req_id: str, remote_engine_id: str, *_: Any) -> None:
        """Before the handshake begins: it may fail inside the call."""
        if req_id in self._loading:
            self.handshake_asked(req_id, remote_engine_id, self._recorder.now())

    def _reading(self, req_id: str, *_: Any) -> None:
        """Called when the request can be read, or is tried, and again when a handshake is done."""
        if req_id in self._loading:
            self.entering(req_id)

    def _read(self, _: Any, req_id: str, meta: Any, *__: Any) -> None:
        """Every READ of this rank is posted, unless the request waits for a handshake."""
        now_ns = self._recorder.now()
        if not self.leaving(req_id) or req_id not in self._loading:
            return
        del self._loading[req_id]
        if req_id in self._transfers:
            handles = self._worker.dst_xfer_side_handles.get(meta.remote.engine_id, {})
            self.all_posted(req_id, len(handles), now_ns)
        else:
            self._record(ev.READ_NOT_NEEDED, req_id)

    def _given_up(self, req_id: str, *_: Any, **__: Any) -> None:
        """vLLM turns some READs away without logging a failure: from a peer that is known to be
        gone, and of blocks that will not be held long enough."""
        if getattr(self._thread, "request", None) != req_id or self.has_failed():
            return
        meta = self._worker._recving_metadata.get(req_id)
        bad = getattr(self._worker, "_invalid_remote_engines", ())
        gone = meta is not None and meta.remote.engine_id in bad
        self.fail(req_id, sc.ERROR_PEER_LOST if gone else sc.ERROR_LEASE_EXPIRED)

    def fail(self, request_id: str, error: str) -> None:
        self._loading.pop(request_id, None)
        super().fail(request_id, error)

    def landed(self, request_id: str) -> None:
        """On D, and so no evidence for a lease: that is P's."""

    def _notified(self, notified: Any, *_: Any) -> None:
        """All consumers of these requests have read P's blocks."""
        for request_id in notified:
            self.keep_evidence(request_id)


class NixlPullConnector(_NixlPullConnector):
    """vLLM's pull connector, traced."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self._pdtrace = attach(self, vllm_config, sc.MODE_PULL, PullWorkerHooks)

    def build_connector_worker_meta(self) -> Any:
        """Notes for the scheduler side; vLLM's own NIXL connector sends none."""
        return self._pdtrace.notes() or super().build_connector_worker_meta()


NixlConnector = NixlPullConnector
"""vLLM's name for the same class."""
