"""Compressed sources that are cut, broken, or become too much."""

import gzip
import random
import zlib
from pathlib import Path
from typing import Any

import pytest
from documents import document, in_four_bytes, json_lines, message, zstd

from pdtrace.analysis.framing import framed
from pdtrace.analysis.store import Limits, read_spans
from pdtrace.analysis.tabulate import tabulate


def read(file: Path) -> tuple[list[int], list[str]]:
    """Which spans are read, and what is said besides."""
    batch = read_spans([file])
    notes = [note.removeprefix(f"{file} ") for note in batch.notes]
    return [int(record.span_id, 16) for record in batch.records], notes


def gunzipped(data: bytes) -> bytes:
    """All that zlib gets out of one member."""
    return zlib.decompressobj(wbits=31).decompress(data)


def in_whole_blocks(data: bytes) -> bytes:
    """All that is in a zstd frame before its last block: random text leaves two of three."""
    assert len(data) < 3 * ZSTD_BLOCK
    return BIG[: 2 * ZSTD_BLOCK]


CUT = ["ends inside a message, which was skipped"]
ZSTD_BLOCK = 128 << 10
BIG = json_lines(*(document(n, name=random.Random(n).randbytes(200).hex()) for n in range(1, 600)))


@pytest.mark.parametrize(("squeeze", "kept"), [(gzip.compress, gunzipped), (zstd, in_whole_blocks)])
def test_what_decompresses_before_the_cut_is_kept(tmp_path: Path, squeeze: Any, kept: Any) -> None:
    """Of a file that is one cut whole only the line that the cut is in is lost, and said once."""
    assert 2 * ZSTD_BLOCK < len(BIG) < 3 * ZSTD_BLOCK
    cut = squeeze(BIG)[:-2000]
    (tmp_path / "f").write_bytes(cut)
    lines = kept(cut).count(b"\n")
    assert lines > 400
    assert read(tmp_path / "f") == (list(range(1, lines + 1)), CUT)


@pytest.mark.parametrize("squeeze", [gzip.compress, zstd])
@pytest.mark.parametrize("form", [lambda n: json_lines(document(n)), lambda n: framed(message(n))])
def test_a_cut_member_costs_only_itself(tmp_path: Path, squeeze: Any, form: Any) -> None:
    """What is in the whole members before it is kept, wherever the last one is cut."""
    one, two, three = (squeeze(form(number)) for number in (1, 2, 3))
    for left in (1, 4, 12, len(three) // 2, len(three) - 20):
        (tmp_path / "f").write_bytes(one + two + three[:left])
        assert read(tmp_path / "f") == ([1, 2], CUT), left


def each_line(squeeze: Any) -> Any:
    """Compresses the lines one by one."""
    return lambda data: b"".join(map(squeeze, data.splitlines(keepends=True)))


def each_message(squeeze: Any) -> Any:
    """Compresses the lines one by one, with their lengths, as the Collector's file exporter."""
    return lambda data: in_four_bytes(*map(squeeze, data.splitlines()))


@pytest.mark.parametrize(
    "squeeze",
    [gzip.compress, zstd, each_line(gzip.compress), each_line(zstd), each_message(zstd)],
)
def test_decompression_stops_at_its_limit(tmp_path: Path, squeeze: Any) -> None:
    """A few bytes that become many cost no more than the limit, and it is said."""
    lines = json_lines(*(document(n) for n in range(1, 5000)))
    (tmp_path / "f").write_bytes(squeeze(lines))
    loaded = tabulate([tmp_path / "f"], Limits(plain_bytes=100_000))
    assert 300 < len(loaded.table.spans) < 100_000 / len(json_lines(document(1)).strip())
    assert any("more than 100000 bytes when it is decompressed" in note for note in loaded.notes)


def test_a_broken_message_among_compressed_ones_costs_only_itself(tmp_path: Path) -> None:
    """It is counted as what it is."""
    one, two, three = (zstd(message(number)) for number in (1, 2, 3))
    (tmp_path / "f").write_bytes(in_four_bytes(one, two[:-5], three))
    kind = "compressed data that is broken, or more than 1 GiB"
    source = tmp_path / "f"
    assert read(source) == ([1, 3], [f"{source}: skipped 1 message: {kind}"])
