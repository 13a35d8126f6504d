"""The messages of a file or a store, whatever its format: recognised by content.

A message is either the bytes of an ExportTraceServiceRequest or a decoded JSON object: OTLP, or a
line of `kv_log`.
"""

import gzip
import io
import json
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, Final, cast

import orjson

from pdtrace.analysis import kv_log
from pdtrace.analysis.framing import BadFrame, CutFrame, read_frames
from pdtrace.analysis.intake import OtlpError
from pdtrace.analysis.otlp import span_count
from pdtrace.analysis.segments import is_store, segment_paths

Message = bytes | dict[str, Any]

_GZIP: Final = b"\x1f\x8b"
_BOM: Final = b"\xef\xbb\xbf"
_FIRST_FIELD: Final = b"\x0a"
"""First byte of a bare ExportTraceServiceRequest: field 1, a message. Also a line feed."""
_GZIP_ERRORS: Final = (EOFError, zlib.error, gzip.BadGzipFile)


class SourceError(Exception):
    """A source that gives no spans at all; one sentence that names it."""


class _NotJson(Exception):
    pass


@dataclass(slots=True)
class Skipped:
    """What reading one source left out."""

    not_json: int = 0
    """Lines that are not JSON."""
    log_lines: int = 0
    """Lines of a log that speak of other things."""
    not_traces: dict[str, int] = field(default_factory=dict)
    """Messages of another kind, by kind."""
    cut: list[str] = field(default_factory=list)
    """Files that end inside a message."""
    junk: list[str] = field(default_factory=list)
    """Files that cannot be read to their end."""

    def count_not_traces(self, kind: str) -> None:
        """One more message that is no trace export but `kind`."""
        self.not_traces[kind] = self.not_traces.get(kind, 0) + 1

    def sentences(self, source: Path) -> list[str]:
        """The same for the user, with counts."""
        said = [f"{name} ends inside a message, which was skipped" for name in self.cut]
        said += [f"{name} has unreadable bytes; the rest was skipped" for name in self.junk]
        if self.not_json:
            said.append(f"{source}: skipped {plural(self.not_json, 'line')} that cannot be read")
        if self.log_lines:
            lines = plural(self.log_lines, "other line")
            said.append(f"{source}: passed over {lines} of the log")
        for kind, count in self.not_traces.items():
            said.append(f"{source}: skipped {plural(count, 'message')}: {kind}")
        return said


def plural(count: int, noun: str) -> str:
    """`1 line`, `2 lines`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def read_messages(source: Path, skipped: Skipped) -> Iterator[Message]:
    """Every message of a store directory or a file; what is left out is counted in `skipped`.

    Raises `SourceError` when the source cannot be opened or is neither OTLP nor a store.
    """
    try:
        if source.is_dir():
            yield from _store_messages(source, skipped)
        else:
            with open(source, "rb") as file:
                yield from _file_messages(file, source, skipped)
    except FileNotFoundError as error:
        raise SourceError(f"{source} does not exist") from error
    except OSError as error:
        raise SourceError(f"cannot read {source}: {error.strerror or error}") from error


def _store_messages(store: Path, skipped: Skipped) -> Iterator[bytes]:
    if not is_store(store):
        what = "is not a pdtrace store" if any(store.iterdir()) else "is an empty directory"
        raise SourceError(f"{store} {what}")
    for segment in segment_paths(store):
        with open(segment, "rb") as file:
            yield from _frames(file, segment, skipped)


def _file_messages(file: BinaryIO, source: Path, skipped: Skipped) -> Iterator[Message]:
    stream = _unzipped(cast(io.BufferedReader, file))
    try:
        head = stream.peek(16)
    except _GZIP_ERRORS as error:
        raise SourceError(f"{source} is a broken gzip file") from error
    if not head:
        raise SourceError(f"{source} is empty")
    if head.removeprefix(_BOM).lstrip()[:1] in (b"{", b"[") and not head.startswith(_FIRST_FIELD):
        yield from _text_messages(stream, source, skipped)
    else:
        yield from _binary_or_text(_read_all(stream, source, skipped), source, skipped)


def _unzipped(file: io.BufferedReader) -> io.BufferedReader:
    if file.peek(2)[:2] != _GZIP:
        return file
    return io.BufferedReader(cast(io.RawIOBase, gzip.GzipFile(fileobj=file)))


def _text_messages(stream: BinaryIO, source: Path, skipped: Skipped) -> Iterator[Message]:
    """JSON lines, or one JSON value over many lines, or framed bytes that began like JSON."""
    lines = _lines(stream, source, skipped)
    first = next((line for line in lines if line.strip()), b"")
    try:
        _load(first)
    except _NotJson:
        data = first + b"".join(lines)
        yield from _whole_or_lines(data, source, skipped)
    else:
        yield from _line_messages(chain((first,), lines), source, skipped)


def _whole_or_lines(data: bytes, source: Path, skipped: Skipped) -> Iterator[Message]:
    try:
        yield from _objects(_load(data))
    except _NotJson:
        yield from _binary_or_text(data, source, skipped)


def _binary_or_text(data: bytes, source: Path, skipped: Skipped) -> Iterator[Message]:
    if _has_spans(data):
        yield data
    elif _is_framed(data):
        yield from _frames(io.BytesIO(data), source, skipped)
    elif kv_log.MARK in data:
        yield from _log_messages(data, source, skipped)
    elif data.lstrip()[:1] in (b"{", b"["):
        yield from _line_messages(io.BytesIO(data), source, skipped)
    else:
        raise SourceError(f"{source} is not OTLP: neither JSON nor OTLP protobuf")


def _log_messages(data: bytes, source: Path, skipped: Skipped) -> Iterator[Message]:
    """The events in a log of vLLM, among whatever else is in it."""
    for line in io.BytesIO(data):
        event = kv_log.embedded(line)
        if event is not None:
            yield event
        elif kv_log.MARK in line and not line.endswith(b"\n"):
            skipped.cut.append(str(source))
        elif line.strip():
            skipped.log_lines += 1


def _line_messages(lines: Iterable[bytes], source: Path, skipped: Skipped) -> Iterator[Message]:
    read = 0
    for line in lines:
        if not line.strip():
            continue
        try:
            objects = _objects(_load(line))
        except _NotJson:
            event = kv_log.embedded(line)
            if event is None:
                if line.endswith(b"\n"):
                    skipped.not_json += 1
                else:
                    skipped.cut.append(str(source))
                continue
            objects = [event]
        read += 1
        yield from objects
    if not read:
        raise SourceError(f"{source} is not OTLP: no line of it is JSON")


def _load(text: bytes) -> Any:
    """Decoded JSON; Python's own parser has the second try, as it knows a bare NaN."""
    text = text.removeprefix(_BOM)
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as error:
            raise _NotJson from error


def _objects(value: Any) -> list[dict[str, Any]]:
    values = value if isinstance(value, list) else [value]
    return [item if isinstance(item, dict) else {"value": item} for item in values]


def _frames(file: BinaryIO, name: Path, skipped: Skipped) -> Iterator[bytes]:
    try:
        yield from read_frames(file)
    except CutFrame:
        skipped.cut.append(str(name))
    except BadFrame:
        skipped.junk.append(str(name))


def _lines(stream: BinaryIO, source: Path, skipped: Skipped) -> Iterator[bytes]:
    try:
        yield from stream
    except _GZIP_ERRORS:
        skipped.cut.append(str(source))


def _read_all(stream: BinaryIO, source: Path, skipped: Skipped) -> bytes:
    """Everything; of a cut gzip file what comes before the cut."""
    data = bytearray()
    try:
        while block := stream.read(1 << 16):
            data += block
    except _GZIP_ERRORS:
        skipped.cut.append(str(source))
    return bytes(data)


def _has_spans(data: bytes) -> bool:
    try:
        return span_count(data) > 0
    except OtlpError:
        return False


def _is_framed(data: bytes) -> bool:
    try:
        return _has_spans(next(read_frames(io.BytesIO(data)), b""))
    except (CutFrame, BadFrame):
        return False
