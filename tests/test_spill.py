"""A large source is kept on disk and split in parts: the same result as of all of it at once."""

import errno
import gc
from pathlib import Path

import pytest
from generator import Shape, records
from test_partitions import CASES, DATA, same

from pdtrace.analysis import columns, opened, spill, table
from pdtrace.analysis.analyse import Analysed, analyse
from pdtrace.analysis.sources import SourceError


@pytest.fixture
def little_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a case of a few hundred spans is a large source, of several files and parts."""
    monkeypatch.setattr(columns, "BATCH", 8)
    monkeypatch.setattr(table, "HELD", 8)
    monkeypatch.setattr(opened, "ROWS", 60)


def kept_at_once(monkeypatch: pytest.MonkeyPatch, source: Path) -> Analysed:
    with monkeypatch.context() as patch:
        patch.setattr(table, "HELD", 1 << 20)
        found = analyse([source])
    assert found.spill is None
    return found


@pytest.mark.usefixtures("little_is_held")
@pytest.mark.parametrize("name", CASES)
def test_every_case_is_the_same_from_disk(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests, notes about what was refused or dropped, and what is drawn of them."""
    whole = kept_at_once(monkeypatch, DATA / name)
    found = analyse([DATA / name])
    assert found.spill is not None
    assert len(found.spill.paths) >= 1
    same(found.split, whole.split)
    assert (found.notes, found.partial) == (whole.notes, whole.partial)
    ids = found.split.splittable[:3].tolist()
    drawn = [one.timelines(one.split, ids).to_dict("list") for one in (found, whole)]
    assert drawn[0] == drawn[1]


@pytest.mark.usefixtures("little_is_held")
def test_what_was_kept_is_gone_with_its_result() -> None:
    """The directory lives as long as timelines can be drawn of it."""
    found = analyse([DATA / CASES[0]])
    assert found.spill is not None
    directory = found.spill.paths[0].parent
    assert directory.is_dir()
    del found
    gc.collect()
    assert not directory.exists()


@pytest.mark.usefixtures("little_is_held")
def test_no_room_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """And says how to have it kept elsewhere."""

    def fake_full_disk(batch: columns.Batch, path: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(spill, "write_spans", fake_full_disk)
    with pytest.raises(SourceError, match="TMPDIR names: No space left on device$"):
        analyse([DATA / CASES[0]])


@pytest.mark.usefixtures("little_is_held")
def test_no_more_is_held_than_a_batch_beyond_the_limit() -> None:
    """Every span is handed over once, in the order in which it came."""
    spans = [s for number in range(40) for s in records(Shape(mode="push"), f"r-{number}")]
    spilled: list[columns.Batch] = []
    builder = table.TableBuilder(spilled.append)
    builder.add_all(spans)
    builder.spill_rest()
    assert max(len(batch.spans) for batch in spilled) < table.HELD + columns.BATCH
    came = [span_id for batch in spilled for span_id in batch.spans["span_id"].to_pylist()]
    assert came == [span.span_id for span in spans]
    assert builder.finish()[0].spans.empty
