"""All bounds on the offset of one clock against another, in one direction, by epoch."""

from dataclasses import dataclass

import numpy as np

from pdtrace.analysis.arrays import Bools, Ints
from pdtrace.analysis.clock_drift import NO_BOUND, DriftCone, slack


@dataclass
class Edge:
    """Upper bounds `bound_ns`, each seen at `time_ns` (ascending), shape (n,).

    `place`: of each the row of evidence it is. `keep`: those that count. `breaks`: times at which a
    new epoch begins; a bound says nothing about another epoch.
    """

    place: Ints
    time_ns: Ints
    bound_ns: Ints
    keep: Bools
    breaks: Ints
    ppb: int

    def __post_init__(self) -> None:
        self._epoch = np.searchsorted(self.breaks, self.time_ns, side="right")
        self._build()

    def _build(self) -> None:
        self._rows = [
            np.flatnonzero(self.keep & (self._epoch == epoch))
            for epoch in range(len(self.breaks) + 1)
        ]
        self._cones = [
            DriftCone.of(self.time_ns[rows], self.bound_ns[rows], self.ppb) for rows in self._rows
        ]

    def look(self, query_ns: Ints) -> tuple[Ints, Ints]:
        """The bound at each of `query_ns`, shape (m,), and the evidence it comes from (or -1)."""
        best = np.full(len(query_ns), NO_BOUND, dtype=np.int64)
        place = np.full(len(query_ns), -1, dtype=np.int64)
        epoch = np.searchsorted(self.breaks, query_ns, side="right")
        for number, (cone, rows) in enumerate(zip(self._cones, self._rows, strict=True)):
            mine = epoch == number
            if len(rows) and mine.any():
                best[mine], at = cone.look(query_ns[mine])
                place[mine] = self.place[rows[at]]
        return best, place

    def as_tight(self, query_ns: int, limit_ns: int) -> Ints:
        """The kept bounds that are below `limit_ns` at `query_ns`: their indices."""
        epoch = int(np.searchsorted(self.breaks, query_ns, side="right"))
        rows = self._rows[epoch]
        later = slack(np.abs(query_ns - self.time_ns[rows]), self.ppb)
        found: Ints = rows[self.bound_ns[rows] + later < limit_ns]
        return found

    def drop(self, rows: Ints) -> None:
        """Leave these bounds out (indices)."""
        self.keep[rows] = False
        self._build()
