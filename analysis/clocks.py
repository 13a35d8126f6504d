"""The offsets between clocks, as intervals over time, estimated from messages.

Clocks are numbered in the order given. Everything inside is relative to a rough offset of each
clock (of no accuracy, only so that times of different clocks can be compared at all), and to the
first time seen. The result holds at any time: bounds of single messages grow with the drift that
is allowed for, are closed over the graph of clocks, and where they contradict each other the vote
decides.
"""

from collections.abc import Iterator, Sequence
from typing import Final, cast

import numpy as np
import pandas as pd

from pdtrace.analysis import clock_graph
from pdtrace.analysis.arrays import Ints
from pdtrace.analysis.clock_drift import NO_BOUND, slack
from pdtrace.analysis.clock_edge import Edge
from pdtrace.analysis.clock_vote import vote

DRIFT_PPM: Final = 50.0
WORK: Final = 2 * 10**9
"""About how many sums one call may take: with many clocks, fewer points in time are looked at."""
_AT_ONCE: Final = 10**7
_ROUNDS: Final = 200
"""So many contradictions around cycles are resolved; what is left is left without a bound."""


class Clocks:
    """Offsets between the clocks `names`, from messages (of `clock_evidence`).

    `evidence`: the messages, with `low` and `high` (numbers of the two clocks, low < high),
    `time_ns` (on the common axis), `bound_ns` (upper bound on receiver less sender), `kept`.
    `cycles`: for each contradiction around more than two clocks their ids.
    """

    def __init__(self, messages: pd.DataFrame, names: Sequence[str], drift_ppm: float) -> None:
        self.names = tuple(names)
        self.ppb = round(drift_ppm * 1000)
        self.cycles: list[tuple[str, ...]] = []
        self.evidence = self._placed(messages)
        self._edges: dict[tuple[int, int], Edge] = dict(self._voted())
        breaks = [edge.breaks for edge in self._edges.values()]
        self._breaks = np.unique(np.concatenate(breaks)) if breaks else np.empty(0, dtype=np.int64)
        self._resolve()
        for edge in self._edges.values():
            self.evidence.loc[edge.place[~edge.keep], "kept"] = False

    def _placed(self, messages: pd.DataFrame) -> pd.DataFrame:
        """The messages on the common axis of time."""
        sender, receiver = self.number(messages["sender"]), self.number(messages["receiver"])
        sent, received = (messages[end].to_numpy(np.int64) for end in ("sent_ns", "received_ns"))
        self._rough = rough_offsets(sender, receiver, received - sent, len(self.names))
        sent, received = sent - self._rough[sender], received - self._rough[receiver]
        # A bound holds at both ends of its message; both directions of a pair go by one clock.
        time = np.where(sender < receiver, sent, received)
        self._origin = int(time.min()) if len(time) else 0
        return messages.assign(
            low=np.minimum(sender, receiver),
            high=np.maximum(sender, receiver),
            time_ns=time - self._origin,
            bound_ns=received - sent,
            kept=True,
        ).reset_index(drop=True)

    def _voted(self) -> Iterator[tuple[tuple[int, int], Edge]]:
        """Both directions of each pair that has evidence, without what was outvoted."""
        ordered = self.evidence.sort_values(["time_ns", "bound_ns"], kind="stable")
        for pair, rows in ordered.groupby(["low", "high"]):
            low, high = cast(tuple[int, int], pair)
            up = (rows["sender"] == self.names[low]).to_numpy(np.bool_)
            place = rows.index.to_numpy(np.int64)
            time, bound = (rows[name].to_numpy(np.int64) for name in ("time_ns", "bound_ns"))
            said = vote((time[up], bound[up]), (time[~up], bound[~up]), self.ppb)
            ends = (((high, low), up, said.one), ((low, high), ~up, said.other))
            for ends_at, mine, keep in ends:
                edge = Edge(place[mine], time[mine], bound[mine], keep, said.breaks, self.ppb)
                yield ends_at, edge

    def number(self, names: pd.Series) -> Ints:
        """The numbers of clock ids, shape (n,)."""
        found: Ints = pd.Index(self.names).get_indexer(pd.Index(names)).astype(np.int64)
        return found

    def axis(self, time_ns: Ints, clock: Ints) -> Ints:
        """Times by the clocks numbered `clock` on the common axis (int64 ns)."""
        placed: Ints = time_ns - self._rough[clock] - self._origin
        return placed

    def shown(self, axis_ns: Ints, clock: int) -> Ints:
        """Times of the common axis as a clock shows them (Unix ns, about)."""
        placed: Ints = axis_ns + self._rough[clock] + self._origin
        return placed

    def rough(self, one: int, other: int) -> int:
        """What to add to a bound on clock `one` less `other` to have it as the clocks show it."""
        return int(self._rough[one] - self._rough[other])

    def look(self, one: int, other: int, query_ns: Ints) -> tuple[Ints, Ints]:
        """What messages between the two alone say on `one` less `other`, and which (or -1)."""
        edge = self._edges.get((one, other))
        if edge is None:
            return np.full(len(query_ns), NO_BOUND), np.full(len(query_ns), -1)
        return edge.look(query_ns)

    def set_at(self, one: int, other: int) -> Ints:
        """Times of the common axis from which on one of the two was set anew."""
        edge = self._edges.get((one, other))
        return np.empty(0, dtype=np.int64) if edge is None else edge.breaks

    def contradicted_by(self, rows: pd.DataFrame) -> Ints:
        """By how much each of these rows of the evidence contradicts the rest; `NO_BOUND` if the
        rest says nothing. Shape (n,), ns."""
        sender, receiver = self.number(rows["sender"]), self.number(rows["receiver"])
        time, bound = (rows[name].to_numpy(np.int64) for name in ("time_ns", "bound_ns"))
        back = np.empty(len(rows), dtype=np.int64)
        size = max(1, _AT_ONCE // len(self.names) ** 2)
        for at in range(0, len(rows), size):
            some = slice(at, at + size)
            tight = self.tight(time[some])
            back[some] = tight[np.arange(len(tight)), sender[some], receiver[some]]
        return np.where(back >= NO_BOUND, NO_BOUND, -(bound + back))

    @property
    def references(self) -> Ints:
        """Of each clock the first one that it has evidence with, directly or not; shape (n,)."""
        return clock_graph.components(len(self.names), list(self._edges))

    def between(self, start_ns: Ints, end_ns: Ints) -> Ints:
        """Bounds that hold all the time from `start_ns` to `end_ns` (common axis), for each pair.

        Shape (m, n, n): entry [p, i, j] is an upper bound on clock i less clock j as they show, ns.
        """
        step = self.step_ns(np.concatenate([start_ns, end_ns]))
        start, end = start_ns // step * step, -(-end_ns // step) * step
        times, place = np.unique(np.concatenate([start, end]), return_inverse=True)
        tight = self.tight(times)
        first, last = tight[place[: len(start)]], tight[place[len(start) :]]
        drift = slack(end - start, self.ppb)[:, None, None]
        nearer = np.minimum(first, last) + drift
        meeting = -(-(first + last + drift) // 2)
        bound = np.minimum(nearer, meeting)
        set_between = np.searchsorted(self._breaks, [start, end], side="right")
        jumped = (set_between[0] != set_between[1])[:, None, None]
        bound = np.where(jumped, np.maximum(first, last) + drift, bound)
        shown = bound + (self._rough[:, None] - self._rough[None, :])
        lacking = np.maximum(first, last) >= NO_BOUND
        found: Ints = np.where(lacking, NO_BOUND, shown)
        found[:, np.arange(len(self.names)), np.arange(len(self.names))] = 0
        return found

    def bounds(self, query_ns: Ints) -> Ints:
        """What single pairs say, at times of the common axis: shape (points, n, n)."""
        count = len(self.names)
        found = np.full((len(query_ns), count, count), NO_BOUND, dtype=np.int64)
        found[:, np.arange(count), np.arange(count)] = 0
        for (one, other), edge in self._edges.items():
            found[:, one, other] = edge.look(query_ns)[0]
        return found

    def tight(self, query_ns: Ints) -> Ints:
        """The bounds closed over the graph, at times of the common axis: shape (points, n, n).

        Where they still contradict each other there is none.
        """
        size = max(1, _AT_ONCE // len(self.names) ** 2)
        parts = [
            clock_graph.closed(self.bounds(query_ns[at : at + size]))
            for at in range(0, len(query_ns), size)
        ]
        count = len(self.names)
        tight = np.concatenate(parts) if parts else np.empty((0, count, count), dtype=np.int64)
        tight[clock_graph.contradictory(tight)] = NO_BOUND
        return tight

    @property
    def most_points(self) -> int:
        """At so many points in time the graph can be closed within `WORK`."""
        return max(1, WORK // len(self.names) ** 3)

    def step_ns(self, query_ns: Ints) -> int:
        """How coarse times must be so that not too many of `query_ns` differ; 1 is as they are."""
        most, step = self.most_points, 1
        while len(query_ns) > most and len(np.unique(query_ns // step)) > most:
            step = max(10**6, step * 2)
        return step

    def _resolve(self) -> None:
        """Drop what contradicts the rest around a cycle: of its bounds those with least support."""
        times = np.unique(self.evidence["time_ns"].to_numpy(np.int64))
        times = times[:: -(-len(times) // max(self.most_points // 8, 1)) or 1]
        for _ in range(_ROUNDS if len(self.names) > 2 else 0):
            wrong = np.flatnonzero(
                clock_graph.contradictory(clock_graph.closed(self.bounds(times)))
            )
            if not len(wrong):
                return
            at = times[wrong[0] : wrong[0] + 1]
            bounds = self.bounds(at)[0]
            cycle = clock_graph.negative_cycle(bounds)
            self.cycles.append(tuple(self.names[clock] for clock in cycle))
            self._drop_weakest(int(at[0]), cycle, bounds)
            times = times[wrong]

    def _drop_weakest(self, at_ns: int, cycle: list[int], bounds: Ints) -> None:
        pairs = list(zip(cycle, [*cycle[1:], cycle[0]], strict=True))
        excess = sum(int(bounds[pair]) for pair in pairs)
        blamed = {
            pair: self._edges[pair].as_tight(at_ns, int(bounds[pair]) - excess) for pair in pairs
        }
        fewest = min(len(rows) for rows in blamed.values())
        for pair, rows in blamed.items():
            if len(rows) == fewest:
                self._edges[pair].drop(rows)


def rough_offsets(sender: Ints, receiver: Ints, offset_ns: Ints, count: int) -> Ints:
    """Of each clock an offset to the first of its component, from medians; shape (count,)."""
    found = pd.DataFrame({"sender": sender, "receiver": receiver, "offset": offset_ns})
    medians: dict[tuple[int, int], int] = {}
    for pair, rows in found.groupby(["sender", "receiver"])["offset"]:
        middle = len(rows) // 2
        medians[cast(tuple[int, int], pair)] = int(
            np.partition(rows.to_numpy(np.int64), middle)[middle]
        )
    rough = np.zeros(count, dtype=np.int64)
    seen: set[int] = set()
    for first in range(count):
        waiting = [] if first in seen else [first]
        seen.add(first)
        while waiting:
            one = waiting.pop(0)
            for other in range(count):
                there, back = medians.get((one, other)), medians.get((other, one))
                known = [] if there is None else [there]
                known += [] if back is None else [-back]
                if known and other not in seen:
                    rough[other] = rough[one] + sum(known) // len(known)
                    seen.add(other)
                    waiting.append(other)
    return rough
