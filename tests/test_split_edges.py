"""Edge cases of the split, each a small span tree; instants in ns from the epoch below.

Side letters in the drawings: R router, P prefill engine, D decode engine.
"""

from typing import Any

import pytest
from generator import EPOCH_NS, Event, Rank, Shape, Writer, records

from pdtrace.analysis.handoffs import join
from pdtrace.analysis.records import SpanRecord
from pdtrace.analysis.report import request_records
from pdtrace.analysis.split import split
from pdtrace.analysis.table import build
from pdtrace.tracing import semconv as sc

P, D = sc.ROLE_PREFILL, sc.ROLE_DECODE


class Drawing(Writer):
    """A writer whose times count from the epoch of the tests."""

    def span(
        self,
        name: str,
        start: int,
        end: int,
        side: str = "router",
        rank: int = 0,
        *,
        events: tuple[Event, ...] = (),
        **more: Any,
    ) -> None:
        moved: tuple[Event, ...] = tuple(
            (event, EPOCH_NS + at, *peer) for event, at, *peer in events
        )
        start, end = EPOCH_NS + start, EPOCH_NS + end
        super().span(name, start, end, side, rank, events=moved, **more)

    def router(
        self, end: int, token: int | None, dispatch: str = "sequential", **more: Any
    ) -> None:
        events = () if token is None else ((sc.EVENT_FIRST_TOKEN, token),)
        self.span(sc.SPAN_REQUEST, 0, end, events=events, pd__dispatch=dispatch, **more)


def only(spans: list[SpanRecord]) -> dict[str, Any]:
    """The JSON object of the only request in `spans`."""
    (found,) = request_records(split(join(build(spans))))
    return found


def drop(spans: list[SpanRecord], *names: str, side: str = "") -> list[SpanRecord]:
    """`spans` without those of a name or of a side."""
    return [
        s for s in spans if s.name not in names and (not side or s.resource.get(sc.ROLE) != side)
    ]


def test_one_engine_for_both_is_compute_and_edge_only() -> None:
    """
    R  0 ------------------------------ 100   first token 80
    D     has 5, queue -15, prefill 15 -- 70
    """
    d = Drawing("r", "none")
    d.router(100, 80)
    d.span(sc.SPAN_PREFILL_QUEUE, 5, 15, D)
    d.span(sc.SPAN_PREFILL, 15, 70, D)
    d.span(sc.SPAN_DECODE, 70, 100, D, gen_ai__usage__output_tokens=4)
    found = only(d.records)
    assert found["phases"] == {"ingress": 5, "prefill_queue": 10, "prefill": 55, "egress": 10}
    assert found["drag_ns"] == found["phases"]
    assert (found["mode"], found["handover_ns"], found["tpot_ns"]) == ("none", None, 10)
    assert found["prefill_engine"] == found["decode_engine"] == "d-engine-0"
    assert found["flags"] == []


def complete_hit(dispatch: str) -> dict[str, Any]:
    """
    R  0 ------------------------------------- 90   first token 80
    P     has 6, queue -10, prefill 10 ---- 60
    D     has 4 (62), first attempt +2, blocks +3, first decode until 75, nothing loaded
    """
    d, at = Drawing("r", "push"), 4 if dispatch == "concurrent" else 62
    d.router(90, 80, dispatch)
    d.span(sc.SPAN_LEG, 1, 61, pd__leg="prefill", pd__attempt=1)
    d.span(sc.SPAN_LEG, at - 1, 90, pd__leg="decode", pd__attempt=1)
    d.span(sc.SPAN_PREFILL_QUEUE, 6, 10, P)
    d.span(sc.SPAN_PREFILL, 10, 60, P)
    d.span(sc.SPAN_PREFILL_END, 60, 61, P)
    events = ((sc.EVENT_FIRST_ATTEMPT, at + 2),)
    d.span(sc.SPAN_DECODE_ADMISSION, at, at + 3, D, events=events)
    d.span(sc.SPAN_FIRST_DECODE, at + 3, 75, D)
    return only(d.records)


def test_complete_hit_under_concurrent_dispatch_drops_the_prefill_leg() -> None:
    """D loaded nothing and never waited for P: P's leg is no ancestor of the first token."""
    found = complete_hit("concurrent")
    tail = {"admission": 2, "decode_capacity": 1, "first_decode": 68, "egress": 5}
    assert found["phases"] == {"ingress": 4} | tail
    assert (found["handover_ns"], found["flags"]) == (None, [])


def test_complete_hit_under_sequential_dispatch_keeps_the_prefill_leg() -> None:
    """Nothing was loaded, yet D's dispatch waited for P's answer."""
    found = complete_hit("sequential")
    assert found["phases"] == {
        "ingress": 6,
        "prefill_queue": 4,
        "prefill": 50,
        "match": 1,
        "hop": 1,
        "admission": 2,
        "decode_capacity": 1,
        "first_decode": 10,
        "egress": 5,
    }


def test_failed_load_is_recomputed_on_decode() -> None:
    """
    D  ... told of the failure, scheduled, prefill 200 ns, first decode 9 ns
    """
    found = only(records(Shape(recompute=200)))
    assert found["phases"]["prefill"] == 500
    assert found["phases"]["first_decode"] == 9
    assert found["flags"] == ["load_failed_recompute"]


def test_lease_that_expired_before_the_data_landed_is_flagged() -> None:
    """
    P  lease ends 1 ns before the last rank has landed
    """
    spans = drop(records(Shape()), sc.SPAN_LEASE)
    writer = Writer("r-1", "push")
    landed = max(s.end_ns for s in spans if s.name == sc.SPAN_WRITE_COMPLETE)
    writer.span(sc.SPAN_LEASE, landed - 90, landed - 1, P, pd__lease__outcome="expired", status=2)
    (late,) = (SpanRecord(**_changed(s, span_id="e" * 16)) for s in writer.records)
    assert only([*spans, late])["flags"] == ["lease_expired"]


def test_abort_before_the_first_token_is_listed_and_not_split() -> None:
    """
    R  0 ----- 50 aborted, no first token
    P  has 5, queue -15, prefill 15 ---- 48
    """
    d = Drawing("r", "pull")
    d.router(50, None, status=2, error__type="aborted")
    d.span(sc.SPAN_PREFILL_QUEUE, 5, 15, P)
    d.span(sc.SPAN_PREFILL, 15, 48, P)
    found = only(d.records)
    unknown = ("ttft_ns", "classes", "phases", "hidden", "handover_ns", "tpot_ns", "drag_ns")
    assert all(found[key] is None for key in unknown)
    assert found["flags"] == ["aborted", "missing_decode"]


def test_lost_try_on_prefill_counts_as_retry_only() -> None:
    """Ingress ends at the first try; what the lost try did is not in the cone."""
    found = only(records(Shape(dispatch="sequential", ingress=5, p_retry=40)))
    assert (found["phases"]["ingress"], found["phases"]["retry"]) == (5, 40)
    assert found["flags"] == ["retried"]


def test_try_that_never_reached_an_engine_starts_with_its_leg() -> None:
    """
    R  0 --- leg 1 at 2 refused, leg 2 at 30 ---
    P                              has 33, prefill 40 -- 90
    """
    d = Drawing("r", "none")
    d.router(200, 100)
    d.span(sc.SPAN_LEG, 2, 29, pd__leg="decode", pd__attempt=1, status=2)
    d.span(sc.SPAN_LEG, 30, 200, pd__leg="decode", pd__attempt=2)
    d.span(sc.SPAN_PREFILL_QUEUE, 33, 40, D)
    d.span(sc.SPAN_PREFILL, 40, 90, D)
    found = only(d.records)
    assert found["phases"] == {
        "ingress": 2,
        "retry": 31,
        "prefill_queue": 7,
        "prefill": 50,
        "egress": 10,
    }
    assert found["drag_ns"] == found["phases"]
    assert found["flags"] == ["retried"]


def test_second_registration_for_one_request_is_flagged() -> None:
    """Two registrations came; the one on the span's boundary made the match."""
    spans = records(Shape())
    place = next(i for i, s in enumerate(spans) if s.name == sc.SPAN_MATCH)
    match = spans[place]
    lost = type(match.events[0])(match.events[0].name, match.start_ns + 7, {})
    spans[place] = SpanRecord(
        **{name: getattr(match, name) for name in match.__slots__ if name != "events"},
        events=(*match.events, lost),
    )
    found, plain = only(spans), only(records(Shape()))
    assert found["flags"] == ["second_registration"]
    assert found["phases"] == plain["phases"]


def test_last_of_several_ranks_decides() -> None:
    """
    P0  submit 2, transfer 15          the phases are unions over ranks
    P1      wait 4, submit 2, transfer 30
    """
    pair = (Rank(0, 2, 15), Rank(4, 2, 30))
    found = only(records(Shape(ranks=pair, registration=8)))["phases"]
    # P0 posts at 2 and lands at 17, P1 posts at 6 and lands at 36: transfer 2-36, submit 0-2.
    assert (found["submit"], found["transfer"]) == (2, 34)
    assert found["match"] == 4


def test_one_rank_without_completion_leaves_the_notifications_as_evidence() -> None:
    """P1's completion span is lost: P0's completion alone says nothing about the last rank."""
    pair = (Rank(0, 2, 15), Rank(0, 2, 30))
    spans = records(Shape(ranks=pair))
    lost = max((s for s in spans if s.name == sc.SPAN_WRITE_COMPLETE), key=lambda span: span.end_ns)
    found = only([s for s in spans if s is not lost])
    assert found["phases"]["transfer"] == 15
    assert found["phases"]["landed_to_seen"] == 5
    assert found["phases"]["unattributed"] == 15


def test_untraced_decode_leaves_its_time_unattributed() -> None:
    """P's side and the router are known; nothing is said about the rest."""
    spans = drop(records(Shape(mode="pull", dispatch="sequential")), side=D)
    found = only(spans)
    assert set(found["phases"]) == {"ingress", "prefill_queue", "prefill", "unattributed"}
    assert (found["flags"], found["handover_ns"]) == (["missing_decode"], None)
    assert found["lower_bound"] is False


def test_untraced_prefill_in_sequence_is_unattributed_until_its_leg_ends() -> None:
    """The hop starts at the end of the prefill leg; before it there is no evidence."""
    shape = Shape(mode="pull", dispatch="sequential")
    found = only(drop(records(shape), side=P))
    before = shape.ingress + shape.queue + shape.prefill
    assert found["phases"]["unattributed"] == before
    assert found["phases"]["hop"] == shape.hop
    assert found["flags"] == ["missing_prefill"]


def test_untraced_prefill_in_concurrent_push_exposes_decode_as_an_upper_bound() -> None:
    """D's phases before the match have nothing over them; the flag says so."""
    shape = Shape(capacity=50)
    found = only(drop(records(shape), side=P))
    assert found["phases"]["decode_capacity"] == 50
    assert found["phases"]["registration"] == shape.registration
    assert "transfer" not in found["phases"]
    assert found["flags"] == ["missing_prefill"]


def test_without_a_router_the_ttft_is_a_lower_bound() -> None:
    """t0 is the earliest arrival at an engine, t1 the first token on D."""
    found = only(drop(records(Shape(dispatch="sequential")), side=sc.ROLE_ROUTER))
    assert found["lower_bound"] is True
    assert "ingress" not in found["phases"] and "egress" not in found["phases"]
    assert (found["flags"], found["dispatch"]) == (["missing_router"], None)


def test_without_a_router_an_early_decode_proves_concurrent_dispatch() -> None:
    """D had the request before prefill ended, and the mode is push."""
    found = only(drop(records(Shape()), side=sc.ROLE_ROUTER))
    assert found["dispatch"] == "concurrent"
    assert found["phases"]["prefill"] == 300


def test_lost_transfer_spans_are_missing_and_unattributed() -> None:
    """D's worker exported nothing: from the blocks on nothing is known until D was told."""
    spans = drop(
        records(Shape(mode="pull", dispatch="sequential")),
        sc.SPAN_READ_SUBMIT,
        sc.SPAN_READ_COMPLETE,
    )
    found = only(spans)
    assert found["phases"]["unattributed"] == 8 + 2 + 15 + 5
    assert found["flags"] == ["missing_transfer"]


def test_no_first_attempt_leaves_admission_unattributed() -> None:
    """Arrival on D → blocks allocated has no evidence inside."""
    shape = Shape(mode="pull", dispatch="sequential", admission=7, capacity=9)
    spans = drop(records(shape), sc.SPAN_DECODE_ADMISSION)
    admission = next(s for s in records(shape) if s.name == sc.SPAN_DECODE_ADMISSION)
    bare = SpanRecord(
        **{name: getattr(admission, name) for name in admission.__slots__ if name != "events"},
        events=(),
    )
    found = only([*spans, bare])
    assert found["phases"]["unattributed"] == 16


def test_legs_in_different_traces_are_joined_by_request_id() -> None:
    """P and D of one request lost their common trace id."""
    spans = [
        SpanRecord(
            **{name: getattr(s, name) for name in s.__slots__ if name != "trace_id"},
            trace_id="f" * 32 if s.resource[sc.ROLE] == D else s.trace_id,
        )
        for s in records(Shape())
    ]
    found, plain = only(spans), only(records(Shape()))
    assert found["flags"] == ["joined_by_request_id"]
    assert found["phases"] == plain["phases"]
    assert found["trace_id"] == plain["trace_id"]


def test_several_clocks_without_an_estimate_give_no_split() -> None:
    """TTFT lies on the router's clock and stays; nothing over hosts is pretended."""
    spans = [
        SpanRecord(
            **{name: getattr(s, name) for name in s.__slots__ if name != "resource"},
            resource={**s.resource, sc.CLOCK_ID: s.resource[sc.ROLE]},
        )
        for s in records(Shape())
    ]
    found = only(spans)
    assert (found["ttft_ns"], found["phases"], found["handover_ns"]) == (364, None, None)
    assert (found["clock_halfwidth_ns"], found["flags"]) == (None, ["clocks_not_aligned"])


@pytest.mark.parametrize("side, counts", [(P, False), (D, True)])
def test_only_a_handshake_that_is_waited_for_counts(side: str, counts: bool) -> None:
    """
    D waits for its handshake before it can register; P's became usable after everything posted.
    """
    spans = records(Shape(registration=40))
    writer = Writer("r-1", "push")
    registration = next(s for s in spans if s.name == sc.SPAN_REGISTRATION)
    end = registration.end_ns - 5 if side == D else max(s.end_ns for s in spans)
    writer.span(sc.SPAN_HANDSHAKE, registration.start_ns + 5, end, side)
    (shake,) = (SpanRecord(**_changed(s, span_id="e" * 16)) for s in writer.records)
    found = only([*spans, shake])
    assert (found["flags"] == ["cold_handshake"]) is counts
    assert found["hidden"].get("handshake", 0) == (30 if counts else 0)
    assert found["hidden"]["registration"] == (10 if counts else 40)


def _changed(span: SpanRecord, **changes: Any) -> dict[str, Any]:
    return {name: getattr(span, name) for name in span.__slots__} | changes


def test_data_that_landed_inside_the_post_call_still_sums() -> None:
    """
    The transport copies inside the post call: D saw the notification before P's submit ended.
    """
    found = only(records(Shape(ranks=(Rank(0, 30, 1, -1),))))
    assert found["phases"]["submit"] == 30
    assert "transfer" not in found["phases"]
    assert found["phases"]["landed_to_seen"] == 5
    assert sum(found["phases"].values()) == found["ttft_ns"]
    assert "unattributed" not in found["phases"]


def test_microsecond_gaps_between_processes_do_not_tear_the_split() -> None:
    """Phases lie between instants, not inside spans, so small gaps belong to the next phase."""
    early = (sc.SPAN_DECODE_START, sc.SPAN_PREFILL_QUEUE)
    spans = [
        SpanRecord(**_changed(s, end_ns=max(s.end_ns - 1, s.start_ns))) if s.name in early else s
        for s in records(Shape(seen=4, requeue=6))
    ]
    assert "unattributed" not in only(spans)["phases"]


def test_zero_length_steps_and_one_instant_for_all() -> None:
    """A request in which nothing takes time has a TTFT of 0 and no phase."""
    nothing: dict[str, Any] = {
        name: 0 for name in vars(Shape()) if isinstance(getattr(Shape(), name), int)
    }
    shape = Shape(**(nothing | {"router": True, "tokens": 1, "ranks": (Rank(0, 0, 0),)}))
    found = only(records(shape))
    assert (found["ttft_ns"], found["phases"], found["hidden"]) == (0, {}, {})


def test_spans_that_cross_the_window_are_clipped() -> None:
    """The router saw the first token before D's span of the first pass ended."""
    spans = records(Shape(egress=0, first_decode=9))
    token = EPOCH_NS + 355
    early = [
        SpanRecord(**_changed(s, events=(type(s.events[0])(s.events[0].name, token, {}),)))
        if s.name == sc.SPAN_REQUEST
        else s
        for s in spans
    ]
    found = only(early)
    assert found["ttft_ns"] == 355
    assert sum(found["phases"].values()) == 355
