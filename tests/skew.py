"""Clocks that are wrong in a known way: spans as hosts with such clocks would have written them."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from generator import EPOCH_NS

from pdtrace.analysis.records import AttributeValue, EventRecord, SpanRecord
from pdtrace.tracing import semconv as sc


@dataclass(frozen=True)
class Skew:
    """A clock: what it shows less the truth at the epoch of the tests, and how that grows."""

    name: str
    offset_ns: int = 0
    drift_ppb: int = 0
    step_at_ns: int = 0
    step_ns: int = 0
    """It was set by so much at that true time (0 = never)."""

    def less_truth(self, true_ns: int) -> int:
        """What it shows at a true time, less that time (ns)."""
        step = self.step_ns if self.step_at_ns and true_ns >= self.step_at_ns else 0
        return self.offset_ns + self.drift_ppb * (true_ns - EPOCH_NS) // 10**9 + step

    def shows(self, true_ns: int) -> int:
        """What it shows at a true time."""
        return true_ns + self.less_truth(true_ns)


def skewed(spans: Iterable[SpanRecord], clock_of: Callable[[SpanRecord], Skew]) -> list[SpanRecord]:
    """`spans`, whose times are true, as written by the clock of each."""
    return [_written(span, clock_of(span)) for span in spans]


def _written(span: SpanRecord, clock: Skew) -> SpanRecord:
    events = tuple(EventRecord(e.name, clock.shows(e.time_ns), e.attributes) for e in span.events)
    return replace(
        span,
        # A span of ours has one anchor: a step does not bend it.
        start_ns=clock.shows(span.start_ns),
        end_ns=clock.shows(span.start_ns) + span.end_ns - span.start_ns
        if clock.step_at_ns
        else clock.shows(span.end_ns),
        events=events,
        resource={**span.resource, sc.CLOCK_ID: clock.name},
    )


ANCHOR_NS = EPOCH_NS - 10**15


def stepped(spans: Iterable[SpanRecord], steps: Sequence[int]) -> list[SpanRecord]:
    """As written by processes of which some placed their spans after their wall clock was set.

    Every other span is not moved, the rest by one of `steps` (ns) in turn; its anchor is stated by
    its resource, or by the span where its process read the clock again.
    """
    return [_placed(span, place, steps) for place, span in enumerate(spans)]


def _placed(span: SpanRecord, place: int, steps: Sequence[int]) -> SpanRecord:
    by = steps[place // 2 % len(steps)] if place % 2 else 0
    anchor: dict[str, AttributeValue] = {sc.CLOCK_ANCHOR_NS: ANCHOR_NS + by}
    again = by and place % 3
    first = {sc.CLOCK_ANCHOR_NS: ANCHOR_NS} if again else anchor
    return replace(
        span,
        start_ns=span.start_ns + by,
        end_ns=span.end_ns + by,
        events=tuple(EventRecord(e.name, e.time_ns + by, e.attributes) for e in span.events),
        attributes={**span.attributes, **(anchor if again else {})},
        resource={**span.resource, **first},
    )


def by_role(**clocks: Skew) -> Callable[[SpanRecord], Skew]:
    """One clock for each role."""
    return lambda span: clocks[str(span.resource[sc.ROLE])]


def scaled(spans: Iterable[SpanRecord], factor: int) -> list[SpanRecord]:
    """`spans` with every length `factor` times as long."""

    def move(time_ns: int) -> int:
        return EPOCH_NS + (time_ns - EPOCH_NS) * factor

    return [
        replace(
            span,
            start_ns=move(span.start_ns),
            end_ns=move(span.end_ns),
            events=tuple(EventRecord(e.name, move(e.time_ns), e.attributes) for e in span.events),
        )
        for span in spans
    ]
