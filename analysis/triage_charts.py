"""Inline SVG for the triage page: rises with their intervals, coverage, a phase over time."""

from collections.abc import Sequence
from html import escape
from typing import Final, NamedTuple

from pdtrace.analysis.charts import WIDTH, milliseconds, svg, text_at

LABEL: Final = 250
LETTERS: Final = 34
RIGHT: Final = 20
ROW: Final = 24
HEIGHT: Final = 190
FLOOR: Final = 160


class Range(NamedTuple):
    """A bar: its label, its length with an interval, its colour class, what stands in its tip."""

    label: str
    value: float
    low: float
    high: float
    class_: str
    tip: str


class Mark(NamedTuple):
    """An instant to mark in a chart over time: Unix ns and its words."""

    at_ns: int
    words: str
    class_: str


def ranges(bars: Sequence[Range], unit: str, threshold: float | None = None) -> str:
    """Bars from zero with whiskers, one per row; `threshold`: a dashed line at this value."""
    if not bars:
        return ""
    low = min(0.0, *(min(bar.low, bar.value) for bar in bars))
    high = max(0.0, *(max(bar.high, bar.value) for bar in bars), threshold or 0.0)
    scale = (WIDTH - LABEL - RIGHT) / ((high - low) or 1.0)

    def x(value: float) -> float:
        return LABEL + (value - low) * scale

    drawn, bottom = [], len(bars) * ROW + 4
    for place, bar in enumerate(bars):
        middle = place * ROW + ROW / 2 + 2
        left, right = sorted((x(0), x(bar.value)))
        drawn.append(
            f"<g><title>{escape(bar.tip)}</title>"
            f"{text_at(LABEL - 10, middle, _short(bar.label), 'end')}"
            f'<rect class="{bar.class_}" x="{left:.1f}" y="{middle - 7:.1f}" '
            f'width="{max(right - left, 0.8):.1f}" height="14"/>'
            f'<path class="whisker" d="M{x(bar.low):.1f},{middle:.1f} H{x(bar.high):.1f} '
            f'M{x(bar.low):.1f},{middle - 4:.1f} v8 M{x(bar.high):.1f},{middle - 4:.1f} v8"/></g>'
        )
    lines = [_upright(x(0), bottom, "rule")]
    if threshold is not None:
        lines.append(_upright(x(threshold), bottom, "threshold"))
    ends = {0.0: f"0 {unit}", high: f"{high:,.0f}", threshold: f"{threshold or 0:,.0f}"}
    marks = [
        text_at(x(at), bottom + 12, words, "middle" if at < high else "end", "tick")
        for at, words in ends.items()
        if at is not None
    ]
    return svg(bottom + 24, f"Bars in {unit}", "".join((*lines, *drawn, *marks)))


def _short(label: str) -> str:
    """As much as fits beside a bar, its middle left out: ids of engines differ at either end."""
    if len(label) <= LETTERS:
        return label
    return f"{label[: LETTERS // 2 - 1]}…{label[-(LETTERS // 2) :]}"


def over_time(points: Sequence[tuple[int, float]], marks: Sequence[Mark], class_: str) -> str:
    """Medians (Unix ns, ns) as bars from left to right, with upright marks."""
    if len(points) < 2:
        return ""
    first, width = points[0][0], min(b[0] - a[0] for a, b in zip(points, points[1:], strict=False))
    last, top = points[-1][0] + width, max(value for _, value in points) or 1.0
    left = 60
    scale = (WIDTH - left - RIGHT) / (last - first)

    def x(at: int) -> float:
        return left + (at - first) * scale

    drawn = [
        f'<rect class="{class_}" x="{x(at):.1f}" y="{FLOOR - value / top * (FLOOR - 30):.1f}" '
        f'width="{max(width * scale - 1, 0.8):.1f}" height="{value / top * (FLOOR - 30):.1f}">'
        f"<title>{milliseconds(value)} ms</title></rect>"
        for at, value in points
    ]
    for mark in marks:
        at = min(max(x(mark.at_ns), left), WIDTH - RIGHT)
        side = "start" if at < WIDTH / 2 else "end"
        shift = 6 if side == "start" else -6
        row = 8 + 14 * list(marks).index(mark)
        drawn.append(_upright(at, FLOOR, mark.class_) + text_at(at + shift, row, mark.words, side))
    axis = [
        f'<line class="rule" x1="{left}" x2="{WIDTH - RIGHT}" y1="{FLOOR}" y2="{FLOOR}"/>',
        text_at(left - 8, 30, f"{milliseconds(top)} ms", "end", "tick"),
        text_at(left - 8, FLOOR, "0", "end", "tick"),
        text_at(left, FLOOR + 14, "start", "start", "tick"),
        text_at(WIDTH - RIGHT, FLOOR + 14, f"{(last - first) / 1e9:,.0f} s later", "end", "tick"),
    ]
    return svg(HEIGHT, "Median over time", "".join((*axis, *drawn)))


def _upright(x: float, bottom: float, class_: str) -> str:
    return f'<line class="{class_}" x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{bottom:.1f}"/>'
