"""A tracer provider of our own for one process: resource, ids, exporter. Never the global one.

vLLM sets the global provider when its own endpoint is configured, and an operator's
instrumentation may have set it before.
"""

import logging
import os
import platform
import random
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.trace import NoOpTracer, Tracer

from pdtrace.tracing import semconv as sc
from pdtrace.tracing.background import Background
from pdtrace.tracing.clock import clock_id, process_clock
from pdtrace.tracing.export import make_exporter
from pdtrace.tracing.processor import RequestProcessor, RequestSampler
from pdtrace.tracing.sampling import Keeper, Sampler, make_sampler
from pdtrace.tracing.settings import Settings, read_settings, wanted

_log = logging.getLogger("pdtrace")
AttributeValue = str | bool | int | float
_MACHINE_ID: Final = Path("/etc/machine-id")
_SERVICE_NAMES: Final = {
    sc.ROLE_PREFILL: "vllm-prefill",
    sc.ROLE_DECODE: "vllm-decode",
    sc.ROLE_BOTH: "vllm",
    sc.ROLE_ROUTER: "pd-router",
}


class OwnRandomIds(IdGenerator):
    """Random ids from a source of their own.

    Engines and benchmarks seed the global `random`, which would repeat trace ids in every run.
    """

    def __init__(self) -> None:
        self._random = random.Random(os.urandom(16))
        self._bits = self._random.getrandbits

    def generate_span_id(self) -> int:
        """A non-zero 64-bit id."""
        return self._bits(64) or 1

    def generate_trace_id(self) -> int:
        """A non-zero 128-bit id."""
        return self._bits(128) or 1


def _host_id() -> str:
    try:
        return _MACHINE_ID.read_text().strip()
    except OSError:
        return ""


def make_resource(role: str, attributes: Mapping[str, AttributeValue] | None = None) -> Resource:
    """Resource of this process; `OTEL_SERVICE_NAME` and `OTEL_RESOURCE_ATTRIBUTES` win."""
    own: dict[str, AttributeValue] = {
        sc.SERVICE_NAME: _SERVICE_NAMES.get(role, "pdtrace"),
        sc.SERVICE_INSTANCE_ID: str(uuid.uuid4()),
        sc.HOST_NAME: platform.node(),
        sc.HOST_ID: _host_id(),
        sc.PROCESS_PID: os.getpid(),
        sc.SCHEMA: sc.SCHEMA_VERSION,
        sc.ROLE: role,
        sc.CLOCK_ID: clock_id(),
        sc.CLOCK_ANCHOR_NS: process_clock().first.of_host_ns,
        **(attributes or {}),
    }
    users = Resource.create().attributes
    chosen = {key: value for key, value in users.items() if not _is_default(key, value)}
    return Resource({**own, **chosen})


def _is_default(key: str, value: object) -> bool:
    """The SDK fills in a service name when the user gave none."""
    return key == sc.SERVICE_NAME and str(value).startswith("unknown_service")


class Telemetry:
    """What one recorder or program has for its spans: `resource`, `ids`, `sampler`, `settings`, and
    `background`, which sends them. Without an endpoint `exporter` is None and `tracer` records
    nothing.
    """

    def __init__(
        self,
        resource: Resource,
        exporter: SpanExporter | None,
        id_generator: IdGenerator | None = None,
        settings: Settings | None = None,
        sampler: Sampler | None = None,
        background: Background | None = None,
    ) -> None:
        """`background`, if given, has the exporter already."""
        self.resource = resource
        self.settings = settings or Settings()
        self.sampler = sampler or Sampler()
        self.ids = id_generator or OwnRandomIds()
        self.background = background or Background(exporter, self.settings)
        self._provider: TracerProvider | None = None

    @property
    def exporter(self) -> SpanExporter | None:
        """Where spans go."""
        return self.background.exporter

    @property
    def tracer(self) -> Tracer:
        """A tracer whose spans are sampled and sent; the first call starts the sender's thread."""
        if self.exporter is None:
            return NoOpTracer()
        if self._provider is None:
            keeper = Keeper.of(self.settings)
            self._provider = TracerProvider(
                RequestSampler(self.sampler, keeper),
                resource=self.resource,
                id_generator=self.ids,
                shutdown_on_exit=False,
            )
            sender = self.background.sender
            sender.start()
            self._provider.add_span_processor(RequestProcessor(sender, keeper))
        return self._provider.get_tracer(sc.SCOPE_NAME)

    def reopened(self) -> "Telemetry":
        """The same for a forked child: its own process id, exporter and random source.

        An exporter's connection must not be shared with the parent.
        """
        pid = Resource({sc.PROCESS_PID: os.getpid()})
        resource = self.resource.merge(pid)
        shared, traced = self.background.shared, self.exporter is not None
        background = _open_background(self.settings, shared, traced)
        return Telemetry(resource, None, None, self.settings, self.sampler, background)

    def shutdown(self, timeout_s: float = 2.0) -> None:
        """Send what is buffered, waiting at most about `timeout_s`, and close."""
        self.background.close(timeout_s)


_running: dict[object, Background] = {}
"""Those that are shared, by what they were made from."""


def _open_background(settings: Settings, shared: bool, traced: bool) -> Background:
    """A background with an exporter if `traced`; if `shared`, the one that this process has."""
    if not shared:
        return Background(make_exporter() if traced else None, settings)
    variables = sorted(item for item in os.environ.items() if item[0].startswith("OTEL_"))
    key = (os.getpid(), settings, traced, *variables)
    found = _running.get(key)
    if found is None or found.closed:
        exporter = make_exporter() if traced else None
        found = _running[key] = Background(exporter, settings, shared=True)
    return found


def open_provider(
    role: str,
    resource_attributes: Mapping[str, AttributeValue] | None = None,
    id_generator: IdGenerator | None = None,
    settings: Settings | None = None,
    shared: bool = False,
) -> Telemetry:
    """Telemetry of this process; without `settings` those of the environment.

    `shared`: with the threads and the exporter of others in this process that asked for it. Raises
    `ConfigurationError` for a setting that cannot be used.
    """
    settings = settings or read_settings()
    sampler = make_sampler(settings)
    background = _open_background(settings, shared, wanted(settings))
    if settings.enabled and background.exporter is None:
        _log.warning(
            "pdtrace: switched on, but nothing is traced: OTEL_EXPORTER_OTLP_ENDPOINT is not set"
        )
    resource = make_resource(role, resource_attributes)
    return Telemetry(resource, None, id_generator, settings, sampler, background)
