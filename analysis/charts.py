"""Inline SVG for the report: stacked bars of mean phases and waterfalls of single requests.

Shapes only; every number arrives computed. Colours are CSS classes named after the phases.
"""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Final, NamedTuple

from pdtrace.analysis import phases

WIDTH: Final = 1000
LABEL: Final = 92
PLOT: Final = WIDTH - LABEL - 108
BAR: Final = 34
LANE: Final = 20
CHARACTER: Final = 6.4
STEPS: Final = (1, 2, 5)


class Bar(NamedTuple):
    """A stacked bar: its label, what stands at its end, ns by phase in reading order."""

    label: str
    total: str
    parts: Mapping[str, float]


class Piece(NamedTuple):
    """A stretch of one phase in one lane, ns from the request's arrival."""

    lane: str
    phase: str
    start_ns: int
    end_ns: int
    owned: bool


class Whisker(NamedTuple):
    """An edge of a phase in a lane, whose place is only known to `halfwidth_ns`."""

    lane: str
    phase: str
    at_ns: int
    halfwidth_ns: int


def milliseconds(ns: float) -> str:
    """Nanoseconds as short milliseconds."""
    ms = ns / 1e6
    return f"{ms:,.0f}" if ms >= 100 else f"{ms:.1f}" if ms >= 10 else f"{ms:.2f}"


def stacked_bars(bars: Sequence[Bar], label: str) -> str:
    """Bars over one common scale, with an axis below; `label` says what they are."""
    longest = max((sum(bar.parts.values()) for bar in bars), default=0)
    if longest <= 0:
        return ""
    scale = PLOT / longest
    height = len(bars) * (BAR + 14) + 30
    rows = [_stacked(bar, 4 + place * (BAR + 14), scale) for place, bar in enumerate(bars)]
    axis = _axis(longest, scale, height - 26)
    return svg(height, label, axis + "".join(rows))


def _stacked(bar: Bar, top: float, scale: float) -> str:
    middle = top + BAR / 2
    drawn = [text_at(LABEL - 10, middle, bar.label, "end", "lane")]
    at = 0.0
    for phase, length in bar.parts.items():
        tip = f"{phase} ({phases.CLASS_OF[phase]}): {milliseconds(length)} ms"
        drawn.append(_rect(phase, LABEL + at * scale, top, length * scale, BAR, tip))
        at += length
    drawn.append(text_at(LABEL + at * scale + 8, middle, bar.total, "start", "total"))
    return "".join(drawn)


def waterfall(
    pieces: Sequence[Piece],
    ttft_ns: int,
    lanes: Mapping[str, str],
    whiskers: Sequence[Whisker] = (),
) -> str:
    """Lanes from arrival to first token; `lanes` maps a lane's key to its label.

    Hidden pieces are hatched. Phases that overlap in one lane get rows of their own. `whiskers`
    are drawn over their phase as error bars.
    """
    scale = PLOT / max(ttft_ns, 1)
    top, drawn = 4.0, []
    for lane, label in lanes.items():
        rows = stacked_rows([piece for piece in pieces if piece.lane == lane])
        height = max(len(rows), 1) * LANE
        drawn.append(text_at(LABEL - 10, top + height / 2, label, "end", "lane"))
        drawn.append(_line(LABEL, LABEL + PLOT, top + height + 2))
        for place, row in enumerate(rows):
            drawn += [_piece(piece, top + place * LANE, scale) for piece in row]
            here = {(piece.lane, piece.phase) for piece in row}
            mine = [whisker for whisker in whiskers if whisker[:2] in here]
            drawn += [_whisker(whisker, top + place * LANE, scale) for whisker in mine]
        top += height + 6
    axis = _axis(ttft_ns, scale, top + 2)
    return svg(top + 30, "Timeline of one request", axis + "".join(drawn))


def _piece(piece: Piece, top: float, scale: float) -> str:
    left, width = LABEL + piece.start_ns * scale, (piece.end_ns - piece.start_ns) * scale
    state = "exposed" if piece.owned else "hidden"
    tip = (
        f"{piece.phase} ({phases.CLASS_OF[piece.phase]}), {state}: "
        f"{milliseconds(piece.end_ns - piece.start_ns)} ms from {milliseconds(piece.start_ns)} ms"
    )
    return _rect(piece.phase, left, top + 1, width, LANE - 2, tip, hidden=not piece.owned)


def _whisker(whisker: Whisker, top: float, scale: float) -> str:
    ends = (whisker.at_ns - whisker.halfwidth_ns, whisker.at_ns + whisker.halfwidth_ns)
    left, right = (min(max(LABEL + ns * scale, LABEL), LABEL + PLOT) for ns in ends)
    low, middle, high = top + 5, top + LANE / 2, top + LANE - 5
    tip = f"{whisker.phase}: this edge is known to ± {milliseconds(whisker.halfwidth_ns)} ms"
    path = f"M{left:.2f},{low}V{high}M{left:.2f},{middle}H{right:.2f}M{right:.2f},{low}V{high}"
    return f'<g><title>{escape(tip)}</title><path class="whisker" d="{path}"/></g>'


def stacked_rows(pieces: Sequence[Piece]) -> list[list[Piece]]:
    """Pieces in as few rows as needed for none to overlap; one phase stays in one row."""
    by_phase: dict[str, list[Piece]] = {}
    for piece in sorted(pieces, key=lambda p: (p.start_ns, p.end_ns)):
        by_phase.setdefault(piece.phase, []).append(piece)
    rows: list[list[Piece]] = []
    for mine in by_phase.values():
        free = (row for row in rows if not any(_overlap(a, b) for a in row for b in mine))
        row = next(free, None)
        if row is None:
            rows.append(list(mine))
        else:
            row += mine
    return rows


def _overlap(one: Piece, other: Piece) -> bool:
    return one.start_ns < other.end_ns and other.start_ns < one.end_ns


def _axis(longest_ns: float, scale: float, top: float) -> str:
    step = round_step(longest_ns, 10)
    marks = []
    for place in range(int(longest_ns // step) + 1):
        x = LABEL + place * step * scale
        marks.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{top:.1f}"/>')
        unit = " ms" if place == 0 else ""
        marks.append(text_at(x, top + 12, f"{place * step / 1e6:,g}{unit}", "middle", "tick"))
    return "".join(marks)


def round_step(longest_ns: float, most: int) -> int:
    """A round step that gives at most `most` marks (ns)."""
    unit = 1000
    while True:
        for factor in STEPS:
            if longest_ns / (unit * factor) <= most:
                return unit * factor
        unit *= 10


def _rect(
    phase: str, x: float, y: float, width: float, height: float, tip: str, hidden: bool = False
) -> str:
    shape = f'x="{x:.2f}" y="{y:.1f}" width="{max(width, 0.8):.2f}" height="{height:.0f}"'
    drawn = f'<rect class="p-{phase}{" hid" if hidden else ""}" {shape}/>'
    if hidden:
        drawn += f'<rect class="hatch" {shape}/>'
    name = ""
    if width > len(phase) * CHARACTER + 6:
        name = text_at(x + width / 2, y + height / 2, phase, "middle", "onhid" if hidden else "on")
    return f"<g><title>{escape(tip)}</title>{drawn}{name}</g>"


def text_at(x: float, y: float, words: str, anchor: str, class_: str = "") -> str:
    """Words whose middle lies at `y`; `anchor`: which of their ends lies at `x`."""
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f'<text class="{class_}" {place} dominant-baseline="central">{escape(words)}</text>'


def _line(left: float, right: float, y: float) -> str:
    return f'<line class="rule" x1="{left}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>'


def svg(height: float, label: str, body: str) -> str:
    """A picture `WIDTH` wide; `label` says what it is to whoever cannot see it."""
    box = f'viewBox="0 0 {WIDTH} {height:.0f}"'
    return f'<svg {box} role="img" aria-label="{escape(label)}">{body}</svg>'
