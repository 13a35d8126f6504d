"""Ids of spans and traces: what their spellings mean."""

import base64
import re
from typing import Final

TRACE_ID_BYTES: Final = 16
SPAN_ID_BYTES: Final = 8
_HEX: Final = re.compile(r"(?:0[xX])?([0-9a-fA-F]+)")
_UUID: Final = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


def hex_id(text: object, size: int) -> str:
    """Lower-case hex of an id of `size` bytes; "" when it is unreadable or zero.

    Read are hex in any case, with leading zeros dropped (Jaeger's and Tempo's search) or `0x`
    before it, base64 of either alphabet, and a UUID's spelling of 16 bytes.
    """
    if not isinstance(text, str) or not text:
        return ""
    if len(text) == 2 * size:
        try:
            raw = bytes.fromhex(text)
        except ValueError:
            raw = b""
        if len(raw) == size:
            return raw.hex() if any(raw) else ""
    return _other_spelling(text, size)


def _other_spelling(text: str, size: int) -> str:
    text = text.strip()
    if _UUID.fullmatch(text):
        text = text.replace("-", "")
    digits = _HEX.fullmatch(text)
    if digits is not None and len(digits[1]) <= 2 * size:
        padded = digits[1].lower().zfill(2 * size)
        return padded if padded.strip("0") else ""
    try:
        alphabet = text.replace("-", "+").replace("_", "/").rstrip("=")
        raw = base64.b64decode(alphabet + "=" * (-len(alphabet) % 4), validate=True)
    except ValueError:
        return ""
    return raw.hex() if len(raw) == size and any(raw) else ""
