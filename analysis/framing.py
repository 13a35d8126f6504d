"""Messages one after the other in a file, each with its length before it (a protobuf varint)."""

from collections.abc import Iterator
from typing import BinaryIO, Final

LONGEST_MESSAGE: Final = 1 << 30
"""Bytes; a greater length is no length but something else read as one."""
_LONGEST_VARINT: Final = 5


class CutFrame(Exception):
    """The file ends inside a message, as a killed writer leaves it."""


class BadFrame(Exception):
    """No message can begin here, so whatever follows cannot be found either."""


def framed(message: bytes) -> bytes:
    """The message with its length in front."""
    length, prefix = len(message), bytearray()
    while length > 0x7F:
        prefix.append(length & 0x7F | 0x80)
        length >>= 7
    prefix.append(length)
    return bytes(prefix) + message


def read_frames(stream: BinaryIO) -> Iterator[bytes]:
    """The messages of a stream; `CutFrame` when the last one is incomplete, `BadFrame` on junk."""
    while True:
        length = _read_length(stream)
        if length is None:
            return
        message = stream.read(length)
        if len(message) < length:
            raise CutFrame
        yield message


def _read_length(stream: BinaryIO) -> int | None:
    """The next message's length in bytes; None at the end of the stream."""
    length = 0
    for position in range(_LONGEST_VARINT):
        byte = stream.read(1)
        if not byte:
            if position:
                raise CutFrame
            return None
        length |= (byte[0] & 0x7F) << (7 * position)
        if byte[0] < 0x80:
            if length > LONGEST_MESSAGE:
                raise BadFrame
            return length
    raise BadFrame
