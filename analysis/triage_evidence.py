"""What counts as evidence for a cause: speeds, step times, what an engine held at an instant."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from pdtrace.analysis import phases
from pdtrace.analysis.arrays import Ints
from pdtrace.analysis.triage_traffic import Traffic
from pdtrace.tracing import semconv


@dataclass(frozen=True)
class Case:
    """What is to be explained: `phase` is `rise_ns` longer in `slow` than in `reference`.

    `window`: all requests of the window, for what else the engines did.
    """

    phase: str
    rise_ns: float
    slow: Traffic
    reference: Traffic
    window: Traffic


def median(values: pd.Series) -> float | None:
    """The median of what is known, None of nothing."""
    known = values.dropna().to_numpy(np.float64)
    return float(np.median(known)) if len(known) else None


def bytes_per_second(traffic: Traffic) -> pd.Series:
    """By request: bytes of its handoff over the time its transfer was active, exposed or not.

    A lower bound: completions are polled. `<NA>` without bytes or without a transfer.
    """
    active = traffic.exposed[phases.TRANSFER] + traffic.hidden[phases.TRANSFER]
    moved = traffic.requests["transfer_bytes"].reindex(active.index).astype("Float64")
    return moved * 1e9 / active.where(active > 0).astype("Float64")


def step_ns(traffic: Traffic) -> pd.Series:
    """By D engine: the median time per output token, which is about one step of it (ns)."""
    known = traffic.requests.dropna(subset=["tpot_ns"])
    return known.groupby("decode_engine")["tpot_ns"].median()


def steps_waited(case: Case) -> float | None:
    """The median of the phase over the step time of each request's own D engine."""
    step = step_ns(case.window).reindex(case.slow.requests["decode_engine"])
    waited = case.slow.exposed[case.phase]
    ratio = waited.to_numpy(np.float64) / step.to_numpy(np.float64, na_value=np.nan)
    return median(pd.Series(ratio))


def held_on_d(case: Case) -> tuple[float, float] | None:
    """When D first tried each slow request: how many loads waited there, how many ran (means).

    Loads hold their KV blocks from allocation until the scheduler knows that the data is there;
    running are those that decode. None if D said nothing.
    """
    spans, rows = case.window.spans, case.slow.requests.dropna(subset=["attempted_ns"])
    waits = spans[(spans["name"] == semconv.SPAN_KV_WAIT) & (spans["side"] == semconv.ROLE_DECODE)]
    runs = spans[spans["name"] == semconv.SPAN_DECODE]
    counts = [
        (_active(waits, str(engine), at), _active(runs, str(engine), at))
        for engine, at in (
            (engine, mine["attempted_ns"].to_numpy(np.int64))
            for engine, mine in rows.groupby("decode_engine")
        )
    ]
    if not counts:
        return None
    waiting, running = (np.concatenate(part) for part in zip(*counts, strict=True))
    return float(waiting.mean()), float(running.mean())


def _active(spans: pd.DataFrame, engine: str, at: Ints) -> Ints:
    """How many spans of the engine were active at each instant."""
    mine = spans[spans["engine_id"] == engine]
    begun = np.searchsorted(np.sort(mine["start_ns"].to_numpy(np.int64)), at, side="right")
    ended = np.searchsorted(np.sort(mine["end_ns"].to_numpy(np.int64)), at, side="right")
    active: Ints = begun - ended
    return active


def rank_correlation(one: pd.Series, other: pd.Series) -> float | None:
    """Spearman's coefficient: Pearson's of the ranks; None where one of them never varies."""
    known = one.notna() & other.notna()
    if int(known.sum()) < 3:
        return None
    ranks = [values[known].astype("float64").rank().to_numpy() for values in (one, other)]
    if any(np.ptp(values) == 0 for values in ranks):
        return None
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])


def registration_legs(case: Case) -> tuple[float, float] | None:
    """Push: mean ns from D's allocation until the registration was sent, and on until P had it."""
    rows = case.slow.requests
    spans = case.slow.spans
    mine = spans[(spans["name"] == semconv.SPAN_REGISTRATION)]
    sent = mine.groupby("request_id")["end_ns"].max().reindex(rows.index).astype("Int64")
    first = (sent - rows["allocated_ns"]).dropna()
    second = (rows["received_ns"] - sent).dropna()
    if not len(first) or not len(second):
        return None
    return float(first.mean()), float(second.mean())
