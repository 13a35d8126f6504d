"""The hook points of one connector object: held against the table, then hooked.

A newer vLLM than the table knows works as far as its hook points exist. One that is missing or has
changed is said once, in the log and in `pd.config`, and its spans are absent instead of wrong.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from inspect import Parameter, signature
from typing import Any, Final

from pdtrace.connector.compat import (
    NEVER_IN,
    POINTS,
    HookPoint,
    Place,
    installed_vllm,
    parsed,
)
from pdtrace.tracing.guard import Guard

_log = logging.getLogger("pdtrace")
_PUBLIC: Final = (Place.FACADE_SCHEDULER, Place.FACADE_WORKER)


@dataclass(frozen=True, slots=True)
class Gap:
    """A hook point that this vLLM should have and does not; `what` is a phrase about it."""

    point: HookPoint
    what: str


class Seams:
    """The hook points of one connector object, checked once, before anything is hooked."""

    def __init__(self, mode: str, targets: Mapping[Place, Any], vllm: str | None = None) -> None:
        """`targets` are the objects that this process has; an absent place is not looked at."""
        self.mode = mode
        self._vllm = installed_vllm() if vllm is None else vllm
        self._targets = {place: target for place, target in targets.items() if target is not None}
        gaps = tuple(self._check())
        self._usable = frozenset(self._expected()) - {gap.point for gap in gaps}
        self.gaps = tuple(gap for gap in gaps if gap.point.needed(mode))

    @classmethod
    def of(cls, connector: Any, mode: str) -> "Seams":
        """Those of a connector as vLLM made it, for whichever side it is."""
        worker = getattr(connector, "connector_worker", None)
        if worker is None:
            scheduler = getattr(connector, "connector_scheduler", None)
            return cls(mode, {Place.FACADE_SCHEDULER: connector, Place.SCHEDULER: scheduler})
        agent = getattr(worker, "nixl_wrapper", None)
        targets = {Place.FACADE_WORKER: connector, Place.WORKER: worker, Place.AGENT: agent}
        return cls(mode, targets)

    @property
    def absent_spans(self) -> frozenset[str]:
        """Spans that cannot be told in this process."""
        return frozenset(span for gap in self.gaps for span in self._lost_without(gap.point))

    def config(self) -> dict[str, Any]:
        """What `pd.config` says of it; empty when nothing is missing."""
        if not self.gaps:
            return {}
        return {
            "missing_hooks": [gap.what for gap in self.gaps],
            "absent_spans": sorted(self.absent_spans),
        }

    def log(self) -> None:
        """One line for each missing hook point."""
        for gap in self.gaps:
            lost = self._lost_without(gap.point)
            loss = [f"without it absent: {', '.join(lost)}"] if lost else []
            loss += [gap.point.less] if gap.point.less else []
            _log.warning("pdtrace: vLLM %s: %s; %s", self._vllm, gap.what, "; ".join(loss))

    def has(self, point: HookPoint) -> bool:
        """Whether the point is there to be hooked."""
        return point in self._usable

    def attribute(self, point: HookPoint) -> Any | None:
        """What a point that is no method holds; None where it is missing."""
        return getattr(self._targets[point.place], point.method) if self.has(point) else None

    def observe(
        self,
        guard: Guard,
        point: HookPoint,
        *,
        before: Callable[..., None] | None = None,
        after: Callable[..., None] | None = None,
        raised: Callable[..., None] | None = None,
    ) -> None:
        """Hook a point as `Guard.observe` does; nothing is done where it is missing."""
        if not self.has(point):
            return
        spans = self._lost_without(point)
        lost = f"the spans {', '.join(spans)}" if spans else "the facts that this hook tells"
        target = self._targets[point.place]
        guard.observe(target, point.method, before=before, after=after, raised=raised, lost=lost)

    def _lost_without(self, point: HookPoint) -> list[str]:
        return sorted(set(point.spans) - NEVER_IN[self.mode])

    def _expected(self) -> Iterator[HookPoint]:
        vllm = parsed(self._vllm)
        return (p for p in POINTS if p.place in self._targets and p.expected(vllm))

    def _check(self) -> Iterator[Gap]:
        for point in self._expected():
            what = fault(point, self._targets)
            if what:
                yield Gap(point, what)


def fault(point: HookPoint, targets: Mapping[Place, Any]) -> str:
    """What is wrong with a hook point of real objects; "" when it is as expected.

    A target may be a class: then what only its objects have is taken for granted.
    """
    target = targets[point.place]
    is_class = isinstance(target, type)
    name = f"{(target if is_class else type(target)).__name__}.{point.method}"
    method = getattr(target, point.method, None)
    if point.attribute and (is_class or method is not None):
        return ""
    if not callable(method):
        return f"{name} does not exist"
    for place, attribute in () if is_class else point.reads:
        if not hasattr(targets.get(place), attribute):
            return f"{name} cannot be told without {attribute}, which does not exist"
    leading = _leading(method)
    if is_class and leading:
        leading = leading[1:]
    if leading is None or fits(point, leading):
        return ""
    return f"{name} takes ({', '.join(leading)}), not ({', '.join(point.arguments)}, …)"


def _leading(method: Callable[..., Any]) -> list[str] | None:
    """Names of the positional parameters; None where anything is accepted or nothing is known."""
    try:
        parameters = signature(method).parameters.values()
    except Exception:  # whatever an odd signature raises, the engine is to start
        return None
    if any(parameter.kind is Parameter.VAR_POSITIONAL for parameter in parameters):
        return None
    positional = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    return [parameter.name for parameter in parameters if parameter.kind in positional]


def fits(point: HookPoint, leading: list[str]) -> bool:
    """Names count for internals. The public interface is called by position, names are free."""
    if point.place in _PUBLIC:
        return len(leading) >= len(point.arguments)
    return tuple(leading[: len(point.arguments)]) == point.arguments
