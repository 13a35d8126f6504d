"""Since when: the change point of a phase over time, and what happened to the engines near it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import orjson
import pandas as pd

from pdtrace.analysis.arrays import Ints

Floats = npt.NDArray[np.float64]

BIN_NS: Final = 30_000_000_000
MOST_BINS: Final = 120
FEWEST_BINS: Final = 8
IDEAL_BINS: Final = 20
PER_BIN: Final = 3
SIDE: Final = 2
"""Bins on either side of a split point, at the least."""
PERMUTATIONS: Final = 400
SEED: Final = 11
LEAST_SPREAD_NS: Final = 1_000.0
SIGMA: Final = 1.4826
"""MAD x this is the standard deviation of a normal distribution."""
LATER_NS: Final = 60_000_000_000
"""An engine's first spans are news if they come so long after the first of all."""

EVENT_COLUMNS: Final = {"time_ns": "int64", "engine_id": "str", "what": "str"}


@dataclass(frozen=True)
class Shift:
    """The largest change: when (ns), medians before and after it (ns), how it stands out.

    `score`: |after - before| in robust standard deviations; `p`: how often a random order of the
    bins has a larger one.
    """

    at_ns: int
    before_ns: float
    after_ns: float
    score: float
    p: float


def medians(at_ns: Ints, values: Ints) -> pd.DataFrame:
    """`start_ns`, `median_ns`, `requests` by bin of 30 s, bins with too few requests left out.

    Shorter bins where the whole is shorter than 20 of them, longer ones where it has over 120.
    """
    if not len(at_ns):
        return pd.DataFrame({"start_ns": [], "median_ns": [], "requests": []}, dtype="int64")
    span = int(at_ns.max() - at_ns.min()) + 1
    width = max(min(BIN_NS, span // IDEAL_BINS), -(-span // MOST_BINS), 1)
    start = int(at_ns.min()) + (at_ns - int(at_ns.min())) // width * width
    grouped = pd.Series(values).groupby(start)
    found = pd.DataFrame({"median_ns": grouped.median(), "requests": grouped.size()})
    found = found[found["requests"] >= PER_BIN].rename_axis("start_ns").reset_index()
    return found.astype({"start_ns": "int64"})


def shift(bins: pd.DataFrame) -> Shift | None:
    """The split point with the largest |med2 - med1| / (1.4826 MAD); None for too few bins.

    MAD: of the distances to the own side's median. `p` from random orders of the bins: they are
    the blocks that are exchanged, single requests are not independent. The score hardly changes
    from one bin to the next, so the place is where all distances together are smallest.
    """
    if len(bins) < FEWEST_BINS:
        return None
    values = bins["median_ns"].to_numpy(np.float64)
    random = np.random.default_rng(SEED)
    orders = np.stack([values, *(random.permutation(values) for _ in range(PERMUTATIONS))])
    best = _scores(orders).max(axis=1)
    place = _place(values)
    return Shift(
        at_ns=int(bins["start_ns"].iloc[place]),
        before_ns=float(np.median(values[:place])),
        after_ns=float(np.median(values[place:])),
        score=float(best[0]),
        p=float((1 + (best[1:] >= best[0]).sum()) / (1 + PERMUTATIONS)),
    )


def _place(values: Floats) -> int:
    """The split with the smallest sum of distances to the own side's median."""
    costs = [
        sum(np.abs(side - np.median(side)).sum() for side in (values[:place], values[place:]))
        for place in range(SIDE, len(values) - SIDE + 1)
    ]
    return int(np.argmin(costs)) + SIDE


def _scores(orders: Floats) -> Floats:
    """The score of each order (rows) at each split point (columns)."""
    columns = []
    for place in range(SIDE, orders.shape[1] - SIDE + 1):
        before = np.median(orders[:, :place], axis=1, keepdims=True)
        after = np.median(orders[:, place:], axis=1, keepdims=True)
        off = np.abs(np.hstack([orders[:, :place] - before, orders[:, place:] - after]))
        spread = np.maximum(SIGMA * np.median(off, axis=1), LEAST_SPREAD_NS)
        columns.append(np.abs(after - before)[:, 0] / spread)
    return np.stack(columns, axis=1)


def events(spans: pd.DataFrame) -> pd.DataFrame:
    """Restarts, changed configurations and late arrivals of engines: `EVENT_COLUMNS`, by time.

    `spans`: our own spans. A process is seen from its first span on. It is a restart if another
    process of that engine had been seen for the last time before.
    """
    named = spans[spans["instance_id"] != ""]
    keys = ["engine_id", "role", "instance_id"]
    seen = named.groupby(keys).agg(
        first=("start_ns", "min"), last=("end_ns", "max"), config=("config", "max")
    )
    seen = seen.reset_index().sort_values(["first", "instance_id"])
    begin = int(seen["first"].min()) if len(seen) else 0
    rows = []
    for (engine, role), mine in seen.groupby(["engine_id", "role"], sort=False):
        name = str(engine or role)
        rows += _of_engine(name, list(mine[["first", "last", "config"]].itertuples()), begin)
    found = pd.DataFrame(rows, columns=list(EVENT_COLUMNS)).astype(EVENT_COLUMNS)
    return found.sort_values(["time_ns", "engine_id"]).reset_index(drop=True)


def _of_engine(engine: str, processes: Sequence[Any], begin: int) -> list[tuple[int, str, str]]:
    """Events of one engine from its processes in order of time."""
    found = []
    if processes[0].first - begin >= LATER_NS:
        found.append((processes[0].first, engine, "first seen"))
    for place, process in enumerate(processes[1:], 1):
        gone = [earlier for earlier in processes[:place] if earlier.last < process.first]
        if gone:
            changed = _changed(gone[-1].config, process.config)
            what = "restarted" + (f" with another configuration ({changed})" if changed else "")
            found.append((process.first, engine, what))
    return found


def _changed(before: str, after: str) -> str:
    """Settings that differ between two configurations, as `name: old → new`."""
    if not before or not after or before == after:
        return ""
    old, new = _settings(before), _settings(after)
    names = sorted(name for name in old.keys() | new.keys() if old.get(name) != new.get(name))
    return ", ".join(f"{name}: {old.get(name)} → {new.get(name)}" for name in names[:5])


def _settings(config: str) -> dict[str, object]:
    try:
        found = orjson.loads(config)
    except orjson.JSONDecodeError:
        return {"config": config}
    return found if isinstance(found, dict) else {"config": found}


def nearest(found: pd.DataFrame, at_ns: int, within_ns: int = 600_000_000_000) -> int | None:
    """The place in `found` of the event nearest to `at_ns`, None if none is within ten minutes."""
    if not len(found):
        return None
    distance = (found["time_ns"] - at_ns).abs()
    place = int(distance.argmin())
    return place if int(distance.iloc[place]) <= within_ns else None
