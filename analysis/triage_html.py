"""Triage as one self-contained HTML page: nothing is loaded, everything is escaped."""

from collections.abc import Iterable, Sequence
from html import escape
from string import Template
from typing import Final

from pdtrace.analysis import phases
from pdtrace.analysis.charts import Bar, stacked_bars
from pdtrace.analysis.html_table import html_table
from pdtrace.analysis.report import Table
from pdtrace.analysis.report_style import style_sheet
from pdtrace.analysis.triage import Triage
from pdtrace.analysis.triage_attributes import BY_NAME
from pdtrace.analysis.triage_charts import Mark, Range, over_time, ranges
from pdtrace.analysis.triage_choice import ENOUGH
from pdtrace.analysis.triage_report import (
    SHOWN,
    doubtful_table,
    ledger_table,
    lift_table,
    open_table,
    standing_table,
)
from pdtrace.analysis.triage_words import (
    RUNBOOK,
    basis_sentences,
    clock,
    doubtful_sentence,
    links,
    milliseconds,
    percent,
    signed,
    verdict_sentences,
)

_STYLE: Final = """
.verdict{font-size:21px;line-height:1.35;max-width:62ch;margin:0 0 10px;font-weight:600}
.num{white-space:nowrap}
.doubt{border-left:4px solid var(--warn)}
rect.bar{fill:#5b82c9}rect.weak{fill:var(--line)}
.whisker{stroke:var(--ink);stroke-width:1.2;fill:none;opacity:.75}
line.threshold{stroke:var(--warn);stroke-dasharray:4 4}
line.change{stroke:var(--warn);stroke-width:1.6}
line.event{stroke:var(--soft);stroke-dasharray:2 3}
"""
_PAGE: Final = Template("""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"/>
<meta name="viewport" content="width=device-width,initial-scale=1"/>
<title>Why first tokens were slow</title><style>$style</style></head><body>
<main><header><h1>Why first tokens were slow</h1>
<p class="soft">$sources<br/>$basis</p></header>
$doubt
<section><p class="verdict">$head</p>$rest$links</section>
<div class="cards">$cards</div>
$sections
</main></body></html>
""")


def page(found: Triage, sources: Sequence[str], notes: Sequence[str]) -> str:
    """The whole page. `sources` says what is shown; `notes` are sentences for the reader."""
    head, *rest = verdict_sentences(found)
    parts = (_phases(found), _attributes(found), _time(found), _requests(found), _notes(notes))
    return _PAGE.substitute(
        style=style_sheet() + _STYLE,
        sources=escape("Source: " + ", ".join(sources)),
        basis="<br/>".join(escape(line) for line in basis_sentences(found)),
        doubt=_doubt(found),
        head=escape(head),
        rest="".join(f"<p>{escape(line)}</p>" for line in rest),
        links=_links(found),
        cards="".join(_cards(found)),
        sections="".join(part for part in parts if part),
    )


def _doubt(found: Triage) -> str:
    sentence = doubtful_sentence(found)
    if not sentence:
        return ""
    table = html_table(doubtful_table(found), numeric_from=9)
    return f'<section class="doubt"><h2>{escape(sentence)}</h2>{table}</section>'


def _links(found: Triage) -> str:
    names = ", ".join(f"<code>{RUNBOOK}#{escape(anchor)}</code>" for anchor in links(found.verdict))
    return f'<p class="soft">What it means, how to confirm it, what usually fixes it: {names}</p>'


def _cards(found: Triage) -> Iterable[str]:
    """The two means, what lies between them, and what the named value covers."""
    if found.ledger is None:
        return
    slow, usual = int(found.sets.slow.sum()), len(found.sets.reference)
    means = [
        found.ledger["slow_sum_ns"].sum() / slow,
        found.ledger["reference_sum_ns"].sum() / usual,
    ]
    yield _card(f"{slow} slow requests", milliseconds(means[0]), "mean TTFT")
    yield _card(f"{usual} of the reference", milliseconds(means[1]), "mean TTFT")
    yield _card("rise", signed(means[0] - means[1]), "in mean TTFT")
    chosen = found.verdict.chosen
    if chosen is not None:
        least = f"at least {percent(chosen.coverage_low)}"
        where = f"{BY_NAME[chosen.attribute].words} {chosen.value}"
        yield _card("of the slow ones", percent(chosen.coverage), f"{where}, {least}")


def _card(title: str, value: str, below: str) -> str:
    return (
        f'<div class="card"><div class="mode">{escape(title)}</div><b>{escape(value)}</b>'
        f'<div class="soft">{escape(below)}</div></div>'
    )


def _phases(found: Triage) -> str:
    if found.ledger is None:
        return ""
    ledger, bars = found.ledger, []
    for label, column, count in (
        ("slow", "slow_sum_ns", int(found.sets.slow.sum())),
        ("reference", "reference_sum_ns", len(found.sets.reference)),
    ):
        means = {name: int(ledger[column][name]) / count for name in phases.READING_ORDER}
        parts = {name: mean for name, mean in means.items() if mean}
        bars.append(Bar(label, milliseconds(sum(parts.values())), parts))
    risen = ledger[(ledger["share"].abs() >= 0.005)].sort_values("d_ns", ascending=False)
    rows = [
        Range(
            str(name),
            row["d_ns"] / 1e6,
            row["d_low_ns"] / 1e6,
            row["d_high_ns"] / 1e6,
            f"p-{name}",
            f"{name}: {signed(row['d_ns'])}, 95 % from {signed(row['d_low_ns'])} "
            f"to {signed(row['d_high_ns'])}",
        )
        for name, row in risen.iterrows()
    ]
    return _section(
        "By how much each phase rose in all slow requests",
        "Differences of the means of slow requests and reference; they add up to the rise of mean "
        "TTFT exactly. Whiskers: 95 %, from blocks of time drawn again. Mix: the part that comes "
        "from other prompt lengths and cached tokens. Drag: what removing the phase would save "
        "beyond what it would save in the reference.",
        stacked_bars(bars, "Mean time to first token of slow requests and of the reference")
        + ranges(rows, "ms")
        + _table(ledger_table(found), 1, swatch_in=0),
    )


def _attributes(found: Triage) -> str:
    if found.lift is None:
        return ""
    more = found.lift[found.lift["coverage"] > 0].head(SHOWN)
    rows = [
        Range(
            f"{BY_NAME[row['attribute']].words} {row['value']}",
            100 * row["coverage"],
            100 * row["coverage_low"],
            100 * row["coverage_high"],
            "bar" if row["found"] and not row["yields_to"] else "weak",
            f"{BY_NAME[row['attribute']].words} {row['value']}: "
            f"{percent(row['coverage'])} of the slow requests, at least "
            f"{percent(row['coverage_low'])}",
        )
        for row in more.to_dict("records")
    ]
    return _section(
        "What slow requests have in common",
        "Which part of the slow requests a value explains: those beyond what the rest's rate of "
        "slow ones gives, compared within equal prompt lengths and times; whiskers: 95 %. The "
        "order is that of the lower ends. A value is named only if its lower end reaches "
        f"{percent(ENOUGH)} (dashed), chance is ruled out, and no related value explains more.",
        ranges(rows, "%", 100 * ENOUGH) + _table(lift_table(found), 2),
    )


def _time(found: Triage) -> str:
    when = found.verdict.when
    if when is None or len(when.bins) < 2:
        return ""
    points = list(zip(when.bins["start_ns"].tolist(), when.bins["median_ns"].tolist(), strict=True))
    marks = []
    if when.shift is not None:
        marks.append(Mark(when.shift.at_ns, f"since {clock(when.shift.at_ns)}", "change"))
    if when.event is not None:
        words = f"{when.event.engine_id} {when.event.what}"
        marks.append(Mark(when.event.time_ns, words, "event"))
    phase = found.verdict.phase or ""
    text = "No change in time stands out." if when.shift is None else ""
    return _section(f"Median of {phase} over time", text, over_time(points, marks, f"p-{phase}"))


def _requests(found: Triage) -> str:
    opened = open_table(found)
    more = f"<h2>{escape(opened.title)}</h2>{_table(opened, 9)}" if opened.rows else ""
    return _section("All requests of the window", "", _table(standing_table(found), 1) + more)


def _notes(notes: Sequence[str]) -> str:
    if not notes:
        return ""
    items = "".join(f"<li>{escape(note)}</li>" for note in notes)
    return _section("What was left out while reading", "", f"<ul>{items}</ul>")


def _table(table: Table, numeric_from: int, swatch_in: int | None = None) -> str:
    return html_table(table, numeric_from, swatch_in=swatch_in)


def _section(title: str, text: str, body: str) -> str:
    said = f'<p class="soft">{escape(text)}</p>' if text else ""
    return f"<section><h2>{escape(title)}</h2>{said}{body}</section>"
