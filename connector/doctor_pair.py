"""The part of `pdtrace doctor` that asks two running engines whether NIXL would pair them.

An engine says its version and its model over HTTP. Its compatibility hash, which NIXL compares, it
says only on its side channel (`VLLM_NIXL_SIDE_CHANNEL_PORT`), in answer to a handshake's question.
"""

import importlib
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from pdtrace.connector.compat import handshake_question
from pdtrace.connector.doctor import Finding, Verdict

_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class Engine:
    """What one engine told; "" is what it did not tell."""

    version: str = ""
    model: str = ""
    compatibility: str = ""


def pair_findings(
    prefill: str, decode: str, prefill_side: str = "", decode_side: str = ""
) -> Iterator[Finding]:
    """URLs of both engines, and `host:port` of their side channels where they are known."""
    engines = []
    for role, url, side in (("prefill", prefill, prefill_side), ("decode", decode, decode_side)):
        engine = Engine()
        try:
            engine = ask(url, side)
            yield Finding("pair", role, _told(engine), Verdict.OK)
        except (OSError, ValueError, KeyError) as error:
            yield Finding("pair", role, f"{url} does not tell: {error}", Verdict.PROBLEM)
        engines.append(engine)
    yield _verdict(*engines)


def _told(engine: Engine) -> str:
    told = f"vLLM {engine.version}, model {engine.model}"
    return f"{told}, compatibility {engine.compatibility[:16]}" if engine.compatibility else told


def _verdict(prefill: Engine, decode: Engine) -> Finding:
    """Equal hashes pass; the version and the model are part of the hash."""
    item = "would pass NIXL's check"
    if not (prefill.version and decode.version):
        return Finding("pair", item, "an engine did not answer", Verdict.UNKNOWN)
    for what in ("version", "model"):
        one, other = getattr(prefill, what), getattr(decode, what)
        if one != other:
            return Finding("pair", item, f"no: {what} {one} against {other}", Verdict.PROBLEM)
    if not (prefill.compatibility and decode.compatibility):
        value = "version and model are equal; dtype, KV cache and attention backend are told only "
        return Finding("pair", item, value + "on the side channels of both", Verdict.UNKNOWN)
    if prefill.compatibility != decode.compatibility:
        value = "no: compatibility hashes differ (dtype, KV cache, attention backend or connector)"
        return Finding("pair", item, value, Verdict.PROBLEM)
    return Finding("pair", item, "yes: equal compatibility hashes", Verdict.OK)


def ask(url: str, side: str = "") -> Engine:
    """Ask one engine. Raises `OSError`, `ValueError` or `KeyError` where it does not answer."""
    base = url.rstrip("/")
    version = str(_get(f"{base}/version")["version"])
    model = _get(f"{base}/v1/models")["data"][0]
    root = str(model.get("root") or model["id"])
    return Engine(version, root, compatibility_of(side, version) if side else "")


def _get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=_SECONDS) as answer:
        return json.loads(answer.read())


def compatibility_of(side: str, version: str) -> str:
    """The hash that the engine's side channel at `host:port` answers with.

    Only an engine whose version is known is asked: the question changed its form, and the listener
    of an engine that does not understand it ends.
    """
    try:
        zmq, msgspec = (importlib.import_module(name) for name in ("zmq", "msgspec"))
    except ModuleNotFoundError as error:
        raise OSError(
            f"the side channel is asked with {error.name!r}, not installed here"
        ) from None
    with zmq.Context() as context, context.socket(zmq.REQ) as channel:
        channel.setsockopt(zmq.LINGER, 0)
        channel.setsockopt(zmq.RCVTIMEO, int(_SECONDS * 1000))
        channel.connect(f"tcp://{side}")
        channel.send(msgspec.msgpack.encode(handshake_question(version)))
        try:
            payload = channel.recv_multipart()[0]
        except zmq.Again:
            raise OSError(f"no answer from the side channel {side}") from None
    return str(msgspec.msgpack.decode(payload)["compatibility_hash"])
