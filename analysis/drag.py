"""Drag: what TTFT would lose if one phase took no time at all.

The longest dependency path from the request's arrival to its first token is computed once as it
was and once per phase with that phase's edges set to zero. One path serves every mode: pull and
sequential push begin D's leg where P's leg hands over, concurrent push begins it at dispatch.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import pandas as pd

from pdtrace.analysis import phases, sweep
from pdtrace.analysis.arrays import Bools, Ints
from pdtrace.analysis.attempts import SIDE_DECODE, SIDE_PREFILL
from pdtrace.analysis.handoffs import Handoffs
from pdtrace.analysis.row_view import RowView
from pdtrace.tracing import semconv

UNKNOWN: Final = np.iinfo(np.int64).min


@dataclass
class Chain:
    """Edges one after the other: instants made monotone, each edge split by phase.

    An edge whose two instants are not both known keeps its length and belongs to no phase.
    """

    at: Ints
    known: Bools
    edges: list[tuple[Ints, Mapping[str, Ints]]] = field(default_factory=list)

    def to(
        self, instant: Ints, phase: str = "", handshake: Ints | None = None, only_some: bool = False
    ) -> None:
        """Add the edge to `instant` (UNKNOWN where not known).

        The edge belongs to `phase`, less the `handshake` time inside it (ns). `only_some`: an
        instant that most requests do not have; without it the chain goes on as if unasked.
        """
        known = instant != UNKNOWN
        end: Ints = np.maximum(self.at, np.where(known, instant, self.at))
        length = end - self.at
        named = np.where(known & self.known, length, 0)
        labels: dict[str, Ints] = {}
        if handshake is not None:
            labels[phases.HANDSHAKE] = np.minimum(handshake, named)
            named = named - labels[phases.HANDSHAKE]
        if phase:
            labels[phase] = named
        self.edges.append((length, labels))
        self.at, self.known = end, (known | self.known) if only_some else known

    def run(self, start: Ints, without: str) -> Ints:
        """Where the chain ends if it begins at `start` and `without` takes no time."""
        at = start.copy()
        for length, labels in self.edges:
            at += length
            if without in labels:
                at -= labels[without]
        return at


def drag(handoffs: Handoffs, ids: pd.Index, union: Ints) -> pd.DataFrame:
    """Drag of every phase in ns: index `ids`, one int64 column per phase, 0 ≤ drag ≤ union.

    `union`: ns for which each phase was active, shape (requests, phases).
    """
    graph = _Graph(handoffs, ids)
    as_it_was = graph.first_token("")
    found = {
        name: np.minimum(as_it_was - graph.first_token(name), union[:, place])
        for place, name in enumerate(phases.NAMES)
        if name != phases.UNATTRIBUTED
    }
    found[phases.UNATTRIBUTED] = np.zeros(len(ids), dtype=np.int64)
    return pd.DataFrame(found, index=ids)[list(phases.NAMES)]


class _Graph:
    """The event graph of many requests at once: one array element per request."""

    def __init__(self, handoffs: Handoffs, ids: pd.Index) -> None:
        row = handoffs.at
        self._row = RowView(row, row.index.get_indexer(ids).astype(np.int64))
        self.start = self._row["t0_ns"].to_numpy(np.int64)
        self._end = self._row["t1_ns"].to_numpy(np.int64)
        self._push = (self._row["mode"] == semconv.MODE_PUSH).to_numpy(np.bool_)
        self._handshakes = _spans_of(handoffs.handshakes, ids)
        place: Ints = ids.get_indexer(pd.Index(handoffs.ranks["request_id"])).astype(np.int64)
        self._ranks, self._place = handoffs.ranks[place >= 0], place[place >= 0]
        self._prefill = self._draw_prefill()
        self._handing = Chain(self._prefill.at, self._prefill.known)
        self._handing.to(self._at("blocks_ns", self._push), phases.MATCH)
        self._draw_decode()
        self._draw_ranks()
        self._draw_token()

    def _at(self, column: str, where: Bools | None = None) -> Ints:
        """Instants of a column inside the window, UNKNOWN where not known."""
        values = self._row[column].to_numpy(np.int64, na_value=UNKNOWN)
        known = values != UNKNOWN
        if where is not None:
            known = known & where
        return np.where(known, np.clip(values, self.start, self._end), UNKNOWN)

    def _draw_prefill(self) -> Chain:
        chain = Chain(self.start, np.ones(len(self.start), dtype=np.bool_))
        counts = self._row["p_counts"].to_numpy(np.bool_)
        chain.to(self._at("ingress_to_ns", counts), phases.INGRESS)
        chain.to(self._at("p_has_counted_ns"), phases.RETRY)
        self._draw_read_back(chain)
        chain.to(self._at("p_scheduled_counted_ns"), phases.PREFILL_QUEUE)
        chain.to(self._at("p_end_ns", counts), phases.PREFILL)
        return chain

    def _draw_read_back(self, chain: Chain) -> None:
        """What P waits for when a later turn reads back from D."""
        chain.to(self._at("back_allocated_ns"), phases.PREFILL_QUEUE, only_some=True)
        every = np.arange(len(self.start))
        for column, phase in (
            ("back_begin_ns", phases.REGISTRATION),
            ("back_posted_ns", phases.SUBMIT),
        ):
            end = self._at(column)
            shaken = self._inside(SIDE_PREFILL, chain.at, end, every)
            chain.to(end, phase, handshake=np.where(self._push, 0, shaken), only_some=True)
        chain.to(self._at("back_landed_ns"), phases.TRANSFER, only_some=True)
        chain.to(self._at("back_told_ns"), phases.LANDED_TO_SEEN, only_some=True)
        chain.to(self._at("back_pass_ns"), phases.REQUEUE, only_some=True)

    def _draw_decode(self) -> None:
        """D's leg from where it branches off: at dispatch, after hand-over, or after P's end."""
        counts = self._row["p_counts"].to_numpy(np.bool_)
        together = self._row["concurrent"].to_numpy(np.bool_) & (
            self._row["mode"] != semconv.MODE_PULL
        ).to_numpy(np.bool_)
        self._branch_at_start = together | ~counts
        ready = np.where(self._push, self._handing.at, self._prefill.at)
        branch = np.where(self._branch_at_start, self.start, ready)
        chain = Chain(branch, np.ones(len(branch), dtype=np.bool_))
        way_in = self._at("ingress_to_ns")
        leaves = self._at("hop_from_ns")
        # With P in the cone, its way in is drawn on P's leg; D's leg shares it until dispatch.
        shared = np.where(together, np.minimum(leaves, way_in), UNKNOWN)
        chain.to(np.where(counts, shared, way_in), phases.INGRESS, only_some=True)
        chain.to(leaves, only_some=True)
        hops = np.where(leaves != UNKNOWN, self._at("hop_to_ns"), UNKNOWN)
        chain.to(hops, phases.HOP, only_some=True)
        chain.to(self._at("d_has_ns"), phases.RETRY)
        chain.to(self._at("attempted_ns"), phases.ADMISSION)
        chain.to(self._at("allocated_ns"), phases.DECODE_CAPACITY)
        self._decode = chain

    def _draw_ranks(self) -> None:
        """Per initiating rank: registration, the join with the blocks, submit, transfer."""
        push = self._push[self._place]
        begin = self._of_rank("begin_ns")
        received = np.where(push, self._of_rank("received_ns"), begin)
        reg = Chain(self._decode.at[self._place], self._decode.known[self._place])
        since = reg.at
        reg.to(received, phases.REGISTRATION, handshake=self._inside(SIDE_DECODE, since, received))
        self._registration = reg
        shaken = Chain(reg.at, reg.known)
        shake_start, shake_end = self._bounds(SIDE_PREFILL, push, begin)
        shaken.to(shake_start, only_some=True)
        shaken.to(shake_end, phases.HANDSHAKE)
        self._shaken = shaken
        blocks = np.where(push, self._handing.at[self._place], UNKNOWN)
        self._joined = np.maximum(np.maximum(shaken.at, reg.at), blocks)
        wire = Chain(self._joined, np.ones(len(push), dtype=np.bool_))
        wire.to(begin, phases.MATCH)
        since, posted = wire.at, self._of_rank("posted_ns")
        by_p, by_d = (self._inside(side, since, posted) for side in (SIDE_PREFILL, SIDE_DECODE))
        wire.to(posted, phases.SUBMIT, handshake=np.where(push, by_p, by_d))
        wire.to(self._of_rank("wire_ns"))
        landed = self._at("landed_ns")[self._place]
        done = self._of_rank("done_ns")
        wire.to(np.where(landed != UNKNOWN, np.minimum(done, landed), done), phases.TRANSFER)
        self._wire = wire
        self._arrived = self._last_rank(wire.at, self._decode.at, self._handing.at)

    def _draw_token(self) -> None:
        """From the last rank's data to the first token at the observer."""
        chain = Chain(self._arrived, np.ones(len(self.start), dtype=np.bool_))
        chain.to(self._at("landed_ns"))
        chain.to(self._at("told_ns"), phases.LANDED_TO_SEEN)
        handed_over = ~self._row["local"].to_numpy(np.bool_)
        chain.to(self._at("next_pass_ns", handed_over), phases.REQUEUE)
        chain.to(self._at("d_scheduled_ns", handed_over), phases.DECODE_QUEUE)
        chain.to(self._at("d_queued_ns"), only_some=True)
        chain.to(self._at("d_queued_until_ns"), phases.PREFILL_QUEUE, only_some=True)
        chain.to(self._at("d_prefill_start_ns"), only_some=True)
        chain.to(self._at("d_prefill_end_ns"), phases.PREFILL, only_some=True)
        chain.to(self._at("decoding_from_ns"), only_some=True)
        chain.to(self._at("d_token_ns"), phases.FIRST_DECODE)
        chain.to(self._end, phases.EGRESS)
        self._token = chain

    def first_token(self, without: str) -> Ints:
        """The first token at the observer if the phase `without` takes no time (ns)."""
        p_end = self._prefill.run(self.start, without)
        handed = self._handing.run(p_end, without)
        ready = np.where(self._push, handed, p_end)
        branch = np.where(self._branch_at_start, self.start, ready)
        allocated = self._decode.run(branch, without)
        received = self._registration.run(allocated[self._place], without)
        shaken = self._shaken.run(received, without)
        blocks = np.where(self._push[self._place], handed[self._place], UNKNOWN)
        joined = np.maximum(np.maximum(received, shaken), blocks)
        landed = self._wire.run(joined, without)
        return self._token.run(self._last_rank(landed, allocated, handed), without)

    def _last_rank(self, instant: Ints, allocated: Ints, handed: Ints) -> Ints:
        """When the last rank's data is there; never before D has blocks and P handed its own."""
        last: Ints = np.where(self._push, np.maximum(allocated, handed), allocated)
        np.maximum.at(last, self._place, instant)
        return last

    def _of_rank(self, column: str) -> Ints:
        values = self._ranks[column].to_numpy(np.int64, na_value=UNKNOWN)
        inside = np.clip(values, self.start[self._place], self._end[self._place])
        return np.where(values != UNKNOWN, inside, UNKNOWN)

    def _bounds(self, side: str, where: Bools, until: Ints) -> tuple[Ints, Ints]:
        """Start and end of a side's handshakes that begin before `until`, by rank row."""
        start = np.full(len(self._place), UNKNOWN, dtype=np.int64)
        end = start.copy()
        mine = self._handshakes[self._handshakes["side"] == side]
        if mine.empty:
            return start, end
        found = mine.groupby("key")
        first, last = found["start_ns"].min(), found["end_ns"].max()
        has = np.isin(self._place, first.index.to_numpy()) & where
        at = first.index.get_indexer(pd.Index(self._place[has]))
        start[has] = first.to_numpy(np.int64)[at]
        end[has] = last.to_numpy(np.int64)[at]
        early = (until == UNKNOWN) | (start < until)
        end = np.where(early, np.where(until == UNKNOWN, end, np.minimum(end, until)), UNKNOWN)
        return np.where(early, start, UNKNOWN), end

    def _inside(self, side: str, start: Ints, end: Ints, place: Ints | None = None) -> Ints:
        """How long a side's handshakes were active in [start, end) of each row (ns).

        `place`: each row's request; without it the rows are those of the ranks.
        """
        mine = self._handshakes[self._handshakes["side"] == side]
        if mine.empty:
            return np.zeros(len(start), dtype=np.int64)
        place = self._place if place is None else place
        rows = pd.DataFrame({"row": np.arange(len(start)), "key": place})
        pairs = rows.merge(mine, on="key")
        if pairs.empty:
            return np.zeros(len(start), dtype=np.int64)
        cut = pd.DataFrame(
            {
                "key": pairs["row"].astype("int64"),
                "layer": np.int64(0),
                "start_ns": pairs["start_ns"],
                "end_ns": pairs["end_ns"],
            }
        )
        found = sweep.segments(sweep.clip(cut, start, np.maximum(start, end)), 1)
        return sweep.union(found, len(start))[:, 0]


def _spans_of(handshakes: pd.DataFrame, ids: pd.Index) -> pd.DataFrame:
    """Handshakes of these requests, `key` = the request's place."""
    found = handshakes.assign(key=ids.get_indexer(pd.Index(handshakes["request_id"])))
    return found[found["key"] >= 0]
