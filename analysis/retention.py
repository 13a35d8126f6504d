"""How long a store keeps what it received: segments end by size and age, and the oldest ones go."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Retention:
    """A segment that holds `segment_bytes`, or was begun `segment_s` ago, is closed.

    Closed segments go, the oldest first, while the store is larger than `keep_bytes`, and when
    nothing was written to them for `keep_s`; None: they stay.
    """

    segment_bytes: int = 64 * 1024 * 1024
    segment_s: float = 3600.0
    keep_bytes: int | None = None
    keep_s: float | None = None

    @property
    def keeps_all(self) -> bool:
        """Whether nothing ever goes."""
        return self.keep_bytes is None and self.keep_s is None

    def outdated(self, closed: Sequence[Path], open_bytes: int, now_s: float) -> list[Path]:
        """Those of the closed segments (oldest first) that go; `now_s`: seconds since 1970.

        What was removed by somebody else meanwhile is not among them.
        """
        found = []
        for path in closed:
            try:
                state = path.stat()
            except FileNotFoundError:
                continue
            found.append((path, state.st_size, state.st_mtime))
        held = open_bytes + sum(size for _, size, _ in found)
        excess = 0 if self.keep_bytes is None else held - self.keep_bytes
        oldest_s = -math.inf if self.keep_s is None else now_s - self.keep_s
        gone = []
        for path, size, written_s in found:
            if excess <= 0 and written_s >= oldest_s:
                break
            excess -= size
            gone.append(path)
        return gone
