"""Triage as text tables and as one JSON object."""

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Final

import pandas as pd

from pdtrace.analysis.report import NOT_KNOWN, Table
from pdtrace.analysis.triage import Triage, Verdict
from pdtrace.analysis.triage_attributes import BY_NAME
from pdtrace.analysis.triage_traffic import STANDINGS
from pdtrace.analysis.triage_words import (
    RUNBOOK,
    basis_sentences,
    doubtful_sentence,
    interval,
    links,
    percent,
    verdict_sentences,
)

SHOWN: Final = 10
OPEN_SHOWN: Final = 20
_STANDING_WORDS: Final = {
    "ranked": "compared",
    "cold": "first handshake of a pair of engines (kept apart)",
    "incomplete": "evidence missing (not compared)",
    "no first token": "ended without a first token (not compared)",
    "open": "not ended: see the list of open requests",
    "doubtful": "the answer may be wrong (not compared)",
}


def tables(found: Triage) -> list[Table]:
    """Everything below the sentences, in the order of reading; empty tables are left out."""
    every = (
        doubtful_table(found),
        ledger_table(found),
        lift_table(found),
        standing_table(found),
        open_table(found),
    )
    return [table for table in every if table.rows]


def ledger_table(found: Triage) -> Table:
    """Each phase's share of the rise; phases in which nothing happens are left out."""
    rows = []
    if found.ledger is not None:
        slow, usual = int(found.sets.slow.sum()), len(found.sets.reference)
        ledger = found.ledger[found.ledger[["slow_sum_ns", "reference_sum_ns"]].any(axis=1)]
        for name, row in ledger.sort_values("d_ns", ascending=False).iterrows():
            rows.append(
                (
                    str(name),
                    _ms(row["slow_sum_ns"] / slow),
                    _ms(row["reference_sum_ns"] / usual),
                    _ms(row["d_ns"], sign=True),
                    percent(row["share"]),
                    interval(row["share_low"], row["share_high"]),
                    _ms(row["mix_ns"], sign=True),
                    _ms(row["drag_ns"], sign=True),
                )
            )
    header = ("phase", "slow", "usual", "rise", "share", "95 %", "of it mix", "drag")
    return Table(
        "By how much each phase rose in all slow requests, ms (means; they add up)", header, rows
    )


def lift_table(found: Triage) -> Table:
    """Values that slow requests have more often, by the least they surely cover."""
    rows = []
    if found.lift is not None:
        more = found.lift[found.lift["coverage"] > 0]
        for row in more.head(SHOWN).to_dict("records"):
            rows.append(
                (
                    BY_NAME[row["attribute"]].words,
                    row["value"],
                    str(row["requests"]),
                    percent(row["rate"]),
                    percent(row["rest_rate"]),
                    _ratio(row["risk_ratio"]),
                    percent(row["coverage"]),
                    percent(row["coverage_low"]),
                    _standing_of(row),
                )
            )
    header = (
        "attribute", "value", "n", "slow", "else", "times", "covers", "surely", "chance?",
    )  # fmt: skip
    title = "What slow requests have in common (within equal prompt lengths and times)"
    return Table(title, header, rows)


def _standing_of(row: Mapping[Hashable, Any]) -> str:
    if not row["found"]:
        return "maybe"
    if row["yields_to"]:
        attribute, _, value = row["yields_to"].partition("=")
        return f"see {BY_NAME[attribute].words} {value}"
    return "no"


def _ratio(value: float) -> str:
    return NOT_KNOWN if value != value else "∞" if value == float("inf") else f"{value:.1f}"


def standing_table(found: Triage) -> Table:
    """All requests of the window by what became of them."""
    columns, rows = ("requests", "over_limit", "mean_ttft_ns"), []
    for name in STANDINGS:
        if name in found.standings.index:
            count, over, mean = (found.standings[column][name] for column in columns)
            cell = NOT_KNOWN if pd.isna(mean) else _ms(float(mean))
            rows.append((_STANDING_WORDS[name], str(count), str(over), cell))
    header = ("requests that are", "count", "over the limit", "mean TTFT, ms")
    return Table("All requests of the window", header, rows)


def doubtful_table(found: Triage) -> Table:
    """Requests whose answer may be wrong."""
    columns = ("id", "mode", "prefill_engine", "decode_engine", "flags")
    values = (found.doubtful[name].tolist()[:OPEN_SHOWN] for name in columns)
    rows = [
        (name, mode or NOT_KNOWN, p or NOT_KNOWN, d or NOT_KNOWN, ", ".join(flags))
        for name, mode, p, d, flags in zip(*values, strict=True)
    ]
    title = "Answers that may be wrong" + _more(len(found.doubtful))
    return Table(title, ("request", "mode", "P engine", "D engine", "flags"), rows)


def open_table(found: Triage) -> Table:
    """Requests that have not ended, the oldest first."""
    names = (
        "request", "mode", "prefill_engine", "decode_engine", "age_ns", "last_event",
        "last_engine", "silent_ns",
    )  # fmt: skip
    rows = [
        (
            request,
            mode or NOT_KNOWN,
            prefill or NOT_KNOWN,
            decode or NOT_KNOWN,
            f"{age / 1e9:,.1f}",
            f"{event} on {engine}",
            f"{silent / 1e9:,.1f}",
        )
        for request, mode, prefill, decode, age, event, engine, silent in zip(
            *(found.open[name].tolist()[:OPEN_SHOWN] for name in names), strict=True
        )
    ]
    header = ("request", "mode", "P engine", "D engine", "age, s", "last seen", "ago, s")
    return Table("Open requests: no end seen" + _more(len(found.open)), header, rows)


def _more(count: int) -> str:
    return f" ({count - OPEN_SHOWN} more not shown)" if count > OPEN_SHOWN else ""


def _ms(ns: float, sign: bool = False) -> str:
    shown = f"{ns / 1e6:{'+' if sign else ''},.1f}"
    return shown if float(shown.replace(",", "")) else shown.replace("-", "+")


def json_object(found: Triage) -> dict[str, Any]:
    """Everything as plain values: times in ns, shares from 0 to 1, null = not known."""
    sets = found.sets
    return {
        "verdict": _verdict(found.verdict),
        "sentences": verdict_sentences(found),
        "correctness": doubtful_sentence(found) or None,
        "basis": basis_sentences(found),
        "slow": int(sets.slow.sum()),
        "ranked": len(sets.slow),
        "limit_ns": sets.limit_ns,
        "reference": {"requests": len(sets.reference), "source": sets.source},
        "mix_share": found.mix_share,
        "ledger": _records(found.ledger, index="phase", without=("scaled",)),
        "lift": _records(found.lift, without=("same_as",)),
        "standings": _records(found.standings, index="standing"),
        "doubtful": found.doubtful["id"].tolist(),
        "open": _records(found.open),
        "runbook": [f"{RUNBOOK}#{anchor}" for anchor in links(found.verdict)],
    }


def _verdict(verdict: Verdict) -> dict[str, Any]:
    chosen, when = verdict.chosen, verdict.when
    shift = when.shift if when else None
    event = when.event if when else None
    return {
        "kind": verdict.kind,
        "phase": verdict.phase,
        "rise_ns": verdict.d_ns,
        "share": verdict.share,
        "share_interval": _both(verdict.share_low, verdict.share_high),
        "attribute": chosen.attribute if chosen else None,
        "value": chosen.value if chosen else None,
        "coverage": chosen.coverage if chosen else None,
        "coverage_interval": _both(chosen.coverage_low, chosen.coverage_high) if chosen else None,
        "same_requests": [list(alias) for alias in chosen.aliases] if chosen else [],
        "also": [dict(zip(_ALSO, other, strict=True)) for other in chosen.others] if chosen else [],
        "since_ns": shift.at_ns if shift else None,
        "event": vars(event) if event else None,
        "advice": verdict.advice,
        "drag_rise_ns": verdict.drag_ns,
        "clock_halfwidth_ns": verdict.resolution.halfwidth_ns if verdict.resolution else None,
        "between_hosts_ns": verdict.resolution.together_ns if verdict.resolution else None,
        "causes": [{"anchor": cause.anchor, "found": cause.sentence} for cause in verdict.causes],
    }


_ALSO: Final = ("attribute", "value", "coverage", "coverage_low")


def _both(low: float | None, high: float | None) -> list[float] | None:
    return None if low is None or high is None else [low, high]


def _records(
    frame: pd.DataFrame | None, index: str = "", without: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """Rows as dicts; `<NA>`, NaN and infinity become None."""
    if frame is None:
        return []
    shown = frame.drop(columns=list(without))
    shown = shown.rename_axis(index).reset_index() if index else shown
    return [
        {str(name): _plain(value) for name, value in row.items()}
        for row in shown.to_dict("records")
    ]


def _plain(value: Any) -> Any:
    if value is pd.NA or (isinstance(value, float) and not -1e300 < value < 1e300):
        return None
    return value
