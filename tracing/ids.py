"""Request ids as they appear on both legs, and the trace id derived from one."""

import hashlib
from typing import Final

_SINGLE: Final = "cmpl-"
_CHAT: Final = "chatcmpl-"
_HEX: Final = "0123456789abcdef"
_DERIVATION: Final = "pdtrace/1:"


def base_request_id(engine_request_id: str) -> str:
    """The caller's request id inside vLLM's internal one.

    `cmpl-<id>-<index>-<8 hex>` and `chatcmpl-<id>-<8 hex>` give `<id>`; the index is stripped
    only after `cmpl-`, because an id may itself end in digits. With several choices (`n` > 1)
    vLLM runs one request each and puts `<choice>_` in front: all give the same `<id>`.

    >>> base_request_id("cmpl-abc-0-0123abcd"), base_request_id("1_chatcmpl-abc-0123abcd")
    ('abc', 'abc')
    """
    # Once for each request of an engine: patterns would take three times as long.
    bare = engine_request_id
    single = bare.startswith(_SINGLE)
    if not single:
        choice, _, rest = bare.partition("_")
        if choice.isdecimal() and rest.startswith((_SINGLE, _CHAT)):
            bare = rest
            single = bare.startswith(_SINGLE)
    bare = bare.removeprefix(_SINGLE if single else _CHAT)
    if bare[-9:-8] == "-" and not bare[-8:].strip(_HEX):
        bare = bare[:-9]
    if single:
        rest, _, index = bare.rpartition("-")
        if index.isdecimal() and index != bare:
            bare = rest
    return bare


def derived_trace_id(base_id: str) -> int:
    """128-bit trace id for a request that came without W3C context.

    First 16 bytes of SHA-256 of `"pdtrace/1:" + base_id`, so that prefill and decode processes
    reach the same trace with nothing propagated.
    """
    return int.from_bytes(hashlib.sha256((_DERIVATION + base_id).encode()).digest()[:16], "big")
