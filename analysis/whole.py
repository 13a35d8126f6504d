"""Splits of parts of one spans table put together: equal to the split of all of it at once."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from pdtrace.analysis.arrays import Bools, Ints
from pdtrace.analysis.grouped import LARGEST
from pdtrace.analysis.split import Split


def together(parts: Sequence[Split]) -> Split:
    """One split of all requests; no request is in two parts."""
    if len(parts) == 1:
        return parts[0]
    requests = pd.concat([part.requests for part in parts])
    order = _by_arrival(requests)
    of_whole = np.concatenate([part.places >= 0 for part in parts])
    rows = _among(of_whole, order)
    known = pd.concat([part.known for part in parts])
    requests = _taken(requests, order)
    place = np.array([], dtype=np.int64)
    # To look for nothing among many takes as long as to look for much.
    if len(known):
        place = requests.index.get_indexer(known.index).astype(np.int64)
    return Split(
        requests=requests,
        exposed=_taken(pd.concat([part.exposed for part in parts]), rows),
        hidden=_taken(pd.concat([part.hidden for part in parts]), rows),
        drag=_taken(pd.concat([part.drag for part in parts]), rows),
        classes=_taken(pd.concat([part.classes for part in parts]), rows),
        known=known.iloc[np.argsort(place)],
    )


def _taken(frame: pd.DataFrame, order: Ints) -> pd.DataFrame:
    """The frame in this order: as it is, where it is in order, as parts by arrival mostly are."""
    return frame if np.array_equal(order, np.arange(len(frame))) else frame.iloc[order]


def _by_arrival(requests: pd.DataFrame) -> Ints:
    """Places of the requests in order of arrival, those of the same instant by label."""
    arrived = requests["t0_ns"].to_numpy(np.int64, na_value=LARGEST)
    order = np.argsort(arrived, kind="stable")
    ordered = arrived[order]
    tied = np.zeros(len(order), dtype=np.bool_)
    tied[1:] = ordered[1:] == ordered[:-1]
    tied[:-1] |= tied[1:]
    mine = order[tied]
    labels = pd.factorize(requests.index[mine], sort=True)[0]
    order[tied] = mine[np.lexsort((labels, arrived[mine]))]
    return order


def _among(chosen: Bools, order: Ints) -> Ints:
    """Places among the chosen ones, in this order of all."""
    number = np.cumsum(chosen) - 1
    found: Ints = number[order[chosen[order]]]
    return found
