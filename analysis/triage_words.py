"""The verdict in sentences: what rose, where, since when, why if that is known, what to do."""

from datetime import UTC, datetime
from typing import Final

from pdtrace.analysis.triage import (
    FACTOR,
    NO_RISE,
    NO_SINGLE,
    NOTHING_SLOW,
    TOO_FEW,
    UNRESOLVED,
    WORKLOAD,
    Triage,
    Verdict,
)
from pdtrace.analysis.triage_attributes import BY_NAME, PLACE, attributes
from pdtrace.analysis.triage_choice import Chosen
from pdtrace.analysis.triage_sets import LEAST_REFERENCE, LEAST_SLOW, MIDDLE
from pdtrace.analysis.triage_traffic import COLD

RUNBOOK: Final = "docs/runbook.md"
SECTION: Final = {
    NO_SINGLE: "no-single-attribute",
    WORKLOAD: "workload-changed",
    TOO_FEW: "too-few",
    UNRESOLVED: "not-resolved-by-the-clocks",
    NOTHING_SLOW: "nothing-slow",
    NO_RISE: "no-rise",
}
"""Where the runbook explains a verdict that names no factor."""
DOUBTFUL_SECTION: Final = "answers-that-may-be-wrong"
COLD_SECTION: Final = "cold-pairs"
OPEN_SECTION: Final = "open-requests"


def verdict_sentences(found: Triage) -> list[str]:
    """The verdict, then everything that belongs to it, one sentence or two per line."""
    verdict = found.verdict
    lines = [_HEADS[verdict.kind](found)]
    since = _time(verdict)
    lines += [f"Since {since}."] if since else []
    lines += _beside(verdict.chosen) if verdict.chosen is not None else []
    lines += _why(verdict)
    lines += _advice(verdict)
    return lines


def links(verdict: Verdict) -> list[str]:
    """Anchors in the runbook, the most specific first."""
    own = [SECTION[verdict.kind]] if verdict.kind in SECTION else []
    phase = [verdict.phase] if verdict.phase and verdict.kind in (FACTOR, NO_SINGLE) else []
    return [*own, *(cause.anchor for cause in verdict.causes), *phase]


def _beside(chosen: Chosen) -> list[str]:
    """What cannot be told from the value named, and what explains slow requests besides."""
    same = ", ".join(f"{BY_NAME[name].words} {value}" for name, value in chosen.aliases)
    lines = [f"Exactly the same requests have: {same}."] if same else []
    for attribute, value, coverage, low in chosen.others:
        where = BY_NAME[attribute].phrase.format(value)
        lines.append(f"Also: requests {where} ({percent(coverage)}, at least {percent(low)}).")
    return lines


def _factor(found: Triage) -> str:
    verdict = found.verdict
    assert verdict.chosen is not None
    return f"{_rise(verdict)} in requests {_covered(verdict.chosen)}."


def _no_single(found: Triage) -> str:
    words = f"No single attribute explains it. The phase that rose most: {_rise(found.verdict)}."
    if not _places(found):
        words += " All of them ran on the same engines: there is no place to be told apart."
    if found.sets.limit_is_share and found.sets.source == MIDDLE:
        words += (
            " Some requests are always the slowest: without an objective or a baseline this may "
            "be natural spread."
        )
    return words


def _places(found: Triage) -> bool:
    """Whether requests ran in different places, so that one could be named."""
    said = attributes(found.sets.ranked)
    places = [name for name in said.columns if BY_NAME[name].sort == PLACE]
    return bool((said[places].nunique() > 1).any())


def _workload(found: Triage) -> str:
    assert found.mix_share is not None
    chosen = found.verdict.chosen
    if chosen is not None:
        return (
            "The slow requests are other requests, so nothing is blamed: they are requests "
            f"{_covered(chosen)}. The phase that rose most: {_rise(found.verdict)}. Only a "
            "baseline tells whether such requests were faster before."
        )
    words = (
        "The workload changed: the slow requests are other requests. "
        f"{percent(found.mix_share)} of the rise comes from prompt lengths and cached tokens that "
        "are more frequent among them"
    )
    return f"{words}; the phase that rose most: {_rise(found.verdict)}."


def _too_few(found: Triage) -> str:
    sets = found.sets
    words = (
        f"Too few requests to compare: slow {int(sets.slow.sum())} ({LEAST_SLOW} are needed), "
        f"reference {len(sets.reference)} ({LEAST_REFERENCE} are needed)."
    )
    cold = found.standings["over_limit"].get(COLD, 0)
    if cold:
        words += (
            f" Over the limit, but kept apart: {cold} that waited for a pair's first handshake."
        )
    return words


def _nothing_slow(found: Triage) -> str:
    return (
        f"No slow requests, nothing to explain: none of {len(found.sets.slow)} took longer than "
        f"{milliseconds(found.sets.limit_ns)}."
    )


def _no_rise(found: Triage) -> str:
    return (
        "Nothing to explain: requests over "
        f"{milliseconds(found.sets.limit_ns)} are not more frequent here than in "
        f"{found.sets.source}."
    )


def _unresolved(found: Triage) -> str:
    verdict = found.verdict
    assert verdict.resolution is not None
    return (
        f"Not resolved by the clocks: {_rise(verdict)}, but between hosts a wait is known only to "
        f"± {milliseconds(verdict.resolution.halfwidth_ns)}. All phases between hosts together: "
        f"{signed(verdict.resolution.together_ns)}."
    )


_HEADS: Final = {
    FACTOR: _factor,
    NO_SINGLE: _no_single,
    WORKLOAD: _workload,
    TOO_FEW: _too_few,
    NOTHING_SLOW: _nothing_slow,
    NO_RISE: _no_rise,
    UNRESOLVED: _unresolved,
}


def _rise(verdict: Verdict) -> str:
    """`prefill` +180 ms (62 % of the rise, 55–70)."""
    assert verdict.d_ns is not None and verdict.share is not None
    assert verdict.share_low is not None and verdict.share_high is not None
    bounds = interval(verdict.share_low, verdict.share_high)
    share = f"{percent(verdict.share)} of the rise, {bounds}"
    return f"{verdict.phase} {signed(verdict.d_ns)} ({share})"


def _covered(chosen: Chosen) -> str:
    where = BY_NAME[chosen.attribute].phrase.format(chosen.value)
    low = percent(chosen.coverage_low)
    return f"{where} ({percent(chosen.coverage)} of the slow requests, at least {low})"


def _time(verdict: Verdict) -> str:
    """When the phase rose, and what happened near; "" if it did not change in time."""
    if verdict.when is None or verdict.when.shift is None:
        return ""
    change = verdict.when.shift
    words = (
        f"{clock(change.at_ns)}: the median went from {milliseconds(change.before_ns)} to "
        f"{milliseconds(change.after_ns)}"
    )
    event = verdict.when.event
    if event is None:
        return words
    distance = (event.time_ns - change.at_ns) / 1e9
    side = "before" if distance < 0 else "after"
    return f"{words}; {event.engine_id} {event.what} {abs(distance):,.0f} s {side}"


def _why(verdict: Verdict) -> list[str]:
    if verdict.kind not in (FACTOR, NO_SINGLE):
        return []
    if not verdict.causes:
        return ["Cause: not known; nothing beside the phase itself speaks for one."]
    return [f"Cause: {cause.sentence}." for cause in verdict.causes]


def _advice(verdict: Verdict) -> list[str]:
    """The headline is exposed time, the advice is drag; both are said where they differ."""
    if verdict.kind not in (FACTOR, NO_SINGLE) or verdict.advice is None:
        return []
    assert verdict.drag_ns is not None and verdict.d_ns is not None
    if verdict.drag_ns <= 0:
        return []
    saved = f"without it the slow requests would be {milliseconds(verdict.drag_ns)} closer"
    if verdict.advice != verdict.phase:
        return [f"What to shorten first: {verdict.advice}; {saved} to the reference (drag)."]
    if verdict.drag_ns < 0.9 * verdict.d_ns:
        return [f"Not all of {verdict.phase} can be saved: {saved} to the reference (drag)."]
    return []


def basis_sentences(found: Triage) -> list[str]:
    """What was compared with what."""
    sets = found.sets
    lines = [
        f"Slow: {int(sets.slow.sum())} of {len(sets.slow)} requests, TTFT over "
        f"{milliseconds(sets.limit_ns)}. Reference: {len(sets.reference)} requests of "
        f"{sets.source}."
    ]
    if found.ledger is not None:
        means = (
            found.ledger[name].sum() / count
            for name, count in (
                ("slow_sum_ns", int(sets.slow.sum())),
                ("reference_sum_ns", len(sets.reference)),
            )
        )
        slow, usual = (milliseconds(mean) for mean in means)
        lines.append(f"Mean TTFT: {slow} slow, {usual} reference.")
    return lines


def doubtful_sentence(found: Triage) -> str:
    """Correctness comes before any latency; "" if no answer is in doubt."""
    count = len(found.doubtful)
    if not count:
        return ""
    flags = sorted({flag for held in found.doubtful["flags"] for flag in held} & set(_DOUBTS))
    return (
        f"{count} {'answer' if count == 1 else 'answers'} may be wrong: "
        + "; ".join(_DOUBTS[flag] for flag in flags)
        + f". Look at {'it' if count == 1 else 'them'} first."
    )


_DOUBTS: Final = {
    "lease_expired": "the lease ran out before the data landed (lease_expired)",
    "mispaired": "blocks came from another request with the same id (mispaired)",
}


def milliseconds(ns: float) -> str:
    """Milliseconds with as many digits as they deserve."""
    ms = ns / 1e6
    return (
        f"{ms:,.0f} ms" if abs(ms) >= 100 else f"{ms:,.1f} ms" if abs(ms) >= 10 else f"{ms:.2f} ms"
    )


def signed(ns: float) -> str:
    """A difference, always with its sign."""
    return f"+{milliseconds(ns)}" if ns >= 0 else f"−{milliseconds(-ns)}"


def percent(share: float) -> str:
    """A share in whole per cent."""
    return f"{round(100 * share)} %"


def interval(low: float, high: float) -> str:
    """An interval of shares in per cent, without the sign of the unit."""
    return f"{round(100 * low)} to {round(100 * high)}"


def clock(ns: int) -> str:
    """A time of day in UTC, with its date."""
    return datetime.fromtimestamp(ns // 1_000_000_000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
