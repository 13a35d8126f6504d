"""The messages of one stream of bytes, recognised by content, without holding all of it.

JSON lines (also the elements of an array, one a line), one JSON value over many lines, one
protobuf message or many with their lengths before them, what the Collector's file exporter writes,
or a log of vLLM with events in it.
"""

import io
import json
import re
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from typing import Any, BinaryIO, Final, NamedTuple, cast

import orjson

from pdtrace.analysis import kv_log
from pdtrace.analysis.columns import Batch
from pdtrace.analysis.compression import PLAIN_BYTES, Plain
from pdtrace.analysis.framing import (
    LONGEST_MESSAGE,
    BadFrame,
    CutFrame,
    four_bytes,
    read_frames,
    varint,
)
from pdtrace.analysis.intake import OtlpError
from pdtrace.analysis.otlp import span_count
from pdtrace.analysis.otlp_columns import BLOCK, read_lines
from pdtrace.analysis.skipped import Skipped

_BOM: Final = b"\xef\xbb\xbf"
_FIRST_FIELD: Final = b"\x0a"
"""First byte of a bare ExportTraceServiceRequest: field 1, a message. Also a line feed."""
_HEAD: Final = 64 << 20
"""Bytes in which a binary stream must show what it is."""
_TRIED: Final = 8
"""Lines or messages that are looked at to tell what a stream is."""
_UNPACKED_BADLY: Final = "compressed data that is broken, or more than 1 GiB"
_SPACE: Final = re.compile(r"[\s\x00]*")
_VAIN: Final = 3
"""Blocks of lines that are looked at in vain, more than with success, before that is given up."""
_TELLING: Final = frozenset(
    ("resourceSpans", "resource_spans", "batches", "resourceLogs", "resourceMetrics", "traceID")
)
"""Keys by which a line in the middle of a text is told to be a message of its own."""


class Document(NamedTuple):
    """A decoded JSON object and the bytes of its text."""

    value: dict[str, Any]
    size: int


class NotUnderstood(Exception):
    """A stream that holds nothing known; what it is instead, to be said after its name."""


class _NotJson(Exception):
    pass


def stream_messages(
    stream: io.BufferedReader,
    name: str,
    skipped: Skipped,
    span_bytes: int | None = None,
    plain_bytes: int = PLAIN_BYTES,
) -> Iterator[bytes | Document | Batch]:
    """Every message of a stream called `name`; raises `NotUnderstood` when it holds none.

    `span_bytes`: lines may come as rows, those of spans that have at most so many bytes.
    `plain_bytes`: what compressed messages may become together.
    """
    head = stream.peek(16)
    if head.removeprefix(_BOM).lstrip()[:1] in (b"{", b"[") and not head.startswith(_FIRST_FIELD):
        yield from _text_messages(stream, name, skipped, span_bytes)
    else:
        yield from _binary_or_text(stream, name, skipped, plain_bytes)


def _text_messages(
    stream: BinaryIO, name: str, skipped: Skipped, span_bytes: int | None
) -> Iterator[bytes | Document | Batch]:
    """JSON lines, or one JSON value over many lines, or framed bytes that began like JSON."""
    lines = _lines(stream, skipped)
    first = list(islice((line for line in lines if line.strip()), 1))
    ahead = [] if first and _is_json(first[0]) else list(islice(lines, _TRIED))
    if not ahead or any(_is_message(line) for line in ahead):
        yield from _line_messages(chain(first, ahead, lines), name, skipped, span_bytes)
    else:
        yield from _whole_or_lines(_joined(chain(first, ahead, lines)), name, skipped)


def _joined(lines: Iterable[bytes]) -> bytes:
    data = bytearray()
    for line in lines:
        data += line
        if len(data) > LONGEST_MESSAGE:
            raise NotUnderstood("is one JSON value of more than 1 GiB: write it as JSON lines")
    return bytes(data)


def _whole_or_lines(data: bytes, name: str, skipped: Skipped) -> Iterator[bytes | Document | Batch]:
    try:
        yield from _documents(_load(data), len(data))
    except _NotJson:
        values = list(_values(data))
        if len(values) > 1:
            yield from values
        else:
            yield from _binary_or_text(io.BytesIO(data), name, skipped)


def _values(data: bytes) -> Iterator[Document]:
    """JSON values that stand one after the other, over many lines each, up to what is none."""
    text, decode = data.decode("utf-8", "replace"), json.JSONDecoder().raw_decode
    at = _next_value(text, 0)
    try:
        while at < len(text):
            value, end = decode(text, at)
            yield from _documents(value, end - at)
            at = _next_value(text, end)
    except (ValueError, RecursionError):
        return


def _next_value(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found else at


def _binary_or_text(
    stream: BinaryIO, name: str, skipped: Skipped, plain_bytes: int = PLAIN_BYTES
) -> Iterator[bytes | Document | Batch]:
    head = stream.read(_HEAD)
    more = stream.read(1)
    if not more and _has_spans(head):
        yield head
        return
    rest = cast(BinaryIO, io.BufferedReader(_Chained(head + more, stream), 1 << 20))
    if _is_framed(head):
        yield from _frames(rest, name, skipped)
    elif _is_exported(head):
        yield from _exported(rest, name, skipped, plain_bytes)
    elif kv_log.MARK in head:
        yield from _log_messages(rest, name, skipped)
    elif head.lstrip()[:1] in (b"{", b"[") or _begins_badly(head):
        yield from _line_messages(_lines(rest, skipped), name, skipped)
    elif more and _has_spans(whole := head + more + stream.read(LONGEST_MESSAGE)):
        yield whole
    else:
        raise NotUnderstood("is not OTLP: neither JSON nor OTLP protobuf")


def _begins_badly(head: bytes) -> bool:
    """Whether lines follow a first one that is none, as where a file was cut at its beginning."""
    return any(_is_message(line) for line in head.splitlines()[:_TRIED])


class _Chained(io.RawIOBase):
    """Bytes that were read already, and then the rest of their stream."""

    def __init__(self, head: bytes, rest: BinaryIO) -> None:
        self._head = memoryview(head)
        self._rest = rest

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object, /) -> int:
        view = memoryview(cast(bytearray, buffer))
        data = self._head[: len(view)] or self._rest.read(len(view))
        self._head = self._head[len(view) :]
        view[: len(data)] = data
        return len(data)


def _log_messages(stream: BinaryIO, name: str, skipped: Skipped) -> Iterator[Document]:
    """The events in a log of vLLM, among whatever else is in it."""
    for line in _lines(stream, skipped):
        event = kv_log.embedded(line)
        if event is not None:
            yield Document(event, len(line))
        elif kv_log.MARK in line and not line.endswith(b"\n"):
            skipped.cut.append(name)
        elif line.strip():
            skipped.log_lines += 1


def _line_messages(
    lines: Iterable[bytes], name: str, skipped: Skipped, span_bytes: int | None = None
) -> Iterator[Document | Batch]:
    read = vain = 0
    for block in _blocks(lines):
        rows = None
        if span_bytes is not None and vain < _VAIN:
            rows = read_lines(block, span_bytes)
            vain += 1 if rows is None else -1
        if rows is not None:
            read += 1
            yield rows
            continue
        for line in block:
            documents = _decoded(line, name, skipped)
            read += documents is not None
            yield from documents or ()
    if not read:
        raise NotUnderstood("is not OTLP: no line of it is JSON")


def _blocks(lines: Iterable[bytes]) -> Iterator[list[bytes]]:
    """Some lines at a time."""
    block: list[bytes] = []
    size = 0
    for line in lines:
        block.append(line)
        size += len(line)
        if size >= BLOCK:
            yield block
            block, size = [], 0
    if block:
        yield block


def _decoded(line: bytes, name: str, skipped: Skipped) -> list[Document] | None:
    """What one line says; None where it says nothing."""
    text = _element(line)
    if not text:
        return None
    try:
        return _documents(_load(text), len(text))
    except _NotJson:
        event = kv_log.embedded(line)
        if event is not None:
            return [Document(event, len(line))]
    if line.endswith(b"\n"):
        skipped.not_json += 1
    else:
        skipped.cut.append(name)
    return None


def _element(line: bytes) -> bytes:
    """The line without what makes it an element of an array: "" for the array's own brackets."""
    text = line.strip()
    if text in (b"[", b"]", b","):
        return b""
    return text.removesuffix(b",")


def _is_json(line: bytes) -> bool:
    try:
        _load(line)
    except _NotJson:
        return False
    return True


def _is_message(line: bytes) -> bool:
    try:
        value = _load(_element(line))
    except _NotJson:
        return False
    return isinstance(value, dict) and not _TELLING.isdisjoint(value)


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


def _documents(value: Any, size: int) -> list[Document]:
    values = value if isinstance(value, list) else [value]
    return [Document(item if isinstance(item, dict) else {"value": item}, size) for item in values]


def _exported(
    stream: BinaryIO, name: str, skipped: Skipped, plain_bytes: int
) -> Iterator[bytes | Document]:
    """What the Collector's file exporter wrote: protobuf or JSON, each message also as zstd."""
    left = plain_bytes
    for frame in _frames(stream, name, skipped, four_bytes):
        plain = Plain.of(frame, min(left, LONGEST_MESSAGE))
        message = plain.readall()
        left -= len(message) if plain.kind else 0
        if plain.over and not left:
            skipped.over.append(f"{name} becomes more than {plain_bytes} bytes")
            return
        if plain.cut or plain.over:
            skipped.count_not_traces(_UNPACKED_BADLY)
        else:
            yield from _told(message)


def _told(message: bytes) -> Iterable[bytes | Document]:
    """A message as JSON where it is such."""
    try:
        return _documents(_load(message), len(message)) if message[:1] == b"{" else (message,)
    except _NotJson:
        return (message,)


def _frames(
    stream: BinaryIO,
    name: str,
    skipped: Skipped,
    read_length: Callable[[BinaryIO], int | None] = varint,
) -> Iterator[bytes]:
    try:
        yield from read_frames(stream, read_length)
    except CutFrame:
        skipped.cut.append(name)
    except BadFrame:
        skipped.junk.append(name)


def _lines(stream: BinaryIO, skipped: Skipped) -> Iterator[bytes]:
    """Lines with their ends; one that is longer than a message is passed over."""
    while line := stream.readline(LONGEST_MESSAGE):
        if len(line) < LONGEST_MESSAGE:
            yield line
            continue
        skipped.too_long += 1
        while line and not line.endswith(b"\n"):
            line = stream.readline(LONGEST_MESSAGE)


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


def _is_exported(head: bytes) -> bool:
    """Whether lengths in four bytes lead from message to message up to the end, one with spans."""
    frames, found = read_frames(io.BytesIO(head), four_bytes), False
    try:
        found = any(_is_one(frame) for frame in islice(frames, _TRIED))
        for _ in frames if found else ():
            pass
    except CutFrame:
        return found
    except BadFrame:
        return False
    return found


def _is_one(frame: bytes) -> bool:
    message = Plain.of(frame, _HEAD).readall()
    return _has_spans(message) or _is_message(message)
