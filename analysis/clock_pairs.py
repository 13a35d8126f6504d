"""What is known of each pair of clocks: its offset over time, its evidence, what contradicts it."""

from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd

from pdtrace.analysis.arrays import Ints
from pdtrace.analysis.clock_drift import NO_BOUND
from pdtrace.analysis.clocks import Clocks
from pdtrace.analysis.identity import ANOTHER

MINUTE_NS: Final = 60 * 10**9
AGREEMENT: Final = 0.99
"""A pair of which less than this part of the evidence agrees is degraded."""
THROUGH: Final = "through other clocks"
MOST: Final = 1000
"""At most so many points in time are looked at."""
FEW: Final = 8


@dataclass(frozen=True)
class Offset:
    """`to` less `from` lies in [lo_ns, hi_ns] (None: no bound on that side).

    `lower_from`, `upper_from`: the kind of message that the bound comes from, or `THROUGH`.
    `at_ns`: Unix ns by the clock `from`.
    """

    at_ns: int
    lo_ns: int | None
    hi_ns: int | None
    lower_from: str | None
    upper_from: str | None

    @property
    def midpoint_ns(self) -> int | None:
        """The middle, rounded down."""
        if self.lo_ns is None or self.hi_ns is None:
            return None
        return (self.lo_ns + self.hi_ns) // 2

    @property
    def halfwidth_ns(self) -> int | None:
        """Half of the interval, rounded up."""
        if self.lo_ns is None or self.hi_ns is None:
            return None
        return -(-(self.hi_ns - self.lo_ns) // 2)


@dataclass(frozen=True)
class Contradiction:
    """A message that most of the evidence contradicts, by `by_ns` (None: not known by how much)."""

    kind: str
    request_id: str
    sender: str
    receiver: str
    sent_ns: int
    received_ns: int
    by_ns: int | None


@dataclass(frozen=True)
class PairOfClocks:
    """Two clocks of one component. `best`: the offset where it is known best, `over_time`: once a
    minute. `kinds`: kind, count, contradictions. `set_at_ns`: when one of them was set."""

    start: str
    end: str
    best: Offset
    over_time: list[Offset]
    messages: int
    kinds: pd.DataFrame
    contradictions: list[Contradiction]
    set_at_ns: list[int]

    @property
    def agreeing(self) -> int:
        """Messages that do not contradict the offset."""
        return self.messages - len(self.contradictions)

    @property
    def degraded(self) -> bool:
        """Does too much of the evidence contradict it?"""
        return self.agreeing < AGREEMENT * self.messages


def pairs_of(clocks: Clocks) -> list[PairOfClocks]:
    """Every two clocks that sent each other messages; of few clocks all that have to do with each
    other, also through others."""
    part, count = clocks.references, len(clocks.names)
    direct = set(zip(clocks.evidence["low"], clocks.evidence["high"], strict=True))
    both = [
        (low, high)
        for low in range(count)
        for high in range(low + 1, count)
        if (low, high) in direct or (count <= FEW and part[low] == part[high])
    ]
    times = np.sort(clocks.evidence["time_ns"].to_numpy(np.int64))
    if not len(times):
        return []
    most = min(max(clocks.most_points, MOST // 10), MOST)
    places = np.linspace(0, len(times) - 1, min(len(times), most)).astype(np.int64)
    looked = np.unique(times[places])
    tight = clocks.tight(looked)
    return [_pair(clocks, low, high, looked, tight) for low, high in both]


def _pair(clocks: Clocks, low: int, high: int, times: Ints, tight: Ints) -> PairOfClocks:
    evidence = clocks.evidence
    mine = evidence[(evidence["low"] == low) & (evidence["high"] == high)]
    first = mine if len(mine) else evidence
    during = (times >= first["time_ns"].min()) & (times <= first["time_ns"].max())
    if not during.any():
        during[:] = True
    offsets = _offsets(clocks, low, high, times[during], tight[during])
    minutes = np.unique(times[during] // MINUTE_NS, return_index=True)[1].tolist()
    lost = mine[~mine["kept"]]
    kinds = mine.groupby("kind").agg(count=("kept", "size"), kept=("kept", "sum")).reset_index()
    return PairOfClocks(
        start=clocks.names[low],
        end=clocks.names[high],
        best=min(offsets, key=_width),
        over_time=[offsets[place] for place in minutes],
        messages=len(mine),
        kinds=kinds.assign(contradictions=kinds["count"] - kinds["kept"])[
            ["kind", "count", "contradictions"]
        ],
        contradictions=_contradictions(clocks, lost),
        set_at_ns=[int(at) for at in clocks.shown(clocks.set_at(low, high), low)],
    )


def _width(offset: Offset) -> tuple[int, int]:
    """Two-sided before one-sided, narrow before wide."""
    if offset.halfwidth_ns is None:
        return (1, 0)
    return (0, offset.halfwidth_ns)


def _offsets(clocks: Clocks, low: int, high: int, times: Ints, tight: Ints) -> list[Offset]:
    """The offset at times of the common axis, from the closed bounds of those times."""
    shown = clocks.shown(times, low)
    sides = []
    for one, other in ((low, high), (high, low)):
        direct, place = clocks.look(one, other, times)
        bound = tight[:, one, other]
        kinds = clocks.evidence["kind"].reindex(place).fillna("").tolist()
        known = bound < NO_BOUND
        whence = [
            kind if d <= b else THROUGH for kind, d, b in zip(kinds, direct, bound, strict=True)
        ]
        real = (bound + clocks.rough(one, other)).tolist()
        sides.append(
            [(r, w) if k else (None, None) for r, w, k in zip(real, whence, known, strict=True)]
        )
    return [
        Offset(at, None if below is None else -below, above, lower_from, upper_from)
        for at, (below, lower_from), (above, upper_from) in zip(shown.tolist(), *sides, strict=True)
    ]


def _contradictions(clocks: Clocks, lost: pd.DataFrame) -> list[Contradiction]:
    """The worst first."""
    by = clocks.contradicted_by(lost).tolist()
    names = ("kind", "request_id", "sender", "receiver", "sent_ns", "received_ns")
    ids = lost["request_id"].str.split(ANOTHER).str[0]
    columns = [lost.assign(request_id=ids)[name].tolist() for name in names]
    excess = [None if ns >= NO_BOUND else max(ns, 0) for ns in by]
    found = [Contradiction(*said) for said in zip(*columns, excess, strict=True)]
    return sorted(found, key=lambda one: -(one.by_ns or 0))
