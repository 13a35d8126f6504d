"""`pdtrace export`: stores and OTLP files as OTLP JSON lines."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from pdtrace.analysis.atomic import atomic_file
from pdtrace.analysis.export import json_lines
from pdtrace.analysis.sources import SourceError

app = typer.Typer(add_completion=False)


@app.command()
def export(
    sources: Annotated[list[Path], typer.Argument(help="Stores and OTLP files.")],
    otlp_json: Annotated[str, typer.Option(help="File to write; - is standard output.")],
) -> None:
    """Write SOURCES in OTLP's file format: JSON lines, one export request per line."""
    notes: list[str] = []
    try:
        if otlp_json == "-":
            _to_stdout(sources, notes)
        else:
            with atomic_file(Path(otlp_json)) as file:
                file.writelines(json_lines(sources, notes))
    except SourceError as error:
        _fail(str(error))
    except OSError as error:
        _fail(f"cannot write {otlp_json}: {error.strerror or error}")
    for note in notes:
        typer.echo(f"note: {note}", err=True)


def _to_stdout(sources: list[Path], notes: list[str]) -> None:
    try:
        sys.stdout.buffer.writelines(json_lines(sources, notes))
        sys.stdout.buffer.flush()
    except BrokenPipeError:  # the reader has enough; Python would complain once more at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(1) from None


def _fail(sentence: str) -> None:
    typer.echo(f"pdtrace export: {sentence}", err=True)
    raise typer.Exit(1)
