"""What leaves a traced engine: nothing that a peer cannot read, nothing that is secret."""

import re
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from rigged_runs import SECRETS, Rigged, RiggedRuns

from pdtrace.tracing import semconv as sc

pytestmark = pytest.mark.e2e

REGISTRATION = b"PUSH_REG:"
NOTIFICATION = re.compile(rb"HB:.+|.+:\d+", re.DOTALL)
SUFFIX = re.compile(r"-[0-9a-f]{8}$")
VOLATILE = {"decode_port", "remote_port"}
BLOCKS = {"local_block_ids", "remote_block_ids"}


@pytest.fixture(params=["push", "pull"])
def pair(request: pytest.FixtureRequest, rigged: RiggedRuns) -> tuple[Rigged, Rigged]:
    """The same requests to traced and to untraced engines, in each mode."""
    return rigged.get(request.param, traced=True), rigged.get(request.param, traced=False)


def steady(message: dict[str, Any]) -> list[tuple[str, object]]:
    """A message without what differs from run to run: ports, random suffixes, block numbers."""
    return [(key, _steady(key, value)) for key, value in message.items()]


def _steady(key: str, value: Any) -> object:
    if key in VOLATILE:
        return type(value)
    if key in BLOCKS:
        return [[type(block) for block in group] for group in value]
    return SUFFIX.sub("", value) if isinstance(value, str) else value


def registrations(run: Rigged) -> dict[str, dict[str, Any]]:
    """The registrations of the requests with no hook failing, by base id."""
    found = {}
    for raw in run.sent("notification"):
        if raw.startswith(REGISTRATION):
            message = msgspec.msgpack.decode(raw.removeprefix(REGISTRATION))
            assert REGISTRATION + msgspec.msgpack.encode(message) == raw
            if "healthy" in message["request_id"]:
                found[SUFFIX.sub("", message["request_id"])] = message
    return found


@pytest.mark.covers("plain-messages", "push", "pull", on="engines")
def test_notifications_are_vllms_own_but_for_one_key(pair: tuple[Rigged, Rigged]) -> None:
    """A registration has one key more, and last; an untraced P looks up keys by name."""
    traced, untraced = (registrations(run) for run in pair)
    assert len(traced) == len(untraced) == (3 if pair[0].mode == "push" else 0)
    for request_id, message in traced.items():
        context = message[sc.REGISTRATION_KEY]
        assert steady(message) == [
            *steady(untraced[request_id]),
            (sc.REGISTRATION_KEY, context),
        ]
        assert context[sc.PARAM_TRACEPARENT].startswith("00-")
    for run in pair:
        others = [m for m in run.sent("notification") if not m.startswith(REGISTRATION)]
        transfers = run.sent("with-transfer")
        assert transfers and all(NOTIFICATION.fullmatch(m) for m in [*others, *transfers])


def side_channel(run: Rigged) -> set[object]:
    """Each message of the handshake, in a form that is the same in every run."""
    forms: tuple[Callable[[bytes], object], ...] = (_query, _payload, _clock)
    return {
        next((f for form in forms if (f := form(raw))), raw) for raw in run.sent("side-channel")
    }


def _query(raw: bytes) -> object:
    return raw if b"get_meta_msg" in raw else None


def _payload(raw: bytes) -> object:
    if b"compatibility_hash" not in raw:
        return None
    payload = msgspec.msgpack.decode(raw)
    metadata = msgspec.msgpack.decode(payload.pop("agent_metadata_bytes"))
    keys = tuple((key, type(value)) for key, value in metadata.items())
    return tuple(payload.items()), metadata["engine_id"], keys


def _clock(raw: bytes) -> object:
    """The peer's clock; or whom the router socket answers, which starts with a zero."""
    if len(raw) == 9 and raw[0] == 0xCB:
        return "clock"
    return "identity" if raw[:1] == b"\0" else None


@pytest.mark.covers("plain-messages", "push", "pull", on="engines")
def test_the_handshake_is_vllms_own(pair: tuple[Rigged, Rigged]) -> None:
    """Query, answer and its parts; also the hash by which engines find each other compatible."""
    traced, untraced = (side_channel(run) for run in pair)
    assert traced == untraced
    assert len(traced) >= 5


@pytest.mark.covers("plain-messages", "push", "pull", on="engines")
def test_a_router_is_told_the_same(pair: tuple[Rigged, Rigged]) -> None:
    """`kv_transfer_params` of P's answer; keys of ours would come after all of vLLM's."""
    traced, untraced = (steady(run.parameters) for run in pair)
    assert traced[: len(untraced)] == untraced
    assert {key for key, _ in traced[len(untraced) :]} <= {sc.REGISTRATION_KEY}


@pytest.mark.covers("no-secrets", "push", "pull", on="engines")
def test_no_secret_is_in_any_span_or_line(pair: tuple[Rigged, Rigged]) -> None:
    """Prompt, answer, headers, environment, argv: in no byte of the store and no line of ours.

    Requests that fail are among them: refused, without a key, with a peer that nobody knows, and
    with every hook failing.
    """
    run = pair[0]
    texts = {text for *_, text in run.answers.values() if text}
    assert len(texts) >= 3 and min(len(text) for text in texts) >= 5
    canaries = {**SECRETS, **{f"answer {text!r}": text for text in texts}}
    stored = b"".join(p.read_bytes() for p in (run.directory / "store").rglob("*") if p.is_file())
    assert sc.SPAN_DECODE.encode() in stored
    leaked = [what for what, canary in canaries.items() if canary.encode() in stored]
    logs = run.logs()
    assert set(logs) == {"prefill-0", "decode-0", "router", "collector"}
    # vLLM names its own arguments; nothing else of these logs may know any of it.
    lines = [line for log in logs.values() for line in log.splitlines() if "args: {" not in line]
    leaked += [what for what, canary in canaries.items() for line in lines if canary in line]
    assert leaked == []
