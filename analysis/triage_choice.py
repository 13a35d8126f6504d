"""From lift to one value: which attribute, if any, is named in the verdict."""

from typing import Final, NamedTuple

import pandas as pd

from pdtrace.analysis import phases
from pdtrace.analysis.triage_attributes import (
    BY_NAME,
    D_ENGINE,
    D_HOST,
    HANDSHAKE,
    KIND,
    LATE,
    P_ENGINE,
    P_HOST,
    PAIR,
    PLACE,
    SIGN,
)

ENOUGH: Final = 0.3
"""The lower bound of coverage that a value must reach to be named."""
ALSO: Final = 0.15
"""And to be told beside it: another fault among the rest makes the coverage look smaller."""

P_SIDE: Final = frozenset((phases.PREFILL_QUEUE, phases.PREFILL, phases.MATCH))
D_SIDE: Final = frozenset(
    (
        phases.DECODE_QUEUE,
        phases.DECODE_CAPACITY,
        phases.ADMISSION,
        phases.LANDED_TO_SEEN,
        phases.REQUEUE,
        phases.FIRST_DECODE,
    )
)
_OWN: Final = {phases.HANDSHAKE: HANDSHAKE, phases.REGISTRATION: LATE}
"""The sign that a phase itself is."""
_ON_P: Final = (P_ENGINE, P_HOST)
_ON_D: Final = (D_ENGINE, D_HOST)


class Chosen(NamedTuple):
    """A value of an attribute and its bounds; `aliases`: others that exactly the same requests
    have; `others`: further values to be told, with their coverage and its lower bound.
    """

    attribute: str
    value: str
    slow: int
    coverage: float
    coverage_low: float
    coverage_high: float
    risk_ratio: float
    aliases: tuple[tuple[str, str], ...]
    others: tuple[tuple[str, str, float, float], ...]


def candidates(lift: pd.DataFrame, least: float = ENOUGH) -> pd.DataFrame:
    """Values that are believed, cover enough and stand for themselves, in the order of `lift`."""
    stands = lift["found"] & (lift["yields_to"] == "") & (lift["coverage_low"] >= least)
    return lift[stands]


def choose(lift: pd.DataFrame, phase: str) -> Chosen | None:
    """The value with the highest lower bound of coverage; None if no value may be named.

    Where a place cannot be told from a kind of request or a mere sign (their intervals of
    coverage overlap), the place is named: it says where to look. Of values that the same
    requests have, the one on the side of `phase`.
    """
    able = candidates(lift)
    if not len(able):
        return None
    level = able[able["coverage_high"] >= able["coverage_low"].iloc[0]]
    sort = level["attribute"].map(lambda name: BY_NAME[name].sort)
    best = next(level[sort == wanted] for wanted in (PLACE, KIND, SIGN) if (sort == wanted).any())
    equal = able[able["same_as"] == best["same_as"].iloc[0]]
    names = list(zip(equal["attribute"], equal["value"], strict=True))
    names.sort(key=lambda name: _preference(name[0], phase))
    row = best.iloc[0]
    return Chosen(
        attribute=names[0][0],
        value=names[0][1],
        slow=int(row["slow"]),
        coverage=float(row["coverage"]),
        coverage_low=float(row["coverage_low"]),
        coverage_high=float(row["coverage_high"]),
        risk_ratio=float(row["risk_ratio"]),
        aliases=tuple(names[1:]),
        others=_others(candidates(lift, ALSO), int(row["same_as"])),
    )


def _others(able: pd.DataFrame, same_as: int) -> tuple[tuple[str, str, float, float], ...]:
    """The first value of each set of requests but the one that was chosen."""
    kept = able[able["same_as"] != same_as].drop_duplicates("same_as")
    columns = (kept[name].tolist() for name in _OTHER)
    return tuple(zip(*columns, strict=True))


_OTHER: Final = ("attribute", "value", "coverage", "coverage_low")


def _preference(attribute: str, phase: str) -> tuple[int, int]:
    """Places before others, and among places those on the side of the phase."""
    order = list(BY_NAME).index(attribute)
    if BY_NAME[attribute].sort != PLACE:
        return (
            3 if BY_NAME[attribute].sort == KIND else 4,
            -1 if _OWN.get(phase) == attribute else order,
        )
    if phase in P_SIDE:
        return (0 if attribute in _ON_P else 1, order)
    if phase in D_SIDE:
        return (0 if attribute in _ON_D else 1, order)
    return (0 if attribute == PAIR else 1, order)
