"""A store on disk: a directory of segments that hold OTLP messages exactly as received.

    store/pdtrace-store.json     marks the directory as a store; the writer holds its lock
    store/segment-000001.otlp    length-delimited ExportTraceServiceRequest messages

A segment is closed when it is large or old enough, and goes when the store is not to keep it any
longer (`retention`).

Durability: an appended message has been handed to the operating system, so it survives the death
of this process at any later moment. The disk is told to keep it (fsync) when a segment is closed,
so a power cut can cost the tail of the open segment.
"""

import fcntl
import io
import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import IO, Final, Self

from pdtrace.analysis.framing import framed
from pdtrace.analysis.retention import Retention

MARKER: Final = "pdtrace-store.json"
KEEP_ALL: Final = Retention()

_MARKER_TEXT: Final = json.dumps({"format": "pdtrace-store", "version": 1}) + "\n"
_SEGMENTS: Final = "segment-*.otlp"

OpenSegment = Callable[[Path], io.FileIO]


class StoreError(Exception):
    """The store cannot be written; one sentence that names it."""


def is_store(path: Path) -> bool:
    """True for a directory that carries the marker; false also when it may not be searched."""
    try:
        return (path / MARKER).is_file()
    except OSError:
        return False


def segment_paths(store: Path) -> list[Path]:
    """The segments of a store, oldest first."""
    return sorted(store.glob(_SEGMENTS), key=_number)


def _number(segment: Path) -> int:
    digits = segment.stem.rpartition("-")[2]
    return int(digits) if digits.isdecimal() else 0


def _create_segment(path: Path) -> io.FileIO:
    return io.FileIO(path, "xb")


class StoreWriter:
    """Appends messages to a store, creating it where needed; safe to use from many threads.

    Each writer begins a segment of its own, so a cut tail stays at the end of its segment.
    Raises `StoreError` when the directory is something else or has a writer already.
    `open_segment` is injected so that a test can put a full disk there.
    """

    def __init__(
        self,
        store: str | Path,
        retention: Retention = KEEP_ALL,
        open_segment: OpenSegment = _create_segment,
    ) -> None:
        self.path = Path(store)
        self.removed = 0
        """Segments that were not to be kept any longer."""
        self._retention = retention
        self._open_segment = open_segment
        self._mutex = threading.Lock()
        self._segment: io.FileIO | None = None
        self._size = 0
        self._began_s = 0.0
        self._last_number = 0
        self._marker = _claim(self.path)

    def append(self, message: bytes) -> None:
        """Store one message; returns when it is in the file.

        Raises `OSError` when the disk refuses it: what was half written is taken back and the
        next append tries again (readers drop exact copies, so sending it twice is harmless).
        Raises `StoreError` after `close`.
        """
        with self._mutex:
            if self._marker.closed:
                raise StoreError(f"the store {self.path} is closed")
            if self._segment is None:
                self._begin_segment()
            self._write(framed(message))
            if self._size >= self._retention.segment_bytes:
                self._end_segment()

    def tidy(self) -> None:
        """Close the segment if it is old enough, and remove what is not to be kept any longer; to
        be called from time to time. Raises `OSError` when the disk refuses it."""
        with self._mutex:
            if self._marker.closed:
                return
            if time.monotonic() - self._began_s >= self._retention.segment_s:
                self._end_segment()
            self._remove_outdated()

    def close(self) -> None:
        """Close the open segment and give the store up to another writer; may be repeated."""
        with self._mutex:
            try:
                self._end_segment()
            finally:
                self._marker.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _begin_segment(self) -> None:
        existing = segment_paths(self.path)
        number = max(self._last_number, _number(existing[-1]) if existing else 0) + 1
        self._segment = self._open_segment(self.path / f"segment-{number:06d}.otlp")
        self._last_number = number
        self._size = 0
        self._began_s = time.monotonic()

    def _remove_outdated(self) -> None:
        if self._retention.keeps_all:
            return
        closed, open_bytes = segment_paths(self.path), 0
        if self._segment is not None:
            closed = [path for path in closed if _number(path) != self._last_number]
            open_bytes = self._size
        for path in self._retention.outdated(closed, open_bytes, time.time()):
            path.unlink(missing_ok=True)
            self.removed += 1

    def _write(self, frame: bytes) -> None:
        assert self._segment is not None
        rest = memoryview(frame)
        try:
            while rest:
                written = self._segment.write(rest)
                rest = rest[written or 0 :]
        except OSError:
            self._undo()
            raise
        self._size += len(frame)

    def _undo(self) -> None:
        """Take a half-written message back; where even that fails, leave the segment for good."""
        assert self._segment is not None
        segment = self._segment
        try:
            segment.truncate(self._size)
            segment.seek(self._size)
        except OSError:
            self._segment = None
            segment.close()

    def _end_segment(self) -> None:
        segment, self._segment = self._segment, None
        if segment is None:
            return
        try:
            os.fsync(segment.fileno())
        finally:
            segment.close()


def _claim(store: Path) -> IO[str]:
    """Make the directory a store and lock it; returns the open marker, which holds the lock."""
    try:
        store.mkdir(parents=True, exist_ok=True)
        if not is_store(store) and any(store.iterdir()):
            raise StoreError(f"{store} is a directory with other files in it, not a pdtrace store")
        marker = open(store / MARKER, "a", encoding="utf-8")
    except OSError as error:
        raise StoreError(f"cannot open the store {store}: {error.strerror}") from error
    try:
        fcntl.flock(marker, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if marker.tell() == 0:
            marker.write(_MARKER_TEXT)
            marker.flush()
    except OSError as error:
        marker.close()
        if isinstance(error, BlockingIOError):
            raise StoreError(f"the store {store} already has a writer") from error
        raise StoreError(f"cannot open the store {store}: {error.strerror}") from error
    return marker
