"""Puts the hooks on one connector object of vLLM's, for whichever role it has."""

from collections.abc import Callable
from typing import Any

from pdtrace.connector import compat
from pdtrace.connector.carrier import ATTRIBUTE
from pdtrace.connector.compat import Place
from pdtrace.connector.resource import model_name, resource_attributes, role_of
from pdtrace.connector.scheduler import SchedulerHooks
from pdtrace.connector.seams import Seams
from pdtrace.connector.worker import WorkerHooks
from pdtrace.tracing import semconv as sc
from pdtrace.tracing.guard import Guard
from pdtrace.tracing.provider import open_provider
from pdtrace.tracing.recorder import Recorder
from pdtrace.tracing.settings import read_settings


class Attachment:
    """What a traced connector keeps: its recorder, and the worker's hooks if it is a worker."""

    def __init__(
        self, seams: Seams, recorder: Recorder | None, worker_hooks: WorkerHooks | None
    ) -> None:
        self.recorder = recorder
        self._seams = seams
        self._worker_hooks = worker_hooks

    def observe(self, point: compat.HookPoint, after: Callable[..., None]) -> None:
        """Hook one point more, where this process is traced at all."""
        if self.recorder is not None:
            self._seams.observe(self.recorder.guard, point, after=after)

    def notes(self) -> Any | None:
        """`WorkerNotes` for the scheduler side, or None when there is nothing to tell."""
        hooks = self._worker_hooks
        if hooks is None or self.recorder is None or not hooks.has_notes:
            return None
        try:
            from pdtrace.connector.notes import WorkerNotes

            return WorkerNotes(*hooks.take_notes())
        except Exception:
            self.recorder.guard.failed("notes")
            return None


def attach(
    connector: Any, vllm_config: Any, mode: str, worker_hooks: type[WorkerHooks]
) -> Attachment:
    """Trace `connector` (`mode` is push or pull) when the environment names an endpoint.

    Raises `ConfigurationError` for a setting that cannot be used: an engine does not start with
    one. Without an endpoint nothing is wrapped and nothing costs anything.
    """
    worker = connector.connector_worker
    seams = Seams.of(connector, mode)
    recorder = _open_recorder(connector, vllm_config, worker, seams)
    if recorder is None:
        return Attachment(seams, None, None)
    guard = recorder.guard
    hooks = None
    if worker is None:
        SchedulerHooks(recorder, mode, model_name(vllm_config)).install(seams, guard)
    else:
        hooks = worker_hooks(recorder, worker)
        hooks.install(seams, guard)
        seams.observe(guard, compat.LOAD, before=_step_of(hooks, connector))
    return Attachment(seams, recorder, hooks)


def _step_of(hooks: WorkerHooks, connector: Any) -> Callable[..., None]:
    """Called in every step, also of an engine that only waits: most carry nothing of ours."""

    def stepped(*_: Any, **__: Any) -> None:
        metadata = connector._connector_metadata
        if getattr(metadata, ATTRIBUTE, None):
            hooks.step(metadata)

    return stepped


def attach_scheduler(connector: Any, vllm_config: Any, mode: str) -> Attachment:
    """Trace the scheduler side of a connector of which nothing else is known; as `attach`."""
    seams = Seams(sc.MODE_NONE, {Place.FACADE_SCHEDULER: connector})
    recorder = _open_recorder(connector, vllm_config, None, seams)
    if recorder is not None:
        model = model_name(vllm_config)
        hooks = SchedulerHooks(recorder, mode, model, worker_tells=False)
        hooks.install(seams, recorder.guard)
    return Attachment(seams, recorder, None)


def _open_recorder(
    connector: Any, vllm_config: Any, worker: Any | None, seams: Seams
) -> Recorder | None:
    """The recorder of this process, ending with the connector; None without an endpoint."""
    extra = vllm_config.kv_transfer_config.kv_connector_extra_config or {}
    settings = read_settings(extra=extra.get("pdtrace"))
    name = type(connector).__name__
    attributes = resource_attributes(vllm_config, name, worker, seams.config())
    telemetry = open_provider(role_of(vllm_config), attributes, settings=settings, shared=True)
    if telemetry.exporter is None:
        return None
    seams.log()
    guard = Guard(error_limit=settings.hook_error_limit)
    recorder = Recorder(telemetry, guard=guard, absent=seams.absent_spans)
    for point in (compat.SCHEDULER_SHUTDOWN, compat.WORKER_SHUTDOWN):
        seams.observe(guard, point, after=lambda *_: recorder.shutdown())
    return recorder
