"""The vote: evidence on one pair of clocks that contradicts itself, and what most of it says.

Bounds on the offset of b less a, and of a less b, contradict each other when they leave nothing
between them. Of all evidence the largest part is wanted that agrees (Marzullo), so what
contradicts most of the rest goes first. What stands one against one cannot be decided: both go,
because a lost bound widens an interval and a false one makes it wrong.

Where all evidence from some time on contradicts what was before, a clock was set: a new epoch
begins, and bounds of one epoch say nothing about another.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from pdtrace.analysis.arrays import Bools, Ints
from pdtrace.analysis.clock_drift import NO_BOUND, DriftCone, slack

Side = tuple[Ints, Ints]
"""Upper bounds on the offset in one direction: `time_ns` ascending and `bound_ns`, shape (n,)."""

WINDOW: Final = 64
"""Rows of evidence, of both directions, that vote together in the first round."""
TOGETHER: Final = 4096
"""At most so many rows that are still in contradiction then vote together."""
STEP_ROWS: Final = 6
STEP_SHARE: Final = 0.05
"""So many rows of a window, and such a part of it, must contradict the past for a new epoch."""


@dataclass(frozen=True)
class Verdict:
    """Which rows are kept, by direction, and the times (ns) at which new epochs begin."""

    one: Bools
    other: Bools
    breaks: Ints


def vote(one: Side, other: Side, ppb: int) -> Verdict:
    """Of bounds on b less a (`one`) and on a less b (`other`): what agrees."""
    keep = np.ones(len(one[0]), dtype=np.bool_), np.ones(len(other[0]), dtype=np.bool_)
    every = np.arange(len(one[0])), np.arange(len(other[0]))
    if not _in_doubt(one, other, every, ppb)[2]:
        return Verdict(*keep, np.empty(0, dtype=np.int64))
    windows = _windows(one, other)
    for rows in windows:
        _drop(keep, rows, _outvoted(_cut(one, rows[0]), _cut(other, rows[1]), ppb))
    breaks = _chain(one, other, windows, keep, ppb)
    epochs = [np.searchsorted(breaks, side[0], side="right") for side in (one, other)]
    for epoch in range(len(breaks) + 1):
        mine = [np.flatnonzero(k & (e == epoch)) for k, e in zip(keep, epochs, strict=True)]
        _settle(one, other, (mine[0], mine[1]), keep, ppb)
    return Verdict(*keep, breaks)


def _cut(side: Side, rows: Ints) -> Side:
    return side[0][rows], side[1][rows]


def _drop(keep: tuple[Bools, Bools], rows: tuple[Ints, Ints], lost: tuple[Bools, Bools]) -> None:
    for kept, row, gone in zip(keep, rows, lost, strict=True):
        kept[row[gone]] = False


def _in_doubt(one: Side, other: Side, rows: tuple[Ints, Ints], ppb: int) -> tuple[Ints, Ints, int]:
    """Those of `rows` that one of the other direction contradicts, and how many they are."""
    sides = _cut(one, rows[0]), _cut(other, rows[1])
    found = [
        mine[DriftCone.of(*against, ppb).at(side[0]) + side[1] < 0]
        for mine, side, against in zip(rows, sides, sides[::-1], strict=True)
    ]
    return found[0], found[1], len(found[0]) + len(found[1])


def _windows(one: Side, other: Side) -> list[tuple[Ints, Ints]]:
    """Places of neighbours in time, `WINDOW` rows of both directions together."""
    edges = np.sort(np.concatenate([one[0], other[0]]))[WINDOW::WINDOW]
    places = [np.arange(len(side[0])) for side in (one, other)]
    parts = [
        np.split(place, np.searchsorted(side[0], edges, side="left"))
        for place, side in zip(places, (one, other), strict=True)
    ]
    return list(zip(*parts, strict=True))


def _outvoted(one: Side, other: Side, ppb: int) -> tuple[Bools, Bools]:
    """Rows to leave out so that the rest agrees: those with most contradictions first."""
    between = np.abs(one[0][:, None] - other[0][None, :])
    against: Bools = one[1][:, None] + other[1][None, :] + slack(between, ppb) < 0
    lost = np.zeros(len(one[0]), dtype=np.bool_), np.zeros(len(other[0]), dtype=np.bool_)
    while against.any():
        counts = against.sum(axis=1), against.sum(axis=0)
        most = max(counts[0].max(), counts[1].max())
        worst = counts[0] == most, counts[1] == most
        against[worst[0], :] = False
        against[:, worst[1]] = False
        lost = lost[0] | worst[0], lost[1] | worst[1]
    return lost


def _chain(
    one: Side,
    other: Side,
    windows: Sequence[tuple[Ints, Ints]],
    keep: tuple[Bools, Bools],
    ppb: int,
) -> Ints:
    """Where epochs begin; what only a few rows of a window say against the past is dropped."""
    breaks: list[int] = []
    best = [NO_BOUND, NO_BOUND]
    """The tightest bound of each direction so far, as it would be at time 0."""
    for rows in windows:
        rows = rows[0][keep[0][rows[0]]], rows[1][keep[1][rows[1]]]
        sides = _cut(one, rows[0]), _cut(other, rows[1])
        grown = [slack(side[0], ppb) for side in sides]
        against = [
            side[1] + past + more < 0
            for side, past, more in zip(sides, best[::-1], grown, strict=True)
        ]
        count, total = sum(int(a.sum()) for a in against), sum(len(a) for a in against)
        if count >= max(STEP_ROWS, STEP_SHARE * total):
            breaks.append(min(int(side[0][0]) for side in sides if len(side[0])))
            best, against = [NO_BOUND, NO_BOUND], [np.zeros_like(a) for a in against]
        _drop(keep, rows, (against[0], against[1]))
        for place, (side, more, gone) in enumerate(zip(sides, grown, against, strict=True)):
            best[place] = min([best[place], *(side[1] - more)[~gone].tolist()])
    return np.array(breaks, dtype=np.int64)


def _settle(
    one: Side, other: Side, rows: tuple[Ints, Ints], keep: tuple[Bools, Bools], ppb: int
) -> None:
    """Vote once more on all that is still in contradiction, until nothing is."""
    while True:
        first, second, count = _in_doubt(one, other, rows, ppb)
        if not count:
            return
        lost = (np.ones(len(first), dtype=np.bool_), np.ones(len(second), dtype=np.bool_))
        if count <= TOGETHER:
            lost = _outvoted(_cut(one, first), _cut(other, second), ppb)
        _drop(keep, (first, second), lost)
        rows = rows[0][keep[0][rows[0]]], rows[1][keep[1][rows[1]]]
