"""What every reading command does with its result: standard output, files, notes, failures."""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import typer

from pdtrace.analysis.atomic import atomic_file


def failure(command: str, sentence: str) -> typer.Exit:
    """Say why the command cannot go on; raise what comes back."""
    typer.echo(f"pdtrace {command}: {sentence}", err=True)
    return typer.Exit(1)


def write(command: str, path: Path, content: bytes) -> None:
    """The whole file or none; raises `typer.Exit` where it cannot be written."""
    try:
        with atomic_file(path) as file:
            file.write(content)
    except OSError as error:
        raise failure(command, f"cannot write {path}: {error.strerror or error}") from None


@contextmanager
def standard_output() -> Iterator[None]:
    """Flushed at the end; a reader that has enough ends the command with status 1."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:  # Python would complain once more at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(1) from None


def finish(notes: Sequence[str], partial: bool) -> None:
    """The notes, and status 3 where a source said that its answer was cut."""
    for note in notes:
        typer.echo(f"note: {note}", err=True)
    if partial:
        raise typer.Exit(3)
