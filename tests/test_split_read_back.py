"""KV that a request loads before its prefill: read back from D in a later turn, or from a cache."""

from dataclasses import replace
from typing import Any

from generator import EPOCH_NS, Rank, Shape, Writer, records

from pdtrace.analysis.handoffs import join
from pdtrace.analysis.records import SpanRecord
from pdtrace.analysis.report import request_records
from pdtrace.analysis.split import split
from pdtrace.analysis.table import build
from pdtrace.tracing import semconv as sc

P, D = sc.ROLE_PREFILL, sc.ROLE_DECODE


def only(spans: list[SpanRecord]) -> dict[str, Any]:
    """The JSON object of the only request in `spans`."""
    (found,) = request_records(split(join(build(spans))))
    return found


def test_what_a_later_turn_reads_back_is_told_from_the_handoff() -> None:
    """
    P  queue 20, blocks, worker has it +3, READ 2 + 15 back from D, seen +4, pass +2, prefill 300
    D  READ 2 + 15 from P as always
    """
    plain = Shape(mode="pull", dispatch="sequential")
    found = only(records(Shape(mode="pull", dispatch="sequential", back=(Rank(),))))
    more = {"registration": 3, "submit": 2, "transfer": 15, "landed_to_seen": 4, "requeue": 2}
    before = only(records(plain))
    assert found["ttft_ns"] == before["ttft_ns"] + 26
    assert found["phases"] == {
        name: ns + more.get(name, 0) for name, ns in before["phases"].items()
    }
    assert found["drag_ns"] == found["phases"]
    assert (found["flags"], found["rank_straggle_ns"]) == ([], None)


def test_a_handshake_to_read_back_is_no_submit() -> None:
    """P had not met D: 1 ns of the way to its worker and the submit is the handshake's."""
    spans = records(Shape(mode="pull", dispatch="sequential", back=(Rank(submit=9),)))
    submit = next(s for s in spans if s.name == sc.SPAN_READ_SUBMIT and s.resource[sc.ROLE] == P)
    writer = Writer("r-1", "pull")
    writer.span(sc.SPAN_HANDSHAKE, submit.start_ns + 1, submit.start_ns + 6, P)
    (shake,) = (replace(s, span_id="e" * 16) for s in writer.records)
    found = only([*spans, shake])
    assert (found["phases"]["handshake"], found["phases"]["submit"]) == (5, 2 + 4)
    assert found["drag_ns"] == found["phases"]
    assert found["flags"] == ["cold_handshake"]


def test_one_engine_that_loads_from_a_cache_first_waits_for_no_queue() -> None:
    """
    D  has 5, blocks 15, told 40, scheduled 45, prefill until 70: nothing says what the load did
    """
    writer = Writer("r", "none")
    token = ((sc.EVENT_FIRST_TOKEN, EPOCH_NS + 80),)
    writer.span(sc.SPAN_REQUEST, EPOCH_NS, EPOCH_NS + 100, events=token)
    for name, start, end in (
        (sc.SPAN_PREFILL_QUEUE, 5, 15),
        (sc.SPAN_KV_WAIT, 15, 40),
        (sc.SPAN_DECODE_START, 40, 45),
        (sc.SPAN_PREFILL, 45, 70),
        (sc.SPAN_DECODE, 70, 100),
    ):
        writer.span(name, EPOCH_NS + start, EPOCH_NS + end, D)
    found = only(writer.records)["phases"]
    assert found == {
        "ingress": 5,
        "prefill_queue": 10,
        "requeue": 5,
        "prefill": 25,
        "egress": 10,
        "unattributed": 25,
    }
