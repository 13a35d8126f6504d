"""Every command that reads sources has the same options for them."""

from pathlib import Path

import pytest

from pdtrace.cli.main import main

GOOD = str(Path(__file__).parent / "data" / "c16_push_modes.otlp.jsonl")
ID = "3d2f0f6e-2222-4b4b-8b8b-000000000016"
READING = pytest.mark.parametrize(
    "command",
    [
        ["split", GOOD],
        ["show", GOOD, ID],
        ["triage", GOOD, "--slo-ms", "1"],
        ["clocks", GOOD],
        ["export", GOOD, "--otlp-json", "-"],
    ],
    ids=lambda command: command[0],
)


def run(*arguments: str) -> int | str | None:
    with pytest.raises(SystemExit) as stopped:
        main(list(arguments))
    return stopped.value.code


@READING
def test_what_a_trace_store_is_asked_for_is_checked(
    command: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    """A time that is none is a wrong call, whatever the source is."""
    assert run(*command, "--since", "whenever") == 2
    assert "whenever" in capfd.readouterr().err


@READING
def test_how_much_is_read_is_limited(command: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    """Spans larger than a byte are all of them, and nothing remains."""
    if command[0] == "export":
        command = [*command[:2], "--parquet", "never-made"]
    assert run(*command, "--max-span-bytes", "1") == 1
    out, err = capfd.readouterr()
    assert out == "" and "larger than" in err and "Traceback" not in err
    assert not Path("never-made").exists()
