"""Which requests are recorded: parent-based, else a share of all traces by their ids.

The share is taken from the trace id as OpenTelemetry's `TraceIdRatioBased` does it, so that P, D
and router take the same decision for one request with nothing propagated, as long as they are given
the same ratio. A span follows the decision of the trace it belongs to: where P adopts the trace of
D's registration, it adopts D's decision with it.
"""

import math
import os
from collections.abc import Mapping
from typing import Final, NamedTuple

from pdtrace.tracing.propagation import TraceContext
from pdtrace.tracing.settings import ConfigurationError, Settings, variable

_ID_BITS: Final = (1 << 64) - 1
_ROOT_RATIOS: Final = {"always_on": 1.0, "always_off": 0.0, "traceidratio": None}
_PARENT_BASED: Final = "parentbased_"


class Sampler(NamedTuple):
    """`ratio` of the traces without a caller's context, or of all if not `parent_based`."""

    ratio: float = 1.0
    parent_based: bool = True

    def decides(self, trace: TraceContext) -> bool:
        """Whether spans of this trace are recorded."""
        if self.parent_based and trace.parent_id:
            return trace.sampled
        return trace.trace_id & _ID_BITS < round(self.ratio * (_ID_BITS + 1))


class Keeper(NamedTuple):
    """Which requests are exported although they are not sampled; each process decides for itself,
    at the end of the request, by what it knows."""

    errors: bool = True
    slow_ns: float = math.inf

    def keeps(self, failed: bool, took_ns: int) -> bool:
        """`took_ns` runs from the first that this process knows of the request to its first token;
        to its end here, where the first token is not known (P, and the worker processes)."""
        return (failed and self.errors) or took_ns > self.slow_ns

    @property
    def can_keep(self) -> bool:
        """Whether there is any request that this keeps."""
        return self.errors or self.slow_ns < math.inf

    @classmethod
    def of(cls, settings: Settings) -> "Keeper":
        """As `PDTRACE_KEEP_ERRORS` and `PDTRACE_SLOW_MS` say."""
        slow = settings.slow_ms
        return cls(settings.keep_errors, math.inf if slow is None else slow * 1e6)


def make_sampler(settings: Settings, environment: Mapping[str, str] = os.environ) -> Sampler:
    """Parent-based with `PDTRACE_SAMPLE_RATIO`; without it, as `OTEL_TRACES_SAMPLER` says.

    Raises `ConfigurationError` for a sampler that we have not.
    """
    if settings.sample_ratio is not None:
        return Sampler(settings.sample_ratio)
    named = environment.get("OTEL_TRACES_SAMPLER", "").strip() or "parentbased_always_on"
    root = named.removeprefix(_PARENT_BASED)
    if root not in _ROOT_RATIOS:
        names = [prefix + name for prefix in ("", _PARENT_BASED) for name in _ROOT_RATIOS]
        raise ConfigurationError(
            f"OTEL_TRACES_SAMPLER is {named!r}, but must be one of {', '.join(names)},"
            f" unless {variable('sample_ratio')} is set"
        )
    ratio = _ROOT_RATIOS[root]
    return Sampler(_argument(environment) if ratio is None else ratio, named != root)


def _argument(environment: Mapping[str, str]) -> float:
    text = environment.get("OTEL_TRACES_SAMPLER_ARG", "").strip() or "1"
    try:
        ratio = float(text)
    except ValueError:
        ratio = -1.0
    if not 0 <= ratio <= 1:
        raise ConfigurationError(
            f"OTEL_TRACES_SAMPLER_ARG is {text!r}, but must be a number from 0 to 1"
        )
    return ratio
