"""Ids of spans and traces as numbers."""

import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdtrace.analysis.keys import fingerprints, numbers

hexes = st.text("0123456789abcdef", max_size=32)


def of_length(size: int) -> st.SearchStrategy[str]:
    return st.text("0123456789abcdef", min_size=size, max_size=size)


def spelt(ids: list[str]) -> list[pa.Array | pa.ChunkedArray]:
    """The same ids in all the ways in which a column may hold them."""
    plain = pa.array(ids, pa.string())
    return [
        plain,
        plain.cast(pa.large_string()),
        plain.dictionary_encode(),
        pa.array(["f" * 16, *ids, "0"], pa.string()).slice(1, len(ids)),
        pa.chunked_array([plain.slice(0, 1), plain.slice(1)]),
        pa.array(pd.Series(ids, dtype="str")),
    ]


@settings(deadline=None)
@given(st.one_of(st.lists(hexes), st.lists(of_length(16)), st.lists(of_length(32))))
def test_the_last_sixteen_digits_count(ids: list[str]) -> None:
    """Whatever the length of the others, and however the column is kept."""
    expected = [int(text[-16:] or "0", 16) for text in ids]
    for column in spelt(ids):
        assert numbers(column).tolist() == expected


def test_what_is_no_id_has_a_number_too() -> None:
    """Equal ones have the same."""
    first, second, third = numbers(pa.array(["no idea, but a long one\u00e9", "a", "a"])).tolist()
    assert first != second == third


@pytest.mark.parametrize("other", [("a" * 32, "b" * 16), ("b" * 32, "c" * 16)])
def test_a_span_is_told_by_both_ids(other: tuple[str, str]) -> None:
    """Equal pairs of ids have equal fingerprints, and these have not."""
    ids = ("a" * 32, "c" * 16)
    traces, spans = (
        pa.chunked_array([[one, two, one]]) for one, two in zip(ids, other, strict=True)
    )
    first, second, third = fingerprints(traces, spans).tolist()
    assert first == third != second
