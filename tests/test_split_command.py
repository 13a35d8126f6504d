"""`pdtrace split` as called from a shell: output, notes, exit status, bad input."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from pdtrace.cli.main import main

DATA = Path(__file__).parent / "data"
GOOD = str(DATA / "c16_push_modes.otlp.jsonl")


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as stopped:
        main(["split", *arguments])
    assert isinstance(stopped.value.code, int)
    return stopped.value.code


def test_default_output_is_tables(capfd: pytest.CaptureFixture[str]) -> None:
    """Counts, quantiles with 'too few', means of phases."""
    assert run(GOOD) == 0
    out = capfd.readouterr().out
    assert "push: 3 requests, 3 split" in out
    assert "coordination wait" in out and "decode_capacity" in out and "too few" in out


def test_only_what_was_asked_for_is_shown(capfd: pytest.CaptureFixture[str]) -> None:
    """Conditions on mode, model, engine and id together; every line is as without them."""
    assert run(GOOD, "--json") == 0
    lines = capfd.readouterr().out.splitlines()
    one = json.loads(lines[1])["request_id"]
    engine = json.loads(lines[1])["decode_engine"]
    asked = ["--mode", "push", "--model", "demo-8b", "--engine", engine, "--request-id", one]
    assert run(GOOD, "--json", *asked) == 0
    assert capfd.readouterr().out.splitlines() == [lines[1]]


def test_a_window_selects_by_arrival(capfd: pytest.CaptureFixture[str]) -> None:
    """Relative to the newest arrival; what is no window is one sentence."""
    assert run(GOOD, "--json") == 0
    lines = capfd.readouterr().out.splitlines()
    assert run(GOOD, "--json", "--window", "-1s..") == 0
    assert capfd.readouterr().out.splitlines() == lines[-1:]
    assert run(GOOD, "--window", "yesterday") == 2
    err = capfd.readouterr().err
    assert err.startswith("pdtrace split: ") and err.count("\n") == 1


def test_a_selection_of_nothing_is_one_sentence(capfd: pytest.CaptureFixture[str]) -> None:
    """No empty tables that look like a result."""
    assert run(GOOD, "--mode", "pull") == 1
    assert capfd.readouterr().err == ("pdtrace split: none of 3 requests is what was asked for\n")


def test_rows_are_written_as_csv_and_parquet(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The same three requests in both; a folder that is not there is one sentence."""
    csv, parquet = tmp_path / "rows.csv", tmp_path / "rows.parquet"
    assert run(GOOD, "--csv", str(csv), "--parquet", str(parquet)) == 0
    rows = pd.read_parquet(parquet)
    assert pd.read_csv(csv)["ttft_ns"].tolist() == rows["ttft_ns"].tolist()
    assert len(rows) == 3
    capfd.readouterr()
    assert run(GOOD, "--csv", str(tmp_path / "no" / "rows.csv")) == 1
    assert "cannot write" in capfd.readouterr().err


def test_html_is_written_beside_the_output(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The page names its source; the output stays."""
    target = tmp_path / "page.html"
    assert run(GOOD, "--json", "--html", str(target)) == 0
    assert "c16_push_modes" in target.read_text(encoding="utf-8")
    assert len(capfd.readouterr().out.splitlines()) == 3


def test_html_that_cannot_be_written_is_one_sentence(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """No traceback."""
    assert run(GOOD, "--html", str(tmp_path / "no" / "page.html")) == 1
    err = capfd.readouterr().err
    assert "cannot write" in err and "Traceback" not in err


def bad_files(folder: Path) -> dict[str, Path]:
    other = folder / "other.json"
    other.write_text('{"a": 1}')
    empty = folder / "empty.jsonl"
    empty.write_text("")
    binary = folder / "picture.png"
    binary.write_bytes(bytes(range(256)))
    return {"missing": folder / "none", "other": other, "empty": empty, "binary": binary}


@pytest.mark.parametrize("kind", ["missing", "other", "empty", "binary"])
def test_unreadable_input_is_one_sentence(
    kind: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Exit status 1, nothing on standard output, the file's name in the sentence."""
    path = bad_files(tmp_path)[kind]
    assert run(str(path)) == 1
    out, err = capfd.readouterr()
    assert out == ""
    assert err.startswith("pdtrace split: ") and path.name in err
    assert "Traceback" not in err and len(err.strip().splitlines()) == 1


def test_spans_of_other_producers_alone_are_named(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Readable OTLP in which no span says which request waited."""
    text = Path(DATA / "c01_handshake.otlp.jsonl").read_text()
    path = tmp_path / "foreign.jsonl"
    path.write_text(text.replace('"name":"', '"name":"other.'))
    assert run(str(path)) == 1
    assert "none that names a request" in capfd.readouterr().err


def test_cut_last_line_keeps_the_rest(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A warning, and every request of the whole lines."""
    path = tmp_path / "cut.jsonl"
    path.write_text(Path(GOOD).read_text() + '{"resourceSpans": [{"reso')
    assert run(str(path), "--json") == 0
    out, err = capfd.readouterr()
    assert len(out.splitlines()) == 3
    assert "note: " in err and "cut.jsonl" in err


def test_partial_answer_differs_in_flag_and_exit_status(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """The trace store cut its answer: what is missing says nothing about the system."""
    assert run(str(DATA / "c07_tempo_v1.json"), "--json") == 0
    whole = json.loads(capfd.readouterr().out)
    assert run(str(DATA / "c07_tempo_v2_partial.json"), "--json") == 3
    part = json.loads(capfd.readouterr().out)
    assert (whole["flags"], whole["classes"]["unattributed"]) == ([], 0)
    assert set(part["flags"]) == {"missing_decode", "partial_trace"}
    assert part["ttft_ns"] == whole["ttft_ns"] == 420_000_000
    assert part["classes"]["unattributed"] == 218_000_000


def test_a_full_disk_is_one_sentence() -> None:
    """Whatever is printed: text or JSON."""
    code = "import sys; from pdtrace.cli.main import main; sys.exit(main())"
    for options in ([], ["--json"]):
        with open("/dev/full", "wb") as full:
            done = subprocess.run(
                [sys.executable, "-c", code, "split", GOOD, *options],
                stdout=full,
                stderr=subprocess.PIPE,
                text=True,
            )
        assert (done.returncode, done.stderr) == (
            1,
            "pdtrace: cannot write to standard output: No space left on device\n",
        )


def test_names_do_not_steer_the_terminal(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """What is no printable character is written out."""
    text = Path(GOOD).read_text().replace("d-engine-0", "d\\u001b]0;x\\u0007\\u202e")
    source = tmp_path / "named.jsonl"
    source.write_text(text)
    assert run(str(source)) == 0
    out, err = capfd.readouterr()
    assert "\x1b" not in out + err and "\x07" not in out and "\u202e" not in out


def test_a_name_that_is_no_text(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Of a file it is read, of a request it is that of none."""
    source = os.fsdecode(bytes(tmp_path) + b"/\xff.jsonl")
    shutil.copy(GOOD, source)
    assert run(source, "--html", str(tmp_path / "page.html")) == 0
    assert run(source + "x") == 1
    capfd.readouterr()
    assert run(GOOD, "--request-id", "\udcff") == 1
    assert capfd.readouterr().err == "pdtrace split: none of 3 requests is what was asked for\n"


def test_a_path_without_a_name_is_one_sentence(capfd: pytest.CaptureFixture[str]) -> None:
    """A directory is no file to write."""
    for option in ("--html", "--csv", "--parquet"):
        assert run(GOOD, option, "/") == 1
        assert capfd.readouterr().err == "pdtrace split: cannot write /: Is a directory\n"
