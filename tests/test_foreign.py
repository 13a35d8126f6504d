"""Other producers' spans as inputs: vLLM's own, Dynamo's, llm-d's; joined, of lower grade."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from generator import EPOCH_NS, Shape, records

from pdtrace.analysis.foreign_dynamo import parse_trace
from pdtrace.analysis.foreign_vllm import spellings
from pdtrace.analysis.handoffs import join
from pdtrace.analysis.intake import Tally
from pdtrace.analysis.producers import adapter
from pdtrace.analysis.records import Attributes, SpanRecord
from pdtrace.analysis.report import request_records
from pdtrace.analysis.split import split
from pdtrace.analysis.table import SpansTable, build
from pdtrace.analysis.tabulate import tabulate
from pdtrace.tracing import semconv as sc

DATA = Path(__file__).parent / "data"
MS = 1_000_000
UUID = "9b1d7c30-3333-4c4c-8c8c-000000000072"


def said(table: SpansTable) -> dict[str, dict[str, Any]]:
    """The JSON objects by request id."""
    return {str(one["request_id"]): one for one in request_records(split(join(table)))}


def adapted(*spans: SpanRecord) -> list[SpanRecord]:
    found = []
    for span in spans:
        adapt = adapter(span.name)
        found.append(adapt(span, Tally()) if adapt else span)
    return found


def foreign(
    name: str, start_ms: float, end_ms: float, attributes: Attributes, **resource: Any
) -> SpanRecord:
    return SpanRecord(
        trace_id=f"{hash((name, start_ms)) & (1 << 100):032x}".replace("0", "a"),
        span_id=f"{int(start_ms * 1000) + 1:016x}",
        parent_id="",
        name=name,
        kind=2,
        start_ns=EPOCH_NS + round(start_ms * MS),
        end_ns=EPOCH_NS + round(end_ms * MS),
        attributes=attributes,
        events=(),
        status=0,
        resource=resource,
        scope="",
    )


def leg(
    start: float,
    end: float,
    request_id: str = f"cmpl-{UUID}-0",
    tokens: int = 30,
    asked: int | None = None,
    instance: str = "",
    service: str = "unknown_service:python",
    **latency: Any,
) -> SpanRecord:
    """A leg that vLLM reports, times in ms; `ttft`, `queue`, `prefill` in ms or as they stand."""
    keys = {"ttft": sc.VLLM_TTFT_S, "queue": sc.VLLM_QUEUE_S, "prefill": sc.VLLM_PREFILL_S}
    given: dict[str, Any] = {
        keys[name]: value / 1000 if type(value) in (int, float) else value
        for name, value in latency.items()
    }
    given |= {
        sc.VLLM_REQUEST_ID: request_id,
        sc.VLLM_COMPLETION_TOKENS: tokens,
        sc.VLLM_MAX_TOKENS: tokens if asked is None else asked,
    }
    named = {sc.SERVICE_NAME: service, sc.SERVICE_INSTANCE_ID: instance or f"{start}"}
    return foreign(sc.VLLM_SPAN, start, end, given, **named)


def on_p(start: float = 0, **changes: Any) -> SpanRecord:
    base: dict[str, Any] = {"tokens": 1, "ttft": 250, "queue": 3, "prefill": 240}
    return leg(start, start + 251, **(base | changes))


def on_d(start: float = 262, **changes: Any) -> SpanRecord:
    base: dict[str, Any] = {"ttft": 130, "queue": 108, "prefill": 16}
    return leg(start, start + 1038, **(base | changes))


WHOLE = {
    "ingress": 7 * MS,
    "prefill_queue": 3 * MS,
    "prefill": 240 * MS,
    "hop": 18 * MS,
    "first_decode": 16 * MS,
    "unattributed": 108 * MS,
}


P_PHASES = {k: WHOLE[k] for k in ("ingress", "prefill_queue", "prefill")}


def one(*spans: SpanRecord) -> dict[str, Any]:
    """The only request of these spans."""
    (found,) = said(build(adapted(*spans))).values()
    return found


def test_vllm_alone_gives_what_it_can_and_names_the_rest() -> None:
    """D's queue is no phase: it contains the KV wait. TTFT is a lower bound."""
    found = one(on_p(), on_d())
    assert found["phases"] == WHOLE
    assert (found["ttft_ns"], found["handover_ns"]) == (392 * MS, 142 * MS)
    assert (found["evidence"], found["lower_bound"]) == ("foreign", True)
    assert found["reason"] == (
        "D's time_in_queue of 108 ms contains the whole KV wait, so it is no phase"
    )


def test_legs_are_one_request_however_their_ids_are_spelt() -> None:
    """The last group of a UUID may be digits and is no index."""
    legs, wanted = [], {}
    for number, (p_id, d_id) in enumerate(
        [
            ("cmpl-{}-0", "cmpl-{}-0"),
            ("cmpl-{}-0", "cmpl-{}-0-5fa01b2d"),
            ("cmpl-{}-0-0fa01b2e", "cmpl-{}-0-5fa01b2d"),
            ("chatcmpl-{}", "chatcmpl-{}"),
            ("chatcmpl-{}-12345678", "chatcmpl-{}"),
            ("chatcmpl-{}-12345678", "chatcmpl-{}-87654321"),
            ("chatcmpl-{}", "1_chatcmpl-{}"),
            ("cmpl-{}-0", "chatcmpl-{}"),
            ("{}", "{}"),
        ]
    ):
        mine = f"{UUID[:-1]}{number}"
        at = 2000 * number
        legs += [
            on_p(at, request_id=p_id.format(mine)),
            on_d(at + 262, request_id=d_id.format(mine)),
        ]
        wanted[mine] = WHOLE
    found = said(build(adapted(*legs)))
    assert {key: row["phases"] for key, row in found.items()} == wanted


def test_an_id_that_ends_like_a_random_suffix_keeps_its_end() -> None:
    """Two legs share it, which no two random suffixes do: two requests, not one called `job`."""
    legs = [
        make(1000 * n + at, request_id=f"chatcmpl-job-0000000{n}")
        for n in (1, 2)
        for make, at in ((on_p, 0), (on_d, 262))
    ]
    found = said(build(adapted(*legs)))
    assert {key: row["phases"] for key, row in found.items()} == {
        "job-00000001": WHOLE,
        "job-00000002": WHOLE,
    }


def test_spellings_of_an_id() -> None:
    """As it stands, and without a random suffix."""
    assert spellings("cmpl-r-1-0") == ("r-1", "r-1")
    assert spellings("cmpl-r-1-0-0123abcd") == ("r-1-0-0123abcd", "r-1")
    assert spellings("0_cmpl-r-0-0123abcd") == ("r-0-0123abcd", "r")
    assert spellings("chatcmpl-r-0123abcd") == ("r-0123abcd", "r")
    assert spellings("plain") == ("plain", "plain")


BAD = ["NaN", "Infinity", "-Infinity", float("nan"), float("-inf"), -81_234.5, "soon", True, [1.0]]


def spoilt(side: str, name: str, values: list[Any]) -> list[dict[str, Any]]:
    """One request for each value of one duration on one side."""
    legs = []
    for number, value in enumerate(values):
        at, request_id = 2000 * number, f"cmpl-r{number}-0"
        p, d = ({name: value} if side == mine else {} for mine in ("p", "d"))
        legs += [on_p(at, request_id=request_id, **p), on_d(at + 262, request_id=request_id, **d)]
    found = said(build(adapted(*legs)))
    assert len(found) == len(values)
    return list(found.values())


def test_a_first_token_that_cannot_be_is_null_with_a_reason() -> None:
    """On D: no TTFT and nothing that rests on it, never 0 and never negative."""
    for found in spoilt("d", "ttft", [*BAD, 0.0, None]):
        nothing = ("ttft_ns", "classes", "phases", "handover_ns")
        assert [found[key] for key in nothing] == [None] * 4
        assert found["known_phases_ns"] == P_PHASES
        assert "time_to_first_token is" in found["reason"]


def test_a_queue_that_cannot_be_leaves_its_time_unattributed() -> None:
    """On P: 250 ms less 240 of prefill have no owner, and all else stays."""
    wanted = {k: v for k, v in WHOLE.items() if k not in ("ingress", "prefill_queue")}
    for found in spoilt("p", "queue", [*BAD, 251]):
        assert found["phases"] == wanted | {"unattributed": 118 * MS}
        assert found["reason"].startswith("time_in_queue is")


def test_a_prefill_that_cannot_be_leaves_its_time_unattributed() -> None:
    """On P: the end is known, how long it took is not."""
    wanted = {"hop": 18 * MS, "first_decode": 16 * MS, "unattributed": 358 * MS}
    for found in spoilt("p", "prefill", [*BAD, 251]):
        assert found["phases"] == wanted
        assert found["reason"].startswith("time_in_model_prefill is")


def test_a_first_token_after_the_request_ended_is_none() -> None:
    """A monotonic reading in place of a duration."""
    assert one(on_d(ttft=81_234_500))["reason"] == "time_to_first_token is longer than the request"


def test_an_aborted_request_says_so() -> None:
    """No token, and stamps that were never made."""
    found = one(on_d(ttft=0.0, queue=-81_234_500.0, prefill=0.0, tokens=0, asked=64))
    assert (found["ttft_ns"], found["outcome"]) == (None, "aborted")
    assert found["flags"] == ["aborted", "missing_router"]
    assert found["reason"].startswith("time_in_queue is negative (-81234.5 s)")


def test_sides_by_what_the_processes_are_elsewhere() -> None:
    """A request for one token says nothing itself; its engines are known from another request."""
    known = [on_p(instance="a"), on_d(instance="b")]
    single = {"request_id": "cmpl-one-0", "tokens": 1}
    legs = [on_p(5000, instance="a", **single), on_d(5262, instance="b", **single)]
    found = said(build(adapted(*known, *legs)))["one"]
    assert found["phases"] == WHOLE


def test_sides_by_sequence_where_nothing_else_tells() -> None:
    """P had ended before D began."""
    found = one(on_p(), on_d(tokens=1))
    assert found["phases"] == WHOLE


def test_one_leg_of_one_token_is_not_guessed() -> None:
    """It may be either side: no TTFT, and why."""
    found = one(on_p())
    assert (found["ttft_ns"], found["phases"]) == (None, None)
    assert found["reason"] == "nothing says whether this leg is prefill or decode"


def test_a_prefill_leg_alone_has_no_ttft() -> None:
    """Its process says what it is: its phases are known, the first token is not."""
    found = one(on_p(service="vllm-prefill"))
    assert (found["ttft_ns"], found["flags"]) == (None, ["missing_decode", "missing_router"])
    assert found["known_phases_ns"] == {
        "ingress": 7 * MS,
        "prefill_queue": 3 * MS,
        "prefill": 240 * MS,
    }


def test_an_id_that_is_used_again_is_a_second_request() -> None:
    """By time: each decode leg with the prefill leg before it."""
    legs = [make(at) for at in (0, 5000) for make in (on_p, lambda at: on_d(at + 262))]
    found = [row["phases"] for row in request_records(split(join(build(adapted(*legs)))))]
    assert found == [WHOLE, WHOLE]


def test_legs_called_0_are_told_by_their_traces() -> None:
    """Two at once of a client that names none of its requests."""
    legs = [
        replace(span, trace_id=f"{number:032x}", span_id=f"{number}{span.span_id[1:]}")
        for number in (1, 2)
        for span in (on_p(number, request_id="cmpl-0-0"), on_d(number + 262, request_id="cmpl-0-0"))
    ]
    found = said(build(adapted(*legs)))
    assert {name: line["phases"] for name, line in found.items()} == {
        f"0 of trace {1:032x}": WHOLE,
        f"0 of trace {2:032x}": WHOLE,
    }


def test_hosts_are_told_by_their_ids_where_they_have_no_names() -> None:
    """Legs that name no clock share one on one host only."""

    def on(p: dict[str, str], d: dict[str, str]) -> bool:
        legs = (replace(on_p(), resource=p), replace(on_d(), resource=d))
        return "clocks_not_known" not in one(*legs)["flags"]

    assert on({sc.HOST_ID: "a"}, {sc.HOST_ID: "a"})
    assert not on({sc.HOST_ID: "a"}, {sc.HOST_ID: "b"})
    assert on({sc.HOST_ID: "a", sc.HOST_NAME: "n"}, {sc.HOST_ID: "b", sc.HOST_NAME: "n"})


def test_our_own_spans_win_for_every_instant() -> None:
    """vLLM's span beside complete ones of ours changes nothing at all."""
    shape = Shape(mode="pull", dispatch="sequential")
    ours = records(shape)
    beside = [on_p(request_id="cmpl-r-1-0"), on_d(request_id="cmpl-r-1-0")]
    assert said(build([*ours, *adapted(*beside)])) == said(build(ours))


def test_vllm_fills_a_side_that_we_do_not_trace() -> None:
    """D is ours; P's queue and prefill come from vLLM, and that is said."""
    shape = Shape(mode="pull", dispatch="sequential")
    ours = [s for s in records(shape) if s.resource[sc.ROLE] != sc.ROLE_PREFILL]
    p = leg(
        shape.ingress / MS, shape.prefill / MS + 1, request_id="cmpl-r-1-0", tokens=1,
        ttft=(shape.queue + shape.prefill) / MS, queue=shape.queue / MS, prefill=shape.prefill / MS,
    )  # fmt: skip
    found = said(build([*ours, *adapted(p)]))["r-1"]
    assert found["phases"] == said(build(records(shape)))["r-1"]["phases"]
    assert {"foreign_evidence", "clocks_not_known"} < set(found["flags"])
    assert found["evidence"] == "own"


def test_recorded_spans_of_vllm_behind_a_router_and_direct() -> None:
    """43 requests of two legs, 20 of one; sums exact, queues of D named, nothing guessed."""
    found = said(tabulate([DATA / "vllm_0_32_native_spans.otlp.jsonl"]).table)
    direct = {key for key in found if key.startswith("direct-")}
    assert (len(found), len(direct)) == (63, 20)
    for key, row in found.items():
        assert sum(row["phases"].values()) == sum(row["classes"].values()) == row["ttft_ns"]
        assert (row["evidence"], row["mode"], row["lower_bound"]) == ("foreign", None, True)
        assert ("prefill" in row["phases"]) == (key not in direct)
        assert row["reason"].startswith("D's time_in_queue of ")
    first = found["4d113247-c7dc-4d8c-b571-a8f819a5bd38"]
    assert (first["ttft_ns"], first["phases"]["unattributed"]) == (353_391_970, 278_939_912)


def test_recorded_spans_of_dynamo() -> None:
    """Frontend and both workers of four requests in one trace; one has a TTFT at the client."""
    found = said(tabulate([DATA / "dynamo_1_6_native_spans.otlp.jsonl"]).table)
    assert [row["lower_bound"] for row in found.values()].count(False) == 1
    first = found["9f01ef1c-a628-45c5-95c6-718aa1472ba7"]
    assert (first["ttft_ns"], first["flags"]) == (309_490_000, [])
    names = ["ingress", "prefill_queue", "prefill", "hop", "first_decode"]
    assert list(first["phases"]) == [*names, "egress", "unattributed"]
    for row in found.values():
        assert sum(row["phases"].values()) == row["ttft_ns"]
        assert set(names) < set(row["phases"])


def dynamo(**changes: Any) -> dict[str, Any]:
    request: dict[str, Any] = {
        "request_id": "d-1", "x_request_id": "x-1", "request_received_ms": EPOCH_NS // MS,
        "prefill_wait_time_ms": 10.0, "prefill_time_ms": 200.0, "ttft_ms": 210.0,
        "total_time_ms": 900.0, "kv_transfer_estimated_latency_ms": 40.0,
        "worker": {"prefill_worker_id": 1, "decode_worker_id": 2},
    }  # fmt: skip
    return {
        "schema": sc.DYNAMO_TRACE_SCHEMA,
        "event_type": "request_end",
        "request": request | changes,
    }


def test_a_request_trace_of_dynamo_ends_at_the_decode_workers_token(tmp_path: Path) -> None:
    """`ttft_ms` is the prefill worker's; bare lines and a sink's envelope read alike."""
    path = tmp_path / "trace.jsonl"
    path.write_text(json.dumps({"timestamp": 1, "event": dynamo()}) + "\n")
    found = said(tabulate([path]).table)["d-1"]
    assert (found["ttft_ns"], found["lower_bound"]) == (250 * MS, False)
    assert found["phases"] == {"prefill": 200 * MS, "unattributed": 50 * MS}


@pytest.mark.parametrize(
    ("changes", "ttft_ms", "reason"),
    [
        ({"kv_transfer_estimated_latency_ms": None}, None, "may end at the prefill worker's"),
        ({"prefill_time_ms": -1.0}, None, "may end at the prefill worker's"),
        ({"worker": None}, 210, None),
        ({"worker": {"prefill_worker_id": 2, "decode_worker_id": 2}}, 210, None),
        ({"worker": None, "ttft_ms": float("nan")}, None, "no ttft_ms that can be a time"),
        ({"worker": None, "ttft_ms": "later"}, None, "no ttft_ms that can be a time"),
    ],
)
def test_a_request_trace_that_does_not_tell_the_first_token(
    changes: dict[str, Any], ttft_ms: int | None, reason: str | None
) -> None:
    """Null with a reason, unless one worker did both."""
    (found,) = said(build(parse_trace(dynamo(**changes), Tally()))).values()
    assert found["ttft_ns"] == (None if ttft_ms is None else ttft_ms * MS)
    assert found["reason"] is None if reason is None else reason in found["reason"]


def test_llm_ds_true_ttft_is_no_ttft() -> None:
    """It ends where decode is dispatched: alone it gives nothing, and it is said why."""
    sidecar = foreign(
        "llm_d.pd_proxy.request", 0, 900,
        {sc.LLMD_REQUEST_ID: UUID, sc.LLMD_TRUE_TTFT_MS: 50.0},
    )  # fmt: skip
    found = one(sidecar)
    assert (found["ttft_ns"], found["phases"]) == (None, None)
    assert "true_ttft_ms ends where decode is dispatched" in found["reason"]
    beside = one(sidecar, on_p(5), on_d(267))
    assert beside["phases"] == WHOLE | {"ingress": 12 * MS}
    assert beside["ttft_ns"] == 397 * MS
