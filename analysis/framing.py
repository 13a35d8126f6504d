"""Messages one after the other in a file, each with its length before it.

A protobuf varint as in our own stores, or four bytes as of the Collector's file exporter.
"""

from collections.abc import Callable, Iterator
from typing import BinaryIO, Final

LONGEST_MESSAGE: Final = 1 << 30
"""Bytes; a greater length is no length but something else read as one."""
_LONGEST_VARINT: Final = 5
_FIXED: Final = 4


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


def varint(stream: BinaryIO) -> int | None:
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
            return length
    raise BadFrame


def four_bytes(stream: BinaryIO) -> int | None:
    """The same, written as four bytes with the highest first."""
    prefix = stream.read(_FIXED)
    if not prefix:
        return None
    if len(prefix) < _FIXED:
        raise CutFrame
    return int.from_bytes(prefix, "big")


def read_frames(
    stream: BinaryIO, read_length: Callable[[BinaryIO], int | None] = varint
) -> Iterator[bytes]:
    """The messages of a stream; `CutFrame` when the last one is incomplete, `BadFrame` on junk."""
    while (length := read_length(stream)) is not None:
        if length > LONGEST_MESSAGE:
            raise BadFrame
        message = stream.read(length)
        if len(message) < length:
            raise CutFrame
        yield message
