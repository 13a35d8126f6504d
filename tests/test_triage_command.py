"""`pdtrace triage` as called from a shell: from spans in files to the verdict."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fleet import MS, healthy, run, write
from generator import Shape

from pdtrace.cli.main import main
from pdtrace.tracing import semconv as sc

DATA = Path(__file__).parent / "data"


def slow_d(number: int, p: str, d: str, shape: Shape) -> Shape:
    """D engine d-1 sees landed data late, from the middle of the run on."""
    return replace(shape, seen=shape.seen + 90 * MS) if d == "d-1" and number >= 110 else shape


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A healthy run, one with a slow D engine, and what is missing of one request."""
    folder = tmp_path_factory.mktemp("runs")
    runs = {"healthy": run(220, 1, healthy), "slow": run(220, 2, slow_d)}
    runs["few"] = runs["healthy"][:200]
    lost = (sc.SPAN_REQUEST, sc.SPAN_FIRST_DECODE, sc.SPAN_DECODE, sc.SPAN_LEASE)
    runs["open"] = [
        span
        for span in runs["healthy"]
        if span.attributes[sc.REQUEST_ID] != "r-7" or span.name not in lost
    ]
    return {name: str(write(folder / f"{name}.jsonl", spans)) for name, spans in runs.items()}


def call(*arguments: str) -> int:
    with pytest.raises(SystemExit) as stopped:
        main(["triage", *arguments])
    assert isinstance(stopped.value.code, int)
    return stopped.value.code


def verdict(capfd: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert call(*arguments, "--json") == 0
    return json.loads(capfd.readouterr().out)


def test_a_slow_engine_is_named_from_spans(
    files: dict[str, str], capfd: pytest.CaptureFixture[str]
) -> None:
    """Phase, engine, time and the exact ledger."""
    found = verdict(capfd, files["slow"], "--slo-ms", "165")
    told = found["verdict"]
    assert (told["kind"], told["phase"]) == ("factor", "landed_to_seen")
    assert (told["attribute"], told["value"]) == ("decode_engine", "d-1")
    assert told["same_requests"] == [["decode_host", "host-d-1"]]
    assert abs(told["since_ns"] / 1e9 - 1_795_946_400 - 55) < 8
    assert told["advice"] == "landed_to_seen"
    slow, usual = found["slow"], found["reference"]["requests"]
    means = [
        sum(row[name] for row in found["ledger"]) for name in ("slow_sum_ns", "reference_sum_ns")
    ]
    rise = sum(row["d_ns"] for row in found["ledger"])
    assert rise == pytest.approx(means[0] / slow - means[1] / usual)
    assert found["runbook"] == ["docs/runbook.md#landed_to_seen"]


def test_the_text_begins_with_the_verdict(
    files: dict[str, str], capfd: pytest.CaptureFixture[str]
) -> None:
    """Then the basis, the links, and the tables within eighty columns."""
    assert call(files["slow"], "--slo-ms", "165") == 0
    out = capfd.readouterr().out
    assert out.startswith("landed_to_seen +") and "on D engine" in out
    for words in (
        "Mean TTFT:",
        "docs/runbook.md#",
        "By how much each phase rose",
        "have in common",
    ):
        assert words in out
    assert max(len(line) for line in out.splitlines()) <= 80


@pytest.mark.parametrize(
    "options, kind",
    [
        (["--slo-ms", "500"], "nothing_slow"),
        (["--slowest", "20%"], "no_single_attribute"),
        (["--slowest", "2%"], "too_few"),
    ],
)
def test_a_control_run_has_no_verdict(
    options: list[str], kind: str, files: dict[str, str], capfd: pytest.CaptureFixture[str]
) -> None:
    """Under an objective, by share, and where too few are slow."""
    found = verdict(capfd, files["healthy"], *options)
    assert found["verdict"]["kind"] == kind and found["verdict"]["attribute"] is None


def test_baselines_from_other_sources_and_from_another_time(
    files: dict[str, str], capfd: pytest.CaptureFixture[str]
) -> None:
    """Both find the same engine; without --window the rest of the sources is looked at."""
    other = verdict(capfd, files["slow"], "--slo-ms", "165", "--baseline", files["healthy"])
    before = verdict(capfd, files["slow"], "--slo-ms", "165", "--baseline-window", "..-55s")
    assert other["reference"]["requests"] == 220 and other["ranked"] == 220
    assert 105 < before["reference"]["requests"] < 115
    assert before["ranked"] == 220 - before["reference"]["requests"]
    for found in (other, before):
        assert (found["verdict"]["kind"], found["verdict"]["value"]) == ("factor", "d-1")


def test_filters_narrow_what_is_looked_at(
    files: dict[str, str], capfd: pytest.CaptureFixture[str]
) -> None:
    """A window, a mode and a model that all requests have."""
    found = verdict(
        capfd, files["slow"], "--slo-ms", "165", "--window", "-20s..now", "--mode", "push",
        "--model", "m",
    )  # fmt: skip
    assert 35 < found["ranked"] < 45


def test_open_requests_are_listed(files: dict[str, str], capfd: pytest.CaptureFixture[str]) -> None:
    """With the last thing that was seen of them."""
    found = verdict(capfd, files["open"], "--slo-ms", "500")
    (row,) = found["open"]
    assert (row["request"], row["last_event"]) == ("r-7", sc.SPAN_LEG)
    assert row["age_ns"] > 100e9


def test_the_page_is_written_beside_the_output(
    files: dict[str, str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """And a page that cannot be written is one sentence."""
    assert call(files["slow"], "--slo-ms", "165", "--html", str(tmp_path / "page.html")) == 0
    assert "on D engine d-1" in (tmp_path / "page.html").read_text(encoding="utf-8")
    capfd.readouterr()
    assert call(files["few"], "--slo-ms", "165", "--html", str(tmp_path / "no" / "page.html")) == 1
    err = capfd.readouterr().err
    assert err.startswith("pdtrace triage: cannot write") and "Traceback" not in err


@pytest.mark.parametrize(
    "options, words",
    [
        ([], "either --slo-ms or --slowest"),
        (["--slo-ms", "9", "--slowest", "5%"], "either --slo-ms or --slowest"),
        (["--slo-ms", "-1"], "not negative"),
        (["--slo-ms", "nan"], "not negative"),
        (["--slowest", "0.05"], "a share like 5%"),
        (["--slowest", "120%"], "a share like 5%"),
        (["--slo-ms", "9", "--baseline", "x", "--baseline-window", "-1m"], "not both"),
    ],
)
def test_a_wrong_call_is_told_apart_from_bad_input(
    options: list[str], words: str, files: dict[str, str], capfd: pytest.CaptureFixture[str]
) -> None:
    """Exit status 2, and what to write instead."""
    assert call(files["few"], *options) == 2
    assert words in " ".join(capfd.readouterr().err.replace("│", " ").split())


@pytest.mark.parametrize(
    "options, status, words",
    [
        (["--window", "yesterday..now"], 2, "'yesterday' is no time"),
        (
            ["--window", "2020-01-01..2020-01-02"],
            1,
            "no request arrived in 2020-01-01T00:00:00+00:00..2020-01-02",
        ),
        (["--mode", "pull"], 1, "none of 12 requests is what was asked for"),
        (["--baseline", "/nonexistent"], 1, "/nonexistent"),
        (["--html", "/"], 1, "cannot write /: Is a directory"),
        (["--model", "\udcff"], 1, "none of 12 requests is what was asked for"),
    ],
)
def test_bad_input_is_one_sentence(
    options: list[str],
    status: int,
    words: str,
    files: dict[str, str],
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Exit status 1, 2 for a wrong call; nothing on standard output."""
    assert call(files["few"], "--slo-ms", "100", *options) == status
    out, err = capfd.readouterr()
    assert out == "" and words in err
    assert err.startswith("pdtrace triage: ") and len(err.strip().splitlines()) == 1


def test_a_cut_source_is_said_by_the_exit_status(capfd: pytest.CaptureFixture[str]) -> None:
    """3, as for the split; with one request the verdict is 'too few'."""
    assert call(str(DATA / "c07_tempo_v2_partial.json"), "--slo-ms", "1", "--json") == 3
    assert json.loads(capfd.readouterr().out)["verdict"]["kind"] in ("too_few", "nothing_slow")
