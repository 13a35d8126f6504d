"""The verdict: every planted fault is named first, and a healthy run is not blamed on anything."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from traffic import MS, START_NS, healthy, longer, on, some, with_columns, with_flag

from pdtrace.analysis.triage import (
    FACTOR,
    NO_RISE,
    NO_SINGLE,
    NOTHING_SLOW,
    TOO_FEW,
    UNRESOLVED,
    WORKLOAD,
    Triage,
    triage,
)
from pdtrace.analysis.triage_sets import BASELINE, Objective
from pdtrace.analysis.triage_traffic import INCOMPLETE, Traffic
from pdtrace.analysis.triage_words import verdict_sentences

SLO = Objective(slo_ns=160 * MS)
SLOWEST = Objective(share=0.05)


def named(found: Triage) -> tuple[str, str | None, str | None, str | None]:
    """Kind, phase, attribute, value."""
    verdict = found.verdict
    chosen = verdict.chosen
    return (
        verdict.kind,
        verdict.phase,
        chosen and chosen.attribute,
        chosen and chosen.value,
    )


def slow_p(traffic: Traffic) -> Traffic:
    return longer(traffic, "prefill_queue", on(traffic, prefill_engine="p-1"), 150)


def slow_d(traffic: Traffic) -> Traffic:
    return longer(traffic, "first_decode", on(traffic, decode_engine="d-3"), 150)


def bad_pair(traffic: Traffic) -> Traffic:
    where = on(traffic, prefill_engine="p-0", decode_engine="d-1")
    return longer(traffic, "submit", where, 150)


def late_registrations(traffic: Traffic) -> Traffic:
    return longer(traffic, "registration", some(traffic, 0.15), 150)


def slow_transfer(traffic: Traffic) -> Traffic:
    return longer(traffic, "transfer", on(traffic, prefill_engine="p-1"), 150)


def no_blocks(traffic: Traffic) -> Traffic:
    return longer(traffic, "decode_capacity", on(traffic, decode_engine="d-0"), 150)


def handshakes_again(traffic: Traffic) -> Traffic:
    where = some(traffic, 0.1) & (traffic.requests["t0_ns"] > START_NS + 60_000 * MS)
    return longer(with_flag(traffic, "cold_handshake", where), "handshake", where, 150)


@pytest.mark.parametrize(
    "fault, phase, attribute, value, anchors",
    [
        (slow_p, "prefill_queue", "prefill_engine", "p-1", []),
        (slow_d, "first_decode", "decode_engine", "d-3", []),
        (bad_pair, "submit", "pair", "p-0 → d-1", []),
        (late_registrations, "registration", "registration_late", "yes", []),
        (slow_transfer, "transfer", "prefill_engine", "p-1", ["slow-transport"]),
        (no_blocks, "decode_capacity", "decode_engine", "d-0", []),
        (handshakes_again, "handshake", "handshake", "yes", ["repeated-handshakes"]),
    ],
)
def test_a_planted_fault_is_named_first(
    fault: Callable[[Traffic], Traffic], phase: str, attribute: str, value: str, anchors: list[str]
) -> None:
    """Phase and place; a cause only where something beside the phase speaks for it."""
    found = triage(fault(healthy(3000, 21)), SLO)
    assert named(found) == (FACTOR, phase, attribute, value)
    verdict = found.verdict
    assert verdict.d_ns == pytest.approx(150e6, rel=0.1)
    assert verdict.chosen is not None and verdict.chosen.coverage_low > 0.6
    assert [cause.anchor for cause in verdict.causes] == anchors
    assert verdict.advice == phase


def test_the_sentence_has_the_numbers() -> None:
    """What, by how much, where, since when, which others are the same."""
    traffic = healthy(3000, 22)
    late = on(traffic, decode_engine="d-3") & (traffic.requests["t0_ns"] >= START_NS + 300_000 * MS)
    lines = verdict_sentences(triage(longer(traffic, "landed_to_seen", late, 150), SLO))
    assert lines[0].startswith("landed_to_seen +147 ms (") and "% of the rise" in lines[0]
    assert "in requests on D engine d-3 (" in lines[0] and "at least" in lines[0]
    assert lines[1].startswith("Since 2026-11-29 10:0")
    assert lines[2] == "Exactly the same requests have: D host host-d-3."
    assert lines[3].startswith("Cause: not known")


def test_two_places_at_once_are_no_single_attribute() -> None:
    """A fault that strikes anywhere: the phase is named, no engine is."""
    traffic = healthy(3000, 23)
    found = triage(longer(traffic, "match", some(traffic, 0.1), 150), SLO)
    assert named(found) == (NO_SINGLE, "match", None, None)


def test_one_engine_on_each_side_is_no_place_to_be_told_apart() -> None:
    """The phase and its time are all that can be named."""
    traffic = healthy(1500, 38, prefill_engines=1, decode_engines=1)
    late = traffic.requests["t0_ns"] >= START_NS + 400_000 * MS
    found = triage(longer(traffic, "prefill_queue", late, 150), SLO)
    assert named(found) == (NO_SINGLE, "prefill_queue", None, None)
    lines = verdict_sentences(found)
    assert "no place to be told apart" in lines[0]
    assert lines[1].startswith("Since 2026-11-29 10:06:")


def test_a_mixed_fault_names_no_engine() -> None:
    """Four small faults in four engines and phases: none covers three tenths."""
    traffic = healthy(4000, 24)
    for number, phase in enumerate(("admission", "requeue", "match", "submit")):
        where = on(traffic, decode_engine=f"d-{number}") & some(traffic, 0.1, seed=number)
        traffic = longer(traffic, phase, where, 150)
    assert triage(traffic, SLO).verdict.kind == NO_SINGLE


def test_a_control_run_under_its_objective_has_no_verdict() -> None:
    """Nothing is slow, so nothing is explained."""
    found = triage(healthy(1000, 25), Objective(slo_ns=500 * MS))
    assert named(found) == (NOTHING_SLOW, None, None, None)
    assert found.ledger is None and found.lift is None


def test_the_slowest_of_healthy_runs_are_not_blamed_on_anything() -> None:
    """Natural spread over 20 runs: at most 5 % name an attribute; the words say what it may be."""
    verdicts = [triage(healthy(700, seed), SLOWEST) for seed in range(100, 120)]
    kinds = [found.verdict.kind for found in verdicts]
    assert kinds.count(NO_SINGLE) == 20 - kinds.count(FACTOR) and kinds.count(FACTOR) <= 1
    assert "natural spread" in verdict_sentences(verdicts[0])[0]


def test_a_control_run_against_another_one_has_no_verdict() -> None:
    """Requests over the limit are as frequent in the baseline."""
    found = triage(healthy(1000, 26), Objective(slo_ns=130 * MS), healthy(1000, 27), BASELINE)
    assert found.verdict.kind == NO_RISE
    assert "not more frequent here than in the baseline" in verdict_sentences(found)[0]


def test_a_fault_against_a_baseline_is_named() -> None:
    """Every request is slower than all of the baseline: the phase, but no place of it."""
    everywhere = healthy(1000, 28)
    found = triage(
        longer(everywhere, "hop", some(everywhere, 1.0), 150), SLO, healthy(1000, 29), BASELINE
    )
    assert named(found)[:2] == (NO_SINGLE, "hop")
    assert found.verdict.share == pytest.approx(1, abs=0.1)


def test_longer_prompts_alone_are_a_changed_workload() -> None:
    """Prefill grows with the prompt; every length is as fast as it was."""
    before = healthy(1500, 30, tokens=(512, 512, 512, 2048))
    after = healthy(1500, 31, tokens=(512, 2048, 2048, 4096))
    found = triage(after, Objective(share=0.3), before, BASELINE)
    assert found.verdict.kind == WORKLOAD
    assert found.mix_share is not None and found.mix_share > 0.9
    assert found.verdict.chosen is None


def test_the_long_prompts_of_a_healthy_run_are_its_workload() -> None:
    """They are the slowest of every run: said so, and nothing is blamed without a baseline."""
    found = triage(healthy(1500, 39, tokens=(256, 512, 1024)), SLOWEST)
    assert named(found) == (WORKLOAD, "prefill", "prompt_length", "1024–2047 tokens")
    assert "Only a baseline tells" in verdict_sentences(found)[0]


def test_a_slow_engine_is_found_beneath_the_long_prompts() -> None:
    """Many slow requests are just long ones; within equal lengths it is the engine."""
    traffic = healthy(4000, 40, tokens=(256, 512, 1024))
    slow = longer(traffic, "submit", on(traffic, decode_engine="d-1"), 100)
    found = triage(slow, Objective(share=0.4))
    assert named(found) == (FACTOR, "submit", "decode_engine", "d-1")
    assert found.lift is not None and "prompt_length" in found.lift["attribute"].head(4).tolist()


def test_a_fault_beside_a_few_longer_prompts_is_still_found() -> None:
    """Mix below one half."""
    traffic = healthy(3000, 32, tokens=(512,) * 19 + (1024,))
    found = triage(longer(traffic, "requeue", on(traffic, decode_engine="d-1"), 200), SLO)
    assert named(found) == (FACTOR, "requeue", "decode_engine", "d-1")


@pytest.mark.parametrize("halfwidth_ms, kind", [(20, FACTOR), (400, UNRESOLVED)])
def test_wide_clock_intervals_leave_a_wait_between_hosts_unresolved(
    halfwidth_ms: int, kind: str
) -> None:
    """A hop of 150 ms more, clocks known to ±20 or ±400 ms."""
    traffic = healthy(2000, 33)
    slow = longer(traffic, "hop", on(traffic, decode_engine="d-2"), 150)
    width = pd.Series(halfwidth_ms * MS, index=traffic.requests.index, dtype="Int64")
    found = triage(with_columns(slow, clock_halfwidth_ns=width), SLO)
    assert found.verdict.kind == kind and found.verdict.phase == "hop"
    if kind == UNRESOLVED:
        head = verdict_sentences(found)[0]
        assert head.startswith("Not resolved by the clocks: hop +15") and "± 400 ms" in head


def test_wide_clock_intervals_do_not_touch_a_wait_on_one_host() -> None:
    """Both ends of a queue are on one clock."""
    traffic = slow_p(healthy(2000, 34))
    width = pd.Series(10**12, index=traffic.requests.index, dtype="Int64")
    found = triage(with_columns(traffic, clock_halfwidth_ns=width), SLO)
    assert named(found) == (FACTOR, "prefill_queue", "prefill_engine", "p-1")


@pytest.mark.parametrize("count, slow", [(500, 29), (90, 45)])
def test_small_sets_are_too_few(count: int, slow: int) -> None:
    """29 slow ones, or 44 that are the middle half: the counts are said."""
    traffic = healthy(count, 35)
    where = pd.Series(np.arange(count) < slow, index=traffic.requests.index)
    found = triage(longer(traffic, "hop", where, 300), Objective(slo_ns=250 * MS))
    assert named(found) == (TOO_FEW, None, None, None)
    assert f"slow {slow} (30 are needed)" in verdict_sentences(found)[0]


def test_answers_that_may_be_wrong_and_cold_pairs_are_counted_and_not_compared() -> None:
    """They would rank first by far; they are in the counts only."""
    traffic = healthy(1000, 36)
    rows = traffic.requests
    wrong, cold = (pd.Series(np.arange(1000) // 10 == n, index=rows.index) for n in (5, 0))
    # The first ten requests arrive before any has an answer.
    rows.loc[cold, "t0_ns"] = START_NS
    traffic = longer(with_flag(traffic, "lease_expired", wrong), "transfer", wrong, 5000)
    traffic = longer(with_flag(traffic, "cold_handshake", cold), "handshake", cold, 2000)
    found = triage(traffic, Objective(slo_ns=500 * MS))
    assert found.verdict.kind == NOTHING_SLOW
    counts = found.standings[["requests", "over_limit"]].T.to_dict("list")
    assert counts == {"cold": [10, 10], "doubtful": [10, 10], "ranked": [980, 0]}
    assert len(found.doubtful) == 10


def test_the_same_input_gives_the_same_verdict_in_any_order() -> None:
    """Nothing depends on chance or on the order of the rows."""
    traffic = slow_d(healthy(2000, 37))
    order = np.random.default_rng(1).permutation(2000)
    rows, exposed = traffic.requests.iloc[order], traffic.exposed.iloc[order]
    hidden, drag = traffic.hidden.iloc[order], traffic.drag.iloc[order]
    mixed = Traffic(rows, exposed, hidden, drag, traffic.spans)
    assert triage(mixed, SLO).verdict.chosen == triage(traffic, SLO).verdict.chosen
    assert triage(traffic, SLO).verdict.share_low == triage(traffic, SLO).verdict.share_low


def test_d_s_own_waits_behind_p_are_measured_on_two_clocks() -> None:
    """With both legs sent together they are exposed only from P's end on."""
    traffic = healthy(2000, 41)
    traffic = longer(traffic, "decode_capacity", on(traffic, decode_engine="d-1"), 150)
    index = traffic.requests.index
    width = pd.Series(10**12, index=index, dtype="Int64")
    for dispatch, kind in (("concurrent", UNRESOLVED), ("sequential", FACTOR)):
        said = pd.Series(dispatch, index=index, dtype="str")
        found = triage(with_columns(traffic, clock_halfwidth_ns=width, dispatch=said), SLO)
        assert (found.verdict.kind, found.verdict.phase) == (kind, "decode_capacity")


def test_without_anything_to_compare_nothing_is_said_to_be_well() -> None:
    """All are slow, and of none is the evidence whole."""
    traffic = healthy(300, 42)
    traffic = replace(traffic, requests=traffic.requests.assign(standing=INCOMPLETE))
    assert triage(traffic, Objective(slo_ns=1)).verdict.kind == TOO_FEW


def test_a_phase_that_became_shorter_has_no_since() -> None:
    """The fault was there from the beginning, and went."""
    traffic = healthy(4000, 43)
    rows = traffic.requests
    early = rows["t0_ns"].rank() < 2000
    where = on(traffic, decode_engine="d-1")
    healed = triage(longer(traffic, "first_decode", where & early, 150), SLO)
    broken = triage(longer(traffic, "first_decode", where & ~early, 150), SLO)
    assert healed.verdict.when is not None and healed.verdict.when.shift is None
    assert broken.verdict.when is not None and broken.verdict.when.shift is not None
