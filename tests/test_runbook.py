"""docs/runbook.md has a section for everything that triage may link to, and each is complete."""

import re
from pathlib import Path

import pytest

from pdtrace.analysis import phases
from pdtrace.analysis.triage import FACTOR, KINDS
from pdtrace.analysis.triage_causes import CAUSES
from pdtrace.analysis.triage_words import (
    COLD_SECTION,
    DOUBTFUL_SECTION,
    OPEN_SECTION,
    SECTION,
)

DOCS = Path(__file__).parent.parent / "docs"
TEXT = (DOCS / "runbook.md").read_text(encoding="utf-8")
PARTS = ("**What it means.**", "**How to confirm it.**", "**What usually fixes it.**")


def sections() -> dict[str, str]:
    """Text by anchor: the headings are written as GitHub's anchors."""
    found = re.split(r"^### (.+)$", TEXT, flags=re.MULTILINE)[1:]
    return dict(zip(found[::2], found[1::2], strict=True))


def test_everything_that_may_be_linked_has_a_section_and_nothing_else_has() -> None:
    """Phases, causes, verdicts without a factor, and what comes before them."""
    verdicts = {SECTION[kind] for kind in KINDS if kind != FACTOR}
    before = {COLD_SECTION, DOUBTFUL_SECTION, OPEN_SECTION}
    assert set(sections()) == {*phases.NAMES, *CAUSES, *verdicts, *before}


@pytest.mark.parametrize("anchor", sections())
def test_a_section_says_what_it_means_how_to_confirm_and_what_fixes_it(anchor: str) -> None:
    """In this order, each with words; and its anchor is what GitHub makes of its heading."""
    text = sections()[anchor]
    places = [text.find(part) for part in PARTS]
    assert -1 < places[0] < places[1] < places[2]
    assert all(len(piece.split()) > 3 for piece in re.split(r"\*\*[^*]+\.\*\*", text)[1:])
    assert re.sub(r"[^\w\- ]", "", anchor.lower()).replace(" ", "-") == anchor


def test_links_lead_somewhere() -> None:
    """Within the page and to other pages."""
    for target in re.findall(r"\]\(([^)]+)\)", TEXT):
        page, _, anchor = target.partition("#")
        assert not page or (DOCS / page).is_file(), target
        assert not anchor or anchor in sections(), target
