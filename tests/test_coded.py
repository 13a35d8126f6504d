"""Texts as sorted categories, and numbers for combinations of them."""

import numpy as np
import pandas as pd
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from pdtrace.analysis.coded import coded, codes, decoded, dense, from_arrow
from pdtrace.analysis.grouped import LARGEST, SMALLEST, highest, lowest, nullable, present

texts = st.lists(st.text(max_size=3), max_size=20)


@given(texts, texts)
def test_codes_are_in_the_order_of_the_texts(one: list[str], other: list[str]) -> None:
    """However they came: from text, or from Arrow in chunks with dictionaries of their own."""
    column = pd.Series([*one, *other], dtype="str")
    chunks = [pa.array(part, pa.string()).dictionary_encode() for part in (one, other)]
    arrow = from_arrow(pa.chunked_array(chunks))
    for found in (coded(column), arrow):
        assert found.astype("str").tolist() == column.tolist()
        assert list(found.cat.categories) == sorted({"", *one, *other})
        assert codes(found).tolist() == [sorted({"", *one, *other}).index(t) for t in column]
    frame = pd.DataFrame({"text": arrow, "number": range(len(column))})
    assert decoded(frame)["text"].dtype == "str"
    assert decoded(frame)["text"].tolist() == column.tolist()


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 3)), max_size=30))
def test_combinations_are_numbered_in_their_order(rows: list[tuple[int, int, int]]) -> None:
    """From 0 on, without a gap."""
    parts = [np.array([row[place] for row in rows], dtype=np.int64) for place in range(3)]
    assert dense(parts).tolist() == [sorted(set(rows)).index(row) for row in rows]


def test_extremes_by_group_know_what_is_not_there() -> None:
    """A group without a value is `<NA>`, and no value is taken for that."""
    values, group = np.array([5, -3, 7]), np.array([0, 0, 2])
    assert lowest(values, group, 4).tolist() == [-3, LARGEST, 7, LARGEST]
    assert highest(values, group, 4).tolist() == [5, SMALLEST, 7, SMALLEST]
    assert present(group, 4).tolist() == [True, False, True, False]
    assert nullable(lowest(values, group, 4), LARGEST).tolist() == [-3, pd.NA, 7, pd.NA]
