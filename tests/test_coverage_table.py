"""`docs/coverage.md` is made from the tests' marks, and no promised path is without a test."""

import coverage_table
import pytest
from coverage_rows import GROUPS


@pytest.fixture(scope="module")
def marks(request: pytest.FixtureRequest) -> list[dict[str, object]]:
    """The marks of the whole suite; where a part of it is run, collecting takes half a minute."""
    found = request.config.stash[coverage_table.OF_ALL]
    return coverage_table.collect() if found is None else found


def test_the_committed_table_is_that_of_the_tests(marks: list[dict[str, object]]) -> None:
    """Every row has a test in each of its modes; each mark names a row, and a reason if need be."""
    document, wrong = coverage_table.table(marks)
    assert wrong == []
    assert coverage_table.DOCUMENT.read_text(encoding="utf-8") == document


def test_what_is_wrong_with_marks_is_told() -> None:
    """An unknown row, a mode that a row has not, a missing reason, a row without any test."""
    found = [
        {"key": "no-such-row", "modes": ["push"], "test": "a", "on": "engines"},
        {"key": "concurrent", "modes": ["pull"], "test": "b", "on": "engines"},
        {"key": "warm", "modes": ["push"], "test": "c", "on": "classes"},
        {"key": "chat", "modes": ["push"], "test": "d", "on": "guesses"},
    ]
    document, wrong = coverage_table.table(found)
    assert wrong[:4] == [
        "a: no row 'no-such-row' for ['push']",
        "b: no row 'concurrent' for ['pull']",
        "c: 'classes' needs a reason why",
        "d: 'on' must be engines or classes",
    ]
    promised = sum(len(row.modes) for rows in GROUPS.values() for row in rows)
    assert len(wrong) == 4 + promised - 2
    assert "**no test**" in document
