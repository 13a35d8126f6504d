"""What the scheduler side tells the worker side of a request, inside vLLM's connector metadata.

The metadata is a plain object that vLLM passes by reference or pickles; an extra attribute survives
both, and a worker without pdtrace never looks at it.
"""

from dataclasses import dataclass, field
from typing import Any, Final

from pdtrace.connector.leg import Leg, read_back
from pdtrace.tracing.events import RequestContext

ATTRIBUTE: Final = "pdtrace_requests"


@dataclass(frozen=True, slots=True)
class RequestCarrier:
    """One request on its way to the worker.

    `since_ns` is Unix nanoseconds: when its blocks were allocated (decode) or its prefill ended
    (prefill).
    """

    traceparent: str
    since_ns: int
    attributes: dict[str, Any] = field(default_factory=dict)

    def context(self) -> RequestContext:
        """The same as the recorder's first event of a request."""
        return RequestContext(self.traceparent, self.attributes)


def carrier_of(leg: Leg, since_ns: int) -> RequestCarrier:
    """A leg from `since_ns` (Unix nanoseconds) on, for the worker."""
    context = leg.context
    attributes = {**context.attributes, **(read_back(leg) if leg.admitted else {})}
    return RequestCarrier(context.traceparent, since_ns, attributes)


def attach(metadata: Any, requests: dict[str, RequestCarrier]) -> None:
    """Put carriers by request id on connector metadata."""
    setattr(metadata, ATTRIBUTE, requests)


def attached(metadata: Any) -> dict[str, RequestCarrier]:
    """The carriers on connector metadata; empty when its scheduler is not traced."""
    found = getattr(metadata, ATTRIBUTE, None)
    return found if isinstance(found, dict) else {}


def block_count(block_ids: Any) -> int:
    """Blocks over all groups; some of vLLM's calls pass one flat list instead of groups."""
    return sum(len(group) if isinstance(group, (list, tuple)) else 1 for group in block_ids)
