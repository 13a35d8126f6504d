"""Files here, and elsewhere by an address of fsspec: `s3://bucket/kept`, `gs://…`, `memory://…`."""

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Final

Source = Path | str
"""A path of this machine, or an address."""
_ADDRESS: Final = re.compile(r"([a-z][a-z0-9+.-]+):/{1,2}")
_OF_STORES: Final = ("http", "https")
_GLOB: Final = frozenset("*?[")


class RemoteError(Exception):
    """An address that gives no files; one sentence."""


def address(source: str) -> str:
    """The address in full, "" for a path of this machine: a path has lost one of its slashes."""
    found = _ADDRESS.match(source)
    if found is None or Path(source).exists():
        return ""
    return f"{found[1]}://{source[found.end() :]}"


def is_store_address(source: Source) -> bool:
    """Whether a running trace store is asked there, instead of a file being read."""
    return isinstance(source, str) and source.partition(":")[0] in _OF_STORES


def listed(where: str) -> list[str]:
    """The files that an address means: a glob its matches, a directory what is in it, by name.

    Raises `RemoteError`.
    """
    system, path = _system(where)
    scheme = where.partition("://")[0]
    try:
        if _GLOB & set(path):
            found = [name for name in system.glob(path) if system.isfile(name)]
        elif system.isdir(path):
            found = system.find(path)
        else:
            found = [path] if system.exists(path) else []
    except Exception as error:  # each file system has its own
        raise RemoteError(f"cannot read {where}: {error}") from error
    if not found:
        raise RemoteError(f"nothing is at {where}")
    return [f"{scheme}://{name}" for name in sorted(found) if not _hidden(name)]


def _hidden(name: str) -> bool:
    return name.rpartition("/")[2].startswith(".")


def _system(where: str) -> tuple[Any, str]:
    try:
        import fsspec.core
    except ModuleNotFoundError as error:
        raise RemoteError(
            f"an address of files needs {error.name}: pip install 'pdtrace[remote]'"
        ) from error
    try:
        system, path = fsspec.core.url_to_fs(where)
    except (ImportError, ValueError) as error:
        raise RemoteError(f"cannot read {where}: {error}") from error
    return system, str(path)


@contextmanager
def opened(path: Source) -> Iterator[BinaryIO]:
    """The file, to read; raises `OSError`, of an address `RemoteError`."""
    if isinstance(path, Path):
        with open(path, "rb") as here:
            yield here
        return
    system, inside = _system(path)
    try:
        file = system.open(inside, "rb")
    except Exception as error:  # each file system has its own
        raise RemoteError(f"cannot read {path}: {error}") from error
    with file, io.BufferedReader(file) as buffered:
        yield buffered
