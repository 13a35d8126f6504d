"""Instants and their place on the wall clock.

Durations come from CLOCK_MONOTONIC, which on Linux is also `time.perf_counter` and is shared by
all processes of one boot. Placement comes from an anchor, one (wall, monotonic) pair read together.
The kernel slews both clocks alike, so the difference changes only when somebody steps the wall
clock: a step starts a new anchor, and whatever began on the old one keeps it, unbent.

Two processes that read their anchors before and after a step place one instant at two times. So
each says which anchor it used, and a reader can undo that.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from pdtrace.tracing import semconv

STEP_NS: Final = 100_000
"""A change of (wall - monotonic) above this is a step of the wall clock, not reading jitter."""
_READINGS: Final = 5
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_NAMESPACE: Final = Path("/proc/self/timens_offsets")

NanosecondClock = Callable[[], int]


@dataclass(frozen=True, slots=True)
class Anchor:
    """Wall minus monotonic time, in nanoseconds, at one moment.

    `namespace_ns`: by how much this process's monotonic clock is ahead of its host's. `first`: it
    is the first anchor of its clock, which the resource states.
    """

    offset_ns: int
    namespace_ns: int = 0
    first: bool = True

    def to_wall_ns(self, mono_ns: int) -> int:
        """Unix time in nanoseconds of a monotonic instant."""
        return mono_ns + self.offset_ns

    @property
    def of_host_ns(self) -> int:
        """Wall minus the host's monotonic time: the value of `pd.clock.anchor_ns`."""
        return self.offset_ns + self.namespace_ns

    def restated(self) -> dict[str, int]:
        """What spans on this anchor say of it, where their resource states another one."""
        return {} if self.first else {semconv.CLOCK_ANCHOR_NS: self.of_host_ns}


class Clock:
    """Reads anchors; `wall_ns` and `mono_ns` are injected so that tests can step them.

    `namespace_ns`: as in `Anchor`.
    """

    def __init__(
        self,
        wall_ns: NanosecondClock = time.time_ns,
        mono_ns: NanosecondClock = time.monotonic_ns,
        namespace_ns: int = 0,
    ) -> None:
        self.mono_ns = mono_ns
        self._wall_ns = wall_ns
        self._namespace_ns = namespace_ns
        self.first = self._anchor = Anchor(self._offset_ns(), namespace_ns)

    def anchor(self) -> Anchor:
        """The anchor in force."""
        return self._anchor

    def refresh(self) -> bool:
        """Read again; True when the wall clock was stepped and a new anchor is in force."""
        fresh_ns = self._offset_ns()
        if abs(fresh_ns - self._anchor.offset_ns) <= STEP_NS:
            return False
        self._anchor = Anchor(fresh_ns, self._namespace_ns, first=False)
        return True

    def wall_now_ns(self) -> int:
        """Unix time in nanoseconds by the anchor in force."""
        return self._anchor.to_wall_ns(self.mono_ns())

    def _offset_ns(self) -> int:
        """Wall less monotonic time, by the tightest of several (monotonic, wall, monotonic)."""
        best_width, best_offset = None, 0
        for _ in range(_READINGS):
            before = self.mono_ns()
            wall = self._wall_ns()
            width = self.mono_ns() - before
            if best_width is None or width < best_width:
                best_width, best_offset = width, wall - (before + width // 2)
        return best_offset


@cache
def process_clock() -> Clock:
    """The clock of this process: all that it records lies on one axis. A forked child goes on with
    it."""
    return Clock(namespace_ns=namespace_ns())


def namespace_ns(offsets: Path = _NAMESPACE) -> int:
    """By how much this process's monotonic clock is ahead of its host's (time_namespaces(7)).

    0 where the kernel does not tell it: then there are no such namespaces.
    """
    try:
        for line in offsets.read_text().splitlines():
            name, seconds, nanoseconds = line.split()
            if name == "monotonic":
                return int(seconds) * 10**9 + int(nanoseconds)
    except (OSError, ValueError):
        pass
    return 0


def clock_id() -> str:
    """Kernel boot id, or an empty string where the kernel does not tell it."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""
