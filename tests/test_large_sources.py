"""`triage`, `clocks` and `show` of sources that are read in parts answer as if they were not."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from fleet import healthy, run, write
from test_partitions import CASES, DATA
from test_triage_command import slow_d

from pdtrace.analysis import columns, opened, parallel, parquet, sought, table
from pdtrace.analysis.partitions import Part
from pdtrace.cli.main import main
from pdtrace.tracing import semconv as sc

SOME = [name for name in CASES if name[:3] in ("c05", "c09", "c16")]


@pytest.fixture(autouse=True)
def one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts are split in this process; `test_workers` splits them in others."""
    for command in ("triage_cmd", "clocks_cmd", "show_cmd"):
        monkeypatch.setattr(f"pdtrace.cli.{command}.every_core", None)


@contextmanager
def little_is_held(rows: int) -> Iterator[None]:
    """A case of a few hundred spans is a large source, of several files and parts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(columns, "BATCH", 8)
        patch.setattr(table, "HELD", 8)
        patch.setattr(parquet, "ROW_GROUP", 13)
        patch.setattr(opened, "ROWS", rows)
        yield


def called(capfd: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit status, standard output, standard error."""
    with pytest.raises(SystemExit) as stopped:
        main(list(arguments))
    assert isinstance(stopped.value.code, int)
    return stopped.value.code, *capfd.readouterr()


def both(
    capfd: pytest.CaptureFixture[str], *arguments: str, rows: int = 60
) -> list[tuple[int, str, str]]:
    """Of the source at once, and of its parts of about so many spans."""
    whole = called(capfd, *arguments)
    with little_is_held(rows):
        return [whole, called(capfd, *arguments)]


@pytest.mark.parametrize("name", SOME)
def test_triage_in_parts(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    whole, parts = both(capfd, "triage", str(DATA / name), "--slowest", "30%", "--json")
    assert parts == whole


def test_triage_in_parts_names_a_slow_engine_and_what_is_open(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Engines that start late, requests that never end: what rows do not say is there as well."""
    spans = run(220, 2, slow_d)
    kept = [s for s in spans if s.attributes[sc.REQUEST_ID] != "r-7" or "queue" in s.name]
    path = str(write(tmp_path / "slow.jsonl", kept))
    whole, parts = both(capfd, "triage", path, "--slowest", "20%", "--json", rows=900)
    assert parts == whole
    found = json.loads(parts[1])
    assert (found["verdict"]["kind"], len(found["open"])) == ("factor", 1)


@pytest.mark.parametrize(("name", "options"), [(SOME[0], []), *((one, ["--json"]) for one in SOME)])
def test_clocks_in_parts(name: str, options: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    whole, parts = both(capfd, "clocks", str(DATA / name), *options)
    assert parts == whole


@pytest.mark.parametrize("command", ["split", "clocks"])
def test_hosts_without_clocks_in_parts(
    command: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """They have a clock each, as at once: the offset is found."""
    path = tmp_path / "hosts.jsonl"
    text = (DATA / "c05_clock_skew.otlp.jsonl").read_text()
    path.write_text(text.replace(f'"{sc.CLOCK_ID}"', '"not.said"'))
    more = ["--processes", "1"] if command == "split" else []
    whole, parts = both(capfd, command, str(path), "--json", *more, rows=8)
    assert parts == whole
    assert "host host-b" in whole[1] if command == "clocks" else '"clocks_' not in whole[1]


def ids_of(path: Path) -> list[str]:
    """Ids and trace ids in a file, and names that are like them."""
    found = sorted({text for text in path.read_text().split('"') if len(text) > 20})
    named = [text for text in found if "-" in text or len(text) == 32]
    return named[:: max(1, len(named) // 4)][:4]


@pytest.mark.parametrize("name", SOME)
def test_show_in_parts(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    """By every sort of name: ids, their beginnings, legs' ids, traces, and what nothing is called;
    a refusal says the same as well."""
    names = [text for one in ids_of(DATA / name) for text in (one, one[:-1])]
    for wanted in (*names, "nobody", ""):
        whole, parts = both(capfd, "show", str(DATA / name), wanted, "--json")
        assert parts[:2] == whole[:2], wanted
        if whole[0] == 1:
            assert parts[2] == whole[2], wanted


def test_parts_without_the_request_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Of forty requests in many parts, the spans of one part alone become a table."""
    path = str(write(tmp_path / "many.jsonl", run(40, 1, healthy)))
    counted: list[int] = []

    def counting_read(part: Part) -> object:
        found = parallel.read(part)
        counted.append(len(found[0].spans))
        return found

    monkeypatch.setattr(sought, "read", counting_read)
    whole, parts = both(capfd, "show", path, "r-17", "--json")
    assert parts[:2] == whole[:2]
    assert len(counted) == 1
    assert counted[0] < 80
