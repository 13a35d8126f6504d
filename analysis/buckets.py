"""Names for kinds of requests: how long the prompt was, and which prefix cache knew it."""

from typing import Final

import numpy as np
import pandas as pd

from pdtrace.analysis.arrays import Ints
from pdtrace.tracing import semconv

NOT_KNOWN: Final = "not known"
LENGTHS: Final = (256, 1024, 4096, 16384, 65536)
"""Where a new bucket of prompt lengths begins, in tokens."""
NO_HIT: Final = "no hit"
HIT_P: Final = "hit on P"
PARTIAL_D: Final = "partial hit on D"
COMPLETE_D: Final = "complete hit on D"


def _length_names() -> tuple[str, ...]:
    edges = (0, *LENGTHS)
    inner = [f"{low}-{high - 1} tokens" for low, high in zip(edges, LENGTHS, strict=False)]
    return (*inner, f">= {LENGTHS[-1]} tokens")


LENGTH_NAMES: Final = _length_names()


def prompt_length(requests: pd.DataFrame) -> pd.Series:
    """The bucket of each request's `input_tokens` (categories, in order of length)."""
    tokens = requests["input_tokens"].to_numpy(np.int64, na_value=-1)
    place = np.searchsorted(LENGTHS, tokens, side="right")
    names = [*LENGTH_NAMES, NOT_KNOWN]
    return _named(np.where(tokens < 0, len(LENGTH_NAMES), place), names, requests.index)


def _named(place: Ints, names: list[str], index: pd.Index) -> pd.Series:
    kinds = pd.CategoricalDtype(names, ordered=True)
    return pd.Series(pd.Categorical.from_codes(place, dtype=kinds), index=index)


def cache_state(requests: pd.DataFrame) -> pd.Series:
    """What the prefix caches of D, else of P, knew of each request's prompt (categories).

    D always computes the last token itself, so it never loads more than all but one.
    """
    loaded, prompt = requests["external_tokens"], requests["input_tokens"]
    handed_over = requests["mode"].isin((semconv.MODE_PUSH, semconv.MODE_PULL))
    complete = ((loaded == 0).fillna(False) | (loaded.isna() & ~requests["loads"])) & (
        handed_over & ~requests["local"] & requests["d_token_ns"].notna()
    )
    partial = (loaded < prompt - 1).fillna(False) & handed_over
    hit = (requests["prefill_cached_tokens"] > 0).fillna(False)
    said = requests["prefill_cached_tokens"].notna() | loaded.notna()
    # The first that holds.
    holds = {COMPLETE_D: complete, PARTIAL_D: partial, HIT_P: hit, NO_HIT: said}
    names = sorted([*holds, NOT_KNOWN])
    places = [names.index(name) for name in (*holds, NOT_KNOWN)]
    place = np.select([held.to_numpy(np.bool_) for held in holds.values()], places[:-1], places[-1])
    return _named(place, names, requests.index)
