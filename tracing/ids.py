"""Request ids as they appear on both legs, and the trace id derived from one."""

import hashlib
import re
from typing import Final

_PREFIX: Final = re.compile(r"^(?:\d+_)?(chatcmpl-|cmpl-)")
_RANDOM_SUFFIX: Final = re.compile(r"-[0-9a-f]{8}$")
_INDEX: Final = re.compile(r"-\d+$")
_DERIVATION: Final = "pdtrace/1:"


def base_request_id(engine_request_id: str) -> str:
    """The caller's request id inside vLLM's internal one.

    `cmpl-<id>-<index>-<8 hex>` and `chatcmpl-<id>-<8 hex>` give `<id>`; the index is stripped
    only after `cmpl-`, because an id may itself end in digits. With several choices (`n` > 1)
    vLLM runs one request each and puts `<choice>_` in front: all give the same `<id>`.

    >>> base_request_id("cmpl-abc-0-0123abcd"), base_request_id("1_chatcmpl-abc-0123abcd")
    ('abc', 'abc')
    """
    prefix = _PREFIX.match(engine_request_id)
    bare = engine_request_id[prefix.end() :] if prefix else engine_request_id
    bare = _RANDOM_SUFFIX.sub("", bare)
    if prefix and prefix.group(1) == "cmpl-":
        bare = _INDEX.sub("", bare)
    return bare


def derived_trace_id(base_id: str) -> int:
    """128-bit trace id for a request that came without W3C context.

    First 16 bytes of SHA-256 of `"pdtrace/1:" + base_id`, so that prefill and decode processes
    reach the same trace with nothing propagated.
    """
    return int.from_bytes(hashlib.sha256((_DERIVATION + base_id).encode()).digest()[:16], "big")
