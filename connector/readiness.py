"""Whether a process is ready, and which ports it can have."""

import http.client
import json
import random
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

_HOST: Final = "127.0.0.1"
_PORTS: Final = range(20_000, 32_000)


def until(condition: Callable[[], bool], deadline: float, pause: float = 0.05) -> bool:
    """Poll until true or until the monotonic deadline."""
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(pause)
    return True


def complete(ready: Path) -> bool:
    """Whether the file is there with all of its JSON."""
    try:
        json.loads(ready.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return True


def healthy(url: str) -> bool:
    """Whether `GET /health` answers 200."""
    where = urlsplit(url)
    connection = http.client.HTTPConnection(where.hostname or _HOST, where.port, timeout=2)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on right now, all different.

    From below the range out of which the kernel serves outgoing connections: of those, some engine
    or client could get one before our process does.
    """
    found: list[int] = []
    for port in random.sample(_PORTS, len(_PORTS)):
        if _can_bind(port):
            found.append(port)
        if len(found) == count:
            return found
    raise OSError(f"no {count} free ports in {_PORTS.start}-{_PORTS.stop - 1}")


def _can_bind(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((_HOST, port))
        except OSError:
            return False
    return True
