"""A cause is named only if something beside the phase speaks for it."""

from dataclasses import replace

import pandas as pd
import pytest
from traffic import MS, START_NS, empty_spans, healthy, longer, some, with_columns, with_flag

from pdtrace.analysis import phases
from pdtrace.analysis.triage_causes import causes_of
from pdtrace.analysis.triage_evidence import Case
from pdtrace.analysis.triage_open import open_requests
from pdtrace.analysis.triage_traffic import Traffic
from pdtrace.tracing import semconv as sc

USUAL = healthy(200, 1)


def told(
    phase: str, slow: Traffic, rise_ms: float = 100, window: Traffic | None = None
) -> list[str]:
    """Anchors of the causes of a rise."""
    return [cause.anchor for cause in causes_of(case(phase, slow, rise_ms, window))]


def case(phase: str, slow: Traffic, rise_ms: float = 100, window: Traffic | None = None) -> Case:
    return Case(phase, rise_ms * MS, slow, USUAL, window or slow)


def constant(traffic: Traffic, value: object, kind: str = "Int64") -> pd.Series:
    return pd.Series([value] * len(traffic), index=traffic.requests.index, dtype=kind)


@pytest.mark.parametrize("phase", phases.NAMES)
def test_without_evidence_the_cause_is_not_known(phase: str) -> None:
    """The same requests with one phase longer, and nothing else."""
    slow = healthy(100, 2)
    slow = longer(slow, phase, some(slow, 1.0), 100)
    assert told(phase, with_columns(slow, transfer_bytes=constant(slow, pd.NA))) == []


@pytest.mark.parametrize(
    "phase, column, value, kind, anchor",
    [
        ("prefill", "prefill_gap_ns", 80 * MS, "Int64", "prefill-gaps"),
        ("registration", "dispatch", sc.DISPATCH_SEQUENTIAL, "str", "sequential-dispatch"),
        ("submit", "transfer_descriptors", 18_880, "Int64", "many-descriptors"),
        ("transfer", "transfer_bytes", 10**9, "Int64", "more-bytes"),
        ("transfer", "rank_straggle_ns", 90 * MS, "Int64", "one-slow-rank"),
        ("transfer", "transfer_bytes", 10**6, "Int64", "slow-transport"),
        ("requeue", "tpot_ns", 2 * MS, "Int64", "step-bound"),
        ("admission", "tpot_ns", 2 * MS, "Int64", ""),
    ],
)
def test_a_column_of_the_requests_can_speak_for_a_cause(
    phase: str, column: str, value: object, kind: str, anchor: str
) -> None:
    """And only where the phase rose that it explains."""
    traffic = healthy(100, 3)
    slow = with_columns(traffic, **{column: constant(traffic, value, kind)})
    assert told(phase, slow) == ([anchor] if anchor else [])
    assert told("egress", slow) == []


@pytest.mark.parametrize(
    "phase, flag, anchor",
    [
        ("prefill", "load_failed_recompute", "paid-twice"),
        ("handshake", "cold_handshake", "repeated-handshakes"),
        ("retry", "retried", "lost-tries"),
    ],
)
def test_a_flag_speaks_for_a_cause_if_enough_requests_have_it(
    phase: str, flag: str, anchor: str
) -> None:
    """Half of them, not a tenth."""
    traffic = healthy(100, 4)
    assert told(phase, with_flag(traffic, flag, some(traffic, 0.5))) == [anchor]
    assert told(phase, with_flag(traffic, flag, some(traffic, 0.1))) == []


def test_a_wait_that_grows_with_the_prompt_is_the_bodys() -> None:
    """By rank correlation over slow and usual requests."""
    traffic = healthy(200, 5, tokens=(256, 512, 1024, 4096))
    traffic.exposed["hop"] = traffic.requests["input_tokens"].astype("int64") * 1000
    assert told("hop", traffic) == ["wait-grows-with-the-prompt"]


def spans(*rows: dict[str, object]) -> pd.DataFrame:
    """Own spans with these columns, the rest as if not said."""
    base = {"preemptions": pd.NA, "side": sc.ROLE_DECODE, "engine_id": "d-0", "id": "", "role": ""}
    frame = pd.DataFrame([base | row for row in rows])
    return pd.concat([empty_spans(), frame.astype({"preemptions": "Int64"})], ignore_index=True)


def test_preemption_needs_the_counter_before_the_first_token() -> None:
    """A request that lost its place while it decoded did not get its first token late by it."""
    traffic = healthy(10, 6)
    names = traffic.requests.index
    for name, anchors in ((sc.SPAN_DECODE_START, ["preemption"]), (sc.SPAN_DECODE, [])):
        rows = ({"request_id": r, "name": name, "preemptions": 1} for r in names)
        assert told("decode_queue", replace(traffic, spans=spans(*rows))) == anchors


def test_blocks_held_by_waiting_loads_are_counted_at_the_first_attempt() -> None:
    """Three loads wait and one request runs: held; the other way round: not."""
    traffic = healthy(5, 7, decode_engines=1)
    attempted = constant(traffic, START_NS + 50)
    for waiting, running, anchors in ((3, 1, ["blocks-held-by-waiting-loads"]), (1, 3, [])):
        times = {"start_ns": START_NS, "end_ns": START_NS + 100}
        rows = [{"name": sc.SPAN_KV_WAIT, "request_id": "x", **times}] * waiting
        rows += [{"name": sc.SPAN_DECODE, "request_id": "y", **times}] * running
        rows += [{"name": sc.SPAN_KV_WAIT, "request_id": "z", **times, "engine_id": "d-9"}] * 9
        slow = replace(with_columns(traffic, attempted_ns=attempted), spans=spans(*rows))
        assert told("decode_capacity", slow) == anchors


def test_a_late_registration_says_which_side_was_slow() -> None:
    """70 ms until D sent it, 20 ms until P had it."""
    traffic = healthy(5, 8)
    slow = with_columns(
        traffic,
        allocated_ns=constant(traffic, START_NS),
        received_ns=constant(traffic, START_NS + 90 * MS),
    )
    sent = {"name": sc.SPAN_REGISTRATION, "start_ns": START_NS, "end_ns": START_NS + 70 * MS}
    slow = replace(slow, spans=spans(*({**sent, "request_id": r} for r in traffic.requests.index)))
    (cause,) = causes_of(case("registration", slow))
    assert cause.anchor == "late-registration"
    assert "70.0 ms until it was sent and 20.0 ms more" in cause.sentence


def test_open_requests_are_listed_with_age_and_last_event() -> None:
    """The oldest first; a request that failed has an end and is not among them."""
    traffic = healthy(4, 9)
    rows = traffic.requests.assign(standing=["open", "ranked", "no first token", "open"])
    at = START_NS
    seen = [("r-0", sc.SPAN_REGISTRATION, 10, 20), ("r-3", sc.SPAN_PREFILL, 0, 5)]
    seen += [("r-3", sc.SPAN_PREFILL_END, 5, 30), ("r-1", sc.SPAN_DECODE, 50, 100)]
    own = spans(
        *(
            {"request_id": r, "id": r, "name": n, "start_ns": at + s, "end_ns": at + e}
            for r, n, s, e in seen
        )
    )
    found = open_requests(replace(traffic, requests=rows, spans=own))
    columns = ["request", "age_ns", "last_event", "last_engine", "silent_ns"]
    assert found[columns].to_numpy().tolist() == [
        ["r-3", 100, sc.SPAN_PREFILL_END, "d-0", 70],
        ["r-0", 90, sc.SPAN_REGISTRATION, "d-0", 80],
    ]
