"""What a chunk of an OpenAI-style answer says: is there content in it, is it an error.

Shared by the router (which only looks until the first token) and the workload client.
"""

from collections.abc import Iterator
from typing import Any, Final

import orjson

_DATA: Final = b"data:"
_DONE: Final = b"[DONE]"
_ERROR_EVENT: Final = b'data: {"error"'
_CONTENT_KEYS: Final = ("content", "reasoning_content", "reasoning", "tool_calls")


def content_of(payload: dict[str, Any]) -> str:
    """Text that the first choice of a decoded event or answer carries; empty when there is none."""
    for choice in _dicts(payload.get("choices")):
        message = choice.get("delta") or choice.get("message") or {}
        return str(choice.get("text") or message.get("content") or "")
    return ""


def carries_content(payload: dict[str, Any]) -> bool:
    """True when any choice holds a token: not the role-only chunk that opens a chat stream."""
    for choice in _dicts(payload.get("choices")):
        if choice.get("text"):
            return True
        for delta in _dicts([choice.get("delta")]):
            if any(delta.get(key) for key in _CONTENT_KEYS):
                return True
    return False


def error_of(payload: dict[str, Any]) -> tuple[str, str] | None:
    """(code, message) of an error event, which vLLM sends inside a stream that began with 200."""
    error = payload.get("error")
    if not isinstance(error, dict):
        return None
    return str(error.get("code") or 500), str(error.get("message") or "no message")


def _dicts(values: object) -> list[dict[str, Any]]:
    """Only the objects in a list: a foreign shape must not break a stream that passes through."""
    return (
        [value for value in values if isinstance(value, dict)] if isinstance(values, list) else []
    )


class EventParser:
    """Cuts a byte stream into decoded `data:` events; events may span chunks."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, chunk: bytes) -> Iterator[dict[str, Any]]:
        """Events completed by this chunk; `[DONE]`, comments and broken JSON are skipped."""
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        for line in lines:
            data = line[len(_DATA) :].strip() if line.startswith(_DATA) else b""
            if not data or data == _DONE:
                continue
            try:
                payload = orjson.loads(data)
            except orjson.JSONDecodeError:
                continue
            if isinstance(payload, dict):
                yield payload


def stream_error(chunk: bytes) -> str | None:
    """Error code when an error event begins in the chunk; one search when none does."""
    at = chunk.find(_ERROR_EVENT)
    if at < 0:
        return None
    for payload in EventParser().feed(chunk[at:] + b"\n"):
        if error := error_of(payload):
            return error[0]
    return None
