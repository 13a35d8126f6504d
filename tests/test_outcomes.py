"""How requests ended: the outcome of each, and the table that counts them all."""

from dataclasses import replace
from typing import Any

import pytest
from generator import LOST, Shape, records

from pdtrace.analysis import report
from pdtrace.analysis.handoffs import join
from pdtrace.analysis.records import SpanRecord
from pdtrace.analysis.split import Split, split
from pdtrace.analysis.summary import summarise
from pdtrace.analysis.table import build
from pdtrace.tracing import semconv as sc

PULL = Shape(mode="pull", dispatch="sequential")
AFTER_THE_LOAD = (sc.SPAN_DECODE_START, sc.SPAN_FIRST_DECODE, sc.SPAN_DECODE)


def failing(
    errors: dict[str, str], shape: Shape = PULL, without: tuple[str, ...] = AFTER_THE_LOAD
) -> list[SpanRecord]:
    """The shape's spans with errors by span name; without a first token unless told."""
    spans = []
    for span in records(shape):
        if span.name in without:
            continue
        if span.name == sc.SPAN_REQUEST and without:
            span = replace(span, events=())
        if span.name in errors:
            said = {sc.ERROR_TYPE: errors[span.name]} if errors[span.name] else {}
            span = replace(span, status=2, attributes={**span.attributes, **said})
        spans.append(span)
    return spans


def done(spans: list[SpanRecord]) -> Split:
    return split(join(build(spans)))


def only(spans: list[SpanRecord]) -> dict[str, Any]:
    (found,) = report.request_records(done(spans))
    return found


@pytest.mark.parametrize(
    ("errors", "outcome"),
    [
        ({sc.SPAN_READ_SUBMIT: "handshake_failed", sc.SPAN_KV_WAIT: "read_failed"},
         "handshake_failed"),
        ({sc.SPAN_READ_COMPLETE: "peer_lost", sc.SPAN_REQUEST: "500"}, "peer_lost"),
        ({sc.SPAN_KV_WAIT: "aborted", sc.SPAN_LEASE: "lease_expired"}, "aborted"),
        ({sc.SPAN_REQUEST: "timeout"}, "timeout"),
        ({sc.SPAN_KV_WAIT: ""}, "error"),
        ({}, None),
    ],
)  # fmt: skip
def test_without_a_token_what_failed_first_is_the_outcome(
    errors: dict[str, str], outcome: str | None
) -> None:
    """On the engines, else at the router; it is listed, without a split."""
    found = only(failing(errors))
    assert (found["outcome"], found["ttft_ns"], found["phases"]) == (outcome, None, None)


@pytest.mark.parametrize(
    ("errors", "outcome"),
    [
        ({}, "ok"),
        ({sc.SPAN_DECODE: "aborted"}, "aborted"),
        ({sc.SPAN_REQUEST: "peer_lost"}, "peer_lost"),
        ({sc.SPAN_LEASE: "lease_expired"}, "ok"),
    ],
)
def test_with_a_token_only_what_ended_the_answer_counts(
    errors: dict[str, str], outcome: str
) -> None:
    """A lease that runs out afterwards spoils nothing."""
    assert only(failing(errors, without=()))["outcome"] == outcome


def test_a_lost_try_before_a_good_one_leaves_the_outcome_good() -> None:
    """It is a flag."""
    spans = [
        replace(s, attributes={**s.attributes, sc.ERROR_TYPE: "peer_lost"}) if s.status == 2 else s
        for s in records(replace(PULL, d_retry=30))
    ]
    assert any(str(s.attributes.get(sc.ENGINE_REQUEST_ID)).endswith(LOST) for s in spans)
    found = only(spans)
    assert (found["outcome"], found["flags"]) == ("ok", ["retried"])


def test_a_load_computed_again_is_told_from_a_good_one() -> None:
    """The client got its tokens, and not from P's blocks."""
    assert only(records(replace(PULL, recompute=50)))["outcome"] == "load_failed_recompute"


def test_every_request_is_in_the_table_of_outcomes() -> None:
    """The most frequent first; what is not known is counted as such."""
    spans = [s for i in range(3) for s in records(PULL, f"r-{i}")]
    # Ids of their own: these are no copies of the spans of `r-1`.
    for number, errors in enumerate(({sc.SPAN_KV_WAIT: "read_failed"}, {}), start=1):
        spans += [
            replace(
                s,
                span_id=f"{number}{s.span_id[1:]}",
                trace_id=f"{number}{s.trace_id[1:]}",
                attributes={**s.attributes, sc.REQUEST_ID: f"bad-{number}"},
            )
            for s in failing(errors)
        ]
    table = report.outcome_table(summarise(done(spans)))
    assert table.rows == [
        ("pull", "ok", "3"),
        ("pull", "not known", "1"),
        ("pull", "read_failed", "1"),
    ]
