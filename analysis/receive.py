"""What the collector does with one message, whichever way it came: check, store, count."""

import threading
import zlib
from dataclasses import dataclass, replace
from typing import Final, Self

import orjson

from pdtrace.analysis.otlp import OtlpError, json_to_protobuf, span_count
from pdtrace.analysis.segments import StoreError, StoreWriter

MAX_MESSAGE_BYTES: Final = 16 * 1024 * 1024
"""Of one message, decompressed. A full batch of the SDK is about 1 MB."""

MAX_UNDER_WAY_BYTES: Final = 256 * 1024 * 1024
"""Of all messages that are being received or stored. What comes beyond is refused for now."""
RETRY_S: Final = 1
"""After which a sender may try again."""

_ZLIB_OR_GZIP: Final = zlib.MAX_WBITS | 32


class Invalid(ValueError):
    """A message that no retry will mend; one sentence for its sender."""


class TooLarge(Invalid):
    """A message above the size limit."""


class Unavailable(Exception):
    """The store refused the message; the sender should retry."""


class Busy(Unavailable):
    """There is too much under way already; the sender should retry."""


@dataclass(frozen=True, slots=True)
class Counts:
    """Since the start: stored messages and spans, messages refused for good, messages refused for
    now: for want of disk, and of room for more at a time."""

    messages: int = 0
    spans: int = 0
    rejected: int = 0
    unavailable: int = 0
    busy: int = 0


class Receiver:
    """Stores checked messages; safe to use from many threads."""

    def __init__(self, writer: StoreWriter) -> None:
        self._writer = writer
        self._mutex = threading.Lock()
        self._counts = Counts()
        self._room_bytes = MAX_UNDER_WAY_BYTES

    @property
    def counts(self) -> Counts:
        """The counters as they are now."""
        return self._counts

    def accept(self, message: bytes) -> None:
        """Store one ExportTraceServiceRequest as it is; returns when it is in the file.

        Raises `Invalid` when it is none, `Unavailable` when the disk refuses it.
        """
        try:
            spans = span_count(message)
        except OtlpError as error:
            self.count_rejected()
            raise Invalid(str(error)) from error
        if spans:
            self._store(message)
        self._count(messages=1, spans=spans)

    def accept_json(self, text: bytes) -> None:
        """Store one OTLP JSON object as protobuf; raises like `accept`."""
        try:
            message = json_to_protobuf(orjson.loads(text))
        except (OtlpError, orjson.JSONDecodeError) as error:
            self.count_rejected()
            raise Invalid(str(error)) from error
        self.accept(message)

    def count_rejected(self) -> None:
        """One more message refused, here or before it could be read."""
        self._count(rejected=1)

    def hold(self, size: int) -> None:
        """So many bytes more are under way. Raises `Busy` where there is no room for them."""
        with self._mutex:
            if size <= self._room_bytes:
                self._room_bytes -= size
                return
        self._count(busy=1)
        raise Busy("too much is being received: try again")

    def give_back(self, size: int) -> None:
        """So many bytes are no longer held."""
        with self._mutex:
            self._room_bytes += size

    def _store(self, message: bytes) -> None:
        try:
            self._writer.append(message)
        except (OSError, StoreError) as error:
            self._count(unavailable=1)
            raise Unavailable(f"the store cannot be written: {error}") from error

    def _count(self, **more: int) -> None:
        with self._mutex:
            now = self._counts
            self._counts = replace(now, **{n: getattr(now, n) + by for n, by in more.items()})


class Room:
    """The bytes of one message while it is received and stored; given back at the end of the
    `with` block."""

    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver
        self._held = 0

    def take(self, size: int) -> None:
        """So many bytes more. Raises `Busy`."""
        self._receiver.hold(size)
        self._held += size

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._receiver.give_back(self._held)


def decompressed(body: bytes, encoding: str, limit: int = MAX_MESSAGE_BYTES) -> bytes:
    """The body without its content encoding: `gzip`, `deflate`, `identity` or "".

    Never makes more than `limit` bytes: then raises `TooLarge`. Raises `Invalid` on broken data
    and on an encoding that is not known.
    """
    if encoding in ("", "identity"):
        return body
    if encoding not in ("gzip", "deflate"):
        raise Invalid(f"content encoding {encoding!r} is not known")
    plain = bytearray()
    try:
        while body:  # a gzip body may have several members
            member = zlib.decompressobj(_ZLIB_OR_GZIP)
            plain += member.decompress(body, limit + 1 - len(plain))
            if len(plain) > limit:
                raise TooLarge(f"more than {limit} bytes after decompression")
            if not member.eof:
                raise Invalid(f"the {encoding} body is cut")
            body = member.unused_data
    except zlib.error as error:
        raise Invalid(f"the body is not {encoding}") from error
    return bytes(plain)
