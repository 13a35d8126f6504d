"""Cases with known answers, through `pdtrace split --json`, and the design's worked examples."""

import json
from pathlib import Path
from typing import Any

import pytest
from generator import Rank, Shape, records

from pdtrace.analysis.handoffs import join
from pdtrace.analysis.split import Split, split
from pdtrace.analysis.table import build
from pdtrace.cli.main import main

DATA = Path(__file__).parent / "data"
KEYS = [
    "request_id",
    "instance",
    "trace_id",
    "mode",
    "prefill_engine",
    "decode_engine",
    "ttft_ns",
    "lower_bound",
    "classes",
    "phases",
    "hidden",
    "handover_ns",
    "tpot_ns",
    "output_tokens",
    "clock_halfwidth_ns",
    "rank_straggle_ns",
    "slowest_rank",
    "outcome",
    "flags",
    "dispatch",
    "drag_ns",
    "evidence",
    "known_phases_ns",
    "model",
    "input_tokens",
    "prefill_cached_tokens",
    "external_tokens",
    "transfer_bytes",
    "transfer_descriptors",
    "transfer_ns",
    "bytes_per_s",
    "wire_ratio",
]


def json_output(arguments: list[str], capfd: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    with pytest.raises(SystemExit) as stopped:
        main(["split", *arguments])
    assert stopped.value.code == 0
    return [json.loads(line) for line in capfd.readouterr().out.splitlines()]


@pytest.mark.parametrize("case", ["c01_handshake", "c03_step_boundary", "c16_push_modes"])
def test_case_gives_the_expected_numbers(case: str, capfd: pytest.CaptureFixture[str]) -> None:
    """Every key of the expected file that the command prints, to the nanosecond."""
    expected = json.loads((DATA / f"{case}.expected.json").read_text())["requests"]
    printed = json_output([str(DATA / f"{case}.otlp.jsonl"), "--json"], capfd)
    for wanted in expected:
        found = next(one for one in printed if one["request_id"] == wanted["request_id"])
        assert list(found) == KEYS
        drag = wanted.pop("drag_ns", {})
        shared = {key: value for key, value in wanted.items() if key in found}
        assert {key: found[key] for key in shared} == shared
        assert {name: found["drag_ns"].get(name, 0) for name in drag} == drag
    assert len(printed) == len(expected)


def test_requests_are_printed_by_time_of_arrival(capfd: pytest.CaptureFixture[str]) -> None:
    """The file lists them otherwise: children come before their parents."""
    printed = json_output([str(DATA / "c01_handshake.otlp.jsonl"), "--json"], capfd)
    assert [one["request_id"][-1] for one in printed] == ["1", "2"]


@pytest.mark.parametrize("name", ["c09_otlp_quirks.jsonl", "c06_dirty_spans.otlp.jsonl"])
def test_dirty_input_gives_the_exact_split_of_the_good_request(
    name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """Duplicates, broken spans and odd spellings beside a good request change nothing in it."""
    wanted = json.loads((DATA / f"{name.split('.')[0]}.expected.json").read_text())["requests"][0]
    found = json_output([str(DATA / name), "--json"], capfd)[0]
    keys = ("ttft_ns", "classes", "phases", "hidden", "handover_ns", "flags")
    assert {key: found[key] for key in keys} == {key: wanted[key] for key in keys}


# The worked examples of the design, in ms: no ingress, no egress.
#
#   P  queue 0-20  prefill 20-320
#   D  has it 1, first attempt 2; after the rendezvous R: 2, 15, 5, 1, 9
BASE = Shape(
    ingress=0,
    dispatched=0,
    hop=1,
    admission=1,
    capacity=1,
    handing=0,
    ranks=(Rank(submit=2, transfer=15),),
    seen=5,
    requeue=1,
    first_decode=9,
    egress=0,
)
AFTER = {
    "prefill_queue": 20,
    "prefill": 300,
    "submit": 2,
    "transfer": 15,
    "landed_to_seen": 5,
    "requeue": 1,
    "first_decode": 9,
}
EARLY = {"hop": 1, "admission": 1, "decode_capacity": 1}


def example(**changes: Any) -> Split:
    return split(join(build(records(Shape(**(vars(BASE) | changes))))))


def row(frame: Any) -> dict[str, int]:
    return {name: int(value) for name, value in frame.iloc[0].items() if value}


def test_example_a_registration_long_before_prefill_ends() -> None:
    """A: everything on D's side is hidden."""
    found = example(registration=47)
    assert row(found.exposed) == AFTER
    assert row(found.hidden) == EARLY | {"registration": 47}
    assert row(found.classes) == {"compute": 329, "coordination": 23}


def test_example_b_registration_just_in_time() -> None:
    """B differs from A in hidden time only."""
    found = example(registration=317)
    assert row(found.exposed) == AFTER
    assert row(found.hidden) == EARLY | {"registration": 317}


def test_example_c_registration_late() -> None:
    """C: 50 later, and coordination rises by exactly 50; fixing prefill would save nothing."""
    found = example(registration=367)
    assert row(found.exposed) == AFTER | {"registration": 50}
    assert row(found.hidden) == EARLY | {"registration": 317}
    assert int(found.requests["ttft_ns"].iloc[0]) == 402
    drag = row(found.drag)
    assert (drag["registration"], drag.get("prefill", 0)) == (50, 0)


def test_example_d_decode_had_no_blocks() -> None:
    """D: the same TTFT with another owner, and with blocks the registration would be hidden."""
    found = example(capacity=367, registration=1)
    assert row(found.exposed) == AFTER | {"decode_capacity": 49, "registration": 1}
    assert row(found.hidden) == {"hop": 1, "admission": 1, "decode_capacity": 318}
    drag = row(found.drag)
    assert (drag["decode_capacity"], drag["registration"], drag.get("prefill", 0)) == (50, 1, 0)


def test_example_e_one_leg_after_the_other() -> None:
    """E: sequential push hides nothing."""
    found = example(
        dispatch="sequential", handing=4, hop=6, admission=8, capacity=0, registration=8
    )
    late = {"match": 4, "hop": 6, "admission": 8, "registration": 8}
    assert row(found.exposed) == AFTER | late
    assert row(found.hidden) == {}
    assert int(found.classes["coordination"].iloc[0]) == 49
