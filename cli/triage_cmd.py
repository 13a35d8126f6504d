"""`pdtrace triage`: which factor explains slow first tokens."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import orjson
import pandas as pd
import typer
from rich.console import Console

from pdtrace.analysis.analyse import analyse
from pdtrace.analysis.selection import Selection, selected
from pdtrace.analysis.sources import Limits, SourceError
from pdtrace.analysis.triage import Triage, triage
from pdtrace.analysis.triage_html import page
from pdtrace.analysis.triage_report import json_object, tables
from pdtrace.analysis.triage_sets import BASELINE, EARLIER, Objective
from pdtrace.analysis.triage_spans import asked_for
from pdtrace.analysis.triage_traffic import Traffic
from pdtrace.analysis.triage_words import (
    RUNBOOK,
    basis_sentences,
    doubtful_sentence,
    links,
    verdict_sentences,
)
from pdtrace.analysis.workers import every_core
from pdtrace.cli.options import Sources, reading, sayable
from pdtrace.cli.output import failure, finish, standard_output, write
from pdtrace.cli.tables import drawn, printed, standard_console
from pdtrace.cli.time_range import HELP, TimeRange, TimeRangeError

app = typer.Typer(add_completion=False)
_NAME: Final = "triage"


@app.command()
@reading
def triage_command(
    sources: Sources,
    limits: Limits,
    slo_ms: Annotated[
        float | None, typer.Option(help="Slow: a TTFT of more milliseconds than this.")
    ] = None,
    slowest: Annotated[
        str | None, typer.Option(help="Slow: the slowest share of the window, like 5%.")
    ] = None,
    baseline: Annotated[
        list[str] | None,
        typer.Option(help="Sources of healthy traffic to compare with; may be repeated."),
    ] = None,
    baseline_window: Annotated[
        str | None, typer.Option(help=f"Healthy part of SOURCES: {HELP}")
    ] = None,
    window: Annotated[
        str | None, typer.Option(help=f"Part of SOURCES with the trouble: {HELP}")
    ] = None,
    model: Annotated[
        list[str] | None, typer.Option(help="Only requests for this model; may be repeated.")
    ] = None,
    mode: Annotated[
        list[str] | None, typer.Option(help="Only push, pull or none; may be repeated.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object, times in ns.")] = False,
    html: Annotated[
        Path | None, typer.Option(help="Write one self-contained HTML page here.")
    ] = None,
) -> None:
    """Name the phase, the place and the time that explain slow first tokens, or say that none does.

    Exit status: 0 all well, 1 nothing could be read, 3 the source said that its answer was cut.
    """
    objective = _objective(slo_ms, slowest)
    chosen = Selection(models=sayable(model), modes=sayable(mode))
    if baseline and baseline_window:
        raise typer.BadParameter("give --baseline or --baseline-window, not both")
    try:
        trouble, before = (
            TimeRange.parse(text) if text is not None else None
            for text in (window, baseline_window)
        )
    except TimeRangeError as error:
        raise failure(_NAME, str(error), 2) from None
    try:
        healthy = [_load(baseline, chosen, limits)] if baseline else []
        every = _load(sources, chosen, limits)
        found = _triage(every, objective, trouble, before, healthy)
    except (SourceError, TimeRangeError) as error:
        raise failure(_NAME, str(error)) from None
    notes = [note for loaded in (every, *healthy) for note in loaded.notes]
    if html is not None:
        write(_NAME, html, page(found, sources, notes).encode("utf-8", "replace"))
    if as_json:
        with standard_output():
            sys.stdout.buffer.write(orjson.dumps(json_object(found)) + b"\n")
    else:
        with standard_output():
            print_triage(found, standard_console())
    finish(notes, any(loaded.partial for loaded in (every, *healthy)))


def _objective(slo_ms: float | None, slowest: str | None) -> Objective:
    if (slo_ms is None) == (slowest is None):
        raise typer.BadParameter("say what is slow: either --slo-ms or --slowest")
    if slo_ms is not None:
        if not 0 <= slo_ms < 1e12:
            raise typer.BadParameter("--slo-ms must be a number of milliseconds, not negative")
        return Objective(slo_ns=round(slo_ms * 1e6))
    assert slowest is not None
    try:
        share = float(slowest.removesuffix("%").strip()) / 100
    except ValueError:
        share = 0.0
    if not slowest.endswith("%") or not 0 < share < 1:
        raise typer.BadParameter("--slowest must be a share like 5%")
    return Objective(share=share)


@dataclass(frozen=True)
class _Loaded:
    """Traffic, and what is to be said about how it was read."""

    traffic: Traffic
    notes: list[str]
    partial: bool

    @property
    def end_ns(self) -> int:
        """When the newest request arrived."""
        return int(self.traffic.requests["t0_ns"].max())


def _load(sources: list[str], chosen: Selection, limits: Limits) -> _Loaded:
    found = analyse(sources, limits, workers=every_core, near=every_core, also=asked_for)
    every = Traffic.of(found.split, found.beside)
    traffic = every.pick(selected(every.requests, chosen))
    if not traffic.requests["t0_ns"].notna().any():
        why = "is what was asked for" if len(traffic) < len(every) else "says when it arrived"
        raise SourceError(f"{', '.join(sources)}: none of {len(every)} requests {why}")
    return _Loaded(traffic, found.notes, found.partial)


def _triage(
    every: _Loaded,
    objective: Objective,
    window: TimeRange | None,
    baseline_window: TimeRange | None,
    healthy: list[_Loaded],
) -> Triage:
    """Cut the windows out; without one the trouble is everything outside the healthy window."""
    traffic = _within(every, window)
    if healthy:
        return triage(traffic, objective, healthy[0].traffic, BASELINE)
    if baseline_window is None:
        return triage(traffic, objective)
    reference = _within(every, baseline_window)
    if window is None:
        traffic = _without(traffic, reference)
    return triage(traffic, objective, reference, EARLIER)


def _within(loaded: _Loaded, window: TimeRange | None) -> Traffic:
    if window is None:
        return loaded.traffic
    start, end = window.at(loaded.end_ns)
    rows = loaded.traffic.requests
    found = loaded.traffic.pick(selected(rows, Selection(since_ns=start, until_ns=end)))
    if not len(found):
        raise TimeRangeError(f"no request arrived in {window}")
    return found


def _without(traffic: Traffic, other: Traffic) -> Traffic:
    rows = traffic.requests
    shared = rows.index.isin(other.requests.index)
    return traffic.pick(pd.Series(~shared, index=rows.index))


def print_triage(found: Triage, console: Console) -> None:
    """The verdict first (after answers that may be wrong), then what it rests on."""
    doubt = doubtful_sentence(found)
    if doubt:
        console.print(f"[bold]{printed(doubt)}[/bold]")
    head, *rest = verdict_sentences(found)
    console.print(f"[bold]{printed(head)}[/bold]", highlight=False)
    for sentence in [*rest, *basis_sentences(found)]:
        console.print(printed(sentence), highlight=False)
    for anchor in links(found.verdict):
        console.print(f"See {RUNBOOK}#{anchor}", highlight=False)
    for table in tables(found):
        console.print(f"\n[bold]{printed(table.title)}[/bold]")
        console.print(drawn(table))
