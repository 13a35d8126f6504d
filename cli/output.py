"""What every reading command does with its result: standard output, files, notes, failures."""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import typer

from pdtrace.analysis.atomic import atomic_file
from pdtrace.analysis.printable import plain


def failure(command: str, sentence: str, status: int = 1) -> typer.Exit:
    """Say why the command cannot go on; raise what comes back. Status 2: the call is wrong."""
    typer.echo(f"pdtrace {command}: {sentence}", err=True)
    return typer.Exit(status)


def write(command: str, path: Path, content: bytes) -> None:
    """The whole file or none; raises `typer.Exit` where it cannot be written."""
    try:
        with atomic_file(path) as file:
            file.write(content)
    except OSError as error:
        raise failure(command, f"cannot write {path}: {error.strerror or error}") from None


@contextmanager
def standard_output() -> Iterator[None]:
    """Flushed at the end; a reader that has enough ends the command with status 1, and so does a
    disk that has, with a sentence."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:  # Python would complain once more at exit
        _write_no_more()
        raise typer.Exit(1) from None
    except OSError as error:
        _write_no_more()
        why = error.strerror or error
        typer.echo(f"pdtrace: cannot write to standard output: {why}", err=True)
        raise typer.Exit(1) from None


def _write_no_more() -> None:
    """What is still buffered goes nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def finish(notes: Sequence[str], partial: bool) -> None:
    """The notes, and status 3 where a source said that its answer was cut."""
    for note in notes:
        typer.echo(f"note: {plain(note)}", err=True)
    if partial:
        raise typer.Exit(3)
