"""Stretches of time of one request as lists of (start_ns, end_ns): joined, measured, overlapped."""

from collections.abc import Iterable

Stretch = tuple[int, int]


def joined(stretches: Iterable[Stretch]) -> list[Stretch]:
    """The union as stretches that neither touch nor overlap, by time."""
    union: list[Stretch] = []
    for start, end in sorted(stretches):
        if union and start <= union[-1][1]:
            union[-1] = (union[-1][0], max(end, union[-1][1]))
        else:
            union.append((start, end))
    return union


def length(stretches: Iterable[Stretch]) -> int:
    """Length of the union in ns."""
    return sum(end - start for start, end in joined(stretches))


def overlap(one: Iterable[Stretch], other: Iterable[Stretch]) -> int:
    """How long both unions last together, in ns."""
    others = joined(other)
    return sum(
        max(0, min(end, stop) - max(start, begin))
        for start, end in joined(one)
        for begin, stop in others
    )
