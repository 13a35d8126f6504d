"""Text as categories in sorted order: comparing, filtering and grouping then cost an integer each.

A column of ids or names says the same few texts very often. Every category column of one frame
contains "", which stands for "nothing was said" and, as the first in order, has the code 0.
"""

from collections.abc import Collection, Sequence

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from pdtrace.analysis.arrays import Bools, Ints

NOTHING = ""
NO_CODE = 0
"""The code of `NOTHING`."""


def coded(texts: pd.Series) -> pd.Series:
    """The same texts as categories, sorted, with "" among them."""
    codes, names = pd.factorize(pd.concat([texts, pd.Series([NOTHING], dtype="str")]), sort=True)
    kind = pd.CategoricalDtype(names, ordered=True)
    return pd.Series(pd.Categorical.from_codes(codes[:-1], dtype=kind), index=texts.index)


def from_arrow(column: pa.ChunkedArray) -> pd.Series:
    """Texts with a dictionary as categories, sorted, with "" among them."""
    array = whole(column)
    names = pa.concat_arrays([array.dictionary, pa.array([NOTHING], array.dictionary.type)])
    order = pc.sort_indices(names).to_numpy()
    texts = names.take(pa.array(order))
    fresh = np.ones(len(texts), dtype=np.bool_)
    fresh[1:] = pc.not_equal(texts[1:], texts[:-1]).to_numpy(zero_copy_only=False)
    rank = np.empty(len(texts), dtype=np.int32)
    rank[order] = np.cumsum(fresh) - 1
    kind = pd.CategoricalDtype(
        pd.Index(texts.filter(pa.array(fresh)).to_pandas(), dtype="str"), ordered=True
    )
    return pd.Series(pd.Categorical.from_codes(rank[array.indices.to_numpy()], dtype=kind))


def whole(column: pa.ChunkedArray) -> pa.Array:
    """All chunks as one array with one dictionary."""
    return combined(column.unify_dictionaries())


def combined(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    """All chunks as one array, also where Arrow hands none over."""
    one = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if not isinstance(one, pa.ChunkedArray):
        return one
    return one.chunk(0) if one.num_chunks else pa.nulls(0, column.type)


def codes(column: pd.Series) -> Ints:
    """Place of each text among the categories (int64, shape (n,)): in the order of the texts."""
    found: Ints = column.cat.codes.to_numpy().astype(np.int64)
    return found


def among(column: pd.Series, texts: Collection[str]) -> Bools:
    """Is each text one of these? (bool, shape (n,)); each category is looked at once."""
    wanted: Bools = np.asarray(column.cat.categories.isin(list(texts)), dtype=np.bool_)
    return wanted[codes(column)]


def plain(column: pd.Series) -> pd.Series:
    """The texts as such."""
    return column.astype("str")


def decoded(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame with its categories as plain text, for work that makes new texts of them."""
    mine = frame.select_dtypes("category").columns
    return frame.assign(**{name: plain(frame[name]) for name in mine})


def dense(parts: Sequence[Ints]) -> Ints:
    """Equal combinations get equal numbers from 0 on, in the order of the combinations (int64).

    `parts`: numbers >= 0, shape (n,) each.
    """
    found, below = parts[0], int(parts[0].max(initial=0)) + 1
    for part in parts[1:]:
        size = int(part.max(initial=0)) + 1
        if below * size >= 1 << 63:
            found, below = _ranked(found), len(found)
        found, below = found * size + part, below * size
    return _ranked(found)


def _ranked(values: Ints) -> Ints:
    """The place of each value among the different ones (int64). Only these are sorted."""
    code, different = pd.factorize(values)
    rank = np.empty(len(different), dtype=np.int64)
    rank[np.argsort(different)] = np.arange(len(different))
    return rank[code]
