"""What is known of each pair of clocks: its offset over time, its evidence, what contradicts it."""

from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd

from pdtrace.analysis.clock_drift import NO_BOUND
from pdtrace.analysis.clocks import Clocks
from pdtrace.analysis.identity import ANOTHER
from pdtrace.analysis.sweep import Ints

MINUTE_NS: Final = 60 * 10**9
AGREEMENT: Final = 0.99
"""A pair of which less than this part of the evidence agrees is degraded."""
THROUGH: Final = "through other clocks"
_POINTS: Final = 1000


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
    """Every two clocks that have evidence on each other, directly or through others."""
    part = clocks.references
    count = len(clocks.names)
    both = [(a, b) for a in range(count) for b in range(a + 1, count) if part[a] == part[b]]
    return [_pair(clocks, low, high) for low, high in both]


def _pair(clocks: Clocks, low: int, high: int) -> PairOfClocks:
    evidence = clocks.evidence
    near = evidence[evidence["low"].isin((low, high)) | evidence["high"].isin((low, high))]
    mine = evidence[(evidence["low"] == low) & (evidence["high"] == high)]
    times = (mine if len(mine) else near)["time_ns"].to_numpy(np.int64)
    minutes = np.unique(times // MINUTE_NS) * MINUTE_NS + MINUTE_NS // 2
    places = np.linspace(0, len(times) - 1, min(len(times), _POINTS)).astype(np.int64)
    looked = np.unique(np.sort(times)[places])
    every = np.concatenate([looked, np.clip(minutes, times.min(), times.max())])
    offsets = _offsets(clocks, low, high, every)
    lost = mine[~mine["kept"]]
    kinds = mine.groupby("kind").agg(count=("kept", "size"), kept=("kept", "sum")).reset_index()
    return PairOfClocks(
        start=clocks.names[low],
        end=clocks.names[high],
        best=min(offsets[: len(looked)], key=_width),
        over_time=offsets[len(looked) :],
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


def _offsets(clocks: Clocks, low: int, high: int, times: Ints) -> list[Offset]:
    """The offset at times of the common axis."""
    tight = clocks.tight(times)
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
