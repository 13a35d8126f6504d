"""`pdtrace split`: where each first token waited."""

import os
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Final

import pandas as pd
import typer
from rich.console import Console

from pdtrace.analysis import report
from pdtrace.analysis.analyse import Analysed, analyse
from pdtrace.analysis.clock_notes import limited
from pdtrace.analysis.flat import flat, write_csv, write_parquet
from pdtrace.analysis.opened import Workers
from pdtrace.analysis.report_html import page, shown
from pdtrace.analysis.selection import Selection, select
from pdtrace.analysis.sources import Limits, SourceError
from pdtrace.analysis.split import Split
from pdtrace.analysis.summary import summarise
from pdtrace.analysis.workers import WorkersError
from pdtrace.analysis.workers import dask as on_dask
from pdtrace.analysis.workers import processes as on_processes
from pdtrace.cli.options import Sources, reading, sayable
from pdtrace.cli.output import failure, finish, standard_output, write
from pdtrace.cli.tables import drawn, printed, standard_console
from pdtrace.cli.time_range import HELP, TimeRange, TimeRangeError

app = typer.Typer(add_completion=False)
_NAME: Final = "split"


@app.command()
@reading
def split_command(
    sources: Sources,
    limits: Limits,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object per request and line, times in ns.")
    ] = False,
    html: Annotated[
        Path | None, typer.Option(help="Write one self-contained HTML page here.")
    ] = None,
    csv: Annotated[
        Path | None, typer.Option(help="Write one line per request here, times in ns.")
    ] = None,
    parquet: Annotated[
        Path | None, typer.Option(help="Write one row per request here, times in ns.")
    ] = None,
    model: Annotated[
        list[str] | None, typer.Option(help="Only requests for this model; may be repeated.")
    ] = None,
    mode: Annotated[
        list[str] | None, typer.Option(help="Only push, pull or none; may be repeated.")
    ] = None,
    engine: Annotated[
        list[str] | None,
        typer.Option(help="Only requests that this engine took part in, by id; may be repeated."),
    ] = None,
    request_id: Annotated[
        list[str] | None, typer.Option(help="Only this request; may be repeated.")
    ] = None,
    window: Annotated[
        str | None, typer.Option(help=f"Only requests that arrived then: {HELP}")
    ] = None,
    processes: Annotated[
        int,
        typer.Option(min=0, help="Processes for large sources; 0: one a core."),
    ] = 0,
    dask: Annotated[
        str | None,
        typer.Option(help="Split a spans table in Parquet on Dask: tcp://scheduler:8786 or local."),
    ] = None,
) -> None:
    """Split the time to first token of each request into waits that sum to it exactly.

    Exit status: 0 all well, 1 nothing could be read or none selected, 3 the source said that its
    answer was cut.
    """
    found = _analyse(sources, limits, processes or os.cpu_count() or 1, dask)
    chosen = Selection(
        models=sayable(model),
        modes=sayable(mode),
        engines=sayable(engine),
        request_ids=sayable(request_id),
    )
    done = _select(found.split, chosen, window)
    if html is not None:
        pieces = found.timelines(done, shown(done))
        write(_NAME, html, page(done, pieces, sources, found.notes).encode("utf-8", "replace"))
    _write_rows(done, csv, parquet)
    if as_json:
        _print_json(done)
    else:
        with standard_output():
            print_tables(done, standard_console())
    finish(found.notes, found.partial)


def _analyse(sources: list[str], limits: Limits, count: int, dask: str | None) -> Analysed:
    near = partial(on_processes, count)
    workers: Workers = near if dask is None else partial(on_dask, dask, count)
    try:
        return analyse(sources, limits, workers=workers, near=near)
    except (SourceError, WorkersError) as error:
        raise failure(_NAME, str(error)) from None


def _write_rows(done: Split, csv: Path | None, parquet: Path | None) -> None:
    if csv is None and parquet is None:
        return
    rows = flat(done)
    for path, write_as in ((csv, write_csv), (parquet, write_parquet)):
        if path is None:
            continue
        try:
            write_as(path, rows)
        except OSError as error:
            raise failure(_NAME, f"cannot write {path}: {error.strerror or error}") from None


def _print_json(done: Split) -> None:
    with standard_output():
        sys.stdout.buffer.writelines(line + b"\n" for line in report.json_lines(done))


def print_tables(done: Split, console: Console) -> None:
    """Counts, quantiles, means and flags of a split on the terminal."""
    summary = summarise(done)
    for sentence in [*report.count_sentences(summary), *limited(done)]:
        console.print(printed(sentence))
    tables = [report.quantile_table(summary), report.phase_table(summary)]
    tables += [report.kind_table(summary), report.known_table(summary)]
    tables += [report.outcome_table(summary), report.rank_table(done), report.flagged_table(done)]
    for table in tables:
        if table.rows:
            console.print(f"\n[bold]{printed(table.title)}[/bold]")
            console.print(drawn(table))


def _select(done: Split, chosen: Selection, window: str | None) -> Split:
    if window is not None:
        newest = done.requests["t0_ns"].max()
        try:
            since, until = TimeRange.parse(window).at(0 if pd.isna(newest) else int(newest))
        except TimeRangeError as error:
            raise failure(_NAME, str(error), 2) from None
        chosen = replace(chosen, since_ns=since, until_ns=until)
    found = select(done, chosen)
    if found.requests.empty:
        raise failure(_NAME, f"none of {len(done.requests)} requests is what was asked for")
    return found
