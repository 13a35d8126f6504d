"""The split as one self-contained HTML page: nothing is loaded, everything is escaped."""

from collections.abc import Iterable, Sequence
from html import escape
from string import Template
from typing import Final

import pandas as pd

from pdtrace.analysis import phases, report
from pdtrace.analysis.attempts import SIDE_DECODE, SIDE_PREFILL, SIDE_ROUTER
from pdtrace.analysis.charts import Bar, Piece, stacked_bars, waterfall
from pdtrace.analysis.html_table import html_table, swatch
from pdtrace.analysis.report_style import style_sheet
from pdtrace.analysis.rows import RequestRow, request_rows
from pdtrace.analysis.split import Split
from pdtrace.analysis.summary import TTFT, Summary, summarise
from pdtrace.analysis.timeline import slowest

SHOWN: Final = 6
LARGEST: Final = 6
LANES: Final = {SIDE_ROUTER: "router", SIDE_PREFILL: "P", SIDE_DECODE: "D"}

_PAGE: Final = Template("""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"/>
<meta name="viewport" content="width=device-width,initial-scale=1"/>
<title>Where first tokens waited</title><style>$style</style></head><body>
<svg class="defs" aria-hidden="true"><defs><pattern id="hatch" width="6" height="6"
patternUnits="userSpaceOnUse"><path d="M-1,1 l2,-2 M0,6 l6,-6 M5,7 l2,-2"/></pattern></defs></svg>
<main><header><h1>Where first tokens waited</h1>
<p class="lede">Time to first token (TTFT), from the request's arrival at the outermost observer
to the first token there, split into phases that sum to it exactly. At each instant one phase
owns the time: work beats waiting, prefill beats decode.</p>
<p class="soft">$sources<br/>$counts</p></header>
<div class="cards">$cards</div>
<section><h2>Mean time to first token</h2>
<p class="soft">Means of the phases add up to the mean TTFT.</p>$key$bars</section>
<section><h2>$quantile_title</h2><p class="soft">Order statistics of what was observed. Quantiles
of the classes do not add up to the quantile of TTFT. "$too_few": fewer than one observation
would lie above.</p>$quantiles</section>
<section><h2>$phase_title</h2><p class="soft">Exposed: time the phase owned. Hidden, in brackets:
time it was active while something of higher priority owned the time.</p>$means</section>
<section><h2>Slowest requests</h2><p class="soft">Lanes: router, prefill engine (P), decode engine
(D). Hatched pieces are hidden: another phase owned that time.</p>
$waterfalls</section>$kinds
<section><h2>What each number means</h2><p class="soft">In order of priority. Completion is
polled, at best once a millisecond and often once per engine step, so transfer is an upper
bound.</p>$legend</section>
$known<section><h2>Outcomes, flags and notes</h2>$outcomes$ranks$flags$notes</section>
</main></body></html>
""")

CLASS_WORDS: Final = {
    phases.COMPUTE: "compute wait: for capacity, or while its own passes run",
    phases.COORDINATION: "coordination wait: for the handoff, while nothing of it is computed",
    phases.EDGE: "edge: the way in and the way back",
    phases.UNATTRIBUTED: "unattributed: no evidence",
}
_CLASS_SWATCH: Final = {
    phases.COMPUTE: phases.PREFILL,
    phases.COORDINATION: phases.TRANSFER,
    phases.EDGE: phases.INGRESS,
    phases.UNATTRIBUTED: phases.UNATTRIBUTED,
}


def page(split: Split, pieces: pd.DataFrame, sources: Sequence[str], notes: Sequence[str]) -> str:
    """The whole page. `pieces`: of the `shown` requests (`timeline.pieces`).

    `sources` says what is shown; `notes` are sentences for the reader.
    """
    summary = summarise(split)
    quantiles, means = report.quantile_table(summary), report.phase_table(summary)
    return _PAGE.substitute(
        style=style_sheet(),
        sources=escape("Source: " + ", ".join(sources)),
        counts="<br/>".join(escape(line) for line in report.count_sentences(summary)),
        cards="".join(_cards(summary)),
        key=_key(),
        bars=stacked_bars(_bars(summary), "Mean time to first token by mode")
        or _none("No request could be split."),
        quantile_title=escape(quantiles.title),
        too_few=report.TOO_FEW,
        quantiles=_grouped(quantiles),
        phase_title=escape(means.title),
        means=html_table(means, numeric_from=2, swatch_in=1),
        waterfalls=_waterfalls(split, pieces),
        legend=_legend(),
        kinds=_kinds(report.kind_table(summary)),
        known=_known(report.known_table(summary)),
        outcomes=html_table(report.outcome_table(summary), numeric_from=2),
        ranks=_ranks(split),
        flags=_flags(split),
        notes=_notes(notes),
    )


def _cards(summary: Summary) -> Iterable[str]:
    """One card per mode: the median TTFT if the sample carries it, else the mean."""
    found = summary.quantiles.set_index(["mode", "measure"])
    for mode in summary.exposed_sums.index:
        sums, count = summary.exposed_sums.loc[mode], int(summary.counts.loc[mode, "split"])
        shares = {name: int(sums[list(members)].sum()) for name, members in phases.MEMBERS.items()}
        total = max(sum(shares.values()), 1)
        median = found.loc[(mode, TTFT), "p50_ns"]
        what = "mean" if pd.isna(median) else "median"
        value = total / count if pd.isna(median) else int(median)
        at_least = "≥ " if found.loc[(mode, TTFT), "at_least"] else ""
        text = ", ".join(
            f"{name} {100 * part / total:.1f} %" for name, part in shares.items() if part
        )
        yield (
            f'<div class="card"><div class="mode">{escape(str(mode))} · {count} requests</div>'
            f"<b>{at_least}{value / 1e6:,.1f} <small>ms {what} TTFT</small></b>"
            f'<div class="soft">{escape(text)}</div></div>'
        )


def _bars(summary: Summary) -> list[Bar]:
    bars = []
    for mode in summary.exposed_sums.index:
        count = int(summary.counts.loc[mode, "split"])
        sums = summary.exposed_sums.loc[mode]
        parts = {name: int(sums[name]) / count for name in phases.READING_ORDER if int(sums[name])}
        bars.append(Bar(str(mode), f"{report.mean_ttft(summary, str(mode))} ms", parts))
    return bars


def shown(split: Split) -> list[str]:
    """The requests of which the page has a timeline: the slowest ones."""
    return slowest(split, SHOWN)


def _waterfalls(split: Split, pieces: pd.DataFrame) -> str:
    ids = shown(split)
    if not ids:
        return _none("No request could be split.")
    rows = dict(request_rows(split.requests.loc[ids]))
    return "".join(
        f'<div class="request">{_heading(rows[request_id])}'
        f"{_largest(split.exposed.T[request_id])}"
        f"{_chart(pieces[pieces['request_id'] == request_id], rows[request_id])}</div>"
        for request_id in ids
    )


def _chart(pieces: pd.DataFrame, row: RequestRow) -> str:
    columns = (pieces[name].tolist() for name in Piece._fields)
    drawn = [Piece(*values) for values in zip(*columns, strict=True)]
    return waterfall(drawn, row.ttft_ns or 0, LANES)


def _heading(row: RequestRow) -> str:
    engines = f"{row.prefill_engine or '?'} → {row.decode_engine or '?'}"
    words = [word for word in (row.mode, row.dispatch, engines) if word]
    flags = "".join(f'<span class="flag">{escape(flag)}</span>' for flag in row.flags)
    ttft = report.milliseconds(row.ttft_ns, row.lower_bound)
    return (
        f"<h3>{escape(ttft)} ms · <code>{escape(row.name)}</code>{flags}</h3>"
        f'<div class="soft">{escape(" · ".join(words))}</div>'
    )


def _largest(exposed: pd.Series) -> str:
    """The phases that own most of a request, largest first."""
    ranked = exposed[exposed > 0].sort_values(ascending=False, kind="stable")[:LARGEST]
    items = "".join(
        f"<span>{swatch(str(name))}{name} {report.milliseconds(int(ns))}</span>"
        for name, ns in ranked.items()
    )
    return f'<div class="key">{items}</div>'


def _key() -> str:
    items = "".join(
        f"<span>{swatch(_CLASS_SWATCH[name])}{escape(words)}</span>"
        for name, words in CLASS_WORDS.items()
    )
    return f'<div class="key">{items}</div>'


def _legend() -> str:
    rows = "".join(
        f"<tr><td>{swatch(phase.name)}<code>{phase.name}</code></td>"
        f"<td>{phase.class_}{' · ' + phase.group if phase.group else ''}</td>"
        f"<td>{escape(phase.interval)}</td></tr>"
        for phase in phases.PHASES
    )
    head = "<tr><th>phase</th><th>class</th><th>from → to</th></tr>"
    return f"<table><thead>{head}</thead><tbody>{rows}</tbody></table>"


def _grouped(table: report.Table) -> str:
    """The quantile table with a rule above each mode."""
    return html_table(table, numeric_from=2, group_by=0)


def _flags(split: Split) -> str:
    table = report.flagged_table(split)
    return html_table(table, numeric_from=9) if table.rows else _none("No request has a flag.")


def _known(table: report.Table) -> str:
    if not table.rows:
        return ""
    return (
        f"<section><h2>{escape(table.title)}</h2>"
        f"{html_table(table, numeric_from=3, group_by=0, swatch_in=2)}</section>"
    )


def _kinds(table: report.Table) -> str:
    if not table.rows:
        return ""
    return (
        f"<section><h2>{escape(table.title)}</h2>{html_table(table, numeric_from=3, group_by=1)}"
        "</section>"
    )


def _ranks(split: Split) -> str:
    table = report.rank_table(split)
    if not table.rows:
        return ""
    return f'<p class="soft">{escape(table.title)}</p>{html_table(table, numeric_from=1)}'


def _notes(notes: Sequence[str]) -> str:
    if not notes:
        return _none("Nothing was left out while reading.")
    return "<ul>" + "".join(f"<li>{escape(note)}</li>" for note in notes) + "</ul>"


def _none(sentence: str) -> str:
    return f'<p class="soft">{escape(sentence)}</p>'
