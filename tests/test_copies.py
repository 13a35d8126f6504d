"""Spans that come more than once, from one source or several."""

import json
from pathlib import Path

from documents import START_NS, document, json_lines, spans, write_every_format

from pdtrace.analysis.tabulate import tabulate

DATA = Path(__file__).parent / "data"


def test_sources_mix(tmp_path: Path) -> None:
    """Several sources of several formats make one table, each span once."""
    sources = write_every_format(tmp_path)
    (tmp_path / "more").write_bytes(json_lines(document(3)))
    assert spans(*sources, tmp_path / "more") == [1, 2, 3]
    copies = 2 * (len(sources) - 1)
    assert tabulate(sources).notes == [
        f"dropped {copies} spans that came again with the same content"
    ]


def test_conflicting_copy_keeps_the_longest(tmp_path: Path) -> None:
    """Spans with the same ids and other content: in any order the longest stays, and it is said."""
    changed = document(1, endTimeUnixNano=str(START_NS + 99))
    for order in ([document(1), changed, document(1)], [changed, document(1), document(1)]):
        (tmp_path / "f").write_bytes(json_lines(*order))
        loaded = tabulate([tmp_path / "f"])
        assert (loaded.table.spans["end_ns"] - START_NS).tolist() == [99]
        (note,) = loaded.notes
        assert "other content (2 times); the longest is kept" in note


def test_copies_that_differ_in_an_event_are_in_conflict(tmp_path: Path) -> None:
    """What a span carries is its content too; whichever comes first, one and the same stays."""
    event = [{"name": "pd.refused", "timeUnixNano": str(START_NS)}]
    found = []
    for order in (
        [document(1), document(1, events=event)],
        [document(1, events=event), document(1)],
    ):
        (tmp_path / "f").write_bytes(json_lines(*order))
        loaded = tabulate([tmp_path / "f"])
        found.append(loaded.table.events["name"].tolist())
        assert "other content (1 time)" in loaded.notes[0]
    assert found[0] == found[1]


def test_many_conflicts_make_few_notes(tmp_path: Path) -> None:
    """Ten conflicts are named, the others counted."""
    changed = [document(n, name="other") for n in range(1, 21)]
    (tmp_path / "f").write_bytes(json_lines(*(document(n) for n in range(1, 21)), *changed))
    notes = tabulate([tmp_path / "f"]).notes
    assert (len(notes), notes[-1]) == (11, "10 more spans came again with other content")


def test_dirty_case_counts_what_it_leaves_out() -> None:
    """Copies, a conflict, another epoch, a negative span, orphans, bad values: each counted."""
    expected = json.loads((DATA / "c06_dirty_spans.expected.json").read_text())
    loaded = tabulate([DATA / "c06_dirty_spans.otlp.jsonl"])
    assert loaded.rejected == {"time of another epoch": 1, "end before start": 1}
    table = loaded.table.spans
    assert len(table) == expected["span_ids_unique"] - 2
    assert table["name"].str.startswith("pd.").sum() == expected["own_spans_used"]
    assert loaded.notes == [
        "rejected 1 span: time of another epoch (the first: bytecode transform, 56.9 years long)",
        "rejected 1 span: end before start (the first: pd.handshake, -1000000 ns long)",
        "ignored 1 value: gen_ai.latency.time_in_queue is negative",
        "ignored 1 value: gen_ai.latency.time_to_first_token is not a number",
        "dropped 3 spans that came again with the same content",
        "span pd.request c3a3380ad1557e1e of trace da9c50b823a1b266212cbfa62de039e8 came again "
        "with other content (1 time); the longest is kept",
        "7 spans of 1 parent that is in no source: joined by request id, which needs no parent",
    ]
