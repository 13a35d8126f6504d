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
    "reason",
]


def json_output(
    arguments: list[str], capfd: pytest.CaptureFixture[str], status: int = 0
) -> list[dict[str, Any]]:
    with pytest.raises(SystemExit) as stopped:
        main(["split", *arguments])
    assert stopped.value.code == status
    return [json.loads(line) for line in capfd.readouterr().out.splitlines()]


@pytest.mark.parametrize(
    ("case", "name", "status"),
    [
        ("c01_handshake", "c01_handshake.otlp.jsonl", 0),
        ("c03_step_boundary", "c03_step_boundary.otlp.jsonl", 0),
        ("c06_dirty_spans", "c06_dirty_spans.otlp.jsonl", 0),
        ("c06_split_trace", "c06_split_trace.otlp.jsonl", 0),
        ("c07_tempo", "c07_tempo_v1.json", 0),
        ("c07_tempo", "c07_tempo_v2_partial.json", 3),
        ("c09_otlp_quirks", "c09_otlp_quirks.jsonl", 0),
        ("c09_otlp_quirks", "c09_otlp_quirks.jsonl.gz", 0),
        ("c16_push_modes", "c16_push_modes.otlp.jsonl", 0),
    ],
)
def test_case_gives_the_expected_numbers(
    case: str, name: str, status: int, capfd: pytest.CaptureFixture[str]
) -> None:
    """Every key of the expected file that the command prints, to the nanosecond."""
    expected = json.loads((DATA / f"{case}.expected.json").read_text())
    part = next((expected[key] for key in ("v1", "v2") if f"_{key}" in name), expected)
    printed = json_output([str(DATA / name), "--json"], capfd, status)
    for wanted in part["requests"]:
        found = next(one for one in printed if one["request_id"] == wanted["request_id"])
        assert list(found) == KEYS
        drag = wanted.pop("drag_ns", {})
        assert ("reason" not in wanted) or found["reason"]
        shared = {key: value for key, value in wanted.items() if key in found and key != "reason"}
        assert {key: found[key] for key in shared} == shared
        assert {name: found["drag_ns"].get(name, 0) for name in drag} == drag
    assert len(printed) == len(part["requests"])


def test_a_result_of_a_search_is_named_and_gives_nothing(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Exit 1 and one sentence; beside its trace's spans it is found, zeros dropped or not."""
    search = str(DATA / "c07_tempo_search.json")
    with pytest.raises(SystemExit) as stopped:
        main(["split", search])
    assert stopped.value.code == 1
    said = capfd.readouterr().err
    assert "a search result names 1 trace and holds no spans" in said and said.count("\n") == 1
    assert len(json_output([str(DATA / "c07_tempo_v1.json"), search, "--json"], capfd)) == 1


def test_invalid_values_are_in_no_mean(capfd: pytest.CaptureFixture[str]) -> None:
    """c06: the mean TTFT over the valid ones is the good request's own."""
    expected = json.loads((DATA / "c06_dirty_spans.expected.json").read_text())
    printed = json_output([str(DATA / "c06_dirty_spans.otlp.jsonl"), "--json"], capfd)
    known = [one["ttft_ns"] for one in printed if one["ttft_ns"] is not None]
    assert sum(known) / len(known) == expected["mean_ttft_ns_over_valid"]


def test_requests_are_printed_by_time_of_arrival(capfd: pytest.CaptureFixture[str]) -> None:
    """The file lists them otherwise: children come before their parents."""
    printed = json_output([str(DATA / "c01_handshake.otlp.jsonl"), "--json"], capfd)
    assert [one["request_id"][-1] for one in printed] == ["1", "2"]


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
