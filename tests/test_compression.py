"""Compressed sources that are cut, broken, or become too much."""

import gzip
import os
from pathlib import Path
from typing import Any

import pytest
from documents import document, json_lines, zstd

from pdtrace.analysis.store import Limits, SourceError, read_spans
from pdtrace.analysis.tabulate import tabulate


def test_cut_gzip_keeps_what_came_before(tmp_path: Path) -> None:
    """A gzip file without its end gives the lines before the cut."""
    lines = json_lines(*(document(n, name=os.urandom(200).hex()) for n in range(1, 200)))
    (tmp_path / "f").write_bytes(gzip.compress(lines)[:-2000])
    batch = read_spans([tmp_path / "f"])
    assert 1 < len(batch.records) < 199
    assert "ends inside a message" in batch.notes[0]


def test_cut_and_broken_zstd(tmp_path: Path) -> None:
    """As with gzip: what comes before the cut is kept, and a file that is none is named."""
    lines = json_lines(*(document(n, name=os.urandom(200).hex()) for n in range(1, 2000)))
    (tmp_path / "f").write_bytes(zstd(lines)[:-2000])
    loaded = tabulate([tmp_path / "f"])
    assert 1 < len(loaded.table.spans) < 1999
    assert "ends inside a message" in loaded.notes[0]
    (tmp_path / "g").write_bytes(b"\x28\xb5\x2f\xfdnonsense")
    with pytest.raises(SourceError, match="broken zstd"):
        tabulate([tmp_path / "g"])


@pytest.mark.parametrize("squeeze", [gzip.compress, zstd])
def test_decompression_stops_at_its_limit(tmp_path: Path, squeeze: Any) -> None:
    """A few bytes that become many cost no more than the limit, and it is said."""
    lines = json_lines(*(document(n) for n in range(1, 5000)))
    (tmp_path / "f").write_bytes(squeeze(lines))
    loaded = tabulate([tmp_path / "f"], Limits(plain_bytes=100_000))
    assert 1 < len(loaded.table.spans) < 100_000 / len(json_lines(document(1)))
    assert any("more than 100000 bytes when it is decompressed" in note for note in loaded.notes)
