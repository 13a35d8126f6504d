"""The priority sweep: overlapping intervals of many requests → segments that never overlap.

Everything is int64: a time never passes through a float.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from pdtrace.analysis.arrays import Bools, Ints
from pdtrace.analysis.grouped import lowest


@dataclass(frozen=True)
class Segments:
    """Elementary segments: within one, the set of active layers does not change.

    `key`, `start_ns`, `end_ns`: int64, shape (n,), sorted by key and time, end > start.
    `active`: bool, shape (layers, n).
    """

    key: Ints
    start_ns: Ints
    end_ns: Ints
    active: Bools

    @property
    def length_ns(self) -> Ints:
        """Length of each segment in ns."""
        return self.end_ns - self.start_ns


def clip(intervals: pd.DataFrame, start_ns: Ints, end_ns: Ints) -> pd.DataFrame:
    """`intervals` (key, layer, start_ns, end_ns) cut to each key's window; empty ones dropped.

    `start_ns`, `end_ns`: int64, shape (keys,), the window of key 0, 1, …
    """
    key = intervals["key"].to_numpy()
    start = np.maximum(intervals["start_ns"].to_numpy(), start_ns[key])
    end = np.minimum(intervals["end_ns"].to_numpy(), end_ns[key])
    cut: pd.DataFrame = intervals.assign(start_ns=start, end_ns=end)[end > start]
    return cut.reset_index(drop=True)


def segments(intervals: pd.DataFrame, layers: int) -> Segments:
    """Cut the time of each key at every interval's edge; O(n log n).

    `intervals`: key, layer (< `layers`), start_ns, end_ns, all int64, end > start.
    """
    key = np.tile(intervals["key"].to_numpy(np.int64), 2)
    layer = np.tile(intervals["layer"].to_numpy(np.int64), 2)
    time = np.concatenate(
        [intervals["start_ns"].to_numpy(np.int64), intervals["end_ns"].to_numpy(np.int64)]
    )
    delta = np.repeat(np.array([1, -1], dtype=np.int32), len(intervals))
    order = _by_key_and_time(key, time)
    key, layer, time, delta = key[order], layer[order], time[order], delta[order]
    fresh = np.ones(len(key), dtype=np.bool_)
    fresh[1:] = (key[1:] != key[:-1]) | (time[1:] != time[:-1])
    row = np.cumsum(fresh) - 1
    # A layer's segments lie side by side in memory, which is how they are gone through; numbers no
    # wider than the most intervals of one key and layer need.
    most = np.bincount(key * layers + layer).max(initial=0)
    small = np.min_scalar_type(-int(most) - 1)
    counts = np.zeros((layers, int(fresh.sum())), dtype=small)
    np.add.at(counts.ravel(), layer * counts.shape[1] + row, delta.astype(small))
    # Each key's counts return to zero at its last edge, so one running sum serves all keys.
    active = np.cumsum(counts, axis=1, dtype=small, out=counts) > 0
    key, time = key[fresh], time[fresh]
    same = key[1:] == key[:-1]
    return Segments(key[:-1][same], time[:-1][same], time[1:][same], active[:, :-1][:, same])


def _by_key_and_time(key: Ints, time: Ints) -> Ints:
    """Order by key, then by time; of equal ones in any order (int64)."""
    if not len(key):
        return np.zeros(0, dtype=np.int64)
    first = lowest(time, key, int(key.max()) + 1)
    since = time - first[key]
    longest = int(since.max()) + 1
    # One number for both is sorted in a third of the time.
    in_one = len(first) * longest < 1 << 63
    order: Ints = np.argsort(key * longest + since) if in_one else np.lexsort((time, key))
    return order


def owners(found: Segments) -> Ints:
    """The owner of each segment: its first active layer (int64, shape (n,)).

    The last layer must be the window itself, active everywhere inside it.
    """
    first = np.zeros(len(found.key), dtype=np.int64)
    for layer in reversed(range(len(found.active))):
        first[found.active[layer]] = layer
    return first


def exposed(found: Segments, keys: int) -> Ints:
    """Time owned, int64 ns, shape (keys, layers): each row sums to that key's window."""
    total = np.zeros((keys, len(found.active)), dtype=np.int64)
    np.add.at(total.ravel(), found.key * len(found.active) + owners(found), found.length_ns)
    return total


def union(found: Segments, keys: int) -> Ints:
    """Time active, owned or not, int64 ns, shape (keys, layers)."""
    total = np.zeros((keys, len(found.active)), dtype=np.int64)
    length = found.length_ns
    for layer, active in enumerate(found.active):
        here = np.flatnonzero(active)
        np.add.at(total[:, layer], found.key[here], length[here])
    return total
