"""Causes: each needs evidence of its own beside the phase; without any the cause is not known.

Every cause and every phase has a section in docs/runbook.md under its anchor.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

import pandas as pd

from pdtrace.analysis import phases
from pdtrace.analysis.triage_attributes import preempted
from pdtrace.analysis.triage_evidence import (
    Case,
    bytes_per_second,
    held_on_d,
    median,
    rank_correlation,
    registration_legs,
    steps_waited,
)
from pdtrace.analysis.triage_traffic import COLD_HANDSHAKE, Traffic, flagged, share_of
from pdtrace.tracing import semconv

SLOW_LINK: Final = 1e9
"""Bytes per second under which a transport deserves a look."""
MANY: Final = 0.3
"""A sign must be on so many of the slow requests to be a cause of them."""


class Cause(NamedTuple):
    """A cause: its anchor in docs/runbook.md, and what was found, in a sentence."""

    anchor: str
    sentence: str


PREEMPTION: Final = "preemption"
PAID_TWICE: Final = "paid-twice"
PREFILL_GAPS: Final = "prefill-gaps"
STEP_BOUND: Final = "step-bound"
SEQUENTIAL: Final = "sequential-dispatch"
REGISTRATION_LATE: Final = "late-registration"
SLOW_TRANSPORT: Final = "slow-transport"
MORE_BYTES: Final = "more-bytes"
ONE_RANK: Final = "one-slow-rank"
DESCRIPTORS: Final = "many-descriptors"
HANDSHAKE_AGAIN: Final = "repeated-handshakes"
HELD_BLOCKS: Final = "blocks-held-by-waiting-loads"
BODY_SIZE: Final = "wait-grows-with-the-prompt"
LOST_TRY: Final = "lost-tries"
CAUSES: Final = (
    PREEMPTION,
    PAID_TWICE,
    PREFILL_GAPS,
    STEP_BOUND,
    SEQUENTIAL,
    REGISTRATION_LATE,
    SLOW_TRANSPORT,
    MORE_BYTES,
    ONE_RANK,
    DESCRIPTORS,
    HANDSHAKE_AGAIN,
    HELD_BLOCKS,
    BODY_SIZE,
    LOST_TRY,
)


def causes_of(case: Case) -> list[Cause]:
    """What the evidence speaks for, the most specific first; empty: not known."""
    found = (rule(case) for rule in (*_RULES.get(case.phase, ()), _preemption))
    return [cause for cause in found if cause is not None]


def _shares(case: Case, sign: Callable[[Traffic], pd.Series]) -> tuple[float, float]:
    return share_of(sign(case.slow)), share_of(sign(case.reference))


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _ms(ns: float) -> str:
    return f"{ns / 1e6:,.1f} ms"


def _preemption(case: Case) -> Cause | None:
    slow, usual = _shares(case, lambda traffic: preempted(traffic) != "")
    if slow < MANY or slow <= usual:
        return None
    return Cause(
        PREEMPTION,
        f"the engines' counters say that {_percent(slow)} of these requests lost their place "
        f"before the first token ({_percent(usual)} in the reference)",
    )


def _paid_twice(case: Case) -> Cause | None:
    flag = semconv.ERROR_LOAD_FAILED_RECOMPUTE
    slow, usual = _shares(case, lambda traffic: flagged(traffic.requests, flag))
    if slow < MANY or slow <= usual:
        return None
    return Cause(
        PAID_TWICE,
        f"{_percent(slow)} of these prompts were computed again on D after P had computed them "
        f"({_percent(usual)} in the reference)",
    )


def _prefill_gaps(case: Case) -> Cause | None:
    slow, usual = (
        median(traffic.requests["prefill_gap_ns"]) for traffic in (case.slow, case.reference)
    )
    if slow is None or usual is None or slow - usual < case.rise_ns / 2:
        return None
    return Cause(
        PREFILL_GAPS,
        f"these requests were running but in no batch for {_ms(slow)} (median; "
        f"{_ms(usual)} in the reference)",
    )


def _step_bound(case: Case) -> Cause | None:
    """Half a step on average if the data lands at any time; a step and a half at most."""
    steps = steps_waited(case)
    if steps is None or not 0.3 <= steps <= 1.5:
        return None
    waited = median(case.slow.exposed[case.phase])
    assert waited is not None
    return Cause(
        STEP_BOUND,
        f"the wait ({_ms(waited)}, median) is {steps:.1f} times a step of D: D looks only "
        "between its steps",
    )


def _sequential(case: Case) -> Cause | None:
    one_by_one = share_of(case.slow.requests["dispatch"] == semconv.DISPATCH_SEQUENTIAL)
    push = share_of(case.slow.requests["mode"] == semconv.MODE_PUSH)
    if one_by_one < 0.5 or push < 0.5:
        return None
    return Cause(
        SEQUENTIAL,
        f"{_percent(one_by_one)} of these requests were sent to D only after P had answered, so "
        "that the registration could not hide behind prefill",
    )


def _registration_late(case: Case) -> Cause | None:
    """Only where both legs went out together: then it could have been hidden."""
    together = share_of(case.slow.requests["dispatch"] == semconv.DISPATCH_CONCURRENT)
    legs = registration_legs(case)
    if together < 0.5 or legs is None:
        return None
    return Cause(
        REGISTRATION_LATE,
        f"D's registration took {_ms(legs[0])} until it was sent and {_ms(legs[1])} more until P "
        "had it (means)",
    )


def _slow_transport(case: Case) -> Cause | None:
    slow, usual = (median(bytes_per_second(traffic)) for traffic in (case.slow, case.reference))
    if slow is None or usual is None or slow >= SLOW_LINK or slow > usual / 2:
        return None
    return Cause(
        SLOW_TRANSPORT,
        f"the data moved at {slow / 1e9:.3f} GB/s or a little more (median; "
        f"{usual / 1e9:.3f} GB/s in the reference)",
    )


def _more_bytes(case: Case) -> Cause | None:
    slow, usual = (
        median(traffic.requests["transfer_bytes"]) for traffic in (case.slow, case.reference)
    )
    if slow is None or not usual or slow < 1.5 * usual:
        return None
    return Cause(
        MORE_BYTES,
        f"a handoff moved {slow / 1e6:,.1f} MB (median; {usual / 1e6:,.1f} MB in the reference)",
    )


def _one_rank(case: Case) -> Cause | None:
    slow, usual = (
        median(traffic.requests["rank_straggle_ns"]) for traffic in (case.slow, case.reference)
    )
    if slow is None or slow - (usual or 0) < case.rise_ns / 2:
        return None
    last = case.slow.requests["slowest_rank"]
    counts = last[last != ""].value_counts()
    who = f", most often {counts.index[0]}" if len(counts) else ""
    return Cause(
        ONE_RANK, f"the last rank was {_ms(slow)} behind the median of the ranks (median){who}"
    )


def _descriptors(case: Case) -> Cause | None:
    slow, usual = (
        median(traffic.requests["transfer_descriptors"]) for traffic in (case.slow, case.reference)
    )
    if slow is None or (usual is not None and slow < 1.5 * usual):
        return None
    reference = "not known" if usual is None else f"{usual:,.0f}"
    return Cause(
        DESCRIPTORS,
        f"a handoff posted {slow:,.0f} descriptors (median; {reference} in the reference)",
    )


def _handshake_again(case: Case) -> Cause | None:
    slow, usual = _shares(case, lambda traffic: flagged(traffic.requests, COLD_HANDSHAKE))
    if slow < MANY or slow <= usual:
        return None
    return Cause(
        HANDSHAKE_AGAIN,
        f"{_percent(slow)} of these requests waited for a handshake of a pair of engines that "
        f"had worked together before ({_percent(usual)} in the reference)",
    )


def _held_blocks(case: Case) -> Cause | None:
    held = held_on_d(case)
    if held is None or held[0] <= held[1]:
        return None
    return Cause(
        HELD_BLOCKS,
        f"when D first tried these requests {held[0]:.1f} loads were waiting for their data there "
        f"and {held[1]:.1f} requests were running (means): waiting loads hold the KV blocks",
    )


def _body_size(case: Case) -> Cause | None:
    waits = pd.concat([case.slow.exposed[case.phase], case.reference.exposed[case.phase]])
    sizes = pd.concat([case.slow.requests["input_tokens"], case.reference.requests["input_tokens"]])
    together = rank_correlation(waits.reset_index(drop=True), sizes.reset_index(drop=True))
    if together is None or together < 0.5:
        return None
    return Cause(
        BODY_SIZE,
        f"the wait grows with the prompt (rank correlation {together:.2f}): the router or its "
        "picker reads the body",
    )


def _lost_try(case: Case) -> Cause | None:
    slow, usual = _shares(case, lambda traffic: flagged(traffic.requests, "retried"))
    if slow < MANY or slow <= usual:
        return None
    return Cause(
        LOST_TRY,
        f"an earlier try of {_percent(slow)} of these requests was lost "
        f"({_percent(usual)} in the reference)",
    )


_Rule = Callable[[Case], Cause | None]
_RULES: Final[dict[str, tuple[_Rule, ...]]] = {
    phases.PREFILL: (_paid_twice, _prefill_gaps),
    phases.REGISTRATION: (_sequential, _registration_late),
    phases.HANDSHAKE: (_handshake_again,),
    phases.SUBMIT: (_descriptors,),
    phases.TRANSFER: (_one_rank, _slow_transport, _more_bytes),
    phases.LANDED_TO_SEEN: (_step_bound,),
    phases.REQUEUE: (_step_bound,),
    phases.ADMISSION: (_step_bound,),
    phases.DECODE_CAPACITY: (_held_blocks,),
    phases.HOP: (_body_size,),
    phases.INGRESS: (_body_size,),
    phases.RETRY: (_lost_try,),
}
