"""The triage page: every verdict has one, nothing from outside becomes markup."""

import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pytest
from traffic import MS, START_NS, empty_spans, healthy, longer, on, with_flag

from pdtrace.analysis.triage import triage
from pdtrace.analysis.triage_html import page
from pdtrace.analysis.triage_sets import Objective
from pdtrace.analysis.triage_traffic import Traffic

SLO = Objective(slo_ns=160 * MS)
NASTY = "d-3<script>alert('&')</script>"


class Tags(HTMLParser):
    """Which tags a page has, and whether those that are opened are closed in order."""

    EMPTY = frozenset(("meta", "br", "link"))

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        if tag not in self.EMPTY:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def nasty(count: int = 2000) -> Traffic:
    """A slow engine with a wicked name, restarted when it became slow; one answer in doubt."""
    traffic = healthy(count, 41)
    rows = traffic.requests
    for name in ("decode_engine", "decode_host"):
        rows[name] = rows[name].str.replace("d-3", NASTY, regex=False).astype("str")
    late = on(traffic, decode_engine=NASTY) & (rows["t0_ns"] > START_NS + 200_000 * MS)
    first = pd.Series(np.arange(count) == 0, index=rows.index)
    traffic = with_flag(longer(traffic, "requeue", late, 150), "mispaired", first)
    times = [(0, 190), (201, 600)]
    spans = [
        {"engine_id": NASTY, "instance_id": str(n), "start_ns": START_NS + a * 1000 * MS,
         "end_ns": START_NS + b * 1000 * MS, "config": f'{{"seed": "<b>{n}"}}', "role": "decode"}
        for n, (a, b) in enumerate(times)
    ]  # fmt: skip
    return replace(traffic, spans=pd.concat([empty_spans(), pd.DataFrame(spans)]))


def test_names_from_outside_are_text_everywhere() -> None:
    """In sentences, tables, charts and their tips, notes and sources."""
    text = page(triage(nasty(), SLO), ["<i>store</i>"], ["<u>note</u>"])
    tags = Tags(text)
    assert not tags.seen & {"script", "u"} and "i" in tags.seen
    assert "<i>store" not in text and "<b>0" not in text and "<u>note" not in text
    assert "alert(&#x27;&amp;&#x27;)" in text
    assert not re.search(r"(src|href)\s*=|url\((?!#)", text)


def test_the_page_has_verdict_charts_change_and_doubts() -> None:
    """What a reader looks for, in order."""
    text = page(triage(nasty(), SLO), ["store"], [])
    marks = (
        "1 answer may be wrong", 'class="verdict">requeue +1', "restarted with another",
        "By how much each phase rose", "What slow requests have in common",
        "Median of requeue over time", 'class="change"', 'class="event"', "All requests of",
    )  # fmt: skip
    places = [text.find(mark) for mark in marks]
    assert places == sorted(places) and places[0] > 0


def test_long_ids_of_engines_are_shortened_in_charts_only() -> None:
    """Their ends stay; the whole id is in the tip and in the table."""
    traffic = healthy(2000, 44)
    name = "0f6e3d2f-aaaa-4b4b-8b8b-000000000016-dp0"
    rows = traffic.requests
    rows["decode_engine"] = rows["decode_engine"].replace("d-3", name).astype("str")
    text = page(
        triage(longer(traffic, "requeue", on(traffic, decode_engine=name), 150), SLO), [], []
    )
    assert ">D engine 0f6e3d2…-000000000016-dp0<" in text and f"<td>{name}</td>" in text
    assert f"<title>D engine {name}: " in text


@pytest.mark.parametrize(
    "count, objective, kind",
    [
        (400, Objective(slo_ns=900 * MS), "nothing_slow"),
        (400, Objective(share=0.05), "too_few"),
        (400, Objective(share=0.1), "no_single_attribute"),
        (1, Objective(share=0.5), "too_few"),
    ],
)
def test_every_verdict_has_a_page(count: int, objective: Objective, kind: str) -> None:
    """Also those without a ledger."""
    found = triage(healthy(count, 42), objective)
    assert found.verdict.kind == kind
    assert "section" in Tags(page(found, ["store"], [])).seen
