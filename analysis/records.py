"""One span as read from any source, before it becomes a row of the spans table."""

from collections.abc import Mapping
from dataclasses import dataclass, field

AttributeValue = str | bool | int | float | list["AttributeValue"]
Attributes = Mapping[str, AttributeValue]


@dataclass(frozen=True, slots=True)
class EventRecord:
    """A span event: `time_ns` is Unix time in nanoseconds."""

    name: str
    time_ns: int
    attributes: Attributes = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SpanRecord:
    """A span: ids are lower-case hex (32 and 16 digits, "" = no parent), times Unix ns.

    `resource` is shared by all spans of one export. `status` is OTLP's code: 0 unset, 1 ok,
    2 error.
    """

    trace_id: str
    span_id: str
    parent_id: str
    name: str
    kind: int
    start_ns: int
    end_ns: int
    attributes: Attributes
    events: tuple[EventRecord, ...]
    status: int
    resource: Attributes
    scope: str
