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
TOO_LARGE: Final = "larger than the limit (--max-span-bytes)"
MALFORMED: Final = "malformed span"

EARLIEST_NS: Final = 1_420_070_400 * 10**9
"""2015-01-01: an earlier start is a monotonic reading, or another unit, taken for Unix time."""
LATEST_NS: Final = 4_102_444_800 * 10**9
"""2100-01-01."""
LONGEST_NS: Final = 86_400 * 10**9
SPAN_BYTES: Final = 1 << 20
"""A span larger than this is refused, unless told otherwise. Ours have about 1 kB."""
_REFUSED_KEPT: Final = 100_000


class OtlpError(ValueError):
    """A message that is not an OTLP trace export; the text says what it is instead."""


@dataclass(slots=True)
class Tally:
    """What was refused or read with less than full precision, over one or many messages."""

    span_bytes: int = SPAN_BYTES
    """The largest span that is read."""
    rejected: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)
    """By reason, one span that was rejected for it, in words."""
    ignored: Counter[str] = field(default_factory=Counter)
    """Values that cannot be, by name and fault: of spans that were read otherwise."""
    float_times: int = 0
    """Times written as floating point, hence exact to 256 ns only."""
    micro_times: int = 0
    """Spans whose times were kept in whole microseconds."""
    dropped_events: int = 0
    """Span events without a readable time of this age."""
    adjusted: int = 0
    """Spans whose times the trace store moved."""
    partial: int = 0
    """Answers that the trace store itself marked as cut."""
    listed: list[str] = field(default_factory=list)
    """Trace ids that a search result names."""
    refused: list[tuple[str, str, str]] = field(default_factory=list)
    """Trace id, span id and parent of spans that were refused for their times (not all of many)."""

    def refuse(
        self, reason: str, ids: tuple[str, str, str] = ("", "", ""), example: str = ""
    ) -> None:
        """Count one span that cannot be used: `ids` are its trace, its own, its parent's."""
        self.rejected[reason] += 1
        if example:
            self.examples.setdefault(reason, example)
        if ids[1] and len(self.refused) < _REFUSED_KEPT:
            self.refused.append(ids)


def refusal(trace_id: str, span_id: str, start_ns: int, end_ns: int) -> str | None:
    """Why a span cannot be used; None when it can. A missing instant arrives as 0."""
    if not trace_id:
        return NO_TRACE_ID
    if not span_id:
        return NO_SPAN_ID
    if start_ns <= 0 or end_ns <= 0:
        return UNREADABLE_TIME
    if not EARLIEST_NS <= start_ns <= LATEST_NS or end_ns > LATEST_NS:
        return OTHER_EPOCH
    if end_ns < start_ns:
        return END_BEFORE_START
    return TOO_LONG if end_ns - start_ns > LONGEST_NS else None


def in_words(name: str, start_ns: int, end_ns: int) -> str:
    """A refused span for the user: its name and how long it would be."""
    length = end_ns - start_ns
    if start_ns <= 0 or end_ns <= 0:
        return name
    years = length / (365.25 * LONGEST_NS)
    return f"{name}, {f'{years:.1f} years' if abs(years) >= 0.1 else f'{length} ns'} long"


def is_of_this_age(time_ns: int) -> bool:
    """Whether an instant can be Unix time in nanoseconds."""
    return EARLIEST_NS <= time_ns <= LATEST_NS
