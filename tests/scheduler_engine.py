"""The scheduler side of a traced connector, called as vLLM's scheduler calls it."""

from typing import Any

import engine_imports  # noqa: F401  # first of all
from vllm.lora.request import LoRARequest
from vllm.sampling_params import SamplingParams
from vllm.v1.core.sched.output import CachedRequestData, SchedulerOutput
from vllm.v1.outputs import KVConnectorOutput
from vllm.v1.request import Request, RequestStatus

from pdtrace.connector.compat import Place
from pdtrace.connector.notes import WorkerNotes
from pdtrace.connector.scheduler import SchedulerHooks
from pdtrace.connector.seams import Seams
from pdtrace.tracing import semconv as sc
from pdtrace.tracing.ids import derived_trace_id
from pdtrace.tracing.testing import SettableClock, make_recorder, span_dict

ID = "cmpl-a-0-0123abcd"
CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
PREFILL = {"do_remote_decode": True}
DECODE = {"do_remote_prefill": True, "remote_engine_id": "engine-p"}
LENGTH, ABORTED = RequestStatus.FINISHED_LENGTH_CAPPED, RequestStatus.FINISHED_ABORTED


class Metadata:
    """Connector metadata: a plain object."""


class Connector:
    """The scheduler side of a connector: a facade that does nothing, called as vLLM calls it."""

    held = False

    def on_new_request(self, request: Request) -> None:
        """The engine core has it."""

    def get_num_new_matched_tokens(
        self, request: Request, num_computed_tokens: int
    ) -> tuple[int, bool]:
        """How much it can load."""
        return 7, True

    def update_state_after_alloc(
        self, request: Request, blocks: Any, num_external_tokens: int
    ) -> None:
        """Blocks were allocated."""

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> Metadata:
        """A step is scheduled."""
        return Metadata()

    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        """A step is done."""

    def request_finished(self, request: Request, block_ids: list[int]) -> tuple[bool, None]:
        """One flat list of blocks."""
        return self.held, None

    def request_finished_all_groups(
        self, request: Request, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, None]:
        """Blocks by group."""
        return self.held, None


def request(
    params: dict[str, Any] | None,
    request_id: str = ID,
    prompt: int = 5,
    headers: dict[str, str] | None = None,
    adapter: str = "",
) -> Request:
    """A request of vLLM's."""
    extra = {"kv_transfer_params": params} if params else None
    sampling = SamplingParams(max_tokens=4, extra_args=extra)
    lora = LoRARequest(adapter, 1, "adapters") if adapter else None
    return Request(
        request_id, list(range(prompt)), sampling, None, trace_headers=headers, lora_request=lora
    )


def seams(connector: Any) -> Seams:
    """The hook points of the facade, and of the scheduler behind it if there is one."""
    scheduler = getattr(connector, "connector_scheduler", None)
    return Seams("push", {Place.FACADE_SCHEDULER: connector, Place.SCHEDULER: scheduler})


class Engine:
    """Calls the connector in the order in which vLLM's scheduler does."""

    def __init__(
        self,
        mode: str,
        hooks: type[SchedulerHooks] = SchedulerHooks,
        connector: Connector | None = None,
    ) -> None:
        self.clock = SettableClock()
        self.recorder, self.exporter = make_recorder(self.clock)
        self.connector = connector or Connector()
        self.hooks = hooks(self.recorder, mode, "demo")
        self.hooks.install(seams(self.connector), self.recorder.guard)

    def arrive(self, at: int, request: Request) -> None:
        """`Scheduler.add_request`."""
        self.clock.mono = at
        self.connector.on_new_request(request)

    def attempt(self, at: int, request: Request) -> None:
        """The scheduler asks what the connector can load."""
        self.clock.mono = at
        assert self.connector.get_num_new_matched_tokens(request, 0) == (7, True)

    def allocate(self, at: int, request: Request, external: int) -> None:
        """Blocks are allocated."""
        self.clock.mono = at
        self.connector.update_state_after_alloc(request, object(), external)

    def step(self, at: int, **tokens: int) -> Any:
        """The end of `Scheduler.schedule`: who runs with how many tokens (`r` is the request)."""
        self.clock.mono = at
        scheduled = {ID if name == "r" else name: n for name, n in tokens.items()}
        output = SchedulerOutput(
            scheduled_new_reqs=[],
            scheduled_cached_reqs=CachedRequestData.make_empty(),
            num_scheduled_tokens=scheduled,
            total_num_scheduled_tokens=sum(scheduled.values()),
            scheduled_spec_decode_tokens={},
            scheduled_encoder_inputs={},
            num_common_prefix_blocks=[],
            finished_req_ids=set(),
            free_encoder_mm_hashes=[],
        )
        return self.connector.build_connector_meta(output)

    def output(self, at: int, notes: WorkerNotes | None = None, **done: Any) -> None:
        """`Scheduler.update_from_output`, after the tokens were appended."""
        self.clock.mono = at
        self.connector.update_connector_output(
            KVConnectorOutput(kv_connector_worker_meta=notes, **done)
        )

    def finish(
        self, at: int, request: Request, status: RequestStatus = LENGTH, held: bool = False
    ) -> None:
        """`Scheduler._free_request`."""
        self.clock.mono = at
        request.status = status
        self.connector.held = held
        assert self.connector.request_finished_all_groups(request, ([1, 2], [3])) == (held, None)

    def spans(self) -> list[dict[str, Any]]:
        """All spans; no hook failed, nothing was lost, nothing is left."""
        self.recorder.flush()
        assert self.recorder.losses() == {}
        assert len(self.recorder._assembler) == len(self.hooks._legs) == 0
        hooks = self.hooks
        tables = (hooks._waits.waiting, hooks._computing, hooks._complete, hooks._starting)
        assert tables == ({}, {}, {}, {}) and hooks._waits.failed == []
        return [span_dict(span) for span in self.exporter.spans]


def span(
    name: str, start: int, end: int, mode: str, own: dict[str, Any], **parts: Any
) -> dict[str, Any]:
    """A whole span of the request; decode legs know their peer."""
    attributes = {
        sc.REQUEST_ID: "a",
        sc.ENGINE_REQUEST_ID: ID,
        sc.MODE: mode,
        sc.MODEL: "demo",
        sc.INPUT_TOKENS: 5,
        **own,
    }
    ids = {"trace": derived_trace_id("a"), "parent": None}
    found = {"name": name, **ids, "start": start, "end": end, "attributes": attributes, **parts}
    if sc.ERROR_TYPE in own:
        found["error"] = True
    return found


PEER = {sc.PEER_ENGINE_ID: "engine-p"}
COMPUTED = {sc.PREFILL_STEPS: 1, sc.PREFILL_CACHED_TOKENS: 0, sc.PREEMPTIONS: 0}
