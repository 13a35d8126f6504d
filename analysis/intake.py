"""Which spans are usable, and the tally of those that are not.

A span that would put a wrong interval on the timeline is refused and counted; none is repaired.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

NO_TRACE_ID: Final = "no trace id"
NO_SPAN_ID: Final = "no span id"
UNREADABLE_TIME: Final = "no readable time"
END_BEFORE_START: Final = "end before start"
OTHER_EPOCH: Final = "time of another epoch"
TOO_LONG: Final = "longer than a day"
MALFORMED: Final = "malformed span"

EARLIEST_NS: Final = 1_420_070_400 * 10**9
"""2015-01-01: an earlier start is a monotonic reading taken for Unix time."""
LONGEST_NS: Final = 86_400 * 10**9


class OtlpError(ValueError):
    """A message that is not an OTLP trace export; the text says what it is instead."""


@dataclass(slots=True)
class Tally:
    """What was refused or read with less than full precision, over one or many messages."""

    rejected: Counter[str] = field(default_factory=Counter)
    float_times: int = 0
    """Times written as floating point, hence exact to 256 ns only."""
    dropped_events: int = 0
    """Span events without a readable time."""
    partial: int = 0
    """Answers that the trace store itself marked as cut."""


def refusal(trace_id: str, span_id: str, start_ns: int, end_ns: int) -> str | None:
    """Why a span cannot be used; None when it can. A missing instant arrives as 0."""
    if not trace_id:
        return NO_TRACE_ID
    if not span_id:
        return NO_SPAN_ID
    if start_ns <= 0 or end_ns <= 0:
        return UNREADABLE_TIME
    if end_ns < start_ns:
        return END_BEFORE_START
    if start_ns < EARLIEST_NS:
        return OTHER_EPOCH
    return TOO_LONG if end_ns - start_ns > LONGEST_NS else None
