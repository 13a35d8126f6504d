"""One request in the terminal: lines of styled text, as wide as asked, readable without colour."""

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from pdtrace.analysis.charts import Piece, Whisker, round_step, stacked_rows
from pdtrace.analysis.printable import plain
from pdtrace.analysis.show import PhaseLine, Shown

NARROWEST: Final = 60
SOLID: Final = "█"
HATCHED: Final = "░"
BOLD: Final = "bold"
SOFT: Final = "soft"
_KEYS: Final = "abcdefghijklmnopqrstuvwxyz"
_NONE: Final = "–"


class Run(NamedTuple):
    """Characters in one style: "", `bold`, `soft`, or the name of a phase."""

    text: str
    style: str = ""


Line = list[Run]


def lines(shown: Shown, width: int) -> Iterable[Line]:
    """The whole picture; no line is longer than `width` (at least 60) characters."""
    width = max(width, NARROWEST)
    keys = {line.phase: _KEYS[place] for place, line in enumerate(shown.phases)}
    yield from _facts(shown.facts, width)
    yield []
    yield from ([Run(part, BOLD)] for part in _wrapped(shown.headline, width))
    if shown.phases:
        yield []
        yield from _waterfall(shown, keys, width)
        yield from _legend(shown, width)
        yield []
        yield from _table(shown.phases, keys, width)
    yield []
    for sentence in shown.advice:
        yield from ([Run(part)] for part in _wrapped(sentence, width))


def _facts(facts: Sequence[tuple[str, str]], width: int) -> Iterable[Line]:
    longest = max(len(label) for label, _ in facts)
    for label, text in facts:
        first, *more = _wrapped(text, width - longest - 2)
        yield [Run(f"{label:<{longest}}  ", SOFT), Run(first)]
        yield from ([Run(" " * (longest + 2) + part)] for part in more)


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(plain(text), width) or [""]


def _waterfall(shown: Shown, keys: Mapping[str, str], width: int) -> Iterable[Line]:
    """Per lane its pieces, and below them the keys of the phases that begin there."""
    label = max(len(name) for name in shown.lanes.values()) + 1
    scale = _Scale(shown.window_ns, width - label)
    for lane, name in shown.lanes.items():
        rows = stacked_rows([piece for piece in shown.pieces if piece.lane == lane]) or [[]]
        for place, row in enumerate(rows):
            yield [Run(f"{name if place == 0 else '':<{label}}", BOLD), *_bar(row, scale)]
            if row:
                yield [Run(" " * label), *_names(row, keys, scale)]
        if bars := _error_bars([w for w in shown.whiskers if w.lane == lane], scale):
            yield [Run(f"{'±':>{label - 1}} ", SOFT), Run(bars)]
    yield [Run(" " * label), Run(scale.axis(), SOFT)]


class _Scale:
    """Nanoseconds from arrival to columns."""

    def __init__(self, window_ns: int, columns: int) -> None:
        self.window_ns, self.columns = max(window_ns, 1), columns

    def column(self, ns: int) -> int:
        """The column that an instant falls into, the last one for the end of the window."""
        return max(0, min(ns * self.columns // self.window_ns, self.columns - 1))

    def edge_ns(self, column: int) -> int:
        """Where a column begins."""
        return -(-column * self.window_ns // self.columns)

    def axis(self) -> str:
        """Marks at round milliseconds, as many as there is room for."""
        step = round_step(self.window_ns, max(self.columns // 12, 1))
        axis = ""
        for at in range(0, self.window_ns + 1, step):
            mark, place = f"{at / 1e6:,g}" + (" ms" if at == 0 else ""), self.column(at)
            if place >= len(axis) and place + len(mark) <= self.columns:
                axis = f"{axis:<{place}}{mark} "
        return axis.rstrip()


def _bar(row: Sequence[Piece], scale: _Scale) -> Line:
    """Solid where a piece is exposed, hatched where it is hidden.

    A column that several pieces share shows the one with most time in it; the keys name them all.
    """
    cells = [Run(" ")] * scale.columns
    for column in {c for p in row for c in _columns(p, scale)}:
        start, end = scale.edge_ns(column), scale.edge_ns(column + 1)
        here = [piece for piece in row if column in _columns(piece, scale)]
        best = max(here, key=lambda p: (min(p.end_ns, end) - max(p.start_ns, start), p.owned))
        cells[column] = Run(SOLID if best.owned else HATCHED, best.phase)
    return _merged(cells)


def _columns(piece: Piece, scale: _Scale) -> range:
    """The columns that a piece lies in, at least one."""
    first = scale.column(piece.start_ns)
    return range(first, max(first, scale.column(piece.end_ns - 1)) + 1)


def _merged(cells: Sequence[Run]) -> Line:
    merged: Line = []
    for cell in cells:
        if merged and merged[-1].style == cell.style:
            merged[-1] = Run(merged[-1].text + cell.text, cell.style)
        else:
            merged.append(cell)
    if merged and not merged[-1].text.strip():
        merged.pop()
    return merged


def _names(row: Sequence[Piece], keys: Mapping[str, str], scale: _Scale) -> Line:
    """The key of each phase below its first piece, its name as well where there is room."""
    starts: dict[str, int] = {}
    for piece in sorted(row, key=lambda p: p.start_ns):
        starts.setdefault(piece.phase, scale.column(piece.start_ns))
    line, end = [], 0
    places = _apart(list(starts.values()), scale.columns)
    for phase, at, limit in zip(starts, places, [*places, scale.columns][1:], strict=True):
        long = f"{keys[phase]} {phase}"
        text = long if at + len(long) < limit else keys[phase]
        line.append(Run(" " * (at - end) + text, SOFT))
        end = at + len(text)
    return line


def _apart(columns: Sequence[int], count: int) -> list[int]:
    """Rising columns below `count`, no two the same, as near as can be."""
    places, limit = [], count
    for column in reversed(columns):
        limit = min(column, limit - 1)
        places.append(limit)
    free, apart = 0, []
    for place in reversed(places):
        apart.append(max(place, free))
        free = apart[-1] + 1
    return apart


def _error_bars(whiskers: Sequence[Whisker], scale: _Scale) -> str:
    """`├──┤` over the places where an edge may be."""
    cells = [" "] * scale.columns
    for whisker in whiskers:
        first = scale.column(max(0, whisker.at_ns - whisker.halfwidth_ns))
        last = scale.column(whisker.at_ns + whisker.halfwidth_ns)
        for column in range(first, last + 1):
            cells[column] = "─"
        cells[first], cells[last] = ("├", "┤") if last > first else ("┼", "┼")
    return "".join(cells).rstrip()


def _legend(shown: Shown, width: int) -> Iterable[Line]:
    said = f"{SOLID} exposed: the phase owned the time   {HATCHED} hidden: another phase did"
    parts = [said] if len(said) <= width else said.split("   ")
    if shown.whiskers:
        parts.append("├─┤ where the edge may be, for what the clocks tell")
    yield from ([Run(part, SOFT)] for part in parts)


def _table(phases: Sequence[PhaseLine], keys: Mapping[str, str], width: int) -> Iterable[Line]:
    """Exposed, hidden, drag and from–to in ms, and below each phase its sentence."""
    rows = [("phase", "exposed", "hidden", "drag", "from – to, ms")]
    rows += [_cells(line) for line in phases]
    sizes = [max(len(row[place]) for row in rows) for place in range(5)]
    fits = 2 + sum(sizes) + 2 * 4 <= width
    for row, line in zip(rows, (None, *phases), strict=True):
        numbers = "".join(f"  {cell:>{sizes[1 + at]}}" for at, cell in enumerate(row[1:4]))
        span = row[4]
        key = keys[line.phase] if line else " "
        style = line.phase if line else SOFT
        yield [
            Run(f"{key} ", style),
            Run(f"{row[0]:<{sizes[0]}}", "" if line else SOFT),
            Run(numbers, "" if line else SOFT),
            Run(f"  {span:>{sizes[4]}}" if fits else "", "" if line else SOFT),
        ]
        if line:
            said = line.sentence if fits else f"{span} ms: {line.sentence}"
            yield from ([Run(f"    {part}", SOFT)] for part in _wrapped(said, width - 4))


def _cells(line: PhaseLine) -> tuple[str, str, str, str, str]:
    drag = _NONE if line.drag_ns is None else _ms(line.drag_ns)
    hidden = _ms(line.hidden_ns) if line.hidden_ns else _NONE
    between = f"{_ms(line.from_ns)} – {_ms(line.to_ns)}"
    return line.phase, _ms(line.exposed_ns), hidden, drag, between


def _ms(ns: int) -> str:
    return f"{ns / 1e6:,.3f}"
