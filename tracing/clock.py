"""Instants and their place on the wall clock.

Durations come from CLOCK_MONOTONIC, which on Linux is also `time.perf_counter` and is shared by
all processes of one boot. Placement comes from an anchor, one (wall, monotonic) pair read together.
The kernel slews both clocks alike, so the difference changes only when somebody steps the wall
clock: a step starts a new anchor, and whatever began on the old one keeps it, unbent.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

STEP_NS: Final = 100_000
"""A change of (wall - monotonic) above this is a step of the wall clock, not reading jitter."""
_READINGS: Final = 5
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")

NanosecondClock = Callable[[], int]


@dataclass(frozen=True, slots=True)
class Anchor:
    """Wall minus monotonic time, in nanoseconds, at one moment."""

    offset_ns: int

    def to_wall_ns(self, mono_ns: int) -> int:
        """Unix time in nanoseconds of a monotonic instant."""
        return mono_ns + self.offset_ns


class Clock:
    """Reads anchors; `wall_ns` and `mono_ns` are injected so that tests can step them."""

    def __init__(
        self,
        wall_ns: NanosecondClock = time.time_ns,
        mono_ns: NanosecondClock = time.monotonic_ns,
    ) -> None:
        self.mono_ns = mono_ns
        self._wall_ns = wall_ns
        self._anchor = self._read()

    def anchor(self) -> Anchor:
        """The anchor in force."""
        return self._anchor

    def refresh(self) -> bool:
        """Read again; True when the wall clock was stepped and a new anchor is in force."""
        fresh = self._read()
        if abs(fresh.offset_ns - self._anchor.offset_ns) <= STEP_NS:
            return False
        self._anchor = fresh
        return True

    def wall_now_ns(self) -> int:
        """Unix time in nanoseconds by the anchor in force."""
        return self._anchor.to_wall_ns(self.mono_ns())

    def _read(self) -> Anchor:
        """The tightest of several (monotonic, wall, monotonic) readings."""
        best_width, best_offset = None, 0
        for _ in range(_READINGS):
            before = self.mono_ns()
            wall = self._wall_ns()
            width = self.mono_ns() - before
            if best_width is None or width < best_width:
                best_width, best_offset = width, wall - (before + width // 2)
        return Anchor(best_offset)


def clock_id() -> str:
    """Kernel boot id, or an empty string where the kernel does not tell it."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""
