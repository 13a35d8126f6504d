"""Runs inside an engine of a test (`ClusterSettings.engine_setup`): makes hooks fail, keeps what is
sent to peers, lets NIXL lose heartbeats.

The directory that `TEST_RIG` names is the only link to the test:

    failing      names of the hooks that fail now, one a line; `*` is every one
    installed    every hook there is, by name
    raised       every hook that was made to fail, by name
    sent         JSON lines: a message to a peer, by kind, as hexadecimal text
"""

import functools
import json
import os
import threading
from pathlib import Path
from typing import Any

import nixl._api
import zmq
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.base_scheduler import (
    NixlBaseConnectorScheduler,
)

from pdtrace.connector.worker import WorkerHooks
from pdtrace.tracing.guard import Guard

DIRECTORY = Path(os.environ["TEST_RIG"])
SIDE_CHANNEL = ("nixl_handshake_listener", "vllm-nixl-handshake-initiator")


class InjectedError(Exception):
    """A hook was told to fail."""


class LostHeartbeat(Exception):
    """In the place of what NIXL raises when it cannot send."""


def append(name: str, line: str) -> None:
    """One line, whole, also when several processes write."""
    with open(DIRECTORY / name, "ab", buffering=0) as file:
        file.write(line.encode() + b"\n")


def failing(hook: str) -> bool:
    """Whether this hook is to fail now."""
    wanted = (DIRECTORY / "failing").read_text(encoding="utf-8").splitlines()
    return hook in wanted or "*" in wanted


def breakable(hook: str, callback: Any) -> Any:
    """The callback, failing in the place of its work when it is told to."""
    append("installed", hook)

    @functools.wraps(callback)
    def maybe(*args: Any, **kwargs: Any) -> Any:
        if failing(hook):
            append("raised", hook)
            raise InjectedError(hook)
        return callback(*args, **kwargs)

    return maybe


def break_hooks() -> None:
    """Every hook goes through `Guard.observe`, but for the notes that a worker is asked for."""
    observe: Any = Guard.observe

    def observed(guard: Guard, target: Any, method: str, **how: Any) -> Any:
        for when in ("before", "after", "raised"):
            if how.get(when) is not None:
                hook = f"{method}.{when}:{how[when].__qualname__}"
                how[when] = breakable(hook, how[when])
        return observe(guard, target, method, **how)

    take_notes: Any = WorkerHooks.take_notes
    guard: Any = Guard
    hooks: Any = WorkerHooks
    guard.observe = observed
    hooks.take_notes = breakable("notes", take_notes)


def lose_heartbeats() -> None:
    """D sends one with each step that has somebody to wait for, and vLLM goes on without it."""
    agent: Any = nixl._api.nixl_agent
    scheduler: Any = NixlBaseConnectorScheduler
    send_notif, on_new_request = agent.send_notif, scheduler.on_new_request

    @functools.wraps(send_notif)
    def lossy(self: Any, name: str, notif_msg: bytes, *args: Any) -> Any:
        if notif_msg.startswith(b"HB:"):
            raise LostHeartbeat
        return send_notif(self, name, notif_msg, *args)

    @functools.wraps(on_new_request)
    def hasty(self: Any, request: Any) -> Any:
        self._heartbeat_interval = 0
        return on_new_request(self, request)

    agent.send_notif, scheduler.on_new_request = lossy, hasty


def keep(kind: str, method: Any, message_of: Any) -> Any:
    """The method, which first writes down what it is to send."""

    @functools.wraps(method)
    def kept(*args: Any, **kwargs: Any) -> Any:
        for message in message_of(*args, **kwargs):
            data = message if isinstance(message, (bytes, bytearray)) else str(message).encode()
            append("sent", json.dumps({"kind": kind, "message": bytes(data).hex()}))
        return method(*args, **kwargs)

    return kept


def keep_messages() -> None:
    """What NIXL and the side channel carry to a peer, but for the blocks themselves."""
    agent: Any = nixl._api.nixl_agent
    agent.send_notif = keep("notification", agent.send_notif, _notification)
    agent.make_prepped_xfer = keep("with-transfer", agent.make_prepped_xfer, _with_transfer)
    socket: Any = zmq.Socket
    socket.send = keep("side-channel", socket.send, _part)


def _notification(_self: Any, _agent: str, notif_msg: bytes, *_: Any) -> list[Any]:
    return [notif_msg]


def _with_transfer(*_: Any, notif_msg: bytes = b"", **__: Any) -> list[Any]:
    return [notif_msg] if notif_msg else []


def _part(_self: Any, data: Any, *_: Any, **__: Any) -> list[Any]:
    """A message, or each part of one: `send_multipart` comes by here too."""
    thread = threading.current_thread().name
    return [data] if thread.startswith(SIDE_CHANNEL) else []


break_hooks()
lose_heartbeats()
keep_messages()
