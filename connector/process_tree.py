"""A session of processes: its members, and what it leaves behind once its leader is dead."""

import os
import shutil
import signal
import tempfile
from pathlib import Path
from typing import Final

_SHARED_MEMORY: Final = Path("/dev/shm")


def scratch(session: int) -> Path:
    """Temporary directory of a session: sockets and files that vLLM never removes go there."""
    return Path(tempfile.gettempdir()) / f"pdtrace-{os.getuid()}-{session}"


def shared_memory_prefix(session: int) -> str:
    """How the names of a session's shared memory begin, so that its owner can be told later."""
    return f"pdtrace-{os.getuid()}-{session}-"


def members(session: int) -> list[int]:
    """Living processes of a session."""
    pids = [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]
    return [pid for pid in pids if _session_of(pid) == session]


def _session_of(pid: int) -> int | None:
    """Session id from /proc; None for zombies and for what is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The name may hold spaces and brackets; fields count from the last bracket.
    state, _parent, _group, session = stat.rpartition(")")[2].split()[:4]
    return None if state in "ZX" else int(session)


def sweep(session: int) -> bool:
    """Kill what outlived its leader; True once nothing is left, no file either."""
    left = members(session)
    for pid in left:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    if left:
        return False
    for segment in _SHARED_MEMORY.glob(f"{shared_memory_prefix(session)}*"):
        segment.unlink(missing_ok=True)
    shutil.rmtree(scratch(session), ignore_errors=True)
    return True
