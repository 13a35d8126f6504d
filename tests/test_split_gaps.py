"""The split of requests whose spans are missing, contradict each other, or stand under others."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from generator import Shape, records
from test_split_edges import D, Drawing, drop, only

from pdtrace.analysis.handoffs import join
from pdtrace.analysis.report import request_records
from pdtrace.analysis.split import split
from pdtrace.analysis.table import build
from pdtrace.tracing import semconv as sc


@pytest.mark.parametrize("mode", ["push", "pull"])
def test_an_arrival_that_nothing_states_is_no_edge_of_a_phase(mode: str) -> None:
    """Without P's queue, nobody knows when P had the request: the way in is not longer for it."""
    spans = records(Shape(mode=mode, dispatch="sequential"))
    phases, less = only(spans)["phases"], only(drop(spans, sc.SPAN_PREFILL_QUEUE))["phases"]
    assert phases.pop("ingress") + phases.pop("prefill_queue") == 25
    assert less == phases | {"unattributed": 25}


@pytest.mark.parametrize("dropped", [sc.SPAN_PREFILL_QUEUE, sc.SPAN_DECODE_ADMISSION, "none"])
def test_of_a_cut_answer_a_request_with_gaps_is_marked(dropped: str) -> None:
    """One that has all its spans is not."""
    table = build(drop(records(Shape(mode="pull")), dropped))
    (found,) = request_records(split(join(table, partial=True)))
    assert found["flags"] == (["partial_trace"] if dropped != "none" else [])


def test_hosts_without_clocks_have_clocks_of_their_own() -> None:
    """Two hosts share no clock, said or not; without hosts nothing is known between processes."""
    spans = records(Shape(mode="pull"))
    bare = [
        replace(span, resource=without(span.resource, sc.CLOCK_ID) | {
            sc.HOST_NAME: "b" if span.resource[sc.ROLE] == D else "a",
            sc.SERVICE_INSTANCE_ID: str(span.resource[sc.ROLE]),
        })
        for span in spans
    ]  # fmt: skip
    far = only(bare)
    assert (far["flags"], far["clock_halfwidth_ns"]) == (["clocks_not_aligned"], None)
    near = [replace(span, resource={**span.resource, sc.HOST_NAME: "a"}) for span in bare]
    assert (only(near)["flags"], only(near)["clock_halfwidth_ns"]) == ([], 0)
    nameless = [replace(span, resource=without(span.resource, sc.HOST_NAME)) for span in bare]
    assert only(nameless)["flags"] == ["clocks_not_known"]
    assert only(nameless)["phases"] == only(spans)["phases"]


def without(attributes: Mapping[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in attributes.items() if name != key}


def test_a_request_under_another_ones_span_is_a_request_of_its_own() -> None:
    """Its router began while the other one's span was the current one."""
    first, second = records(Shape(), "r-1"), records(Shape(start=50), "r-2")
    (root,) = [span for span in first if span.name == sc.SPAN_REQUEST]
    under = [replace(s, trace_id=root.trace_id, parent_id=root.span_id) for s in second]
    found = list(request_records(split(join(build([*first, *under])))))
    assert [one["request_id"] for one in found] == ["r-1", "r-2"]
    assert found[0]["phases"] == found[1]["phases"] == only(first)["phases"]


def test_in_pull_the_reads_show_that_d_loads() -> None:
    """Without D's wait the registration still lies between its allocation and its READ."""
    spans = records(Shape(mode="pull", dispatch="sequential"))
    part = only(drop(spans, sc.SPAN_KV_WAIT))
    assert part["phases"]["registration"] == only(spans)["phases"]["registration"]
    assert "missing_transfer" not in part["flags"]


def test_a_first_token_before_the_request_has_a_reason() -> None:
    """A TTFT that is not known says why."""
    d = Drawing("r", "push")
    d.router(100, -5)
    found = only(d.records)
    assert (found["ttft_ns"], found["phases"]) == (None, None)
    assert found["reason"] == "the first token is said to be earlier than the request"


def test_of_two_routers_the_outer_one_counts() -> None:
    """
    R  0 ------------------------------ 100   first token 80
    R   10 ----------------------------- 99   first token 75
    """
    d = Drawing("r", "none")
    d.router(100, 80)
    d.span(sc.SPAN_REQUEST, 10, 99, events=((sc.EVENT_FIRST_TOKEN, 75),))
    d.records[1] = replace(d.records[1], parent_id=d.records[0].span_id)
    d.span(sc.SPAN_PREFILL_QUEUE, 12, 15, D)
    d.span(sc.SPAN_PREFILL, 15, 70, D)
    d.span(sc.SPAN_DECODE, 70, 100, D)
    found = only(d.records)
    assert found["phases"] == {"ingress": 12, "prefill_queue": 3, "prefill": 55, "egress": 10}


def test_requests_called_0_are_told_by_their_traces() -> None:
    """Two at once are two, whole."""
    spans = []
    for number in (1, 2):
        for span in records(Shape(mode="pull", router=False, start=number * 20), f"r-{number}"):
            named = {**span.attributes, sc.REQUEST_ID: "0"}
            spans.append(replace(span, attributes=named, trace_id=f"{number:032x}"))
    found = list(request_records(split(join(build(spans)))))
    assert [one["request_id"] for one in found] == [f"0 of trace {n:032x}" for n in (1, 2)]
    assert found[0]["phases"] == found[1]["phases"]
    assert [one["flags"] for one in found] == [["missing_router"]] * 2
