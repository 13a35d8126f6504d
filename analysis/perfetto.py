"""One request as a Perfetto trace: a process per engine, a track per rank, flow arrows from P to D.

Times are the aligned Unix times of the spans in ns. A slice is a span of ours, an instant one of
its events, debug annotations are the attributes.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pandas as pd
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb

from pdtrace.analysis.attempts import SIDE_ROUTER
from pdtrace.analysis.charts import Piece
from pdtrace.analysis.coded import decoded
from pdtrace.analysis.flows import chains
from pdtrace.analysis.handoffs import Handoffs
from pdtrace.analysis.stretches import joined
from pdtrace.analysis.subject import only
from pdtrace.analysis.table import SpansTable
from pdtrace.tracing import semconv

SCHEDULER: Final = "scheduler"
REQUESTS: Final = "requests"
SPLIT: Final = "split of the first token's wait"
EXPOSED: Final = "exposed phases"
_SEQUENCE: Final = 1
_ON_WORKERS: Final = (
    semconv.SPAN_MATCH,
    semconv.SPAN_HANDSHAKE,
    semconv.SPAN_WRITE_SUBMIT,
    semconv.SPAN_WRITE_COMPLETE,
    semconv.SPAN_REGISTRATION,
    semconv.SPAN_READ_SUBMIT,
    semconv.SPAN_READ_COMPLETE,
)
ATTRIBUTES: Final = {
    "request_id": semconv.REQUEST_ID,
    "engine_request_id": semconv.ENGINE_REQUEST_ID,
    "peer_engine_request_id": semconv.PEER_ENGINE_REQUEST_ID,
    "engine_id": semconv.ENGINE_ID,
    "peer_engine_id": semconv.PEER_ENGINE_ID,
    "host": semconv.HOST_NAME,
    "clock_id": semconv.CLOCK_ID,
    "model": semconv.MODEL,
    "mode": semconv.MODE,
    "dispatch": semconv.DISPATCH,
    "leg": semconv.LEG,
    "attempt": semconv.ATTEMPT,
    "match_first": semconv.MATCH_FIRST,
    "lease_outcome": semconv.LEASE_OUTCOME,
    "error_type": semconv.ERROR_TYPE,
    "input_tokens": semconv.INPUT_TOKENS,
    "cached_tokens": semconv.PREFILL_CACHED_TOKENS,
    "external_tokens": semconv.EXTERNAL_TOKENS,
    "recomputed_tokens": semconv.RECOMPUTED_TOKENS,
    "output_tokens": semconv.OUTPUT_TOKENS,
    "preemptions": semconv.PREEMPTIONS,
    "transfer_bytes": semconv.TRANSFER_BYTES,
    "transfer_descriptors": semconv.TRANSFER_DESCRIPTORS,
    "prefill_gap_ns": semconv.PREFILL_GAP_NS,
}
"""The column of the spans table that holds each attribute."""


@dataclass(frozen=True)
class Mark:
    """A slice, or an instant where it has no end; the numbers of the flows through it."""

    name: str
    start_ns: int
    end_ns: int | None
    attributes: Mapping[str, str | int]
    flows: tuple[int, ...] = ()


def trace(handoffs: Handoffs, table: SpansTable, label: str, pieces: Sequence[Piece] = ()) -> bytes:
    """The serialised trace of one request: its spans and, from `pieces`, its exposed phases.

    `table` has the events of the spans, with their times as recorded.
    """
    one = only(handoffs, label)
    spans = one.spans[~one.spans["phantom"]]
    spans = spans.sort_values(["start_ns", "end_ns", "name", "span_id"])
    events = _aligned_events(spans, table)
    packets = [_clocks(int(spans["start_ns"].min()) if len(spans) else 0)]
    for place, (title, tracks) in enumerate(_processes(one, spans, events), start=1):
        packets += _process(place, title, tracks)
    owned = _owned(pieces, int(one.requests["t0_ns"].fillna(0).iloc[0]))
    if owned:
        packets += _process(0, SPLIT, [(EXPOSED, owned)])
    for packet in packets:
        packet.trusted_packet_sequence_id = _SEQUENCE
    packets[0].sequence_flags = pb.TracePacket.SEQ_INCREMENTAL_STATE_CLEARED
    whole: bytes = pb.Trace(packet=packets).SerializeToString(deterministic=True)
    return whole


def _aligned_events(spans: pd.DataFrame, table: SpansTable) -> pd.DataFrame:
    """The events of these spans; each is moved by as much as its span was."""
    events = decoded(table.events[table.events["row"].isin(spans.index)])
    moved = spans["start_ns"] - table.spans["start_ns"].reindex(spans.index)
    return events.assign(time_ns=events["time_ns"] + moved.reindex(events["row"]).to_numpy())


Track = tuple[str, list[Mark]]


def _processes(
    one: Handoffs, spans: pd.DataFrame, events: pd.DataFrame
) -> Iterator[tuple[str, list[Track]]]:
    """By process its title and its tracks: the scheduler (or router), then each rank."""
    chosen = one.tries.index[one.tries["chosen"]]
    counted = spans[spans["try"].isin(chosen) | (spans["side"] == SIDE_ROUTER)]
    through: dict[tuple[int, bool], list[int]] = {}
    for number, chain in enumerate(chains(counted, events), start=1):
        for stop in chain:
            through.setdefault((stop.row, stop.event), []).append(number)
    process = spans["engine_id"].where(spans["engine_id"] != "", spans["side"])
    for name, mine in spans.groupby(process, sort=False):
        thread = _threads(mine)
        order = sorted(set(thread), key=lambda name: (name != SCHEDULER, len(name), name))
        tracks = [(name, _marks(mine[thread == name], events, through)) for name in order]
        yield _title(str(name), mine), tracks


def _threads(spans: pd.DataFrame) -> pd.Series:
    """`rank 1` or `rank 0 of stage 1` for what a worker does, else the scheduler (or router)."""
    rank = "rank " + spans["tp_rank"].astype("str")
    stage = (" of stage " + spans["pp_rank"].astype("str")).where(spans["pp_rank"] > 0, "")
    others = spans["side"].map({SIDE_ROUTER: REQUESTS}).fillna(SCHEDULER)
    return (rank + stage).where(spans["name"].isin(_ON_WORKERS), others)


def _title(name: str, spans: pd.DataFrame) -> str:
    hosts = sorted(set(spans["host"]) - {""})
    sides = sorted(set(spans["side"]) - {name}, reverse=True)
    return " ".join([*sides, name, *([f"on {', '.join(hosts)}"] if hosts else [])])


def _marks(
    spans: pd.DataFrame, events: pd.DataFrame, through: Mapping[tuple[int, bool], Sequence[int]]
) -> list[Mark]:
    marks = []
    for row, span in zip(spans.index.tolist(), spans.to_dict("records"), strict=True):
        said = {name: _plain(span[column]) for column, name in ATTRIBUTES.items()}
        known = {name: value for name, value in said.items() if value not in (None, "")}
        flows = tuple(through.get((row, False), ()))
        marks.append(Mark(span["name"], span["start_ns"], span["end_ns"], known, flows))
    mine = events[events["row"].isin(spans.index)]
    for row, event in zip(mine.index.tolist(), mine.to_dict("records"), strict=True):
        peer = _plain(event["peer_rank"])
        about = {} if peer is None else {semconv.PEER_TP_RANK: peer}
        flows = tuple(through.get((row, True), ()))
        marks.append(Mark(event["name"], event["time_ns"], None, about, flows))
    return marks


def _plain(value: Any) -> Any:
    return None if pd.isna(value) else value


def _owned(pieces: Iterable[Piece], arrival: int) -> list[Mark]:
    """What each phase owned, as slices one after the other."""
    by_phase: dict[str, list[tuple[int, int]]] = {}
    for piece in pieces:
        if piece.owned:
            by_phase.setdefault(piece.phase, []).append((piece.start_ns, piece.end_ns))
    marks = [
        Mark(phase, arrival + start, arrival + end, {})
        for phase, times in by_phase.items()
        for start, end in joined(times)
    ]
    return sorted(marks, key=lambda mark: mark.start_ns)


def _clocks(at_ns: int) -> Any:
    """Says that the times of this trace are those of the wall clock."""
    packet = pb.TracePacket()
    for clock in (pb.BUILTIN_CLOCK_BOOTTIME, pb.BUILTIN_CLOCK_REALTIME):
        packet.clock_snapshot.clocks.add(clock_id=clock, timestamp=at_ns)
    return packet


def _process(place: int, title: str, tracks: Iterable[Track]) -> list[Any]:
    """A process and its tracks; of a track that would need slices side by side, several."""
    parent = place << 32 | 1
    packet = pb.TracePacket()
    packet.track_descriptor.uuid = parent
    packet.track_descriptor.process.pid = place + 1
    packet.track_descriptor.process.process_name = title
    packet.track_descriptor.child_ordering = pb.TrackDescriptor.EXPLICIT
    packets = [packet]
    rows = [(name, lane) for name, marks in tracks for lane in _lanes(marks)]
    for number, (name, lane) in enumerate(rows, start=2):
        packet = pb.TracePacket()
        packet.track_descriptor.uuid = place << 32 | number
        packet.track_descriptor.parent_uuid = parent
        packet.track_descriptor.name = name
        packet.track_descriptor.sibling_order_rank = number
        packets += [packet, *_events(lane, place << 32 | number)]
    return packets


def _lanes(marks: Iterable[Mark]) -> list[list[Mark]]:
    """Slices that nest or follow each other within each lane; instants in the first one."""
    lanes: list[list[Mark]] = []
    instants = []
    for mark in sorted(marks, key=lambda m: (m.start_ns, -(m.end_ns or m.start_ns))):
        if mark.end_ns is None:
            instants.append(mark)
            continue
        free = next((lane for lane in lanes if all(_fits(mark, other) for other in lane)), None)
        if free is None:
            lanes.append([mark])
        else:
            free.append(mark)
    return [(lanes or [[]])[0] + instants, *lanes[1:]] if lanes or instants else []


def _fits(mark: Mark, before: Mark) -> bool:
    """Whether a slice lies after or inside one that began no later."""
    assert mark.end_ns is not None and before.end_ns is not None
    return mark.start_ns >= before.end_ns or mark.end_ns <= before.end_ns


def _events(lane: Sequence[Mark], uuid: int) -> list[Any]:
    """Begin, end and instant packets of a lane in order of time; ends come before begins."""
    found: list[tuple[int, Any]] = []
    open_: list[int] = []

    def close(until: int) -> None:
        while open_ and open_[-1] <= until:
            at = open_.pop()
            found.append((at, _packet(at, uuid, pb.TrackEvent.TYPE_SLICE_END)))

    for mark in (mark for mark in lane if mark.end_ns is not None):
        close(mark.start_ns)
        packet = _packet(mark.start_ns, uuid, pb.TrackEvent.TYPE_SLICE_BEGIN, mark)
        found.append((mark.start_ns, packet))
        open_.append(mark.end_ns or 0)
    close(max(open_, default=0))
    for mark in (mark for mark in lane if mark.end_ns is None):
        packet = _packet(mark.start_ns, uuid, pb.TrackEvent.TYPE_INSTANT, mark)
        found.append((mark.start_ns, packet))
    return [packet for _, packet in sorted(found, key=lambda item: item[0])]


def _packet(at_ns: int, uuid: int, kind: int, mark: Mark | None = None) -> Any:
    packet = pb.TracePacket(timestamp=at_ns)
    event = packet.track_event
    event.type, event.track_uuid = kind, uuid
    if mark is not None:
        event.name = mark.name
        event.flow_ids.extend(mark.flows)
        for name, value in mark.attributes.items():
            said = {"int_value": value} if isinstance(value, int) else {"string_value": value}
            event.debug_annotations.add(name=name, **said)
    return packet
