"""`pdtrace export`: traces as OTLP JSON lines, or as the spans table in Parquet."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from pdtrace.analysis.atomic import atomic_file
from pdtrace.analysis.export import json_lines, to_parquet
from pdtrace.analysis.parquet import ParquetError
from pdtrace.analysis.sources import Limits, SourceError
from pdtrace.cli.options import Sources, reading
from pdtrace.cli.output import failure, finish, standard_output

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
        raise failure("export", "say what to write: either --otlp-json FILE or --parquet DIR", 2)
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
        raise failure("export", str(error)) from None
    except (OSError, ParquetError) as error:
        raise failure(
            "export",
            f"cannot write {parquet or otlp_json}: {getattr(error, 'strerror', '') or error}",
        ) from None
    finish(notes, partial)


def _to_stdout(sources: list[str], notes: list[str]) -> None:
    with standard_output():
        sys.stdout.buffer.writelines(json_lines(sources, notes))
