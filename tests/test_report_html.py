"""The HTML page: well-formed, self-contained, escaped."""

import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest
from generator import EPOCH_NS, Shape, Writer, records

from pdtrace.analysis import phases
from pdtrace.analysis.handoffs import join
from pdtrace.analysis.records import SpanRecord
from pdtrace.analysis.report_html import page, shown
from pdtrace.analysis.split import split
from pdtrace.analysis.table import build
from pdtrace.analysis.timeline import slowest, timeline
from pdtrace.tracing import semconv as sc

EVIL = "<script>alert('x')</script>&\"r"


def html(spans: list[SpanRecord], notes: tuple[str, ...] = ()) -> str:
    handoffs = join(build(spans))
    done = split(handoffs)
    return page(done, timeline(handoffs, done, shown(done)), [f"{EVIL}.jsonl"], notes)


@pytest.fixture(scope="module")
def whole() -> str:
    spans = [
        *records(Shape(capacity=200, p_retry=9, queue_d=4), EVIL),
        *records(Shape(mode="pull", dispatch="sequential", handshake=90), "r-2"),
        *records(Shape(recompute=30), "r-3"),
    ]
    return html(spans, notes=(f"left out {EVIL}",))


def test_page_is_well_formed(whole: str) -> None:
    """It parses as XML after its doctype, so every tag is closed."""
    root = ElementTree.fromstring(whole.split("\n", 1)[1])
    assert root.tag == "html"
    assert len(root.findall(".//section")) == 6


def test_page_loads_nothing(whole: str) -> None:
    """No address, no script, no style sheet or picture from elsewhere."""
    assert "://" not in whole and "@import" not in whole
    assert re.findall(r"url\(([^)]*)\)", whole) == ["#hatch"]
    tags: set[str] = set()

    class Collect(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            tags.add(tag)
            assert not {"src", "href", "onclick", "onload"} & {name for name, _ in attrs}

    Collect().feed(whole)
    assert not tags & {"script", "link", "img", "iframe", "object"}


def test_text_from_the_data_is_escaped(whole: str) -> None:
    """Request ids, file names and notes come from outside."""
    assert "<script" not in whole
    assert whole.count("&lt;script&gt;") >= 3


def test_page_explains_every_phase_and_hatches_hidden_time(whole: str) -> None:
    """Each phase has a row with its from and to; hidden pieces carry the hatch."""
    assert all(f"<code>{phase.name}</code>" in whole for phase in phases.PHASES)
    assert 'class="hatch"' in whole


def test_page_without_a_split_says_so() -> None:
    """A request that never got a first token is listed, and nothing is drawn."""
    writer = Writer("gone", "push")
    writer.span(sc.SPAN_REQUEST, EPOCH_NS, EPOCH_NS + 9, status=2, error__type="aborted")
    text = html(writer.records)
    assert "No request could be split." in text
    assert "no first token" in text


def test_timeline_owns_each_instant_once() -> None:
    """The owned pieces of a request tile its window from arrival to first token."""
    handoffs = join(build([*records(Shape(capacity=500), "a"), *records(Shape(), "b")]))
    done = split(handoffs)
    assert slowest(done, 1) == ["a"]
    pieces = timeline(handoffs, done, ["a"])
    owned = pieces[pieces["owned"]].sort_values("start_ns")
    assert owned["start_ns"].tolist()[1:] == owned["end_ns"].tolist()[:-1]
    assert owned["end_ns"].max() == done.requests.loc["a", "ttft_ns"]
    hidden = pieces[~pieces["owned"]]
    assert (hidden["end_ns"] - hidden["start_ns"]).sum() == done.hidden.loc["a"].sum()
