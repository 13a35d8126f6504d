"""Every open span ends within its limit, whatever never comes; the table of requests is bounded."""

import time

from opentelemetry.sdk.resources import Resource
from recorder_bench import Bench

from pdtrace.tracing import events as ev
from pdtrace.tracing import semconv as sc
from pdtrace.tracing.provider import Telemetry
from pdtrace.tracing.recorder import Recorder
from pdtrace.tracing.settings import Settings
from pdtrace.tracing.testing import CapturingExporter, CountedIds, span_dict

SECOND = 10**9


def endings(bench: Bench) -> list[tuple[str, int, int, object]]:
    """Name, start and end in seconds, and error of each span."""
    return [
        (s["name"], s["start"] // SECOND, s["end"] // SECOND, s["attributes"].get(sc.ERROR_TYPE))
        for s in bench.spans()
    ]


def test_an_open_span_that_outlives_its_limit_is_abandoned() -> None:
    """A registration that nobody ever answered; a limit later the request is forgotten."""
    bench = Bench(Settings(span_limit_s=5))
    bench.open()
    bench.at(SECOND, ev.DECODE_ARRIVED)
    bench.at(2 * SECOND, ev.DECODE_ALLOCATED)
    bench.expire(7 * SECOND)
    assert len(bench.recorder._assembler) == 1
    bench.expire(7 * SECOND + 1)
    assert endings(bench) == [
        ("pd.decode_admission", 1, 2, None),
        ("pd.kv_wait", 2, 7, sc.ERROR_ABANDONED),
    ]
    bench.expire(12 * SECOND)
    assert len(bench.recorder._assembler) == 1
    bench.expire(13 * SECOND)
    assert len(bench.recorder._assembler) == 0
    assert bench.recorder.losses() == {"abandoned": 1}


def test_each_span_has_its_own_limit() -> None:
    """Events of other spans do not keep one open, and one that is young survives it."""
    bench = Bench(Settings(span_limit_s=5))
    bench.open()
    bench.at(SECOND, ev.LEASE_BEGUN)
    bench.at(5 * SECOND, ev.HANDSHAKE_ASKED)
    bench.at(6 * SECOND, ev.LEASE_NOTIFIED)
    bench.expire(7 * SECOND)
    bench.at(8 * SECOND, ev.HANDSHAKE_USABLE)
    assert endings(bench) == [
        ("pd.lease", 1, 7, sc.ERROR_ABANDONED),
        ("pd.handshake", 5, 8, None),
    ]


def test_what_comes_after_an_abandoned_span_is_still_told() -> None:
    """The KV arrives after all: the wait was given up, the rest is as it happened."""
    bench = Bench(Settings(span_limit_s=5))
    bench.open()
    bench.at(1 * SECOND, ev.DECODE_ALLOCATED)
    bench.expire(7 * SECOND)
    bench.at(8 * SECOND, ev.KV_COMPLETE)
    bench.at(9 * SECOND, ev.DECODE_SCHEDULED)
    assert endings(bench) == [
        ("pd.kv_wait", 1, 7, sc.ERROR_ABANDONED),
        ("pd.decode_start", 8, 9, None),
    ]


def test_a_long_generation_has_a_limit_of_its_own() -> None:
    """Tokens come for longer than anything may wait."""
    bench = Bench(Settings(span_limit_s=5, decode_limit_s=60))
    bench.open()
    bench.at(SECOND, ev.LOCAL_HIT)
    bench.at(2 * SECOND, ev.FIRST_TOKEN)
    bench.expire(61 * SECOND)
    assert endings(bench) == [("pd.first_decode", 1, 2, None)]
    bench.expire(63 * SECOND)
    assert endings(bench)[1:] == [("pd.decode", 2, 63, sc.ERROR_ABANDONED)]


def test_a_request_with_nothing_open_is_forgotten_in_silence() -> None:
    """A worker waits for a registration: nothing is open, and nothing is lost."""
    bench = Bench(Settings(span_limit_s=5))
    bench.open()
    bench.at(SECOND, ev.PREFILL_END_BEGUN)
    bench.at(2 * SECOND, ev.BLOCKS_HANDED)
    bench.expire(7 * SECOND)
    assert len(bench.recorder._assembler) == 1
    bench.expire(8 * SECOND)
    assert len(bench.recorder._assembler) == 0
    assert bench.recorder.losses() == {}


def test_a_sweep_looks_no_further_than_the_first_young_request() -> None:
    """Requests are swept in the order in which they came."""
    bench = Bench(Settings(span_limit_s=5))
    for second, name in enumerate(("a", "b", "c")):
        bench.clock.mono = 3 * second * SECOND
        bench.open(request_id=name)
        bench.at(3 * second * SECOND, ev.DECODE_ARRIVED, request_id=name)
    bench.expire(9 * SECOND)
    names = [s["attributes"][sc.ENGINE_REQUEST_ID] for s in bench.spans()]
    assert names == ["a", "b"]


def test_the_table_of_open_requests_is_bounded() -> None:
    """The oldest goes, with its open span ended and the loss counted."""
    bench = Bench()
    bench.recorder._assembler._capacity = 2
    for name in ("a", "b", "c"):
        bench.open(request_id=name)
        bench.recorder.record(ev.DECODE_ARRIVED, name)
    (span,) = bench.spans()
    assert span["attributes"][sc.ENGINE_REQUEST_ID] == "a"
    assert bench.recorder.losses() == {"table_full": 1, "abandoned": 1}


def test_the_recorders_thread_sweeps_often_enough_for_a_short_limit() -> None:
    """With a limit of a fifth of a second nobody has to call anything."""
    exporter, settings = CapturingExporter(), Settings(span_limit_s=0.2, send_every_s=0.1)
    recorder = Recorder(Telemetry(Resource({}), exporter, CountedIds(), settings))
    recorder.record(ev.OPENED, "a", ev.RequestContext("", {}))
    recorder.record(ev.DECODE_ARRIVED, "a")
    deadline = time.monotonic() + 20
    while not exporter.spans:
        assert time.monotonic() < deadline, "not within 20 s"
        time.sleep(0.02)
    recorder.shutdown()
    (span,) = map(span_dict, exporter.spans)
    assert span["attributes"][sc.ERROR_TYPE] == sc.ERROR_ABANDONED
    assert span["end"] - span["start"] > 0.2 * SECOND
