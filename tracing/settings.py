"""Every `PDTRACE_*` setting, and whether a process is traced at all.

Read once, at the start, from the environment and from `kv_connector_extra_config["pdtrace"]`: a
dict with the same names in lower case and without prefix. The dict wins, because it belongs to one
engine and the environment often to a fleet. What is wrong raises `ConfigurationError` then and
never later.

Only the standard library is imported: the plugin needs this in every process of vLLM.
"""

import difflib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final

SWITCH: Final = "PDTRACE"
_PREFIX: Final = "PDTRACE_"
_ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_WORDS: Final = {
    **dict.fromkeys(("1", "true", "yes", "on"), True),
    **dict.fromkeys(("0", "false", "no", "off"), False),
}


class ConfigurationError(ValueError):
    """A setting that cannot be used; raised at the start of a process, never later."""


def _truth(value: Any) -> bool:
    found = _WORDS.get(str(value).strip().lower())
    if found is None:
        raise ValueError("1 or 0")
    return found


def _number(least: float, most: float) -> Callable[[Any], float]:
    def read(value: Any) -> float:
        try:
            number = float("nan") if isinstance(value, bool) else float(value)
        except (TypeError, ValueError):
            number = float("nan")
        if not least <= number <= most:
            raise ValueError(f"a number from {least:g} to {most:g}")
        return number

    return read


def _count(least: int, most: int) -> Callable[[Any], int]:
    bounded = _number(least, most)

    def read(value: Any) -> int:
        try:
            number = bounded(value)
        except ValueError:
            number = 0.5
        if not number.is_integer():
            raise ValueError(f"a whole number from {least} to {most}")
        return int(number)

    return read


def _setting(default: Any, read: Callable[[Any], Any]) -> Any:
    return field(default=default, metadata={"read": read})


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of one process; `docs/settings.md` says what each of them does."""

    enabled: bool | None = _setting(None, _truth)
    """`PDTRACE`. None: traced if an OTLP endpoint is configured."""
    sample_ratio: float | None = _setting(None, _number(0, 1))
    """None: as `OTEL_TRACES_SAMPLER` says."""
    keep_errors: bool = _setting(True, _truth)
    """Requests that failed are exported although they are not sampled."""
    slow_ms: float | None = _setting(None, _number(0, 86_400_000))
    """So are requests that took longer than this; None: no such limit."""
    span_limit_s: float = _setting(600.0, _number(0.1, 604_800))
    """An open span older than this ends as abandoned. vLLM itself gives up after 480 s."""
    decode_limit_s: float = _setting(7200.0, _number(0.1, 604_800))
    """The same for `pd.decode`: tokens may be generated for much longer than anything may wait."""
    hook_error_limit: int = _setting(100, _count(1, 1_000_000_000))
    """A hook that failed so often switches itself off."""
    buffer_events: int = _setting(65_536, _count(64, 16_777_216))
    """Events that wait for the recorder's thread; the newest is dropped when it is full."""
    queue_spans: int = _setting(16_384, _count(512, 16_777_216))
    """Finished spans that wait for the endpoint; the oldest are dropped when it is full."""
    send_every_s: float = _setting(5.0, _number(0.05, 3600))
    """Longest time that a finished span waits for others to be exported with; 5 s is what
    OpenTelemetry's batch processor takes. An export costs an engine's process 1.5 ms of CPU."""


_READERS: Final[dict[str, Callable[[Any], Any]]] = {
    known.name: known.metadata["read"] for known in fields(Settings)
}


def variable(name: str) -> str:
    """The environment variable of a setting."""
    return SWITCH if name == "enabled" else _PREFIX + name.upper()


def read_settings(
    environment: Mapping[str, str] = os.environ, extra: object | None = None
) -> Settings:
    """Settings of this process; `extra` is `kv_connector_extra_config["pdtrace"]`, if there is one.

    Raises `ConfigurationError` with one sentence that names the setting and its value.
    """
    _refuse_misspelt(environment)
    found = {
        name: _read(name, environment[variable(name)], variable(name))
        for name in _READERS
        if environment.get(variable(name))
    }
    found.update(_from_extra(extra))
    return Settings(**found)


def _refuse_misspelt(environment: Mapping[str, str]) -> None:
    """A name that nearly is one of ours. Others with our prefix may be somebody else's: Kubernetes
    makes such variables for a service that is called pdtrace."""
    known = [variable(name) for name in _READERS if name != "enabled"]
    for name in environment:
        if name.startswith(_PREFIX) and name not in known:
            near = difflib.get_close_matches(name, known, 1, 0.85)
            if near:
                raise ConfigurationError(f"{name} is not a setting; {near[0]} is one")


def _from_extra(extra: object | None) -> dict[str, Any]:
    where = 'kv_connector_extra_config["pdtrace"]'
    if extra is None:
        return {}
    if not isinstance(extra, Mapping):
        raise ConfigurationError(f"{where} is {extra!r}, but must be an object of settings")
    for name in extra:
        if name not in _READERS:
            raise ConfigurationError(
                f"{where} has {name!r}, which is not a setting; there are {', '.join(_READERS)}"
            )
    return {name: _read(name, value, f"{where}[{name!r}]") for name, value in extra.items()}


def _read(name: str, value: Any, where: str) -> Any:
    try:
        return _READERS[name](value)
    except ValueError as error:
        raise ConfigurationError(f"{where} is {value!r}, but must be {error}") from None


def endpoint_of(environment: Mapping[str, str] = os.environ) -> str:
    """The OTLP endpoint for traces, or "" when none is configured or the SDK is switched off."""
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return ""
    if environment.get("OTEL_TRACES_EXPORTER", "").strip().lower() == "none":
        return ""
    return next((environment[name] for name in _ENDPOINTS if environment.get(name)), "")


def wanted(settings: Settings, environment: Mapping[str, str] = os.environ) -> bool:
    """Whether this process is to be traced: the switch decides; without it, an endpoint does."""
    if settings.enabled is None:
        return bool(endpoint_of(environment))
    return settings.enabled
