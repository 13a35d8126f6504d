"""Time ranges as people write them: `FROM..TO`, ISO 8601 or counted back, either side left out."""

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Self

_UNITS: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
_BACK: Final = re.compile(r"-(\d+(?:\.\d+)?)([smhd])")
_SECOND: Final = 1_000_000_000
HELP: Final = (
    "FROM..TO, each ISO 8601 (UTC unless it says otherwise) or counted back like -30m from the "
    "newest request; one side may be left out."
)


class TimeRangeError(ValueError):
    """A text that is no range; the message says why in one sentence."""


@dataclass(frozen=True)
class Instant:
    """Unix ns, or ns before the end of what is looked at (`back`)."""

    ns: int
    back: bool = False

    @classmethod
    def parse(cls, text: str) -> Self:
        """`2026-11-30T14:02:30Z`, `2026-11-30`, `-30m`, `-1.5h`, `now` (the end itself)."""
        if text == "now":
            return cls(0, back=True)
        found = _BACK.fullmatch(text)
        if found:
            return cls(round(float(found[1]) * _UNITS[found[2]] * _SECOND), back=True)
        try:
            at = datetime.fromisoformat(text)
        except ValueError:
            raise TimeRangeError(
                f"{text!r} is no time: write 2026-11-30T14:02:30Z or -30m (s, m, h, d)"
            ) from None
        since = (at if at.tzinfo else at.replace(tzinfo=UTC)) - datetime.fromtimestamp(0, UTC)
        seconds = since.days * 86_400 + since.seconds
        return cls(seconds * _SECOND + since.microseconds * 1_000)

    def __str__(self) -> str:
        """As it can be written."""
        if self.back:
            return f"-{self.ns / _SECOND:g}s" if self.ns else "now"
        return datetime.fromtimestamp(self.ns / _SECOND, UTC).isoformat()

    def at(self, end_ns: int) -> int:
        """Unix ns, seen from `end_ns`."""
        return end_ns - self.ns if self.back else self.ns


@dataclass(frozen=True)
class TimeRange:
    """From `start` to before `end`; None = no limit on that side."""

    start: Instant | None = None
    end: Instant | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """A range, or one instant counted back: `-30m` is the last half hour."""
        start, dots, end = (part.strip() for part in text.partition(".."))
        if not start and not end:
            raise TimeRangeError(f"{text!r} is no time range: write FROM..TO")
        if not dots and not _BACK.fullmatch(start):
            raise TimeRangeError(f"{text!r} has no end: write FROM..TO")
        return cls(Instant.parse(start) if start else None, Instant.parse(end) if end else None)

    def __str__(self) -> str:
        """As it can be written."""
        return f"{self.start or ''}..{self.end or ''}"

    def at(self, end_ns: int) -> tuple[int | None, int | None]:
        """[start, end) in Unix ns, seen from `end_ns`; raises if nothing can lie in it."""
        start = self.start.at(end_ns) if self.start else None
        # What is counted back to the end itself includes it.
        end = (
            self.end.at(end_ns) + (1 if self.end.back and not self.end.ns else 0)
            if self.end
            else None
        )
        if start is not None and end is not None and start >= end:
            raise TimeRangeError("a time range must not end before it begins")
        return start, end
