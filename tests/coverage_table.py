"""`docs/coverage.md` from the tests' own marks.

As a pytest plugin (`-p coverage_table`) it collects the marks and writes them to the file that
`PDTRACE_COVERAGE_MARKS` names; as a program it writes the document:

    python tests/coverage_table.py            # docs/coverage.md
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import pytest
from coverage_rows import GROUPS, Row

ROOT: Final = Path(__file__).parent.parent
DOCUMENT: Final = ROOT / "docs" / "coverage.md"
_MARKS: Final = "PDTRACE_COVERAGE_MARKS"
_INTRODUCTION: Final = """\
# What is traced, and what proves it

Made from the tests by `python tests/coverage_table.py`; do not edit. **engines**: proven on real
vLLM engines on CPU with real NIXL. **classes**: proven on vLLM's real classes, with real NIXL
agents where blocks move, because engines cannot do it here for the reason given. *–*: does not
exist in this mode. *other*: without a handoff, or with a connector that is not NIXL's. GPUs, RDMA
and several hosts are in no row: nothing here was run on them.
"""

Mark = dict[str, Any]
OF_ALL: Final = pytest.StashKey[list[Mark] | None]()
"""The marks of the whole suite in a run that collects all of it, before any test is deselected."""

Marks = dict[tuple[str, str], list[dict[str, str]]]


def marks_of(items: Iterable[pytest.Item]) -> list[Mark]:
    """Every mark of every test."""
    return [
        {"key": mark.args[0], "modes": mark.args[1:], "test": item.nodeid, **mark.kwargs}
        for item in items
        for mark in item.iter_markers("covers")
    ]


def of_all(items: Iterable[pytest.Item]) -> list[Mark] | None:
    """The same as they are written down; None unless these are the tests of every file."""
    whole = {item.path for item in items} >= set(Path(__file__).parent.glob("test_*.py"))
    written: list[Mark] | None = json.loads(json.dumps(marks_of(items))) if whole else None
    return written


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Write down every mark of every test."""
    if os.environ.get(_MARKS):
        Path(os.environ[_MARKS]).write_text(json.dumps(marks_of(items)), encoding="utf-8")


def collect() -> list[dict[str, Any]]:
    """The marks of the whole suite, from a collection in a process of its own."""
    with tempfile.TemporaryDirectory() as directory:
        target = Path(directory) / "marks.json"
        command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "coverage_table"]
        done = subprocess.run(
            command,
            cwd=ROOT,
            env={**os.environ, _MARKS: str(target)},
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise RuntimeError(f"the tests could not be collected:\n{done.stdout[-2000:]}")
        found: list[dict[str, Any]] = json.loads(target.read_text(encoding="utf-8"))
    return found


def table(found: list[dict[str, Any]]) -> tuple[str, list[str]]:
    """The document, and what is wrong with the marks: one sentence each."""
    rows = {row.key: row for group in GROUPS.values() for row in group}
    marks: Marks = {}
    wrong = []
    for mark in found:
        row = rows.get(mark["key"])
        if row is None or not mark["modes"] or not set(mark["modes"]) <= set(row.modes):
            wrong.append(f"{mark['test']}: no row {mark['key']!r} for {mark['modes']}")
            continue
        if mark.get("on") not in ("engines", "classes"):
            wrong.append(f"{mark['test']}: 'on' must be engines or classes")
        if mark.get("on") == "classes" and not mark.get("why"):
            wrong.append(f"{mark['test']}: 'classes' needs a reason why")
        for mode in mark["modes"]:
            marks.setdefault((row.key, mode), []).append(mark)
    wrong += [
        f"{key} in {mode}: no test"
        for key, row in rows.items()
        for mode in row.modes
        if (key, mode) not in marks
    ]
    return _document(marks), wrong


def _document(marks: Marks) -> str:
    lines = [_INTRODUCTION]
    for group, rows in GROUPS.items():
        lines += [
            f"\n## {group}\n",
            "| path | push | pull | other | tests |",
            "|---|---|---|---|---|",
        ]
        lines += [_line(row, marks) for row in rows]
    return "\n".join(lines) + "\n"


def _line(row: Row, marks: Marks) -> str:
    cells = [
        _cell(marks.get((row.key, mode), [])) if mode in row.modes else "–"
        for mode in ("push", "pull", "none")
    ]
    tests = {
        mark["test"].partition("[")[0].removeprefix("tests/")
        for mode in row.modes
        for mark in marks.get((row.key, mode), [])
    }
    named = "<br>".join(f"`{name}`" for name in sorted(tests))
    return f"| {row.title} | {' | '.join(cells)} | {named} |"


def _cell(found: list[dict[str, str]]) -> str:
    """The strongest proof; the reason beside it where that is not engines."""
    if not found:
        return "**no test**"
    if any(mark["on"] == "engines" for mark in found):
        return "engines"
    return f"classes: {found[0].get('why', '')}"


if __name__ == "__main__":
    document, problems = table(collect())
    DOCUMENT.write_text(document, encoding="utf-8")
    print("\n".join(problems))
    sys.exit(bool(problems))
