"""`pdtrace show` as called from a shell: the picture, how a request is named, exit status."""

import json
import re
from pathlib import Path

import pytest

from pdtrace.analysis import report
from pdtrace.analysis.load import Loaded, load
from pdtrace.analysis.show import Shown, show
from pdtrace.analysis.show_text import lines
from pdtrace.analysis.split import split
from pdtrace.cli.main import main

ROOT = Path(__file__).parent.parent
DATA = ROOT / "tests" / "data"
PUSH = str(DATA / "c16_push_modes.otlp.jsonl")
PULL = str(DATA / "c01_handshake.otlp.jsonl")
NO_BLOCKS = "3d2f0f6e-2222-4b4b-8b8b-000000000018"


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as stopped:
        main(["show", *arguments])
    assert isinstance(stopped.value.code, int)
    return stopped.value.code


@pytest.fixture(autouse=True)
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """80 columns."""
    monkeypatch.setenv("COLUMNS", "80")


def test_a_cold_pair_is_shown_as_the_manual_has_it(capfd: pytest.CaptureFixture[str]) -> None:
    """Every character: the handshake owns most of the time, and its sentence says why."""
    manual = (ROOT / "docs" / "show.md").read_text(encoding="utf-8")
    example = manual.partition("```text\n")[2].partition("```")[0]
    assert run(PULL, "af600850455604a322a6e889b87f47cb") == 0
    out, err = capfd.readouterr()
    assert (out, err) == (example, "")


WATERFALL = """\
TTFT 525.000 ms = compute wait 465.500 (88.7 %) + coordination wait 47.700 (9.1
%) + edge 11.800 (2.2 %)

router █                                                                       █
       a ingress                                                               n
       ░
       e hop
P      █████████████████████████████████████████████████████████░     ██████
       bc prefill                                              d      ij
D      ░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░███████    █████
       fg decode_capacity                                            h    klm
       0 ms         100           200           300           400           500
█ exposed: the phase owned the time   ░ hidden: another phase did
"""
SENTENCES = """\
g decode_capacity   41.800  403.500  46.600    6.000 – 451.300
    d-engine-0's scheduler tried it, and d-engine-0 had no free KV blocks for it
    until the end of this. 403.500 ms of it cost nothing, because prefill was
    still running.
"""
ADVICE = """\
prefill took most: 400.500 ms (76.3 %), but without it the first token would
have come no sooner. What would save most is decode_capacity: 46.600 ms.
From the computed prompt on P to the first token on D (handover): 110.200 ms,
26.0 % of it transfer.
"""


@pytest.fixture(scope="module")
def loaded() -> Loaded:
    return load([PUSH])


@pytest.fixture(scope="module")
def shown(loaded: Loaded) -> Shown:
    return show(loaded.handoffs, NO_BLOCKS)


def text(shown: Shown, width: int) -> str:
    return "".join(
        "".join(run.text for run in line).rstrip() + "\n" for line in lines(shown, width)
    )


def test_hidden_time_is_hatched_and_advice_is_drag(shown: Shown) -> None:
    """D had no KV blocks while P computed: what took most is not what would save most."""
    drawn = text(shown, 80)
    assert WATERFALL in drawn
    assert SENTENCES in drawn
    assert drawn.endswith(ADVICE)


def test_colour_and_width_are_those_of_the_terminal(
    shown: Shown, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Colour changes no character."""
    monkeypatch.setenv("COLUMNS", "133")
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert run(PUSH, NO_BLOCKS) == 0
    coloured = capfd.readouterr().out
    assert "\x1b[" in coloured
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == text(shown, 133)


def test_json_has_the_split_and_the_sentences(
    loaded: Loaded, shown: Shown, capfd: pytest.CaptureFixture[str]
) -> None:
    """`request` is the line of `pdtrace split --json`; one of vLLM's own ids names it as well."""
    assert run(PUSH, f"1_chatcmpl-{NO_BLOCKS}-0123abcd", "--json") == 0
    found = json.loads(capfd.readouterr().out)
    lines_ = map(json.loads, report.json_lines(split(loaded.handoffs)))
    wanted = next(line for line in lines_ if line["request_id"] == NO_BLOCKS)
    assert found["request"] == wanted
    exposed = {line["phase"]: line["exposed_ns"] for line in found["phases"]}
    assert {name: ns for name, ns in exposed.items() if ns} == wanted["phases"]
    assert found["window_ns"] == wanted["ttft_ns"]
    assert [line["sentence"] for line in found["phases"]] == [p.sentence for p in shown.phases]
    assert found["advice"] == list(shown.advice)


def test_an_id_used_again_lists_its_requests_and_takes_a_number(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Nothing is shown until one is chosen; the list is on standard error."""
    path, one = tmp_path / "again.jsonl", NO_BLOCKS[:-1]
    path.write_text(Path(PUSH).read_text().replace(f"{one}7", f"{one}6"))
    assert run(str(path), f"{one}6") == 1
    assert capfd.readouterr() == (
        "",
        f"pdtrace show: {one}6 was used by 2 requests; name one of them as it stands here:\n"
        f"  {one}6#1  push, TTFT 684.000 ms\n"
        f"  {one}6#2  push, TTFT 712.000 ms\n",
    )
    assert run(str(path), f"{one}6#2") == 0
    assert capfd.readouterr().out.startswith(f"request   {one}6 (2)\n")


def test_an_unknown_id_is_one_sentence(capfd: pytest.CaptureFixture[str]) -> None:
    """With the nearest ids; a terminal's control characters are written out."""
    assert run(PULL, "0c5b6a1e-1111-4a4a-9a9a-00000000\x1b7") == 1
    assert capfd.readouterr() == (
        "",
        "pdtrace show: no request or trace is called '0c5b6a1e-1111-4a4a-9a9a-00000000\\x1b7'; "
        "2 requests are there, nearest by name: 0c5b6a1e-1111-4a4a-9a9a-000000000001, "
        "0c5b6a1e-1111-4a4a-9a9a-000000000002\n",
    )


def test_an_unreadable_source_is_one_sentence(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """As for the other commands."""
    assert run(str(tmp_path / "none"), "x") == 1
    assert capfd.readouterr() == ("", f"pdtrace show: {tmp_path / 'none'} does not exist\n")


def test_a_cut_answer_is_told_by_the_exit_status(capfd: pytest.CaptureFixture[str]) -> None:
    """What no span covers has a lane of its own."""
    assert run(str(DATA / "c07_tempo_v2_partial.json"), "71d1f") == 3
    out = capfd.readouterr().out
    assert "\nno span " in out and "unattributed" in out
    assert "partial_trace   the trace store said that its answer was cut" in out


def test_files_are_written_beside_the_output(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A page, a Perfetto trace; one that cannot be written is one sentence."""
    page, trace = tmp_path / "page.html", tmp_path / "one.pftrace"
    assert run(PUSH, NO_BLOCKS, "--html", str(page), "--perfetto", str(trace)) == 0
    assert "decode_capacity" in page.read_text(encoding="utf-8")
    assert b"pd.write_complete" in trace.read_bytes()
    capfd.readouterr()
    assert run(PUSH, NO_BLOCKS, "--html", str(tmp_path / "no" / "page.html")) == 1
    out, err = capfd.readouterr()
    assert (out, err.count("\n")) == ("", 1) and "cannot write" in err
