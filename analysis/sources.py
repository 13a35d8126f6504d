"""The messages of files, stores, directories and globs, whatever their format.

A message is the bytes of an ExportTraceServiceRequest, or a decoded JSON object with the size of
its text, or a batch of the spans table; `store` knows what each means.
"""

import glob
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Final, cast

from pdtrace.analysis import files, parquet
from pdtrace.analysis.columns import Batch
from pdtrace.analysis.compression import PLAIN_BYTES, Plain
from pdtrace.analysis.framing import BadFrame, CutFrame, read_frames
from pdtrace.analysis.intake import SPAN_BYTES
from pdtrace.analysis.messages import Document, NotUnderstood, stream_messages
from pdtrace.analysis.query import Query, last_hour
from pdtrace.analysis.segments import is_store, segment_paths
from pdtrace.analysis.skipped import Skipped

__all__ = [
    "Batch",
    "DEFAULT_LIMITS",
    "Document",
    "Limits",
    "Message",
    "Place",
    "Skipped",
    "SourceError",
    "expand",
    "read_messages",
]


Message = bytes | Document | Batch
_GLOB: Final = frozenset("*?[")


class SourceError(Exception):
    """A source that gives no spans at all; one sentence that names it."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How much is read: bytes of one span, bytes that one compressed file may become."""

    span_bytes: int = SPAN_BYTES
    plain_bytes: int = PLAIN_BYTES
    query: Query | None = None
    """What a running trace store is asked for; None: the last hour."""


@dataclass(frozen=True, slots=True)
class Place:
    """A file or a store to read, or an address.

    `searched`: found in a directory or by a glob, so it may be something else.
    """

    path: Path | str
    searched: bool = False
    skipped: Skipped = field(default_factory=Skipped)


DEFAULT_LIMITS: Final = Limits()


def expand(sources: Sequence[str | Path]) -> list[Place]:
    """Stores, files and addresses that the sources mean: a glob its matches, a directory what is
    in it.

    Raises `SourceError` for what is not there, and for a directory without files.
    """
    places: list[Place] = []
    for source in sources:
        where = files.address(str(source))
        if files.is_store_address(where):
            places.append(Place(where))
            continue
        if where:
            places += _elsewhere(where)
            continue
        found = _matches(str(source))
        for path in found:
            if not path.is_dir() or is_store(path):
                places.append(Place(path, searched=len(found) > 1))
                continue
            inside = _inside(path)
            if not inside:
                raise SourceError(f"{path} is an empty directory")
            places += inside
    return places


def _elsewhere(where: str) -> list[Place]:
    try:
        found = files.listed(where)
    except files.RemoteError as error:
        raise SourceError(str(error)) from error
    return [Place(name, searched=len(found) > 1) for name in found]


def _matches(source: str) -> list[Path]:
    if not _GLOB & set(source) or Path(source).exists():
        return [Path(source)]
    found = sorted(glob.glob(source, recursive=True))
    if not found:
        raise SourceError(f"nothing matches {source}")
    return [Path(name) for name in found]


def _inside(directory: Path) -> list[Place]:
    """Everything below it in order of name, hidden files left out; a store inside is one place."""
    found: list[Place] = []
    try:
        for path in sorted(directory.iterdir()):
            if path.name.startswith("."):
                continue
            if path.is_dir() and not is_store(path):
                found += _inside(path)
            else:
                found.append(Place(path, searched=True))
    except OSError as error:
        raise SourceError(f"cannot read {directory}: {error.strerror or error}") from error
    return found


def read_messages(
    path: Path | str, skipped: Skipped, limits: Limits = DEFAULT_LIMITS, as_rows: bool = False
) -> Iterator[Message]:
    """Every message of a store, a file or an address; what is left out is counted in `skipped`.

    `as_rows`: lines of strict OTLP JSON may come together as the rows that they mean.

    Raises `SourceError` when it cannot be opened or holds nothing that is known.
    """
    if isinstance(path, str) and files.is_store_address(path):
        yield from _live_messages(path, skipped, limits)
        return
    try:
        if isinstance(path, Path) and is_store(path):
            yield from _store_messages(path, skipped)
        elif parquet.is_parquet(path):
            yield from parquet.read_batches(path)
        else:
            with files.opened(path) as file:
                yield from _file_messages(file, path, skipped, limits, as_rows)
    except FileNotFoundError as error:
        raise SourceError(f"{path} does not exist") from error
    except files.RemoteError as error:
        raise SourceError(str(error)) from error
    except (NotUnderstood, parquet.ParquetError) as error:
        raise SourceError(f"{path} {error}") from error
    except OSError as error:
        raise SourceError(f"cannot read {path}: {error.strerror or error}") from error


def _live_messages(address: str, skipped: Skipped, limits: Limits) -> Iterator[Document]:
    try:
        from pdtrace.analysis.live import Live, LiveError, shown
    except ModuleNotFoundError as error:
        raise SourceError(f"an address needs {error.name}: pip install 'pdtrace[live]'") from error
    live = Live(address, limits.query or last_hour())
    try:
        yield from live.messages()
    except LiveError as error:
        raise SourceError(f"{shown(address)} {error}") from error
    skipped.said += live.notes
    skipped.incomplete |= live.cut


def _store_messages(store: Path, skipped: Skipped) -> Iterator[bytes]:
    for segment in segment_paths(store):
        try:
            with open(segment, "rb") as file:
                yield from read_frames(file)
        except CutFrame:
            skipped.cut.append(str(segment))
        except BadFrame:
            skipped.junk.append(str(segment))
        except FileNotFoundError:
            skipped.said.append(f"{segment} was removed by the store's retention while it was read")


def _file_messages(
    file: BinaryIO, path: Path | str, skipped: Skipped, limits: Limits, as_rows: bool
) -> Iterator[Message]:
    plain = Plain(file, limits.plain_bytes)
    stream = cast(io.BufferedReader, io.BufferedReader(plain, 1 << 20))
    if not stream.peek(1):
        raise NotUnderstood(f"is a broken {plain.kind} file" if plain.cut else "is empty")
    span_bytes = limits.span_bytes if as_rows else None
    yield from stream_messages(stream, str(path), skipped, span_bytes, limits.plain_bytes)
    if plain.cut and not skipped.cut:
        skipped.cut.append(str(path))
    if plain.over:
        skipped.over.append(f"{path} becomes more than {limits.plain_bytes} bytes")
