"""How many bytes a transfer moves: from the descriptor lists that a worker prepares with NIXL.

A list is prepared once per peer and used by index afterwards. Lists and handles are objects of
NIXL's; they are known here by `id`, so that none is kept alive.
"""

import threading
from typing import Any, Final

_STRIDED: Final = 5
"""Columns of an array whose rows stand for several descriptors: (…, bytes, …, …, count)."""


def lengths_of(rows: Any) -> Any | None:
    """Bytes of each descriptor in rows of (address, bytes, device, …): one number if all are equal.

    None for what is neither an array nor a list: NIXL's own lists must not be iterated, since they
    do not know where they end.
    """
    array = hasattr(rows, "shape")
    if not (array or isinstance(rows, list)) or not len(rows):
        return None
    lengths: Any = rows[:, 1] if array else [row[1] for row in rows]
    shortest = int(lengths.min() if array else min(lengths))
    longest = int(lengths.max() if array else max(lengths))
    if shortest == longest:
        return shortest
    if array and rows.shape[1] == _STRIDED:
        return lengths.repeat(rows[:, 4].astype("int64"))
    return lengths.copy()


class DescriptorLengths:
    """Lengths of the prepared lists of one worker, by handle."""

    def __init__(self) -> None:
        self.prepared: dict[int, Any] = {}
        self._thread = threading.local()

    def described(self, descriptors: Any, descs: Any, *_: Any, **__: Any) -> None:
        """A list is made of rows; it is prepared next, by the same thread."""
        lengths = lengths_of(descs)
        if lengths is not None:  # NIXL itself passes the finished list through here once more
            self._thread.described = (id(descriptors), lengths)

    def prepare(self, handle: Any, _agent: str, xfer_list: Any, *_: Any, **__: Any) -> None:
        """A list, or since vLLM 0.33 the rows themselves, is prepared for transfers."""
        described = self._thread.__dict__.pop("described", (None, None))
        lengths = lengths_of(xfer_list)
        if lengths is None and described[0] == id(xfer_list):
            lengths = described[1]
        if lengths is not None:
            self.prepared[id(handle)] = lengths

    def released(self, handle: Any, *_: Any, **__: Any) -> None:
        """A peer is dropped."""
        self.prepared.pop(id(handle), None)

    def total(self, handle: Any, indices: Any) -> int | None:
        """Bytes of some descriptors of a prepared list; None where that is not known."""
        lengths = self.prepared.get(id(handle))
        if lengths is None:
            return None
        if isinstance(lengths, int):
            return lengths * len(indices)
        if isinstance(lengths, list):
            return int(sum(lengths[index] for index in indices))
        return int(lengths[indices].sum())
