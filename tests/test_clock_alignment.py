"""Requests whose hosts have clocks of their own: the split on aligned times against the truth."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pandas as pd
import pytest
from generator import Shape, records
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from skew import Skew, by_role, scaled, skewed
from test_split_cases import json_output
from test_split_properties import shapes

from pdtrace.analysis.alignment import Alignment, align
from pdtrace.analysis.handoffs import join
from pdtrace.analysis.records import SpanRecord
from pdtrace.analysis.split import Split, split
from pdtrace.analysis.table import build
from pdtrace.analysis.timeline import timeline
from pdtrace.tracing import semconv as sc

DATA = Path(__file__).parent / "data"
MS = 10**6
BATCHES = settings(
    max_examples=2,
    deadline=None,
    suppress_health_check=(HealthCheck.too_slow, HealthCheck.data_too_large),
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
)
offsets = st.integers(-(10**11), 10**11)
drifts = st.integers(-24_000, 24_000)
minutes = shapes.map(lambda shape: replace(shape, start=shape.start % 600_000))
batches = st.lists(minutes, min_size=10, max_size=16)


def spans_of(batch: list[Shape]) -> list[SpanRecord]:
    """Their true times: lengths in ms, spread over ten minutes."""
    return [s for i, shape in enumerate(batch) for s in scaled(records(shape, f"r-{i}"), MS)]


def aligned(spans: list[SpanRecord]) -> tuple[Alignment, Split]:
    found = align(build(spans))
    return found, split(join(found.table, found))


def agrees(found: Split, spans: list[SpanRecord]) -> None:
    """Every phase is within the half-width; TTFT is exact where both its ends are the router's.

    `spans`: the same with their true times.
    """
    agrees_between_hosts(found, spans, 50_000)
    wanted = truth_of(spans).requests
    at_router = wanted.index[wanted["ttft_ns"].notna() & ~wanted["lower_bound"]]
    assert found.requests.loc[at_router, "ttft_ns"].equals(wanted.loc[at_router, "ttft_ns"])


def agrees_between_hosts(found: Split, spans: list[SpanRecord], drift_ppb: int) -> None:
    """Every phase is within the half-width, but for what a clock's own rate bends it by.

    One that owns time in several pieces is so in each of them; nothing is negative.
    """
    handoffs = join(build(spans))
    truth = split(handoffs)
    drawn = timeline(handoffs, truth, list(truth.splittable))
    pieces = drawn[drawn["owned"]].groupby(["request_id", "phase"]).size()
    for label in truth.splittable:
        times = pieces.loc[label].reindex(truth.exposed.columns, fill_value=1)
        row, wanted = found.requests.loc[label], truth.requests.loc[label]
        width = row["clock_halfwidth_ns"]
        bent = int(wanted["ttft_ns"]) * drift_ppb // 10**9 + 1
        difference = (found.exposed.loc[label] - truth.exposed.loc[label]).abs()
        assert (difference <= width * times + bent).all(), (label, width, difference)
        assert (found.exposed.loc[label] >= 0).all() and (found.hidden.loc[label] >= 0).all()


def truth_of(spans: list[SpanRecord]) -> Split:
    return split(join(build(spans)))


@BATCHES
@given(batches, offsets, offsets, drifts, drifts)
def test_shifted_clocks_give_the_same_phases_within_the_half_width(
    batch: list[Shape], p: int, d: int, p_drift: int, d_drift: int
) -> None:
    """Invariant 14: router, P and D on clocks of their own that drift."""
    spans = spans_of(batch)
    clocks = by_role(router=Skew("r"), prefill=Skew("p", p, p_drift), decode=Skew("d", d, d_drift))
    _, found = aligned(skewed(spans, clocks))
    assert found.requests["clock_halfwidth_ns"].notna().all()
    agrees(found, spans)


HOST = Skew("host")
OTHER = Skew("other", -37 * MS, 20_000)


@pytest.mark.parametrize("off", ["prefill", "decode", "router"])
@BATCHES
@given(batches)
def test_one_host_off_is_put_right(off: str, batch: list[Shape]) -> None:
    """Whichever of the three it is, in push and pull; on one clock nothing is uncertain."""
    spans = spans_of(batch)
    # The truth is what the router's clock says, so that one does not drift.
    other = replace(OTHER, drift_ppb=0) if off == "router" else OTHER
    clocks = {"router": HOST, "prefill": HOST, "decode": HOST, off: other}
    _, found = aligned(skewed(spans, by_role(**clocks)))
    for i, shape in enumerate(batch):
        one = off == "router" and not shape.router
        assert bool(found.requests.loc[f"r-{i}", "clock_halfwidth_ns"] == 0) is one
    agrees(found, spans)


def on_hosts(request_host: Callable[[str, str], Skew]) -> Callable[[SpanRecord], Skew]:
    """Engines are named after the clock that `request_host` gives a request and a role."""
    return lambda span: request_host(
        str(span.attributes[sc.REQUEST_ID]), str(span.resource[sc.ROLE])
    )


@BATCHES
@given(batches, st.lists(st.tuples(offsets, drifts), min_size=6, max_size=6), st.randoms())
def test_several_hosts_of_each_kind(
    batch: list[Shape], skews: list[tuple[int, int]], random: Random
) -> None:
    """Two routers, two prefill and two decode hosts, mixed by chance."""
    clocks = [Skew(f"clock-{i}", *skew) for i, skew in enumerate(skews)]
    place = {sc.ROLE_ROUTER: 0, sc.ROLE_PREFILL: 2, sc.ROLE_DECODE: 4}
    chosen: dict[tuple[str, str], Skew] = {}

    def host(request_id: str, role: str) -> Skew:
        key = (request_id, role)
        return chosen.setdefault(key, clocks[place[role] + random.randint(0, 1)])

    spans = spans_of(batch)
    _, found = aligned(skewed(spans, on_hosts(host)))
    agrees_between_hosts(found, spans, 200_000)


def test_lengths_that_one_host_measured_are_kept_to_the_nanosecond() -> None:
    """A host is moved as a whole, whatever the clocks drift: phases of one host do not change."""
    shape = Shape(mode="pull", dispatch="sequential", hop=60, egress=30, registration=7)
    spans = scaled(records(shape), MS)
    clocks = by_role(router=HOST, prefill=HOST, decode=Skew("d", -(10**10)))
    _, found = aligned(skewed(spans, clocks))
    true = truth_of(spans).exposed.iloc[0]
    between = ["hop", "egress"]
    assert found.exposed.iloc[0].drop(between).equals(true.drop(between))
    assert found.exposed.iloc[0][between].sum() == true[between].sum()


def test_raw_times_are_kept() -> None:
    """The table that was given does not change; the copy says by how much each time was moved."""
    spans = skewed(scaled(records(Shape()), MS), by_role(router=HOST, prefill=HOST, decode=OTHER))
    table, before = build(spans), build(spans)
    moved = align(table).table
    pd.testing.assert_frame_equal(table.spans, before.spans)
    pd.testing.assert_frame_equal(table.events, before.events)
    for column in ("start_ns", "end_ns"):
        assert (moved.spans[column] + moved.spans["shift_ns"]).equals(table.spans[column])
    assert set(moved.spans.loc[table.spans["clock_id"] == "host", "shift_ns"]) == {0}


def test_one_sided_evidence_aligns_nothing() -> None:
    """Push without a router and without notifications: D is known to be late by at most so much."""
    clocks = by_role(prefill=HOST, decode=OTHER)
    spans = [
        replace(s, events=()) if s.name == sc.SPAN_KV_WAIT else s
        for s in scaled(records(Shape(router=False)), MS)
    ]
    found, done = aligned(skewed(spans, clocks))
    row = done.requests.iloc[0]
    assert (row["flags"], bool(row["aligned"])) == (("clocks_not_aligned", "missing_router"), False)
    assert done.splittable.empty
    assert (found.table.spans["shift_ns"] == 0).all()


def variant(off: str, by_ns: int, tmp_path: Path) -> list[str]:
    """The case of two clocks, with one role's clock moved by so much more."""
    text = (DATA / "c05_clock_skew.otlp.jsonl").read_text()
    document = json.loads(text)
    for resource in document["resourceSpans"]:
        said = {a["key"]: a["value"] for a in resource["resource"]["attributes"]}
        if said[sc.ROLE]["stringValue"] != off:
            continue
        said[sc.CLOCK_ID]["stringValue"] += off
        for span in (s for scope in resource["scopeSpans"] for s in scope["spans"]):
            for holder, keys in (
                (span, ("startTimeUnixNano", "endTimeUnixNano")),
                *((event, ("timeUnixNano",)) for event in span.get("events", ())),
            ):
                holder.update({key: str(int(holder[key]) + by_ns) for key in keys})
    path = tmp_path / "variant.jsonl"
    path.write_text(json.dumps(document))
    return [str(path), "--json"]


def test_case_c05_gives_the_expected_numbers(capfd: pytest.CaptureFixture[str]) -> None:
    """To the nanosecond on one clock, within what 50 ppm of drift add between the two."""
    expected = json.loads((DATA / "c05_clock_skew.expected.json").read_text())
    (found,) = json_output([str(DATA / "c05_clock_skew.otlp.jsonl"), "--json"], capfd)
    (wanted,) = expected["requests"]
    check(found, wanted, expected["cross_host"]["tolerance_ns"])


def check(found: dict[str, Any], wanted: dict[str, Any], tolerance: int) -> None:
    for key in ("request_id", "trace_id", "ttft_ns", "lower_bound", "flags", "hidden", "dispatch"):
        assert found[key] == wanted[key]
    assert set(found["phases"]) == set(wanted["phases"])
    for name, length in wanted["phases"].items():
        between = name in ("hop", "egress")
        assert abs(found["phases"][name] - length) <= (tolerance if between else 0)
    for name, length in wanted["classes"].items():
        assert abs(found["classes"][name] - length) <= tolerance
    for key in ("handover_ns", "clock_halfwidth_ns"):
        assert abs(found[key] - wanted[key]) <= tolerance
    assert found["phases"]["hop"] + found["phases"]["egress"] == 14_300_000


@pytest.mark.parametrize("by_ns", [-(10**9), 7 * 10**12])
def test_case_c05_with_another_offset_is_the_same(
    by_ns: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """D's clock further behind, or two hours ahead."""
    expected = json.loads((DATA / "c05_clock_skew.expected.json").read_text())
    (found,) = json_output(variant("decode", by_ns, tmp_path), capfd)
    check(found, expected["requests"][0], expected["cross_host"]["tolerance_ns"])


def test_case_c05_with_a_third_clock_on_prefill(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Then P's way in is not known exactly either, and the sums on one clock still are."""
    (found,) = json_output(variant("prefill", 5 * 10**9, tmp_path), capfd)
    phases, width = found["phases"], found["clock_halfwidth_ns"]
    assert found["ttft_ns"] == sum(phases.values()) == 366_000_000
    assert abs(phases["ingress"] - 6_000_000) <= width
    assert phases["ingress"] + phases["hop"] + phases["egress"] == 6_000_000 + 14_300_000
    assert (phases["prefill"], phases["transfer"]) == (195_400_000, 113_700_000)
