"""The offsets of clocks in words, tables and JSON."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

import pandas as pd

from pdtrace.analysis.clock_pairs import Contradiction, Offset, PairOfClocks
from pdtrace.analysis.clocks import Clocks
from pdtrace.analysis.coded import decoded
from pdtrace.analysis.handoffs import Handoffs
from pdtrace.analysis.report import NOT_KNOWN, Table, milliseconds
from pdtrace.analysis.split import Split

NAMED: Final = 3
"""Engines of one clock that are named, and contradictions of one pair that are listed."""
LISTED: Final = 10
MINUTES: Final = 60
"""Rows of the table over time; of more minutes they are picked evenly."""


def owners(handoffs: Handoffs, _: Split) -> pd.DataFrame:
    """Whose clocks there are: clock_id, engine_id, role, host, each combination once."""
    spans = handoffs.spans
    named = spans.loc[spans["clock_id"] != "", ["clock_id", "engine_id", "role", "host"]]
    return decoded(named.drop_duplicates())


def clock_names(named: pd.DataFrame) -> dict[str, str]:
    """For people: which engines and which host a clock is of. By clock id; `named`: `owners`."""
    who = named["engine_id"].where(named["engine_id"] != "", named["role"])
    rows = named[["clock_id", "host"]].assign(who=who).drop_duplicates()
    names = {}
    for clock, mine in rows.groupby("clock_id"):
        engines = sorted(name for name in mine["who"].unique() if name)
        hosts = sorted(name for name in mine["host"].unique() if name)
        words = ", ".join(engines[:NAMED])
        words += f" and {len(engines) - NAMED} more" if len(engines) > NAMED else ""
        names[str(clock)] = f"{words or str(clock)[:8]}" + (f" on {hosts[0]}" if hosts else "")
    return names


def interval(offset: Offset) -> str:
    """`-36.900 ± 4.100`, an inequality where there is one bound, in ms."""
    if offset.midpoint_ns is not None:
        return f"{milliseconds(offset.midpoint_ns)} ± {milliseconds(offset.halfwidth_ns)}"
    if offset.lo_ns is not None:
        return f">= {milliseconds(offset.lo_ns)}"
    return NOT_KNOWN if offset.hi_ns is None else f"<= {milliseconds(offset.hi_ns)}"


def agreement(pair: PairOfClocks) -> str:
    """How much of the evidence agrees."""
    if not pair.messages:
        return "no messages of their own"
    share = f"{100 * pair.agreeing / pair.messages:.1f} %"
    return f"{share} (degraded)" if pair.degraded else share


def alone(clocks: Clocks | None, names: dict[str, str]) -> list[str]:
    """Clocks that nothing can be compared with, and contradictions around several clocks."""
    if clocks is None:
        return [f"All spans are on one clock ({', '.join(names.values()) or 'not named'})."]
    part = clocks.references.tolist()
    found = [
        f"{names[clock]}: nothing was sent between this clock and another one."
        for number, clock in enumerate(clocks.names)
        if part.count(part[number]) == 1
    ]
    for cycle in sorted({tuple(sorted(names[clock] for clock in one)) for one in clocks.cycles}):
        found.append(f"Messages contradict each other around {', '.join(cycle)}.")
    return found


def sentences(pairs: Sequence[PairOfClocks], names: dict[str, str]) -> list[str]:
    """What the reader has to know of each pair beside its numbers."""
    found = []
    for pair in pairs:
        who = f"{names[pair.end]} against {names[pair.start]}"
        best = pair.best
        if best.lo_ns is None and best.hi_ns is None:
            found.append(f"{who}: the evidence contradicts itself and leaves nothing.")
        elif best.halfwidth_ns is None:
            side = "below" if best.lo_ns is not None else "above"
            found.append(
                f"{who}: bounded from {side} only, since messages went one way only. Times of the "
                "two are not compared, and requests over both have no split."
            )
        if pair.degraded:
            found.append(
                f"{who}: {len(pair.contradictions)} of {pair.messages} messages contradict the "
                "rest; the offset is that of the majority and may be wrong."
            )
        for at_ns in pair.set_at_ns:
            found.append(f"{who}: one of the clocks was set at about {clock_time(at_ns)}.")
    return found


def clock_time(at_ns: int) -> str:
    """Unix ns as a time of day in UTC."""
    return f"{datetime.fromtimestamp(at_ns // 10**9, UTC):%Y-%m-%d %H:%M:%S} UTC"


def clock_table(clocks: Clocks | None, names: dict[str, str]) -> Table:
    """The clocks, numbered, with what they are of."""
    ids = clocks.names if clocks is not None else ()
    rows = [(short, names[clock], clock) for clock, short in _numbered(ids).items()]
    return Table("Clocks", ("clock", "of", "id"), rows)


def _numbered(ids: Sequence[str]) -> dict[str, str]:
    return {clock: f"C{number}" for number, clock in enumerate(ids, 1)}


def _difference(clocks: Clocks, pair: PairOfClocks) -> str:
    short = _numbered(clocks.names)
    return f"{short[pair.end]} − {short[pair.start]}"


def pair_table(clocks: Clocks, pairs: Sequence[PairOfClocks]) -> Table:
    """Each pair where its offset is known best."""
    rows = [
        (_difference(clocks, pair), interval(pair.best), str(pair.messages), agreement(pair))
        for pair in pairs
    ]
    header = ("offset", "ms", "messages", "agreement")
    return Table("Offsets where they are known best", header, rows)


def bound_table(clocks: Clocks, pairs: Sequence[PairOfClocks]) -> Table:
    """Which message each bound of those comes from."""
    rows = [
        (_difference(clocks, pair), side, milliseconds(ns), kind or NOT_KNOWN)
        for pair in pairs
        for side, ns, kind in (
            (">=", pair.best.lo_ns, pair.best.lower_from),
            ("<=", pair.best.hi_ns, pair.best.upper_from),
        )
    ]
    return Table("Where these bounds come from", ("offset", "", "ms", "message"), rows)


def kind_table(clocks: Clocks, pairs: Sequence[PairOfClocks]) -> Table:
    """Evidence of each pair by kind of message."""
    rows = [
        (_difference(clocks, pair), str(kind), str(count), str(lost))
        for pair in pairs
        for kind, count, lost in pair.kinds.itertuples(index=False)
    ]
    return Table("Evidence", ("offset", "message", "count", "contradict"), rows)


def time_table(clocks: Clocks, pairs: Sequence[PairOfClocks]) -> Table:
    """Each pair once a minute."""
    rows = []
    for pair in pairs:
        step = max(-(-len(pair.over_time) // MINUTES), 1)
        for offset in pair.over_time[::step]:
            rows.append((_difference(clocks, pair), clock_time(offset.at_ns), interval(offset)))
    return Table("Offsets over time", ("offset", "time", "ms"), rows)


def contradiction_table(pairs: Sequence[PairOfClocks]) -> Table:
    """The worst contradictions of each pair."""
    rows = [
        (one.request_id, one.kind, milliseconds(one.by_ns))
        for pair in pairs
        for one in pair.contradictions[:LISTED]
    ]
    more = sum(max(len(pair.contradictions) - LISTED, 0) for pair in pairs)
    title = "Contradictions" + (f" ({more} more not shown)" if more else "")
    return Table(title, ("request", "message", "by at least, ms"), rows)


def pair_object(pair: PairOfClocks, names: dict[str, str]) -> dict[str, Any]:
    """One pair as a JSON object; integers in ns, null = not known."""
    return {
        "from": pair.start,
        "to": pair.end,
        "from_name": names[pair.start],
        "to_name": names[pair.end],
        **_offset_object(pair.best),
        "messages": pair.messages,
        "agreeing": pair.agreeing,
        "agreement": pair.agreeing / pair.messages if pair.messages else None,
        "degraded": pair.degraded,
        "evidence": pair.kinds.to_dict("records"),
        "set_at_ns": pair.set_at_ns,
        "over_time": [_offset_object(offset) for offset in pair.over_time],
        "contradictions": [_contradiction_object(one) for one in pair.contradictions],
    }


def _offset_object(offset: Offset) -> dict[str, Any]:
    return {
        "at_ns": offset.at_ns,
        "offset_lo_ns": offset.lo_ns,
        "offset_hi_ns": offset.hi_ns,
        "midpoint_ns": offset.midpoint_ns,
        "halfwidth_ns": offset.halfwidth_ns,
        "lower_from": offset.lower_from,
        "upper_from": offset.upper_from,
    }


def _contradiction_object(one: Contradiction) -> dict[str, Any]:
    return {
        "kind": one.kind,
        "request_id": one.request_id,
        "from": one.sender,
        "to": one.receiver,
        "sent_ns": one.sent_ns,
        "received_ns": one.received_ns,
        "by_ns": one.by_ns,
    }
