"""What recording costs: an event on an engine's thread, and a span on the background thread.

    python benchmarks/hot_path.py [--json]

Both sides run in this one process, in turn, so that a slow moment of the machine meets both:
our event against the OpenTelemetry SDK's span (start and end, recorded, its export discarded), and
our way from events through the queue to OTLP bytes against the SDK's way from spans to OTLP bytes,
once for spans as the connector makes them (about seven attributes) and once for lean ones (three).
Times are CPU time of the thread. Whatever else the machine does only adds to them, so the figure of
a part is the least of its rounds; the median stands beside it, and ratios are medians of each
round's own. Memory is what Python allocates for an open request, for a full buffer of events and
for a full queue of spans.
"""

import argparse
import gc
import json
import statistics
import time
import tracemalloc
from collections.abc import Callable, Sequence

from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from pdtrace.tracing import events as ev
from pdtrace.tracing import semconv as sc
from pdtrace.tracing.encode import encode_request
from pdtrace.tracing.provider import OwnRandomIds, Telemetry
from pdtrace.tracing.recorder import Recorder
from pdtrace.tracing.settings import Settings
from pdtrace.tracing.span import Finished, readable

ROUNDS = 25
EVENTS = 20_000
SDK_SPANS = 1_000
REQUESTS = 400
KINDS = ("", "lean_")
ATTRIBUTES = {sc.EXTERNAL_TOKENS: 4799}


class DiscardingProcessor(SpanProcessor):
    """Takes ended spans and keeps none: the SDK's span alone is measured."""


class EncodingExporter(SpanExporter):
    """Our encoder, and nothing after it; keeps the last batch for the SDK's."""

    takes_records = True

    def __init__(self) -> None:
        self.last: Sequence[Finished] = ()

    def export(self, spans: Sequence[Finished]) -> SpanExportResult:
        """Encode, without giving the interpreter away."""
        encode_request(spans, pause=int)
        self.last = spans
        return SpanExportResult.SUCCESS


def make_recorder(capacity: int) -> Recorder:
    """A recorder without its threads, so that each part runs where it is measured."""
    resource = Resource({"service.name": "vllm-decode", sc.ENGINE_ID: "decode-0"})
    settings = Settings(buffer_events=capacity)
    telemetry = Telemetry(resource, EncodingExporter(), OwnRandomIds(), settings)
    return Recorder(telemetry, start=False)


def time_events(recorder: Recorder) -> float:
    """Nanoseconds per recorded event; the empty loop around it is taken off."""
    record, kind, request_id = recorder.record, ev.DECODE_ATTEMPTED, "cmpl-request-0-0123abcd"
    began = time.thread_time_ns()
    for _ in range(EVENTS):
        record(kind, request_id, ATTRIBUTES)
    took = time.thread_time_ns() - began
    began = time.thread_time_ns()
    for _ in range(EVENTS):
        pass
    took -= time.thread_time_ns() - began
    recorder._events.clear()
    return took / EVENTS


def time_sdk_spans(provider: TracerProvider) -> float:
    """Nanoseconds per SDK span, start and end with one attribute."""
    tracer = provider.get_tracer("benchmark")
    began = time.thread_time_ns()
    for _ in range(SDK_SPANS):
        tracer.start_span("pd.kv_wait", attributes=ATTRIBUTES).end()
    return (time.thread_time_ns() - began) / SDK_SPANS


def record_requests(recorder: Recorder, first: int, lean: bool = False) -> None:
    """Decode legs as the connector records them: seven spans each, two of them with an event.

    `lean`: what all spans of a request share is its two ids.
    """
    record = recorder.record
    for number in range(first, first + REQUESTS):
        base = f"3d2f0f6e-2222-4b4b-8b8b-{number:012d}"
        request_id = f"cmpl-{base}-0-23d0e5e7"
        # Spread, so that hardly one comes again.
        tokens = 64 + number * 7919 % 8191
        common = {
            sc.MODE: "push",
            sc.MODEL: "demo",
            sc.INPUT_TOKENS: tokens,
            sc.PEER_ENGINE_ID: "prefill-0",
        }
        traceparent = f"00-{number + 1:032x}-{number + 1:016x}-01"
        record(ev.OPENED, request_id, ev.RequestContext(traceparent, {} if lean else common))
        record(ev.DECODE_ARRIVED, request_id)
        record(ev.DECODE_ATTEMPTED, request_id)
        record(ev.DECODE_ALLOCATED, request_id)
        record(ev.REGISTRATION_BEGUN, request_id)
        record(ev.NOTIFICATION_SEEN, request_id, {sc.PEER_TP_RANK: 0})
        record(ev.KV_COMPLETE, request_id, {sc.EXTERNAL_TOKENS: tokens - 1})
        record(ev.DECODE_SCHEDULED, request_id, {sc.PREEMPTIONS: 0})
        record(ev.FIRST_TOKEN, request_id, {sc.RECOMPUTED_TOKENS: 1})
        data = {sc.REGISTRATION_BYTES: 4096}
        record(ev.HANDSHAKE_ASKED, request_id)
        record(ev.EventKind("sent", ends=(sc.SPAN_REGISTRATION,)), request_id, data)
        record(ev.DECODE_FINISHED, request_id, {sc.OUTPUT_TOKENS: tokens // 8, sc.PREEMPTIONS: 0})


def time_background(
    recorder: Recorder, first: int, lean: bool
) -> tuple[float, Sequence[ReadableSpan]]:
    """Microseconds per span from events to OTLP bytes, and some of the spans."""
    record_requests(recorder, first, lean)
    before = recorder.exported
    began = time.thread_time_ns()
    # What `flush` does, but for giving the interpreter away after each slice.
    while recorder._apply_slice():
        pass
    recorder._hand_over()
    recorder._sender.flush()
    took = time.thread_time_ns() - began
    exporter = recorder._telemetry.exporter
    assert isinstance(exporter, EncodingExporter)
    return took / (recorder.exported - before) / 1000, readable(exporter.last)


def time_sdk_encoding(spans: Sequence[ReadableSpan]) -> float:
    """Microseconds per span that the SDK needs from finished spans to bytes."""
    began = time.thread_time_ns()
    encode_spans(spans).SerializeToString()
    return (time.thread_time_ns() - began) / len(spans) / 1000


def allocated_by(make: Callable[[], None]) -> int:
    """Bytes that are allocated when `make` is done and were not before."""
    gc.collect()
    tracemalloc.start()
    make()
    gc.collect()
    now = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return now


def open_requests(recorder: Recorder, number: int) -> None:
    """Decode legs that wait for their KV cache."""
    for request in range(number):
        base = f"3d2f0f6e-2222-4b4b-8b8b-{request:012d}"
        request_id = f"cmpl-{base}-0-23d0e5e7"
        common = {sc.MODE: "push", sc.MODEL: "demo", sc.INPUT_TOKENS: 4800 + request}
        recorder.record(ev.OPENED, request_id, ev.RequestContext("", common))
        recorder.record(ev.DECODE_ARRIVED, request_id)
        recorder.record(ev.DECODE_ALLOCATED, request_id)
        recorder._drain()


def full_buffer(recorder: Recorder) -> None:
    """As many events as fit, each with an attribute of its own."""
    for number in range(Settings().buffer_events):
        recorder.record(ev.KV_COMPLETE, f"cmpl-{number:012d}-0", {sc.EXTERNAL_TOKENS: number})


def full_queue(recorder: Recorder) -> None:
    """As many finished spans as fit, five of a request."""
    number = 0
    while recorder.losses().get("queue_full", 0) == 0:
        record_requests(recorder, number)
        number += REQUESTS
        recorder._drain()
        recorder._hand_over()


def measure_memory() -> dict[str, float]:
    """Bytes of an open request, megabytes of what is bounded when it is full."""
    number = 2000
    opening, buffering, queueing = (make_recorder(Settings().buffer_events) for _ in range(3))
    return {
        "open_request_bytes": allocated_by(lambda: open_requests(opening, number)) / number,
        "full_buffer_mb": allocated_by(lambda: full_buffer(buffering)) / 1e6,
        "full_queue_mb": allocated_by(lambda: full_queue(queueing)) / 1e6,
    }


def measure() -> dict[str, float]:
    """Least and median of each part over rounds; each round measures every part once."""
    recorder = make_recorder(capacity=10 * EVENTS)
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(DiscardingProcessor())
    rounds: dict[str, list[float]] = {}

    def note(key: str, value: float) -> None:
        rounds.setdefault(key, []).append(value)

    gc.collect()
    gc.disable()
    for number in range(ROUNDS + 1):
        warm = note if number else _forget
        warm("event_ns", time_events(recorder))
        warm("sdk_span_ns", time_sdk_spans(provider))
        for kind in KINDS:
            took, spans = time_background(recorder, number * REQUESTS, kind == "lean_")
            warm(f"{kind}background_us_per_span", took)
            warm(f"{kind}sdk_encode_us_per_span", time_sdk_encoding(spans))
            if number:
                made_us = rounds["sdk_span_ns"][-1] / 1000
                path = made_us + rounds[f"{kind}sdk_encode_us_per_span"][-1]
                note(f"{kind}sdk_path_us_per_span", path)
            gc.collect()
    gc.enable()
    found = {key: min(values) for key, values in rounds.items()}
    found |= {f"{key}_median": statistics.median(values) for key, values in rounds.items()}
    for name, sdk, own in (
        ("sdk_span_per_event", "sdk_span_ns", "event_ns"),
        ("sdk_encode_per_background", "sdk_encode_us_per_span", "background_us_per_span"),
        ("sdk_path_per_background", "sdk_path_us_per_span", "background_us_per_span"),
        (
            "lean_sdk_path_per_background",
            "lean_sdk_path_us_per_span",
            "lean_background_us_per_span",
        ),
    ):
        ratios = [a / b for a, b in zip(rounds[sdk], rounds[own], strict=True)]
        found[name] = statistics.median(ratios)
    return found | measure_memory()


def _forget(key: str, value: float) -> None:
    """The first round warms caches up."""


def main(printed: Callable[[str], None] = print) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--json", action="store_true", help="one JSON object instead of text")
    as_json = parser.parse_args().json
    found = measure()
    if as_json:
        printed(json.dumps({key: round(value, 2) for key, value in found.items()}))
        return
    rows = (
        ("event on the engine's thread", "event_ns", "ns"),
        ("SDK span, start and end", "sdk_span_ns", "ns"),
        ("background: events to OTLP", "background_us_per_span", "us per span"),
        ("SDK: finished span to OTLP", "sdk_encode_us_per_span", "us per span"),
        ("background, lean span", "lean_background_us_per_span", "us per span"),
        ("SDK, lean span, made and sent", "lean_sdk_path_us_per_span", "us per span"),
    )
    printed(f"{'CPU time':<30}{'least':>10}{'median':>10}   of {ROUNDS} rounds")
    for what, key, unit in rows:
        printed(f"{what:<30}{found[key]:>10.1f}{found[f'{key}_median']:>10.1f}   {unit}")
    printed(
        f"an SDK span costs {found['sdk_span_per_event']:.0f} events; "
        f"the SDK's encoding alone {found['sdk_encode_per_background']:.1f} times our background, "
        f"with the span {found['sdk_path_per_background']:.1f} times, "
        f"{found['lean_sdk_path_per_background']:.1f} times for lean spans"
    )
    printed(
        f"an open request takes {found['open_request_bytes']:.0f} bytes, "
        f"a full buffer of events {found['full_buffer_mb']:.0f} MB, "
        f"a full queue of spans {found['full_queue_mb']:.0f} MB"
    )


if __name__ == "__main__":
    main()
