"""Sampling: one decision for one request everywhere, and what is kept in spite of it."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.sdk.trace.sampling import Decision, TraceIdRatioBased
from recorder_bench import ENGINE_ID, PARENT, Bench

from pdtrace.connector.carrier import RequestCarrier
from pdtrace.tracing import events as ev
from pdtrace.tracing import semconv as sc
from pdtrace.tracing.propagation import TraceContext, format_traceparent
from pdtrace.tracing.sampling import Sampler
from pdtrace.tracing.settings import Settings

RATIO = st.floats(0, 1)
ID = st.text("abcdef0123456789-", min_size=1, max_size=40)
TRACE_ID = st.integers(1, 2**128 - 1)
NONE = Sampler(0.0)
MS = 10**6
fast = settings(max_examples=40, deadline=None)


@fast
@given(RATIO, TRACE_ID)
def test_the_share_is_opentelemetrys(ratio: float, trace_id: int) -> None:
    """Bit for bit: whoever samples the same trace with the same ratio agrees with us."""
    theirs = TraceIdRatioBased(ratio).should_sample(None, trace_id, "n").decision
    ours = Sampler(ratio).decides(TraceContext(trace_id, 0, True))
    assert ours == (theirs is Decision.RECORD_AND_SAMPLE)


def seen(sampler: Sampler, traceparent: str, base_id: str, suffix: str) -> bool:
    """Whether a process with this sampler exports the request."""
    bench = Bench(Settings(), sampler)
    request_id = f"cmpl-{base_id}-0-{suffix}"
    bench.open(traceparent, request_id)
    bench.at(1, ev.PREFILL_ARRIVED, None, request_id)
    bench.at(2, ev.PREFILL_SCHEDULED, None, request_id)
    bench.at(3, ev.PREFILL_FINISHED, None, request_id)
    bench.at(4, ev.CLOSED, None, request_id)
    return bool(bench.spans())


@fast
@given(RATIO, ID)
def test_both_engines_decide_alike_with_nothing_propagated(ratio: float, base_id: str) -> None:
    """The trace id of both is derived from the request id that the router sent to both."""
    sampler = Sampler(ratio)
    assert seen(sampler, "", base_id, "00000001") == seen(sampler, "", base_id, "00000002")


@fast
@given(RATIO, ID, TRACE_ID, st.integers(1, 2**64 - 1), st.booleans())
def test_a_callers_decision_holds_unless_the_sampler_is_not_parent_based(
    ratio: float, base_id: str, trace_id: int, span_id: int, sampled: bool
) -> None:
    """Parent-based: the flag decides; else the trace's id does, on every engine alike."""
    caller = format_traceparent(trace_id, span_id, sampled)
    assert seen(Sampler(ratio), caller, base_id, "00000001") is sampled
    by_id = Sampler(ratio, parent_based=False)
    expected = by_id.decides(TraceContext(trace_id, 0, True))
    assert seen(by_id, caller, base_id, "00000001") is expected


@fast
@given(RATIO, ID, st.sampled_from(["", PARENT, PARENT[:-2] + "00"]))
def test_the_worker_decides_as_its_scheduler(ratio: float, base_id: str, caller: str) -> None:
    """It is given the caller's own context, not what the scheduler made of it."""
    sampler = Sampler(ratio)
    told = RequestCarrier(caller, 0).context()
    assert told.traceparent == caller
    assert seen(sampler, caller, base_id, "00000001") == seen(
        sampler, told.traceparent, base_id, "00000001"
    )


@pytest.mark.parametrize("ratio", [0.0, 1.0])
@pytest.mark.parametrize("flag", ["00", "01"])
def test_an_adopted_trace_brings_its_decision(ratio: float, flag: str) -> None:
    """P without context takes D's trace from the registration, and D's decision with it."""
    bench = Bench(Settings(), Sampler(ratio))
    bench.open()
    bench.at(1, ev.MATCH_BEGUN)
    bench.at(1, ev.ADOPTED, PARENT[:-2] + flag)
    bench.at(2, ev.MATCHED)
    bench.at(3, ev.CLOSED)
    assert [span["name"] for span in bench.spans()] == (["pd.match"] if flag == "01" else [])


def decode(bench: Bench, token_ms: int, end_ms: int, error: str = "") -> list[dict[str, Any]]:
    """A request on D with its first token and its end at these instants; what is exported."""
    data: dict[str, Any] = {sc.ERROR_TYPE: error} if error else {}
    bench.at(10 * MS, ev.OPENED, ev.RequestContext("", {}))
    bench.at(10 * MS, ev.DECODE_ARRIVED)
    bench.at(11 * MS, ev.LOCAL_HIT)
    bench.at(token_ms * MS, ev.FIRST_TOKEN)
    assert bench.spans() == []
    bench.at(end_ms * MS, ev.DECODE_FINISHED, data)
    return bench.spans()


def test_an_unsampled_request_leaves_nothing_and_is_no_loss() -> None:
    """Counted apart: nobody wanted its spans."""
    bench = Bench(Settings(), NONE)
    assert decode(bench, 20, 9000) == []
    assert bench.recorder.losses() == {}
    assert bench.recorder._assembler.sampled_out == 1


def test_a_failed_request_is_kept_whole() -> None:
    """With the spans that ended well before the error."""
    spans = decode(Bench(Settings(), NONE), 20, 30, sc.ERROR_ABORTED)
    assert [span["name"] for span in spans] == [
        "pd.decode_admission",
        "pd.first_decode",
        "pd.decode",
    ]
    assert decode(Bench(Settings(keep_errors=False), NONE), 20, 30, sc.ERROR_ABORTED) == []


@pytest.mark.parametrize(("token_ms", "kept"), [(110, False), (111, True)])
def test_a_slow_request_is_one_that_waited_longer_for_its_first_token(
    token_ms: int, kept: bool
) -> None:
    """From the first that this process knows of it; a long answer is not slow."""
    spans = decode(Bench(Settings(slow_ms=100), NONE), token_ms, 9000)
    assert bool(spans) is kept


@pytest.mark.parametrize(("end_ms", "kept"), [(110, False), (111, True)])
def test_where_no_first_token_is_known_the_end_counts(end_ms: int, kept: bool) -> None:
    """P and the workers know when they are done with the request."""
    bench = Bench(Settings(slow_ms=100), NONE)
    bench.at(10 * MS, ev.OPENED, ev.RequestContext("", {}))
    bench.at(20 * MS, ev.LEASE_BEGUN)
    bench.at(end_ms * MS, ev.LEASE_ENDED)
    assert bool(bench.spans()) is kept


def test_an_abandoned_span_is_an_error() -> None:
    """What nothing ever ended is kept."""
    bench = Bench(Settings(span_limit_s=5), NONE)
    bench.open()
    bench.at(1, ev.DECODE_ARRIVED)
    bench.expire(6 * 10**9)
    bench.expire(12 * 10**9)  # when the request is forgotten
    (span,) = bench.spans()
    assert span["attributes"][sc.ERROR_TYPE] == sc.ERROR_ABANDONED


def test_an_error_with_nothing_open_keeps_the_request() -> None:
    """A load failed after every span of this side had ended."""
    bench = Bench(Settings(), NONE)
    bench.open()
    bench.at(1, ev.PREFILL_END_BEGUN)
    bench.at(2, ev.BLOCKS_HANDED)
    bench.at(3, ev.CLOSED, {sc.ERROR_TYPE: sc.ERROR_WRITE_FAILED})
    assert [span["name"] for span in bench.spans()] == ["pd.prefill_end"]


def test_what_is_held_is_bounded_and_what_does_not_fit_is_counted() -> None:
    """The bound is that of the queue behind it; it is free again when requests end."""
    settings = Settings(queue_spans=3)
    bench = Bench(settings, NONE)
    for name in ("a", "b"):
        bench.open(request_id=name)
        for mono in (1, 3):
            bench.at(mono, ev.HANDSHAKE_ASKED, None, name)
            bench.at(mono + 1, ev.HANDSHAKE_USABLE, None, name)
    for name in ("a", "b"):
        bench.at(9, ev.CLOSED, {sc.ERROR_TYPE: sc.ERROR_ABORTED}, name)
    assert len(bench.spans()) == 3
    assert bench.recorder.losses() == {"hold_full": 1}
    assert bench.recorder._assembler._held == 0


def test_at_shutdown_open_unsampled_requests_are_kept_as_errors() -> None:
    """An engine that dies with a request in it is worth a trace."""
    bench = Bench(Settings(), NONE)
    bench.open()
    bench.at(1, ev.DECODE_ARRIVED)
    bench.recorder.shutdown()
    (span,) = bench.spans()
    assert span["attributes"][sc.ENGINE_REQUEST_ID] == ENGINE_ID
