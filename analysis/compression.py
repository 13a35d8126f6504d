"""A file without its compression, told by its first bytes: gzip or zstd, also of many members."""

import gzip
import io
import zlib
from collections.abc import Callable
from typing import BinaryIO, Final, cast

import pyarrow as pa

GZIP: Final = b"\x1f\x8b"
ZSTD: Final = b"\x28\xb5\x2f\xfd"
PLAIN_BYTES: Final = 64 << 30
"""What one compressed file may become, unless told otherwise: a few MB can hold terabytes."""
_ERRORS: Final = (EOFError, zlib.error, gzip.BadGzipFile, OSError)
_UNTOUCHED: Final = b"\xff"
"""No text in UTF-8 has such a byte, and hardly a message ends with it."""


class Plain(io.RawIOBase):
    """Reads a compressed file; an error or too much of it ends the data, and is told afterwards.

    `cut`: the compressed data ends early or is broken. `over`: there is more than `limit` bytes.
    """

    def __init__(self, file: BinaryIO, limit: int = PLAIN_BYTES) -> None:
        self.cut = False
        self.over = False
        self._left = limit
        buffered = cast(io.BufferedReader, file)
        head = buffered.peek(4)[:4]
        self.kind = "gzip" if head.startswith(GZIP) else "zstd" if head == ZSTD else ""
        self._into: Callable[[memoryview], int] = buffered.readinto
        if self.kind == "gzip":
            self._into = gzip.GzipFile(fileobj=file).readinto1
        elif self.kind == "zstd":
            self._into = pa.CompressedInputStream(pa.PythonFile(file, mode="r"), "zstd").readinto

    @classmethod
    def of(cls, data: bytes, limit: int) -> "Plain":
        """The same of data that is at hand."""
        return cls(cast(BinaryIO, io.BufferedReader(cast(io.RawIOBase, io.BytesIO(data)))), limit)

    def readable(self) -> bool:
        """Always."""
        return True

    def readinto(self, buffer: object, /) -> int:
        """Fill the buffer; 0 at the end."""
        view = memoryview(cast(bytearray, buffer))
        if not self.kind:
            return self._into(view)
        if self.cut or self.over:
            return 0
        size = self._decompressed(view[: self._left + 1])
        self.over = size > self._left
        size = min(size, self._left)
        self._left -= size
        return size

    def _decompressed(self, view: memoryview) -> int:
        """Fill the view as far as there is something to fill it with."""
        view[:] = _UNTOUCHED * len(view)
        try:
            return self._into(view)
        except _ERRORS:
            # Arrow does not say how much it had written when it came to the cut.
            self.cut = True
            return len(bytes(view).rstrip(_UNTOUCHED))
