"""`pdtrace export`: traces as OTLP JSON lines, or as the spans table in Parquet."""

import os
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from pdtrace.analysis.atomic import atomic_file
from pdtrace.analysis.export import json_lines, to_parquet
from pdtrace.analysis.parquet import ParquetError
from pdtrace.analysis.sources import Limits, SourceError
from pdtrace.cli.options import Sources, reading

app = typer.Typer(add_completion=False)


@app.command()
@reading
def export(
    sources: Sources,
    limits: Limits,
    otlp_json: Annotated[
        str | None, typer.Option(help="File of OTLP JSON lines to write; - is standard output.")
    ] = None,
    parquet: Annotated[
        Path | None, typer.Option(help="Directory for the spans table, one Parquet file an hour.")
    ] = None,
) -> None:
    """Write SOURCES as OTLP JSON lines (every message as it came) or as the spans table in Parquet.

    Exit status: 0 all well, 1 nothing could be read or written, 3 the source said that its answer
    was cut.
    """
    if (otlp_json is None) == (parquet is None):
        _fail("say what to write: either --otlp-json FILE or --parquet DIR")
    notes: list[str] = []
    partial = False
    try:
        if parquet is not None:
            _, notes, partial = to_parquet(sources, parquet, limits)
        elif otlp_json == "-":
            _to_stdout(sources, notes)
        else:
            with atomic_file(Path(otlp_json or "")) as file:
                file.writelines(json_lines(sources, notes))
    except SourceError as error:
        _fail(str(error))
    except (OSError, ParquetError) as error:
        _fail(f"cannot write {parquet or otlp_json}: {getattr(error, 'strerror', '') or error}")
    for note in notes:
        typer.echo(f"note: {note}", err=True)
    if partial:
        raise typer.Exit(3)


def _to_stdout(sources: list[str], notes: list[str]) -> None:
    try:
        sys.stdout.buffer.writelines(json_lines(sources, notes))
        sys.stdout.buffer.flush()
    except BrokenPipeError:  # the reader has enough; Python would complain once more at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(1) from None


def _fail(sentence: str) -> NoReturn:
    typer.echo(f"pdtrace export: {sentence}", err=True)
    raise typer.Exit(1)
