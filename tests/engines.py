"""Requests to engines by hand, and what a cluster may have left behind."""

import json
import time
import urllib.request
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pdtrace.connector import process_tree
from pdtrace.connector.cluster import Cluster

LEFTOVER_SECONDS = 60.0
ANSWER_SECONDS = 180.0
"""Some requests wait for others before they are answered."""


def complete(
    url: str, model: str, prompt: str | list[int], request_id: str | None = None, **more: Any
) -> dict[str, Any]:
    """Answer to one greedy completion request; the prompt is text or token ids."""
    body = {"model": model, "prompt": prompt, "temperature": 0, "max_tokens": 24, **more}
    request = urllib.request.Request(
        f"{url}/v1/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json", "X-Request-Id": request_id or uuid.uuid4().hex},
    )
    with urllib.request.urlopen(request, timeout=ANSWER_SECONDS) as answer:
        decoded: dict[str, Any] = json.loads(answer.read())
    return decoded


def text(answer: dict[str, Any]) -> str:
    """The generated text of an answer."""
    generated: str = answer["choices"][0]["text"]
    return generated


def hand_off(cluster: Cluster, prompt: str) -> str:
    """What the decode engine generates from the prefill engine's KV cache, without a router."""
    prefill, decode = cluster.prefills[0].url, cluster.decodes[0].url
    # Push pairs the two legs by this id.
    one = uuid.uuid4().hex
    ask = {"do_remote_decode": True, "do_remote_prefill": False}
    first = complete(prefill, cluster.model, prompt, one, max_tokens=1, kv_transfer_params=ask)
    params = first["kv_transfer_params"]
    assert params["do_remote_prefill"] is True
    return text(complete(decode, cluster.model, prompt, one, kv_transfer_params=params))


def sessions(cluster: Cluster) -> list[int]:
    """Each process of a cluster leads a session of its own."""
    return [process.pid for process in cluster.processes()]


def shared_memory(session: int) -> list[Path]:
    """Shared memory of the processes of a session."""
    return list(Path("/dev/shm").glob(f"{process_tree.shared_memory_prefix(session)}*"))


def leftovers(of_sessions: list[int]) -> list[object]:
    """Processes, shared memory and temporary files that sessions still have."""
    left: list[object] = []
    for session in of_sessions:
        left += [*process_tree.members(session), *shared_memory(session)]
        left += [path for path in [process_tree.scratch(session)] if path.exists()]
    return left


def marked(mark: str) -> list[int]:
    """Living processes whose first environment had the mark in it."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if mark.encode() in (entry / "environ").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def eventually(condition: Callable[[], bool], seconds: float = LEFTOVER_SECONDS) -> bool:
    """Whether the condition becomes true in a bounded time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True
