"""Ids of spans and traces as numbers, of which many compare at once."""

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pdtrace.analysis.coded import combined

_AT_A_TIME: Final = 1 << 20
_FACTOR: Final = np.uint64(0x9E3779B97F4A7C15)

Keys = npt.NDArray[np.uint64]


def fingerprints(trace_ids: pa.ChunkedArray, span_ids: pa.ChunkedArray) -> Keys:
    """64 bits for each span (uint64, shape (n,)): equal ids give equal ones, others hardly ever."""
    return numbers(trace_ids) * _FACTOR ^ numbers(span_ids)


def numbers(ids: pa.Array | pa.ChunkedArray) -> Keys:
    """The last 16 hex digits of each id as a number, 0 for an empty one."""
    found = combined(ids)
    if pa.types.is_dictionary(found.type):
        codes = found.indices.to_numpy(zero_copy_only=False)
        values = _of_texts(found.dictionary)
        return values[codes] if len(values) else np.zeros(len(codes), np.uint64)
    return _of_texts(found)


def _of_texts(texts: pa.Array) -> Keys:
    parts = [_of_some(texts.slice(at, _AT_A_TIME)) for at in range(0, len(texts), _AT_A_TIME)]
    return np.concatenate(parts) if parts else np.zeros(0, np.uint64)


def _of_some(texts: pa.Array) -> Keys:
    if not len(texts):
        return np.zeros(0, np.uint64)
    texts = texts.cast(pa.large_string())
    shortest, longest = pc.min_max(pc.binary_length(texts)).as_py().values()
    if not shortest == longest >= 16:
        texts = pc.utf8_lpad(pc.utf8_slice_codeunits(texts, -16, None), 16, "0")
        longest = 16
        if not pc.all(pc.equal(pc.binary_length(texts), 16)).as_py():  # not hex
            numbers = [hash(text) & 0xFFFFFFFFFFFFFFFF for text in texts.to_pylist()]
            return np.array(numbers, np.uint64)
    # The buffer may begin before the first text.
    _, offsets, data = texts.buffers()
    at = int(np.frombuffer(offsets, dtype=np.int64)[texts.offset])
    characters = np.frombuffer(data, dtype=np.uint8)[at : at + longest * len(texts)]
    digits = _DIGIT[characters.reshape(-1, longest)[:, -16:]]
    # Two digits a byte, eight bytes a number, the first one highest.
    return (digits[:, ::2] << 4 | digits[:, 1::2]).view(">u8").ravel().astype(np.uint64)


_DIGIT: Final = np.array(
    [code - 87 if code >= 97 else code & 15 for code in range(256)], dtype=np.uint8
) & np.uint8(15)
