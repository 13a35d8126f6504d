"""What is left of a session once its leader is dead, and how to end it."""

import os
import signal
import time
from pathlib import Path
from typing import Final

TRACKER_SECONDS: Final = 3.0
"""How long Python's resource tracker may take to remove a dead engine's shared memory."""


def members(session: int) -> list[int]:
    """Living processes of a session."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit() and _session_of(int(entry)) == session:
            found.append(int(entry))
    return found


def _session_of(pid: int) -> int | None:
    """Session id from /proc; None for zombies and for what is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # The name may hold spaces and brackets; fields count from the last bracket.
    state, _parent, _group, session = stat.rpartition(")")[2].split()[:4]
    return None if state in "ZX" else int(session)


def _is_tracker(pid: int) -> bool:
    try:
        return b"resource_tracker" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def sweep_session(session: int, deadline: float) -> bool:
    """Kill what outlived its leader; True once nothing is left.

    Resource trackers are spared until the deadline: they end by themselves when their last process
    is dead, and remove the shared memory that a killed engine could not.
    """
    left = members(session)
    for pid in left:
        if not _is_tracker(pid) or time.monotonic() > deadline:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
    return not left
