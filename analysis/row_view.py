"""Some rows of a frame, chosen again and again: a column is taken only when it is asked for."""

from collections.abc import Sequence
from typing import overload

import numpy as np
import pandas as pd

from pdtrace.analysis.arrays import Bools, Ints


class RowView:
    """Rows of `frame` at these places (int64, shape (n,)).

    `rows["name"]` is a column, `rows[["a", "b"]]` a frame of some; both are numbered from 0 on.
    """

    def __init__(self, frame: pd.DataFrame, at: Ints) -> None:
        self.frame = frame
        self.at = at
        self._every = len(at) == len(frame) and np.array_equal(at, np.arange(len(frame)))
        self._taken: dict[str, pd.Series] = {}

    def __len__(self) -> int:
        return len(self.at)

    @overload
    def __getitem__(self, column: str) -> pd.Series: ...
    @overload
    def __getitem__(self, column: list[str]) -> pd.DataFrame: ...
    def __getitem__(self, column: str | list[str]) -> pd.Series | pd.DataFrame:
        if isinstance(column, list):
            return pd.DataFrame({name: self[name] for name in column})
        if column not in self._taken:
            values = self.frame[column].array
            self._taken[column] = pd.Series(values if self._every else values.take(self.at))
        return self._taken[column]

    def where(self, keep: pd.Series | Bools) -> "RowView":
        """Those for which `keep` holds (bool, shape (n,))."""
        kept = np.asarray(keep, dtype=np.bool_)
        return self if kept.all() else RowView(self.frame, self.at[kept])

    @property
    def index(self) -> pd.Index:
        """Their labels in the frame."""
        return self.frame.index.take(self.at)


def together(parts: Sequence[RowView]) -> RowView:
    """All of some rows of one frame, one part after the other."""
    if len(parts) == 1:
        return parts[0]
    return RowView(parts[0].frame, np.concatenate([part.at for part in parts]))
