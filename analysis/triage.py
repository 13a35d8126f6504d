"""Triage: which factor explains slow first tokens; one verdict, or an honest none."""

from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd

from pdtrace.analysis.arrays import Ints
from pdtrace.analysis.proportions import Counts, excess
from pdtrace.analysis.triage_attributes import ASKED, attributes
from pdtrace.analysis.triage_buckets import strata
from pdtrace.analysis.triage_causes import Cause, causes_of
from pdtrace.analysis.triage_choice import Chosen, choose
from pdtrace.analysis.triage_clocks import Resolution, resolution
from pdtrace.analysis.triage_evidence import Case
from pdtrace.analysis.triage_ledger import intervals, ledger, mix_and_rate
from pdtrace.analysis.triage_lift import lift
from pdtrace.analysis.triage_open import open_requests
from pdtrace.analysis.triage_sets import Objective, Sets, divide
from pdtrace.analysis.triage_time import Shift, events, medians, nearest, shift
from pdtrace.analysis.triage_traffic import DOUBTFUL, Traffic

FACTOR: Final = "factor"
NO_SINGLE: Final = "no_single_attribute"
WORKLOAD: Final = "workload_changed"
TOO_FEW: Final = "too_few"
UNRESOLVED: Final = "not_resolved"
NOTHING_SLOW: Final = "nothing_slow"
NO_RISE: Final = "no_rise"
KINDS: Final = (FACTOR, NO_SINGLE, WORKLOAD, TOO_FEW, UNRESOLVED, NOTHING_SLOW, NO_RISE)

MIX_LIMIT: Final = 0.5
P_LIMIT: Final = 0.05


@dataclass(frozen=True)
class Event:
    """What happened to an engine, and when."""

    time_ns: int
    engine_id: str
    what: str


@dataclass(frozen=True)
class When:
    """The bins of the phase over time, the change in them if one stands out, and the engines'
    event nearest to it."""

    bins: pd.DataFrame
    shift: Shift | None
    event: Event | None


@dataclass(frozen=True)
class Verdict:
    """One of `KINDS` with its numbers; what does not apply is None.

    `phase` is `d_ns` longer (mean, exposed) in the slow requests that `chosen` speaks of, all
    slow ones without it; `share` of their rise with its 95 % interval. `advice`: the phase whose
    removal would save most (`drag_ns` more than in the reference).
    """

    kind: str
    phase: str | None = None
    d_ns: float | None = None
    share: float | None = None
    share_low: float | None = None
    share_high: float | None = None
    advice: str | None = None
    drag_ns: float | None = None
    chosen: Chosen | None = None
    resolution: Resolution | None = None
    when: When | None = None
    causes: tuple[Cause, ...] = ()


@dataclass(frozen=True)
class Triage:
    """`standings`: how many requests of each standing, and how many of them are over the limit.

    `ledger` (all slow requests: columns of ledger, mix_and_rate, intervals, `drag_ns`) and
    `lift` are None where the sets are too small. `mix_share`: part of the rise that is mix.
    """

    verdict: Verdict
    sets: Sets
    standings: pd.DataFrame
    ledger: pd.DataFrame | None
    lift: pd.DataFrame | None
    mix_share: float | None
    doubtful: pd.DataFrame
    open: pd.DataFrame


def triage(
    window: Traffic, objective: Objective, baseline: Traffic | None = None, source: str = ""
) -> Triage:
    """Compare the slow requests of `window` with the reference and judge.

    `baseline`: other traffic to take the reference from, `source` says in words what it is;
    without it the middle half of the window serves.
    """
    sets = divide(window, objective, baseline, source)
    rows, lifted, mix_share = None, None, None
    if len(sets.slow) and not sets.slow.any() and not sets.limit_is_share:
        verdict = Verdict(NOTHING_SLOW)
    elif not sets.enough:
        verdict = Verdict(TOO_FEW)
    else:
        rows = _ledger(sets.slow_traffic, sets)
        lifted = lift(attributes(sets.ranked), sets.slow, _arrivals(sets.ranked))
        rise = float(rows["d_ns"].sum())
        mix_share = float(rows["mix_ns"].sum()) / rise if rise > 0 else None
        verdict = _judge(window, sets, rows, lifted, mix_share)
    return Triage(
        verdict=verdict,
        sets=sets,
        standings=_standings(window, sets.limit_ns),
        ledger=rows,
        lift=lifted,
        mix_share=mix_share,
        doubtful=window.of_standing(DOUBTFUL).requests,
        open=open_requests(window),
    )


def _judge(
    window: Traffic, sets: Sets, rows: pd.DataFrame, lifted: pd.DataFrame, mix: float | None
) -> Verdict:
    if mix is None or not _slower_than_reference(sets):
        return Verdict(NO_RISE)
    if mix > MIX_LIMIT:
        return _headline(WORKLOAD, rows)
    top = str(rows["d_ns"].idxmax())
    asked = lifted["attribute"].isin(ASKED)
    # Longer prompts are slower in every healthy run: only a baseline tells what is new about it.
    nameable = lifted if sets.apart else lifted[~asked]
    chosen = choose(nameable, top)
    if chosen is None and (other := choose(lifted, top)) is not None:
        return _with(_headline(WORKLOAD, rows), chosen=other)
    slow, focus, of_value = sets.slow_traffic, rows, sets.ranked
    if chosen is not None:
        of_value = sets.ranked.pick(attributes(sets.ranked)[chosen.attribute] == chosen.value)
        slow = of_value.pick(sets.slow.loc[of_value.requests.index])
        focus = _ledger(slow, sets)
        chosen = choose(nameable, str(focus["d_ns"].idxmax()))
    found = _headline(FACTOR if chosen else NO_SINGLE, focus)
    assert found.phase is not None and found.d_ns is not None
    clocks = resolution(found.phase, focus, slow, sets.reference)
    if not clocks.resolved:
        return _with(found, kind=UNRESOLVED, resolution=clocks)
    case = Case(found.phase, found.d_ns, slow, sets.reference, window)
    return _with(
        found,
        chosen=chosen,
        resolution=clocks,
        when=_when(found.phase, of_value, window),
        causes=tuple(causes_of(case)),
    )


def _with(verdict: Verdict, **changes: object) -> Verdict:
    return Verdict(**{**vars(verdict), **changes})


def _headline(kind: str, rows: pd.DataFrame) -> Verdict:
    """The phase that rose most, and the one whose removal would save most."""
    phase, advice = str(rows["d_ns"].idxmax()), str(rows["drag_ns"].idxmax())
    return Verdict(
        kind,
        phase=phase,
        d_ns=float(rows["d_ns"][phase]),
        share=float(rows["share"][phase]),
        share_low=float(rows["share_low"][phase]),
        share_high=float(rows["share_high"][phase]),
        advice=advice,
        drag_ns=float(rows["drag_ns"][advice]),
    )


def _ledger(slow: Traffic, sets: Sets) -> pd.DataFrame:
    """The ledger of these slow requests against the reference, with everything beside it."""
    other = sets.reference
    exposed = slow.exposed, other.exposed
    parts = [
        ledger(*exposed),
        mix_and_rate(*exposed, strata(slow.requests), strata(other.requests)),
        intervals(*exposed, _arrivals(slow), _arrivals(other), together=not sets.apart),
        (slow.drag.mean() - other.drag.mean()).rename("drag_ns"),
    ]
    return pd.concat(parts, axis=1)


def _arrivals(traffic: Traffic) -> Ints:
    """In the order of `exposed`."""
    return traffic.requests["t0_ns"].loc[traffic.exposed.index].to_numpy(np.int64)


def _slower_than_reference(sets: Sets) -> bool:
    """Whether slow requests are more frequent here than in a reference from elsewhere.

    The lower bound of Newcombe's interval for the difference of the two rates. Within one
    window there is nothing to ask: the reference has no slow request by construction.
    """
    if not sets.apart:
        return True
    over = sets.reference.requests["ttft_ns"].to_numpy(np.int64) > sets.limit_ns
    counts = (int(sets.slow.sum()), len(sets.slow), int(over.sum()), len(over))
    _, low, _ = excess(Counts(*(np.array([[float(count)]]) for count in counts)))
    return bool(low[0] > 0)


def _when(phase: str, traffic: Traffic, window: Traffic) -> When:
    """Since when the phase is longer, over all comparable requests with the value."""
    bins = medians(_arrivals(traffic), traffic.exposed[phase].to_numpy(np.int64))
    change = shift(bins)
    if change is None or change.p > P_LIMIT or change.after_ns <= change.before_ns:
        return When(bins, None, None)
    happened = events(window.spans)
    place = nearest(happened, change.at_ns)
    if place is None:
        return When(bins, change, None)
    row = happened.iloc[place]
    return When(bins, change, Event(int(row["time_ns"]), str(row["engine_id"]), str(row["what"])))


def _standings(window: Traffic, limit_ns: int) -> pd.DataFrame:
    """`requests`, `over_limit` by standing: cold pairs stand beside warm ones here."""
    rows = window.requests
    over = (rows["ttft_ns"] > limit_ns).fillna(False).astype("int64")
    grouped = over.groupby(rows["standing"])
    mean = rows["ttft_ns"].astype("Float64").groupby(rows["standing"]).mean()
    return pd.DataFrame(
        {"requests": grouped.size(), "over_limit": grouped.sum(), "mean_ttft_ns": mean}
    )
