"""Base request ids and the trace ids derived from them."""

import hashlib
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdtrace.tracing.ids import base_request_id, derived_trace_id


@pytest.mark.parametrize(
    ("engine_id", "base"),
    [
        ("cmpl-abc-0-0123abcd", "abc"),
        ("cmpl-abc-12-0123abcd", "abc"),
        ("chatcmpl-abc-0123abcd", "abc"),
        ("chatcmpl-abc-7-0123abcd", "abc-7"),
        (
            "cmpl-3d2f0f6e-2222-4b4b-8b8b-000000000016-0-23d0e5e7",
            "3d2f0f6e-2222-4b4b-8b8b-000000000016",
        ),
        (
            "chatcmpl-3d2f0f6e-2222-4b4b-8b8b-000000000016-23d0e5e7",
            "3d2f0f6e-2222-4b4b-8b8b-000000000016",
        ),
        ("f81d4fae-7dec-11d0-a765-00a0c91e6bf6-23d0e5e7", "f81d4fae-7dec-11d0-a765-00a0c91e6bf6"),
        ("0_cmpl-abc-0-0123abcd", "abc"),
        ("12_chatcmpl-abc-7-0123abcd", "abc-7"),
        ("1_abc-0123abcd", "1_abc"),
        ("cmpl-1_cmpl-abc-0-0123abcd", "1_cmpl-abc"),
        ("plain", "plain"),
        ("", ""),
    ],
)
def test_prefix_suffix_and_index_are_removed_in_this_order(engine_id: str, base: str) -> None:
    """The index goes only behind `cmpl-`, the choice only before a prefix: ids may look alike."""
    assert base_request_id(engine_id) == base


def test_the_derived_trace_id_is_the_documented_hash() -> None:
    """First 16 bytes of SHA-256 of "pdtrace/1:" and the id: part of the schema, never to change."""
    expected = hashlib.sha256(b"pdtrace/1:abc").hexdigest()[:32]
    assert f"{derived_trace_id('abc'):032x}" == expected


_FORM = re.compile(r"(?:[0-9]+_(?=chatcmpl-|cmpl-))?(?:(chatcmpl-)|(cmpl-))?(.*)")


@settings(deadline=None)
@given(st.lists(st.sampled_from([*"-_0a", "cmpl-", "chatcmpl-", "-0123abcd", "-12"])).map("".join))
def test_a_base_id_is_what_the_form_says(engine_id: str) -> None:
    """The form as patterns, one part after the other."""
    form = _FORM.fullmatch(engine_id)
    assert form
    base = re.sub(r"-[0-9a-f]{8}$", "", form[3])
    assert base_request_id(engine_id) == (re.sub(r"-[0-9]+$", "", base) if form[2] else base)
