"""One request as it is shown: what it was, its pieces lane by lane, a sentence for each phase.

Content only; `show_text`, `show_html` and `as_json` bring it to people and scripts.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

import pandas as pd

from pdtrace.analysis import phases, report
from pdtrace.analysis.attempts import SIDE_DECODE, SIDE_PREFILL, SIDE_ROUTER
from pdtrace.analysis.charts import Piece, Whisker
from pdtrace.analysis.edges import (
    Sides,
    between_clocks,
    crossing,
    exposed_parts,
    piece_sides,
    uncertain,
    unresolved,
)
from pdtrace.analysis.handoffs import Handoffs
from pdtrace.analysis.intervals import draw
from pdtrace.analysis.phase_words import Context, milliseconds, sentence
from pdtrace.analysis.split import Split, split
from pdtrace.analysis.stretches import length, overlap
from pdtrace.analysis.subject import Subject, only, subject
from pdtrace.analysis.subject_words import about, advice, first_token, last_seen, shares
from pdtrace.analysis.timeline import pieces

SIDES: Final = {SIDE_ROUTER: "router", SIDE_PREFILL: "P", SIDE_DECODE: "D"}
NO_EVIDENCE: Final = "no span"


class PhaseLine(NamedTuple):
    """One phase: ns, from and to since arrival. `drag_ns` is None without a first token.

    `crosses`: it, or an exposed part of it, begins on one clock and ends on another. `resolved`:
    what does so is longer than the half-width of these clocks.
    """

    phase: str
    exposed_ns: int
    hidden_ns: int
    drag_ns: int | None
    from_ns: int
    to_ns: int
    crosses: bool
    resolved: bool
    sentence: str


@dataclass(frozen=True)
class Shown:
    """`facts`: pairs of label and text. `headline`: the first token and its classes. `lanes`: key
    → label, in the order to draw. `window_ns`: from arrival to the first token, or to the last
    instant known. `advice`: sentences below the phases."""

    facts: tuple[tuple[str, str], ...]
    headline: str
    lanes: Mapping[str, str]
    pieces: tuple[Piece, ...]
    window_ns: int
    whiskers: tuple[Whisker, ...]
    phases: tuple[PhaseLine, ...]
    advice: tuple[str, ...]
    record: Mapping[str, object]
    """The request as `pdtrace split --json` prints it."""


def show(handoffs: Handoffs, label: str) -> Shown:
    """Everything about the request with this label (see `find`)."""
    handoffs = only(handoffs, label)
    done = split(handoffs)
    window = _window(handoffs, done)
    one = subject(handoffs, done, _arrival(handoffs, window))
    drawn = _pieces(handoffs, window, whole=len(done.splittable) > 0)
    lines = tuple(_phase_lines(done, one, drawn))
    return Shown(
        facts=tuple(about(one)),
        headline=_headline(done, one),
        lanes=_lanes(drawn),
        pieces=drawn,
        window_ns=_length(window),
        whiskers=tuple(sorted(set(_whiskers(one, drawn)))),
        phases=lines,
        advice=tuple(_advice(done, one, lines)),
        record=next(report.request_records(done)),
    )


def as_json(shown: Shown) -> dict[str, object]:
    """The same for scripts: plain dicts and lists, times in ns from arrival."""
    return {
        "request": shown.record,
        "headline": shown.headline,
        "facts": [{"label": label, "text": text} for label, text in shown.facts],
        "window_ns": shown.window_ns,
        "lanes": dict(shown.lanes),
        "pieces": [piece._asdict() for piece in shown.pieces],
        "clock_whiskers": [whisker._asdict() for whisker in shown.whiskers],
        "phases": [line._asdict() for line in shown.phases],
        "advice": list(shown.advice),
    }


def _window(handoffs: Handoffs, done: Split) -> pd.DataFrame:
    """The request's row from arrival to first token, else over what is known of its phases."""
    row = handoffs.requests
    if not len(done.splittable):
        drawn = draw(handoffs)
        start, end = row["t0_ns"].fillna(drawn["start_ns"].min()), drawn["end_ns"].max()
        row = row.assign(t0_ns=start, t1_ns=end)[row["aligned"]]
        row = row.dropna(subset=["t0_ns", "t1_ns"])
    return row.astype({"t0_ns": "int64", "t1_ns": "int64"})


def _arrival(handoffs: Handoffs, window: pd.DataFrame) -> int:
    """When the request arrived, else the first that is known of it (Unix ns)."""
    known = [window["t0_ns"], handoffs.requests["t0_ns"], handoffs.spans["start_ns"]]
    return next((int(times.min()) for times in known if times.notna().any()), 0)


def _pieces(handoffs: Handoffs, window: pd.DataFrame, whole: bool) -> tuple[Piece, ...]:
    """Pieces by time; without a first token nothing is said of what no span covers."""
    if window.empty:
        return ()
    drawn = pieces(handoffs, window, by_rank=True)
    columns = (drawn[name].tolist() for name in Piece._fields)
    found = [Piece(*values) for values in zip(*columns, strict=True)]
    kept = [piece for piece in found if whole or piece.phase != phases.UNATTRIBUTED]
    return tuple(sorted(kept, key=lambda piece: (piece.start_ns, piece.end_ns, piece.lane)))


def _length(window: pd.DataFrame) -> int:
    return int((window["t1_ns"] - window["t0_ns"]).sum())


def _lanes(drawn: Iterable[Piece]) -> dict[str, str]:
    """Router, P and D always, each with its ranks below; then what no span covers."""
    used = {piece.lane for piece in drawn}
    lanes = {}
    for side, label in SIDES.items():
        lanes[side] = label
        ranks = [lane for lane in used if lane.startswith(f"{side}/")]
        for lane in sorted(ranks, key=_by_number):
            lanes[lane] = f"{label} {lane.partition('/')[2]}"
    if phases.UNATTRIBUTED in used:
        lanes[phases.UNATTRIBUTED] = NO_EVIDENCE
    return lanes


def _by_number(lane: str) -> tuple[int, ...]:
    """`prefill/pp1/tp10` after `prefill/tp2`."""
    numbers = tuple(int(part[2:]) for part in lane.split("/")[1:])
    return numbers if len(numbers) == 2 else (0, *numbers)


def _phase_lines(done: Split, one: Subject, drawn: tuple[Piece, ...]) -> Iterable[PhaseLine]:
    """In reading order, those that took time. Exposed, hidden and drag are those of the split."""
    for phase in phases.READING_ORDER:
        mine = [piece for piece in drawn if piece.phase == phase]
        if mine:
            line = _phase_line(done, one, mine, drawn)
            said = " ".join([line.sentence, *_remarks(one, line, mine, drawn)])
            yield line._replace(sentence=said)


def _phase_line(
    done: Split, one: Subject, mine: list[Piece], drawn: tuple[Piece, ...]
) -> PhaseLine:
    phase = mine[0].phase
    owned = (done.exposed if len(done.splittable) else done.known)[phase]
    exposed = int(owned.sum())
    hidden = length((piece.start_ns, piece.end_ns) for piece in mine if not piece.owned)
    sides = {piece.lane.partition("/")[0] for piece in mine}
    return PhaseLine(
        phase=phase,
        exposed_ns=exposed,
        hidden_ns=hidden,
        drag_ns=int(done.drag[phase].sum()) if len(done.splittable) else None,
        from_ns=min(piece.start_ns for piece in mine),
        to_ns=max(piece.end_ns for piece in mine),
        crosses=any(crossing(one, mine, drawn)),
        resolved=not any(unresolved(one, mine, drawn)),
        sentence=sentence(phase, Context(one, sides, exposed + hidden)),
    )


def _remarks(
    one: Subject, line: PhaseLine, mine: list[Piece], drawn: tuple[Piece, ...]
) -> Iterable[str]:
    """What hid the phase, and what the clocks allow to say of it."""
    if line.hidden_ns:
        what = f"{milliseconds(line.hidden_ns)} of it" if line.exposed_ns else "It"
        why = f"because {_hiders(mine, drawn)}"
        if line.drag_ns and not line.exposed_ns:
            gain = milliseconds(line.drag_ns)
            yield (
                f"{what} was hidden, {why}; "
                f"yet without it the first token would have come {gain} sooner."
            )
        else:
            yield f"{what} cost nothing, {why}."
    if not line.resolved:
        width = milliseconds(one.row.clock_halfwidth_ns or 0)
        whole, _ = unresolved(one, mine, drawn)
        ends = "its two ends" if whole else "the two ends of its exposed part"
        yield f"Not resolved: the clocks of {ends} are only known to ± {width}."


def _hiders(mine: list[Piece], drawn: tuple[Piece, ...]) -> str:
    """The phases that owned the time meanwhile: one of them, the one that did most."""
    hidden = [(piece.start_ns, piece.end_ns) for piece in mine if not piece.owned]
    owners: dict[str, list[tuple[int, int]]] = {}
    for piece in drawn:
        if piece.owned and piece.phase != mine[0].phase:
            owners.setdefault(piece.phase, []).append((piece.start_ns, piece.end_ns))
    by_time = {name: overlap(hidden, times) for name, times in owners.items()}
    most = max(by_time, key=lambda name: by_time[name])
    if most == phases.PREFILL:
        return "prefill was still running"
    return f"{most} had the time"


def _whiskers(one: Subject, drawn: tuple[Piece, ...]) -> Iterable[Whisker]:
    """Edges, on another clock than the arrival's, of what goes between two clocks.

    The outer edges of such phases, and those of exposed parts that do so.
    """
    by_place: dict[tuple[str, str], list[Piece]] = {}
    for piece in drawn:
        by_place.setdefault((piece.lane, piece.phase), []).append(piece)
    for mine in by_place.values():
        start, end = min(p.start_ns for p in mine), max(p.end_ns for p in mine)
        whole = mine[0]._replace(start_ns=start, end_ns=end)
        yield from _doubtful(one, whole, piece_sides(one, whole, drawn))
    for piece, sides in exposed_parts(one, drawn, drawn):
        yield from _doubtful(one, piece, sides)


def _doubtful(one: Subject, piece: Piece, sides: Sides) -> Iterable[Whisker]:
    width = one.row.clock_halfwidth_ns or 0
    edges = zip((piece.start_ns, piece.end_ns), uncertain(one, sides), strict=True)
    yield from (Whisker(piece.lane, piece.phase, at, width) for at, doubtful in edges if doubtful)


def _headline(done: Split, one: Subject) -> str:
    text = f"TTFT {first_token(one)}" if one.row.ttft_ns is not None else first_token(one)
    if len(done.splittable):
        text += f" = {shares(_only_row(done.classes))}"
    return text[:1].upper() + text[1:]


def _advice(done: Split, one: Subject, lines: tuple[PhaseLine, ...]) -> Iterable[str]:
    width = milliseconds(one.row.clock_halfwidth_ns or 0)
    if len(done.splittable):
        yield advice(_only_row(done.exposed), _only_row(done.drag))
    elif one.row.t1_ns is None:
        yield last_seen(one)
    else:
        yield "What its phases took is not known."
    if lines and "t0_ns" not in one.at:
        yield "When it arrived is not known: times are from the first instant that is."
    if one.row.handover_ns is not None:
        doubt = f" ± {width}" if between_clocks(one, SIDE_PREFILL, SIDE_DECODE) else ""
        part = one.row.wire_ratio
        moving = "" if part is None else f", {100 * part:.1f} % of it transfer"
        yield (
            "From the computed prompt on P to the first token on D (handover): "
            f"{milliseconds(one.row.handover_ns)}{doubt}{moving}."
        )
    if any(line.crosses for line in lines):
        yield (
            f"Its spans are on several clocks, compared to ± {width}: phases between two of "
            "them, and what is exposed from one to another, are as uncertain, all others are exact."
        )


def _only_row(frame: pd.DataFrame) -> dict[str, int]:
    return {str(name): int(frame[name].iloc[0]) for name in frame.columns}
