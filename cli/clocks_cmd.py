"""`pdtrace clocks`: how far the clocks of the hosts are apart, and how well that is known."""

import sys
from typing import Annotated

import orjson
import typer

from pdtrace.analysis import clock_report
from pdtrace.analysis.analyse import analyse
from pdtrace.analysis.clock_pairs import PairOfClocks, pairs_of
from pdtrace.analysis.clocks import DRIFT_PPM, Clocks
from pdtrace.analysis.sources import Limits, SourceError
from pdtrace.analysis.workers import every_core
from pdtrace.cli.options import Sources, reading
from pdtrace.cli.output import failure, finish, standard_output
from pdtrace.cli.tables import drawn, printed, standard_console

app = typer.Typer(add_completion=False)


@app.command()
@reading
def clocks(
    sources: Sources,
    limits: Limits,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object per pair of clocks and line, in ns.")
    ] = False,
    drift_ppm: Annotated[
        float, typer.Option(min=0, max=10_000, help="How fast two clocks may drift apart.")
    ] = DRIFT_PPM,
) -> None:
    """Offsets between the clocks in SOURCES, as intervals, with the evidence that they rest on.

    Exit status: 0 all well, 1 nothing could be read, 3 the source said that its answer was cut.
    """
    try:
        found = analyse(
            sources, limits, drift_ppm, every_core, every_core, also=clock_report.owners
        )
    except SourceError as error:
        raise failure("clocks", str(error)) from None
    names = clock_report.clock_names(found.beside)
    pairs = [] if found.clocks is None else pairs_of(found.clocks)
    if as_json:
        _print_json(pairs, names)
    else:
        with standard_output():
            _print_tables(found.clocks, pairs, names)
    finish(found.notes, found.partial)


def _print_json(pairs: list[PairOfClocks], names: dict[str, str]) -> None:
    with standard_output():
        for pair in pairs:
            line = orjson.dumps(clock_report.pair_object(pair, names))
            sys.stdout.buffer.write(line + b"\n")


def _print_tables(clocks: Clocks | None, pairs: list[PairOfClocks], names: dict[str, str]) -> None:
    console = standard_console()
    alone = clock_report.alone(clocks, names)
    for sentence in [*alone, *clock_report.sentences(pairs, names)]:
        console.print(printed(sentence))
    if clocks is None:
        return
    tables = [clock_report.clock_table(clocks, names)]
    makers = (
        clock_report.pair_table,
        clock_report.bound_table,
        clock_report.kind_table,
        clock_report.time_table,
    )
    tables += [make(clocks, pairs) for make in makers]
    tables.append(clock_report.contradiction_table(pairs))
    for table in tables:
        if table.rows:
            console.print(f"\n[bold]{printed(table.title)}[/bold]")
            console.print(drawn(table))
