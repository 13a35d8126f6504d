"""Events to spans: whole exported spans, with a clock that stands still and counted ids."""

from collections import deque
from typing import Any

from opentelemetry.sdk.resources import Resource
from recorder_bench import ENGINE_ID, PARENT, Bench

from pdtrace.tracing import events as ev
from pdtrace.tracing import semconv as sc
from pdtrace.tracing.assembly import Assembler
from pdtrace.tracing.clock import Anchor, Clock
from pdtrace.tracing.guard import Guard
from pdtrace.tracing.ids import derived_trace_id
from pdtrace.tracing.testing import (
    EPOCH_NS,
    CapturingExporter,
    CountedIds,
    make_recorder,
)

COMMON = {sc.REQUEST_ID: "abc", sc.ENGINE_REQUEST_ID: ENGINE_ID, sc.MODE: "push"}


def test_a_decode_leg_becomes_four_adjacent_spans() -> None:
    """One event ends a span and begins the next at the same nanosecond."""
    bench = Bench()
    bench.open(PARENT)
    bench.at(10, ev.DECODE_ARRIVED)
    bench.at(12, ev.DECODE_ATTEMPTED)
    bench.at(15, ev.DECODE_ALLOCATED)
    bench.at(38, ev.NOTIFICATION_SEEN, {sc.PEER_TP_RANK: 1})
    bench.at(50, ev.KV_COMPLETE, {sc.EXTERNAL_TOKENS: 99})
    bench.at(60, ev.DECODE_SCHEDULED, {sc.PREEMPTIONS: 0})
    bench.at(75, ev.FIRST_TOKEN, {sc.RECOMPUTED_TOKENS: 1})
    bench.at(90, ev.DECODE_FINISHED, {sc.OUTPUT_TOKENS: 4})
    trace, parent = int(PARENT[3:35], 16), int(PARENT[36:52], 16)

    def span(name: str, start: int, end: int, **own: Any) -> dict[str, Any]:
        return {
            "name": name,
            "trace": trace,
            "parent": parent,
            "start": start,
            "end": end,
            "attributes": {**COMMON, **own.pop("attributes", {})},
            **own,
        }

    assert bench.spans() == [
        span("pd.decode_admission", 10, 15, events=[("pd.first_attempt", 12, {})]),
        span(
            "pd.kv_wait",
            15,
            50,
            attributes={sc.EXTERNAL_TOKENS: 99},
            events=[("pd.notification_seen", 38, {sc.PEER_TP_RANK: 1})],
        ),
        span("pd.decode_start", 50, 60, attributes={sc.PREEMPTIONS: 0}),
        span("pd.first_decode", 60, 75, attributes={sc.RECOMPUTED_TOKENS: 1}),
        span("pd.decode", 75, 90, attributes={sc.OUTPUT_TOKENS: 4}),
    ]


def test_without_context_the_trace_is_derived_from_the_request_id() -> None:
    """Spans then have no parent."""
    bench = Bench()
    bench.open()
    bench.at(1, ev.PREFILL_ARRIVED)
    bench.at(2, ev.PREFILL_SCHEDULED)
    (span,) = bench.spans()
    assert (span["trace"], span["parent"]) == (derived_trace_id("abc"), None)


def test_a_peers_context_is_adopted_only_where_there_is_none() -> None:
    """What ends after it belongs to the peer's trace; a caller's own context stays."""
    bench = Bench()
    bench.open()
    bench.at(1, ev.MATCH_BEGUN)
    bench.at(1, ev.ADOPTED, PARENT)
    bench.at(2, ev.MATCHED)
    other = "00-" + "1" * 32 + "-" + "2" * 16 + "-01"
    bench.at(3, ev.ADOPTED, other)
    bench.at(3, ev.WRITE_BEGUN)
    bench.at(4, ev.WRITE_POSTED)
    assert {span["trace"] for span in bench.spans()} == {int(PARENT[3:35], 16)}


def test_a_caller_that_does_not_record_gets_no_spans() -> None:
    """The sampled flag of the incoming context decides for all processes alike."""
    bench = Bench()
    bench.open(PARENT[:-2] + "00")
    bench.at(1, ev.PREFILL_ARRIVED)
    bench.at(2, ev.PREFILL_SCHEDULED)
    assert bench.spans() == []


def test_an_instant_that_another_process_told_keeps_its_place() -> None:
    """Another process's clock may be ahead by a reading: no span ends before it starts."""
    bench = Bench()
    bench.open()
    told = bench.recorder.mono_ns(EPOCH_NS + 150)
    bench.recorder.record_at(ev.PREFILL_END_BEGUN, told, ENGINE_ID)
    bench.at(120, ev.BLOCKS_HANDED, {sc.BLOCK_COUNT: 3})
    (span,) = bench.spans()
    assert (span["start"], span["end"]) == (150, 150)
    assert span["attributes"] == {**COMMON, sc.BLOCK_COUNT: 3}


def test_what_is_learnt_later_stands_on_later_spans() -> None:
    """P learns its peer from the registration."""
    bench = Bench()
    bench.open()
    bench.at(1, ev.PREFILL_END_BEGUN)
    bench.at(2, ev.BLOCKS_HANDED)
    bench.at(2, ev.LEARNED, {sc.PEER_ENGINE_ID: "d"})
    bench.at(3, ev.MATCH_BEGUN)
    bench.at(4, ev.MATCHED)
    first, second = bench.spans()
    assert first["attributes"] == COMMON
    assert second["attributes"] == {**COMMON, sc.PEER_ENGINE_ID: "d"}


def test_a_close_ends_what_is_open_as_the_named_error() -> None:
    """An abort in the KV wait."""
    bench = Bench()
    bench.open()
    bench.at(1, ev.DECODE_ARRIVED)
    bench.at(2, ev.DECODE_ALLOCATED)
    bench.at(9, ev.DECODE_FINISHED, {sc.ERROR_TYPE: sc.ERROR_ABORTED})
    _, waited = bench.spans()
    assert waited["name"] == "pd.kv_wait" and waited["error"] and waited["end"] == 9
    assert waited["attributes"] == {**COMMON, sc.ERROR_TYPE: sc.ERROR_ABORTED}


def test_events_of_an_unknown_request_are_counted() -> None:
    """A late report of a finished request makes no new one."""
    bench = Bench()
    bench.at(1, ev.KV_COMPLETE)
    assert bench.spans() == []
    assert bench.recorder.losses() == {"unknown_request": 1}


def test_a_step_of_the_wall_clock_does_not_bend_an_open_request() -> None:
    """It keeps the anchor on which it began; the next request has the new one."""
    bench = Bench()
    bench.open()
    bench.at(1, ev.PREFILL_ARRIVED)
    bench.recorder.flush()
    bench.clock.step = 10**12
    assert bench.clock.refresh()
    bench.at(5, ev.PREFILL_SCHEDULED)
    (span,) = bench.spans()
    assert (span["start"], span["end"]) == (1, 5)


def test_the_testing_helpers_use_the_real_clock_when_asked() -> None:
    """`make_recorder` without a clock stamps with the system's."""
    recorder, exporter = make_recorder()
    assert isinstance(recorder.clock, Clock) and isinstance(exporter, CapturingExporter)


def test_a_span_that_this_process_cannot_tell_is_never_begun() -> None:
    """Neither ended nor abandoned: its events are taken without it."""
    assembler = Assembler(Resource({}), CountedIds(), absent=frozenset({sc.SPAN_PREFILL_QUEUE}))
    anchor = Anchor(EPOCH_NS)
    context = ev.RequestContext("", {})
    events: deque[ev.Event] = deque(
        (
            (ev.OPENED, 0, "r", context),
            (ev.PREFILL_ARRIVED, 1, "r", None),
            (ev.PREFILL_SCHEDULED, 2, "r", None),
            (ev.PREFILL_FINISHED, 3, "r", None),
            (ev.CLOSED, 4, "r", {sc.ERROR_TYPE: sc.ERROR_ABORTED}),
        )
    )
    assembler.apply(events, len(events), anchor, Guard(strict=True))
    assert [span.name for span in assembler.finished] == [sc.SPAN_PREFILL]
