"""Processes of one host that read their wall clock before and after it was set: one axis."""

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from generator import CLOCK, Shape, records
from hypothesis import given, settings
from hypothesis import strategies as st
from skew import ANCHOR_NS, Skew, by_role, skewed, stepped
from test_clock_alignment import BATCHES, batches, spans_of
from test_split_properties import shapes

from pdtrace.analysis.anchors import chosen, on_one_anchor, readings
from pdtrace.analysis.clock_notes import anchor_notes
from pdtrace.analysis.collect import Collector
from pdtrace.analysis.load import Loaded, load, loaded
from pdtrace.analysis.records import SpanRecord
from pdtrace.analysis.split import split
from pdtrace.analysis.table import build
from pdtrace.analysis.tabulate import Tabulated
from pdtrace.tracing import events as ev
from pdtrace.tracing import semconv as sc
from pdtrace.tracing.clock import Clock
from pdtrace.tracing.provider import open_provider
from pdtrace.tracing.recorder import Recorder

FRAMES = ("requests", "exposed", "hidden", "drag", "classes", "known")
HOSTS = by_role(router=Skew("one"), prefill=Skew("one"), decode=Skew("two", -(10**10)))


def read(spans: list[SpanRecord]) -> Loaded:
    return loaded(Tabulated(build(spans), [], {}))


def same(one: Loaded, other: Loaded) -> None:
    """Every number of the split, absolute times too."""
    mine, theirs = split(one.handoffs), split(other.handoffs)
    for name in FRAMES:
        pd.testing.assert_frame_equal(getattr(mine, name), getattr(theirs, name))


@settings(max_examples=20, deadline=None)
@given(
    batch=st.lists(shapes, min_size=1, max_size=4),
    steps=st.lists(st.integers(-(10**12), 10**12), min_size=2, max_size=4, unique=True),
)
def test_a_wall_clock_that_was_set_changes_nothing(batch: list[Shape], steps: list[int]) -> None:
    """Whichever spans were placed after the step, and whether resource or span says so."""
    spans = [s for number, shape in enumerate(batch) for s in records(shape, f"r-{number}")]
    same(read(stepped(spans, steps)), read(spans))


@BATCHES
@given(batch=batches)
def test_clocks_of_several_hosts_are_known_as_well_as_before(batch: list[Shape]) -> None:
    """What was sent before a step still bounds the offset after it."""
    spans = skewed(spans_of(batch), HOSTS)
    same(read(stepped(spans, (7_000_000, -612_000))), read(spans))


def test_handshake_samples_go_with_their_span() -> None:
    """The asking side's two times; the peer's own is by the peer's clock."""
    sample = {sc.CLOCK_SENT_NS: 10**18, sc.CLOCK_REMOTE_NS: 10**18, sc.CLOCK_RECEIVED_NS: 10**18}
    spans = [
        replace(span, attributes={**span.attributes, **sample}) for span in records(Shape())[:3]
    ]
    table = build(stepped(spans, (5_000,)))
    moved = on_one_anchor(table, chosen(readings(table.spans)))
    columns = ["clock_sent_ns", "clock_remote_ns", "clock_received_ns"]
    found = (moved.spans[columns] - 10**18).sort_values("clock_sent_ns").to_numpy().tolist()
    assert found == [[-5_000, 0, -5_000], [0, 0, 0], [0, 0, 0]]


def test_the_anchor_of_most_spans_counts() -> None:
    """Of equals the smallest; a clock without a name has none."""
    spans = records(Shape())
    table = build([*stepped(spans[:2], (9,)), *stepped(spans[2:4], (9,))])
    assert readings(table.spans) == {(CLOCK, ANCHOR_NS): 2, (CLOCK, ANCHOR_NS + 9): 2}
    assert chosen(readings(table.spans)) == {CLOCK: ANCHOR_NS}
    nameless = [replace(s, resource={**s.resource, sc.CLOCK_ID: ""}) for s in stepped(spans, (9,))]
    assert chosen(readings(build(nameless).spans)) == {}


def test_a_step_is_told_and_reading_jitter_is_not() -> None:
    """In one sentence for each clock."""
    spans = records(Shape())
    assert anchor_notes(readings(build(stepped(spans, (90_000,))).spans)) == []
    assert anchor_notes(readings(build(stepped(spans[:5], (2_500_000, 40))).spans)) == [
        f"1 span of clock {CLOCK[:8]} placed before or after its wall time was set, by up to "
        "2.500 ms: all are on one reading of it now"
    ]


def test_recorders_on_both_sides_of_a_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spans of three processes as they export them: one read its clock earlier, one twice."""
    stretches = {"early": (10, 20), "late": (20, 30), "again": (30, 40)}
    with Collector(tmp_path, grpc_port=0, http_port=0) as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://{collector.grpc_address}")
        for name, (begin, end) in stretches.items():
            wall = FakeWallClock(0 if name == "early" else 3_000_000)
            recorder = recorder_on(wall)
            if name == "again":
                wall.ahead_ns += 5_000_000
                assert recorder.clock.refresh()
            context = ev.RequestContext("", {sc.MODE: "pull"})
            recorder.record_at(ev.OPENED, begin, name, context)
            recorder.record_at(ev.PREFILL_ARRIVED, begin, name)
            recorder.record_at(ev.PREFILL_SCHEDULED, end, name)
            recorder.shutdown()
    found = load([tmp_path])
    spans = found.table.spans[found.table.spans["name"] == sc.SPAN_PREFILL_QUEUE]
    columns = ("request_id", "start_ns", "end_ns")
    rows = list(zip(*(spans[name].tolist() for name in columns), strict=True))
    (epoch,) = [start - 10 for name, start, _ in rows if name == "early"]
    assert {name: (start - epoch, end - epoch) for name, start, end in rows} == stretches


class FakeWallClock:
    """A wall clock that somebody sets."""

    def __init__(self, ahead_ns: int) -> None:
        self.ahead_ns = ahead_ns

    def __call__(self) -> int:
        return 1_800_000_000_000_000_000 + self.ahead_ns


def recorder_on(wall: FakeWallClock) -> Recorder:
    """A recorder of a process with this wall clock, and a monotonic one at 0."""
    clock = Clock(wall, lambda: 0)
    stated = {sc.CLOCK_ANCHOR_NS: clock.first.of_host_ns}
    return Recorder(open_provider("prefill", stated), clock, start=False)
