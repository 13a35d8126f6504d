"""The page of one request: well-formed, self-contained, escaped."""

import re
from xml.etree import ElementTree

import pandas as pd
import pytest
from generator import EPOCH_NS, Rank, Shape, Writer, records
from test_show import two_clocks

from pdtrace.analysis.handoffs import join
from pdtrace.analysis.show import Shown, show
from pdtrace.analysis.show_html import page
from pdtrace.analysis.table import build
from pdtrace.tracing import semconv as sc

EVIL = "<script>alert('x')</script>&\"r"
MS = 10**6


def body(text: str) -> ElementTree.Element:
    """Parses as XML after its doctype, so every tag is closed."""
    root = ElementTree.fromstring(text.split("\n", 1)[1])
    assert root.tag == "html"
    return root


@pytest.fixture(scope="module")
def shown() -> Shown:
    ranks = (Rank(transfer=20 * MS), Rank(transfer=30 * MS))
    shape = Shape(capacity=200 * MS, prefill=300 * MS, ranks=ranks)
    return show(join(build(records(shape, EVIL))), EVIL)


@pytest.fixture(scope="module")
def text(shown: Shown) -> str:
    return page(shown, [f"{EVIL}.jsonl"], [f"left out {EVIL}"])


def test_page_loads_nothing_and_escapes_what_comes_from_outside(text: str) -> None:
    """No address, no script, no style sheet or picture from elsewhere."""
    root = body(text)
    assert "://" not in text and "@import" not in text and "<script" not in text
    assert re.findall(r"url\(([^)]*)\)", text) == ["#hatch"]
    assert text.count("&lt;script&gt;") >= 5
    tags = {element.tag for element in root.iter()}
    assert not tags & {"script", "link", "img", "iframe", "object"}


def test_page_has_every_phase_with_its_sentence(text: str, shown: Shown) -> None:
    """Numbers and words as in the terminal; each rank has a lane; hidden pieces are hatched."""
    root = body(text)
    rows = root.findall(".//tr[@class='phase']")
    assert [row[0].findtext("i", "") + (row[0][0].tail or "") for row in rows] == [
        line.phase for line in shown.phases
    ]
    said = ["".join(cell.itertext()) for cell in root.iter("td") if cell.get("class") == "said"]
    assert all(line.sentence in row for line, row in zip(shown.phases, said, strict=True))
    lanes = [t.text for t in root.iter("text") if t.get("class") == "lane"]
    assert lanes == ["router", "P", "P tp0", "P tp1", "D"]
    assert 'class="hatch"' in text


def test_error_bars_are_drawn_where_clocks_differ(text: str) -> None:
    """One at the end of the hop, one at the start of the way back."""
    spans = two_clocks(prefill=300 * MS, handing=0, hop=10 * MS, egress=9 * MS)
    one = show(join(build(spans), pd.Series({"r": 4 * MS})), "r")
    bars = [p for p in body(page(one, [], [])).iter("path") if p.get("class") == "whisker"]
    assert len(bars) == 2
    assert 'class="whisker"' not in text


def test_page_without_a_first_token_draws_no_bar() -> None:
    """The last span and the outcome, and no class of any wait."""
    writer = Writer("gone", "push")
    writer.span(sc.SPAN_REQUEST, EPOCH_NS, EPOCH_NS + 9, status=2, error__type="aborted")
    root = body(page(show(join(build(writer.records)), "gone"), [], []))
    assert [h.text for h in root.iter("h2")] == ["No first token", "The request", "Notes"]
    assert not [e for e in root.iter("rect")]
    assert "Nothing of it can be drawn." in "".join(root.itertext())
