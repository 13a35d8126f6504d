"""Arrows of a request from P to D and back: chains of spans and events in order of time."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import pandas as pd

from pdtrace.analysis.attempts import SIDE_DECODE, SIDE_PREFILL
from pdtrace.tracing import semconv


class Stop(NamedTuple):
    """A place that an arrow touches: a row of the spans, or of the events; when it begins."""

    row: int
    at_ns: int
    event: bool


def chains(spans: pd.DataFrame, events: pd.DataFrame) -> list[list[Stop]]:
    """Each chain has two or more stops, in order of time.

    `spans`: our spans of the tries that count, with `side`. `events`: `row` (in the index of
    `spans`), name, time_ns (aligned), peer_rank. Per rank: prefill ends → match → submit →
    transfer → the peer hears of it → D starts; and D's registration → P has it.
    """
    graph = _Graph(spans, events)
    found = [*graph.handoffs(), *graph.registrations()]
    return [chain for chain in map(_forward, found) if len(chain) > 1]


def _forward(stops: Iterable[Stop]) -> list[Stop]:
    """Without the stops that lie before one that they should follow."""
    kept: list[Stop] = []
    for stop in stops:
        if not kept or stop.at_ns >= kept[-1].at_ns:
            kept.append(stop)
    return kept


class _Graph:
    def __init__(self, spans: pd.DataFrame, events: pd.DataFrame) -> None:
        self._spans = spans.sort_values(["start_ns", "end_ns", "span_id"])
        context = spans[["side", "name", "pp_rank", "tp_rank"]].rename(columns={"name": "span"})
        known = events.merge(context, left_on="row", right_index=True)
        known["event"] = known.index
        self._events = known.sort_values(["time_ns", "event"])

    def handoffs(self) -> Iterator[list[Stop]]:
        """One chain per rank of the initiator."""
        prefill = self._span(SIDE_PREFILL, semconv.SPAN_PREFILL_END)[:1]
        prefill = prefill or self._span(SIDE_PREFILL, semconv.SPAN_PREFILL)[-1:]
        begun = [
            *self._span(SIDE_DECODE, semconv.SPAN_DECODE_START)[:1],
            *self._span(SIDE_DECODE, semconv.SPAN_FIRST_DECODE)[:1],
        ]
        for side, kinds, hears, span in _WAYS:
            for pp, tp in self._ranks(side, kinds[0]):
                moved = [stop for kind in kinds for stop in self._of_rank(side, kind, pp, tp)[:1]]
                match = self._of_rank(SIDE_PREFILL, semconv.SPAN_MATCH, pp, tp)[:1]
                heard = self._event(hears, span, semconv.EVENT_NOTIFICATION_SEEN, tp)[:1]
                push = side == SIDE_PREFILL
                yield [*prefill, *(match if push else []), *moved, *(heard if push else []), *begun]
                if not push:
                    yield [*moved[-1:], *heard]

    def registrations(self) -> Iterator[list[Stop]]:
        """From the rank of D that registered to each rank of P that has it."""
        name = semconv.EVENT_REGISTRATION_RECEIVED
        received = self._events[
            (self._events["side"] == SIDE_PREFILL) & (self._events["name"] == name)
        ]
        for row in received.to_dict("records"):
            peer = None if pd.isna(row["peer_rank"]) else int(row["peer_rank"])
            sent = self._span(SIDE_DECODE, semconv.SPAN_REGISTRATION, peer)[:1]
            yield [*sent, Stop(int(row["event"]), int(row["time_ns"]), event=True)]

    def _ranks(self, side: str, kind: str) -> list[tuple[int, int]]:
        mine = self._spans[(self._spans["side"] == side) & (self._spans["name"] == kind)]
        return sorted(set(zip(mine["pp_rank"].tolist(), mine["tp_rank"].tolist(), strict=True)))

    def _span(self, side: str, kind: str, tp: int | None = None) -> list[Stop]:
        rows = self._spans[(self._spans["side"] == side) & (self._spans["name"] == kind)]
        return _stops(rows if tp is None else rows[rows["tp_rank"] == tp])

    def _of_rank(self, side: str, kind: str, pp: int, tp: int) -> list[Stop]:
        rows = self._spans[(self._spans["side"] == side) & (self._spans["name"] == kind)]
        return _stops(rows[(rows["pp_rank"] == pp) & (rows["tp_rank"] == tp)])

    def _event(self, side: str, span: str, name: str, tp: int) -> list[Stop]:
        """Events about this rank of the peer, and those that do not say about which."""
        rows = self._events
        rows = rows[(rows["side"] == side) & (rows["span"] == span) & (rows["name"] == name)]
        rows = rows[rows["peer_rank"].fillna(tp) == tp]
        times = zip(rows["event"].tolist(), rows["time_ns"].tolist(), strict=True)
        return [Stop(event, at, event=True) for event, at in times]


_WAYS = (
    (
        SIDE_PREFILL,
        (semconv.SPAN_WRITE_SUBMIT, semconv.SPAN_WRITE_COMPLETE),
        SIDE_DECODE,
        semconv.SPAN_KV_WAIT,
    ),
    (
        SIDE_DECODE,
        (semconv.SPAN_READ_SUBMIT, semconv.SPAN_READ_COMPLETE),
        SIDE_PREFILL,
        semconv.SPAN_LEASE,
    ),
)
"""The initiator, its submit and completion, who hears of it, and on which span."""


def _stops(rows: pd.DataFrame) -> list[Stop]:
    times = zip(rows.index.tolist(), rows["start_ns"].tolist(), strict=True)
    return [Stop(row, at, event=False) for row, at in times]
