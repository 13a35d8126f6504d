"""Files elsewhere, by an address that fsspec knows."""

from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest
from test_partitions import same

from pdtrace.analysis.analyse import analyse
from pdtrace.analysis.export import to_parquet
from pdtrace.analysis.load import load
from pdtrace.analysis.sources import SourceError
from pdtrace.analysis.split import split
from pdtrace.cli.main import main

DATA = Path(__file__).parent / "data"
PUSH = DATA / "c16_push_modes.otlp.jsonl"


@pytest.fixture
def memory() -> Iterator[fsspec.AbstractFileSystem]:
    """fsspec's store in memory, empty again afterwards."""
    found = fsspec.filesystem("memory")
    yield found
    for name in found.find("/"):
        found.rm(name)


def test_lines_of_an_address_are_read_like_a_file(memory: fsspec.AbstractFileSystem) -> None:
    """One file, a directory of them and a glob, compressed or not."""
    zipped = DATA / "c09_otlp_quirks.jsonl.gz"
    memory.pipe({"/traces/push.jsonl": PUSH.read_bytes(), "/traces/q.gz": zipped.read_bytes()})
    one = split(load(["memory://traces/push.jsonl"]).handoffs)
    same(one, split(load([PUSH]).handoffs))
    both = split(load([PUSH, zipped]).handoffs)
    for where in ("memory://traces", "memory://traces/*", "memory:/traces/"):
        same(split(load([where]).handoffs), both)


def test_a_spans_table_elsewhere_is_split_in_parts(
    memory: fsspec.AbstractFileSystem, tmp_path: Path
) -> None:
    """As one here."""
    to_parquet([PUSH], tmp_path / "kept")
    memory.put(str(tmp_path / "kept"), "/kept", recursive=True)
    found = analyse(["memory://kept"]).split
    assert "part" in found.requests
    same(found, split(load([tmp_path / "kept"]).handoffs))


@pytest.mark.parametrize(
    ("where", "why"),
    [
        ("memory://nowhere", "nothing is at memory://nowhere"),
        ("memory://nowhere/*.gz", "nothing is at memory://nowhere/*.gz"),
        ("s4://bucket/kept", "cannot read s4://bucket/kept: Protocol not known: s4"),
    ],
)
def test_what_cannot_be_read_is_one_sentence(
    where: str, why: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """On the command line as everywhere."""
    with pytest.raises(SourceError, match="^" + why.replace("*", r"\*")):
        load([where])
    with pytest.raises(SystemExit) as stopped:
        main(["split", where])
    out, err = capfd.readouterr()
    assert (stopped.value.code, out) == (1, "")
    assert err.startswith(f"pdtrace split: {why}") and len(err.splitlines()) == 1
