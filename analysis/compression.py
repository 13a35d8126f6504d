"""A file without its compression, told by its first bytes: gzip (also of many members) or zstd."""

import gzip
import io
import zlib
from typing import BinaryIO, Final, cast

import pyarrow as pa

GZIP: Final = b"\x1f\x8b"
ZSTD: Final = b"\x28\xb5\x2f\xfd"
PLAIN_BYTES: Final = 64 << 30
"""What one compressed file may become, unless told otherwise: a few MB can hold terabytes."""
_ERRORS: Final = (EOFError, zlib.error, gzip.BadGzipFile, OSError)


class Plain(io.RawIOBase):
    """Reads a compressed file; an error or too much of it ends the data, and is told afterwards.

    `cut`: the compressed data ends early or is broken. `over`: there is more than `limit` bytes.
    """

    def __init__(self, file: BinaryIO, limit: int = PLAIN_BYTES) -> None:
        self.cut = False
        self.over = False
        self._left = limit
        head = cast(io.BufferedReader, file).peek(4)[:4]
        self.kind = "gzip" if head.startswith(GZIP) else "zstd" if head == ZSTD else ""
        self._inner: BinaryIO = file
        if self.kind == "gzip":
            self._inner = cast(BinaryIO, gzip.GzipFile(fileobj=file))
        elif self.kind == "zstd":
            self._inner = pa.CompressedInputStream(pa.PythonFile(file, mode="r"), "zstd")

    def readable(self) -> bool:
        """Always."""
        return True

    def readinto(self, buffer: object, /) -> int:
        """Fill the buffer; 0 at the end."""
        view = memoryview(cast(bytearray, buffer))
        wanted = len(view) if not self.kind else min(len(view), self._left + 1)
        data = self._read(wanted)
        if self.kind:
            if len(data) > self._left:
                self.over, data = True, data[: self._left]
            self._left -= len(data)
        view[: len(data)] = data
        return len(data)

    def _read(self, wanted: int) -> bytes:
        if self.cut or self.over:
            return b""
        if not self.kind:
            return self._inner.read(wanted)
        try:
            return cast(io.BufferedReader, self._inner).read1(wanted)
        except _ERRORS:
            self.cut = True
            return b""
