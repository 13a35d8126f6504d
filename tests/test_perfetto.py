"""The Perfetto trace, read back with Perfetto's own protobufs: tracks, slices, flows, times."""

from collections import defaultdict
from dataclasses import replace
from typing import Any

import pytest
from generator import EPOCH_NS, Rank, Shape, Writer, records
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb

from pdtrace.analysis.handoffs import join
from pdtrace.analysis.perfetto import trace
from pdtrace.analysis.records import EventRecord, SpanRecord
from pdtrace.analysis.show import show
from pdtrace.analysis.table import SpansTable, build
from pdtrace.tracing import semconv as sc

RANKS = (Rank(submit=2, transfer=15), Rank(submit=3, transfer=50))
Slice = tuple[str, int, int]


class Read:
    """A trace taken apart: by track its slices and instants, from EPOCH_NS; flows by number."""

    def __init__(self, data: bytes) -> None:
        self.packets = list(pb.Trace.FromString(data).packet)
        self.processes: dict[int, str] = {}
        self.tracks: dict[int, tuple[str, str]] = {}
        self.slices: dict[tuple[str, str], list[Slice]] = defaultdict(list)
        self.instants: dict[tuple[str, str], list[tuple[str, int]]] = defaultdict(list)
        self.flows: dict[int, list[tuple[str, str]]] = defaultdict(list)
        self.attributes: dict[str, dict[str, str | int]] = {}
        self.rows: dict[int, list[Slice]] = defaultdict(list)
        found: list[tuple[int, int, tuple[str, str]]] = []
        open_: dict[int, list[Any]] = defaultdict(list)
        for packet in self.packets:
            if packet.HasField("track_descriptor"):
                self._track(packet.track_descriptor)
            elif packet.HasField("track_event"):
                found += self._event(packet, open_)
        assert not any(open_.values()), "a slice without an end"
        for number, _, place in sorted(found):
            self.flows[number].append(place)

    def _track(self, track: Any) -> None:
        if track.HasField("process"):
            self.processes[track.uuid] = track.process.process_name
        else:
            self.tracks[track.uuid] = (self.processes[track.parent_uuid], track.name)

    def _event(self, packet: Any, open_: dict[int, list[Any]]) -> list[Any]:
        event, at = packet.track_event, packet.timestamp - EPOCH_NS
        track = self.tracks[event.track_uuid]
        if event.type == pb.TrackEvent.TYPE_SLICE_END:
            name, start = open_[event.track_uuid].pop()
            assert at >= start
            self.slices[track].append((name, start, at))
            self.rows[event.track_uuid].append((name, start, at))
            return []
        if event.type == pb.TrackEvent.TYPE_SLICE_BEGIN:
            open_[event.track_uuid].append((event.name, at))
        else:
            self.instants[track].append((event.name, at))
        self.attributes[event.name] = {
            said.name: said.int_value if said.HasField("int_value") else said.string_value
            for said in event.debug_annotations
        }
        return [(number, at, (track[1], event.name)) for number in event.flow_ids]


def read(spans: list[SpanRecord], label: str = "r", moved_ns: int = 0) -> Read:
    table = build(spans)
    aligned = table.spans
    if moved_ns:
        aligned = aligned.assign(
            start_ns=aligned["start_ns"] + moved_ns, end_ns=aligned["end_ns"] + moved_ns
        )
    events = table.events.assign(time_ns=table.events["time_ns"] + moved_ns)
    handoffs = join(SpansTable(aligned, events, {}))
    return Read(trace(handoffs, table, label, show(handoffs, label).pieces))


@pytest.fixture(scope="module")
def push() -> Read:
    return read(records(Shape(ranks=RANKS), "r"))


P, D = "prefill p-engine-0", "decode d-engine-0"
SPLIT = ("split of the first token's wait", "exposed phases")


def test_each_engine_is_a_process_with_a_track_for_scheduler_and_ranks(push: Read) -> None:
    """Names, and every span of ours as a slice at its own time."""
    assert sorted(push.processes.values()) == sorted(["router", P, D, SPLIT[0]])
    engines = {track: rows for track, rows in push.slices.items() if track[0] != "router"}
    assert {track: sorted(rows) for track, rows in engines.items()} == {
        (P, "scheduler"): [
            ("pd.lease", 325, 387),
            ("pd.prefill", 25, 175),
            ("pd.prefill", 175, 325),
            ("pd.prefill_end", 325, 329),
            ("pd.prefill_queue", 5, 25),
        ],
        (P, "rank 0"): [
            ("pd.match", 13, 329),
            ("pd.write_complete", 331, 346),
            ("pd.write_submit", 329, 331),
        ],
        (P, "rank 1"): [
            ("pd.match", 13, 329),
            ("pd.write_complete", 332, 382),
            ("pd.write_submit", 329, 332),
        ],
        (D, "scheduler"): [
            ("pd.decode", 397, 487),
            ("pd.decode_admission", 3, 5),
            ("pd.decode_start", 387, 388),
            ("pd.first_decode", 388, 397),
            ("pd.kv_wait", 5, 387),
        ],
        (D, "rank 0"): [("pd.registration", 5, 13)],
        SPLIT: [
            ("egress", 397, 400),
            ("first_decode", 388, 397),
            ("ingress", 0, 5),
            ("landed_to_seen", 382, 387),
            ("match", 325, 329),
            ("prefill", 25, 325),
            ("prefill_queue", 5, 25),
            ("requeue", 387, 388),
            ("submit", 329, 331),
            ("transfer", 331, 382),
        ],
    }


def test_events_are_instants_on_the_track_of_their_span(push: Read) -> None:
    """With their own times."""
    assert dict(push.instants) == {
        ("router", "requests"): [("pd.first_token", 400)],
        (P, "rank 0"): [("pd.registration_received", 13)],
        (P, "rank 1"): [("pd.registration_received", 13)],
        (D, "scheduler"): [
            ("pd.first_attempt", 4),
            ("pd.notification_seen", 346),
            ("pd.notification_seen", 382),
        ],
    }


def test_arrows_lead_from_p_to_d_and_back(push: Read) -> None:
    """One chain per rank from prefill end to D's start, and one per registration that P heard."""
    chains = [
        [
            ("scheduler", "pd.prefill_end"),
            (f"rank {n}", "pd.write_submit"),
            (f"rank {n}", "pd.write_complete"),
            ("scheduler", "pd.notification_seen"),
            ("scheduler", "pd.decode_start"),
            ("scheduler", "pd.first_decode"),
        ]
        for n in (0, 1)
    ]
    registered = [
        [("rank 0", "pd.registration"), (f"rank {n}", "pd.registration_received")] for n in (0, 1)
    ]
    assert sorted(push.flows.values()) == sorted([*chains, *registered])


def test_pull_has_arrows_to_the_reader_and_back_to_the_lease() -> None:
    """P's end leads to D's READ; what P hears ends on its lease."""
    spans = records(Shape(mode="pull", dispatch="sequential"), "r")
    done = max(span.end_ns for span in spans if span.name == sc.SPAN_READ_COMPLETE)
    heard = []
    for span in spans:
        if span.name == sc.SPAN_LEASE:
            event = EventRecord(sc.EVENT_NOTIFICATION_SEEN, done + 1, {})
            span = replace(span, events=(event,))
        heard.append(span)
    assert sorted(read(heard).flows.values()) == [
        [("rank 0", "pd.read_complete"), ("scheduler", "pd.notification_seen")],
        [
            ("scheduler", "pd.prefill_end"),
            ("rank 0", "pd.read_submit"),
            ("rank 0", "pd.read_complete"),
            ("scheduler", "pd.decode_start"),
            ("scheduler", "pd.first_decode"),
        ],
    ]


def test_slices_of_one_row_nest_and_rows_of_one_track_share_its_name(push: Read) -> None:
    """What overlaps without nesting stands in another row: Perfetto cannot draw it otherwise."""
    assert len(push.rows) > len(push.slices)
    for found in push.rows.values():
        for _, start, end in found:
            crossing = [s for s in found if s[1] < start < s[2] < end]
            assert crossing == []


def test_attributes_are_annotations(push: Read) -> None:
    """Text and integers, by the names of the spans."""
    assert push.attributes[sc.SPAN_DECODE] == {
        sc.REQUEST_ID: "r",
        sc.ENGINE_REQUEST_ID: "cmpl-r-0-00000000",
        sc.ENGINE_ID: "d-engine-0",
        sc.CLOCK_ID: "5a0f3c1e-7d52-4c7e-9d30-6f1b2a9c0a01",
        sc.MODE: "push",
        sc.OUTPUT_TOKENS: 10,
    }
    assert push.attributes[sc.EVENT_NOTIFICATION_SEEN] == {sc.PEER_TP_RANK: 1}


def test_times_are_those_of_the_aligned_clocks() -> None:
    """Spans that were moved take their events along; the clock snapshot says wall time."""
    moved, still = (read(records(Shape(), "r"), moved_ns=by) for by in (10**6, 0))
    for found, wanted in ((moved.slices, still.slices), (moved.instants, still.instants)):
        shifted = {
            track: [(name, *(at + 10**6 for at in times)) for name, *times in rows]
            for track, rows in wanted.items()
        }
        assert found == shifted
    clocks = still.packets[0].clock_snapshot.clocks
    assert [(clock.clock_id, clock.timestamp) for clock in clocks] == [
        (pb.BUILTIN_CLOCK_BOOTTIME, EPOCH_NS),
        (pb.BUILTIN_CLOCK_REALTIME, EPOCH_NS),
    ]


def test_a_request_without_a_first_token_has_its_spans() -> None:
    """No arrow and no start on D is made up."""
    writer = Writer("r", "push")
    writer.span(sc.SPAN_REQUEST, EPOCH_NS, EPOCH_NS + 9, status=2, error__type="aborted")
    found = read(writer.records)
    assert dict(found.slices) == {("router", "requests"): [("pd.request", 0, 9)]}
    assert found.flows == {}
    assert found.attributes["pd.request"][sc.ERROR_TYPE] == "aborted"
