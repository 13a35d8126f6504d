"""One request as one self-contained HTML page: nothing is loaded, everything is escaped."""

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from string import Template
from typing import Final

from pdtrace.analysis import phases
from pdtrace.analysis.charts import waterfall
from pdtrace.analysis.report_style import style_sheet
from pdtrace.analysis.show import PhaseLine, Shown

_PAGE: Final = Template("""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"/>
<meta name="viewport" content="width=device-width,initial-scale=1"/>
<title>$title</title><style>$style$more</style></head><body>
<svg class="defs" aria-hidden="true"><defs><pattern id="hatch" width="6" height="6"
patternUnits="userSpaceOnUse"><path d="M-1,1 l2,-2 M0,6 l6,-6 M5,7 l2,-2"/></pattern></defs></svg>
<main><header><h1>Where one first token waited</h1>
<p class="lede"><code>$request</code></p><p class="soft">$sources</p></header>
<div class="cards">$cards</div>
<section><h2>$headline</h2>$advice$picture</section>
$table
<section><h2>The request</h2>$facts</section>
<section><h2>Notes</h2>$notes</section>
</main></body></html>
""")
_MORE: Final = """
code{overflow-wrap:anywhere}
h2{overflow-wrap:anywhere}
td.said{border-bottom:1px solid var(--grid);color:var(--soft);padding:0 12px 9px 18px;
white-space:normal}
tr.phase td{border-bottom:0;padding-bottom:0;font-weight:550}
tr.phase+tr td{font-weight:400}
.facts td{overflow-wrap:anywhere}
.facts td:first-child{color:var(--soft);white-space:nowrap;padding-right:22px;width:1%}
.between{display:none}
@media(max-width:640px){section{padding:14px}.facts td:first-child{white-space:normal}
td,th{padding-right:8px}td.said{padding-left:0}.wide{display:none}.between{display:inline}
tr.phase{font-size:12.5px}}
"""
# In a narrow window from and to stand before the sentence.
_COLUMNS: Final = {"exposed": "", "hidden": "", "drag": "", "from": " wide", "to": " wide"}
_WORDS: Final = {phases.COMPUTE: "compute wait", phases.COORDINATION: "coordination wait"}


def page(shown: Shown, sources: Sequence[str], notes: Sequence[str]) -> str:
    """The whole page. `sources` says where the request is from; `notes` are for the reader."""
    name = str(shown.facts[0][1])
    return _PAGE.substitute(
        title=escape(f"Where {name} waited"),
        style=style_sheet(),
        more=_MORE,
        request=escape(name),
        sources=escape("Source: " + ", ".join(sources)),
        cards="".join(_cards(shown.record)),
        headline=escape(shown.headline.partition(" = ")[0]),
        advice="".join(f"<p>{escape(sentence)}</p>" for sentence in shown.advice),
        picture=_picture(shown),
        table=_table(shown.phases),
        facts=_facts(shown.facts),
        notes=_notes(notes),
    )


def _cards(record: Mapping[str, object]) -> Iterable[str]:
    """One card per class that took time, with its share of the TTFT."""
    classes = record["classes"]
    if not isinstance(classes, dict):
        return
    total = max(sum(classes.values()), 1)
    for name, ns in classes.items():
        if ns:
            yield (
                f'<div class="card"><div class="mode">{_WORDS.get(name, name)}</div>'
                f"<b>{ns / 1e6:,.3f} <small>ms</small></b>"
                f'<div class="soft">{100 * ns / total:.1f} % of the TTFT</div></div>'
            )


def _picture(shown: Shown) -> str:
    if not shown.phases:
        return '<p class="soft">Nothing of it can be drawn.</p>'
    bars = " Error bars: where an edge may be, for what the clocks tell." if shown.whiskers else ""
    return (
        '<p class="soft">Lanes: router, prefill engine (P), decode engine (D), and the ranks of an '
        "engine where several took part. Hatched pieces are hidden: another phase owned that "
        f"time.{bars}</p>"
        f"{waterfall(shown.pieces, shown.window_ns, shown.lanes, shown.whiskers)}"
    )


def _table(lines: Sequence[PhaseLine]) -> str:
    if not lines:
        return ""
    head = "<th>phase</th>" + "".join(
        f'<th class="num{more}">{name}</th>' for name, more in _COLUMNS.items()
    )
    return (
        '<section><h2>Phase by phase, ms</h2><p class="soft">Exposed: time the phase owned; these '
        "add up. Hidden: time it was active while another phase owned. Drag: what the first token "
        "would gain without it. From and to: since the request's arrival.</p>"
        f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(map(_row, lines))}</tbody></table>"
        "</section>"
    )


def _row(line: PhaseLine) -> str:
    """The numbers of a phase, and below them what happened."""
    numbers = (line.exposed_ns, line.hidden_ns or None, line.drag_ns, line.from_ns, line.to_ns)
    shown = ["–" if ns is None else f"{ns / 1e6:,.3f}" for ns in numbers]
    cells = "".join(
        f'<td class="num{more}">{text}</td>'
        for more, text in zip(_COLUMNS.values(), shown, strict=True)
    )
    between = f'<span class="between">{shown[3]} – {shown[4]} ms: </span>'
    swatch = f'<i class="swatch s-{line.phase}"></i>'
    return (
        f'<tr class="phase"><td>{swatch}{line.phase}</td>{cells}</tr>'
        f'<tr><td class="said" colspan="6">{between}{escape(line.sentence)}</td></tr>'
    )


def _facts(facts: Sequence[tuple[str, str]]) -> str:
    rows = "".join(
        f"<tr><td>{escape(label)}</td><td>{escape(text)}</td></tr>" for label, text in facts
    )
    return f'<table class="facts"><tbody>{rows}</tbody></table>'


def _notes(notes: Sequence[str]) -> str:
    if not notes:
        return '<p class="soft">Nothing was left out while reading.</p>'
    return "<ul>" + "".join(f"<li>{escape(note)}</li>" for note in notes) + "</ul>"
