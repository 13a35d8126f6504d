"""What is asked of a running trace store: a range of time, a service, a duration, a limit."""

import re
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

LIMIT: Final = 1000
SINCE: Final = "1h"
_UNITS: Final = {
    "ms": 10**6, "s": 10**9, "m": 60 * 10**9, "h": 3600 * 10**9, "d": 86_400 * 10**9,
}  # fmt: skip
_LENGTH: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")


class QueryError(ValueError):
    """A time or a duration that cannot be read; one sentence."""


@dataclass(frozen=True, slots=True)
class Query:
    """Times in Unix ns. `service` "" = all. The token is in a file, so that no list shows it."""

    since_ns: int
    until_ns: int
    service: str = ""
    min_duration_ns: int = 0
    limit: int = LIMIT
    token_file: Path | None = None
    tenant: str = ""

    def in_words(self) -> str:
        """The range and what else was asked for."""
        parts = [f"from {_shown(self.since_ns)} to {_shown(self.until_ns)}"]
        if self.service:
            parts.append(f"service {self.service}")
        if self.min_duration_ns:
            parts.append(f"at least {self.min_duration_ns / 1e6:g} ms")
        return ", ".join(parts)


def last_hour() -> Query:
    """Everything of the last hour."""
    now_ns = time.time_ns()
    return Query(now_ns - length_ns(SINCE), now_ns)


def length_ns(text: str) -> int:
    """`250ms`, `1.5s`, `30m`, `1h`, `7d` in ns; raises `QueryError`."""
    found = _LENGTH.fullmatch(text.strip())
    if found is None:
        raise QueryError(f"{text!r} is no duration: write 250ms, 30s, 15m, 1h or 7d")
    return round(float(found[1]) * _UNITS[found[2]])


def instant_ns(text: str, now_ns: int) -> int:
    """`now`, a duration before now, Unix seconds, or a date and time (UTC unless it says) in ns."""
    text = text.strip()
    if text == "now":
        return now_ns
    if _LENGTH.fullmatch(text):
        return now_ns - length_ns(text)
    if text.isdecimal() and len(text) <= 11:
        return int(text) * 10**9
    try:
        when = datetime.fromisoformat(text)
    except ValueError as error:
        raise QueryError(
            f"{text!r} is no time: write 1h (before now), 2026-11-29T10:00 (UTC) or Unix seconds"
        ) from error
    when = when if when.tzinfo else when.replace(tzinfo=UTC)
    return round(when.timestamp() * 10**6) * 1000


def _shown(ns: int) -> str:
    return datetime.fromtimestamp(ns / 1e9, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
