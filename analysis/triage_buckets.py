"""Buckets that double: sizes of prompts, cached parts and transfers as text."""

from typing import Final

import numpy as np
import pandas as pd

from pdtrace.analysis.buckets import NOT_KNOWN

LENGTH_FROM: Final = 128
"""Shorter prompts share one bucket: at that size the fixed costs dominate."""


def doubling(values: pd.Series, first: int) -> pd.Series:
    """`0`, `1–(first-1)`, then `first–(2*first-1)` and so on; `not known` for `<NA>`.

    `values`: nullable Int64, never negative; `first`: a power of two.
    """
    known = values.fillna(0).to_numpy(np.int64)
    # The exponent of frexp is the number of bits: exact below 2**53.
    bits = np.frexp(known.astype(np.float64))[1]
    lowest = first.bit_length()
    step = np.where(known == 0, -1, np.maximum(bits - lowest, -1) + 1)
    step = np.where(values.isna().to_numpy(np.bool_), -2, step)
    names = {-2: NOT_KNOWN, -1: "0", 0: f"1–{first - 1}"}
    for place in np.unique(step[step > 0]).tolist():
        low = first << (place - 1)
        names[place] = f"{low}–{2 * low - 1}"
    return pd.Series([names[place] for place in step.tolist()], index=values.index, dtype="str")


def strata(requests: pd.DataFrame) -> pd.Series:
    """What was asked, apart from how it was served: prompt length / cached tokens (text)."""
    length = doubling(requests["input_tokens"], LENGTH_FROM)
    cached = doubling(requests["prefill_cached_tokens"], LENGTH_FROM)
    return length + " tokens, " + cached + " cached"
