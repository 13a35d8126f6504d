"""Which spans are one request: reused ids, retries, choices, and requests vLLM made itself."""

from dataclasses import replace
from typing import Any

import pytest
from generator import EPOCH_NS, Rank, Shape, Writer, records

from pdtrace.analysis.handoffs import join
from pdtrace.analysis.records import SpanRecord
from pdtrace.analysis.report import request_records
from pdtrace.analysis.split import split
from pdtrace.analysis.table import build
from pdtrace.tracing import semconv as sc

P, D = sc.ROLE_PREFILL, sc.ROLE_DECODE
SHAPES = {
    "pull": Shape(mode="pull", dispatch="sequential", peers=True),
    "push": Shape(mode="push", peers=True),
}
MODES = pytest.mark.parametrize("mode", list(SHAPES))


def said(spans: list[SpanRecord]) -> list[dict[str, Any]]:
    """The JSON objects of all requests in `spans`."""
    return list(request_records(split(join(build(spans)))))


def another(shape: Shape, number: int, by: int = 0) -> list[SpanRecord]:
    """The same id once more, `by` ns later: spans and engine requests of its own."""
    changed = []
    for span in records(replace(shape, start=shape.start + by)):
        attributes = dict(span.attributes)
        for name in (sc.ENGINE_REQUEST_ID, sc.PEER_ENGINE_REQUEST_ID):
            if name in attributes:
                attributes[name] = f"{str(attributes[name])[:-1]}{number}"
        span_id = f"{number:02x}{span.span_id[2:]}"
        changed.append(replace(span, span_id=span_id, attributes=attributes))
    return changed


def under_legs(spans: list[SpanRecord]) -> list[SpanRecord]:
    """With the parents that the router's context gives."""
    root = next(s.span_id for s in spans if s.name == sc.SPAN_REQUEST)
    legs = {s.attributes[sc.LEG]: s.span_id for s in spans if s.name == sc.SPAN_LEG}
    parents = {sc.ROLE_ROUTER: root, P: legs["prefill"], D: legs["decode"]}
    return [
        s if s.name == sc.SPAN_REQUEST else replace(s, parent_id=parents[str(s.resource[sc.ROLE])])
        for s in spans
    ]


def without_router(spans: list[SpanRecord]) -> list[SpanRecord]:
    return [s for s in spans if s.resource[sc.ROLE] != sc.ROLE_ROUTER]


def same_but(found: list[dict[str, Any]], shape: Shape) -> None:
    """Both are the request of `shape`, the second one with number 2."""
    alone = said(records(shape))[0]
    for number, one in enumerate(found, 1):
        assert one == alone | {"instance": number}


@MODES
@pytest.mark.parametrize("by", [7, 50_000], ids=["concurrent", "later"])
def test_two_requests_of_the_router_with_one_id_are_two(mode: str, by: int) -> None:
    """Same derived trace id, same request id; the parents tell the legs apart."""
    shape = SHAPES[mode]
    spans = under_legs(another(shape, 1)) + under_legs(another(shape, 2, by))
    found = said(spans[::-1])
    assert [one["instance"] for one in found] == [1, 2]
    same_but(found, shape)


@MODES
@pytest.mark.parametrize("by", [7, 50_000], ids=["concurrent", "later"])
def test_pairs_with_one_id_and_no_router_are_told_apart_by_the_peers_leg(
    mode: str, by: int
) -> None:
    """Each P try and its D try are tied exactly; two first tokens are two requests."""
    shape = replace(SHAPES[mode], router=False)
    found = said(another(shape, 1) + another(shape, 2, by))
    assert [one["flags"] for one in found] == [["missing_router"]] * 2
    same_but(found, shape)


def test_blocks_that_went_to_the_other_request_of_one_id_are_told() -> None:
    """Two at once in push: vLLM matched each P leg with the other's D leg; the parents hold."""
    spans = under_legs(another(SHAPES["push"], 1)) + under_legs(another(SHAPES["push"], 2, 7))
    crossed = []
    for span in spans:
        peer = str(span.attributes.get(sc.PEER_ENGINE_REQUEST_ID, ""))
        if peer:
            peer = peer[:-1] + {"1": "2", "2": "1"}[peer[-1]]
            span = replace(span, attributes={**span.attributes, sc.PEER_ENGINE_REQUEST_ID: peer})
        crossed.append(span)
    found = said(crossed)
    assert [(one["instance"], one["flags"]) for one in found] == [
        (1, ["mispaired"]),
        (2, ["mispaired"]),
    ]


def test_without_any_tie_time_tells_a_later_request_from_the_first() -> None:
    """Neither router nor peers: what begins before a first token belongs to it."""
    shape = replace(SHAPES["pull"], router=False, peers=False)
    same_but(said(another(shape, 2, 50_000) + another(shape, 1)), shape)


def test_orphans_go_to_the_routers_request_that_was_open() -> None:
    """A context that was lost on the way to the engines: only the id is left."""
    shape = replace(SHAPES["pull"], peers=False)
    same_but(said(another(shape, 2, 50_000) + another(shape, 1)), shape)


@MODES
@pytest.mark.parametrize("by", [50_000, -50_000], ids=["after", "before"])
def test_an_id_that_came_by_the_router_and_once_without_it_is_two(mode: str, by: int) -> None:
    """What began after the router's request ended, or ended before it began, is not of it."""
    routed = records(SHAPES[mode])
    direct = without_router(another(SHAPES[mode], 1, by))
    (alone,), (bare,) = said(routed), said(direct)
    both = [alone, bare] if by > 0 else [bare, alone]
    assert said([*routed, *direct]) == [one | {"instance": n} for n, one in enumerate(both, 1)]


def test_another_clock_does_not_tell_what_came_after_the_routers_request() -> None:
    """An engine whose clock is ahead did its work inside of it."""
    routed = [s for s in records(SHAPES["push"]) if s.resource[sc.ROLE] == sc.ROLE_ROUTER]
    ahead = [
        replace(s, resource={**s.resource, sc.CLOCK_ID: "of another host"})
        for s in without_router(another(SHAPES["push"], 1, 50_000))
    ]
    assert len(said([*routed, *ahead])) == 1


@MODES
def test_a_router_behind_another_one_makes_no_second_request(mode: str) -> None:
    """Also where no span says that its request is a part of the other's: it lies inside of it."""
    inner = records(SHAPES[mode])
    (root,) = [s for s in inner if s.name == sc.SPAN_REQUEST]
    outer = replace(
        root, span_id="f" * 16, start_ns=root.start_ns - 9, end_ns=root.end_ns + 9, events=()
    )
    (found,), (alone,) = said([*inner, outer]), said(inner)
    assert found["phases"] == alone["phases"] | {"ingress": alone["phases"]["ingress"] + 9}
    assert found["instance"] == 1


@MODES
def test_a_retry_by_the_router_stays_in_its_request(mode: str) -> None:
    """One `pd.request`, and the first token came from the last try on each side."""
    shape = replace(SHAPES[mode], p_retry=40, d_retry=30)
    (found,) = said(under_legs(records(shape)))
    assert (found["flags"], found["instance"]) == (["retried"], 1)


def test_the_try_that_was_loaded_from_counts_not_the_last_one() -> None:
    """A second try on P that nobody read is no ancestor of the first token."""
    shape = SHAPES["pull"]
    later = [s for s in another(shape, 2, 200) if s.resource[sc.ROLE] == P]
    (found,) = said(without_router(records(shape) + later))
    (alone,) = said(without_router(records(shape)))
    assert found["phases"] == alone["phases"]


@MODES
def test_legs_whose_ids_differ_are_joined_by_the_peers_leg(mode: str) -> None:
    """A router that prefixes the id on one leg: the peer's own id still names it."""
    spans = [
        replace(s, attributes={**s.attributes, sc.REQUEST_ID: "p-r-1"})
        if s.resource[sc.ROLE] == P
        else s
        for s in records(SHAPES[mode])
    ]
    (found,) = said(spans)
    assert found == said(records(SHAPES[mode]))[0]


def test_choices_of_one_request_are_one_request() -> None:
    """The first token is the earliest choice's, whichever number it has."""
    shape = replace(SHAPES["pull"], choices=3)
    (found,) = said(records(shape))
    (alone,) = said(records(SHAPES["pull"]))
    assert found == alone | {"flags": ["several_choices"]}


PHANTOM = "0123456789abcdef"


def phantom(at: int, **more: Any) -> list[SpanRecord]:
    """An empty request on D that was aborted at once."""
    writer = Writer(PHANTOM, "pull")
    about = {"pd__request__engine_id": PHANTOM, "error__type": "aborted"} | more
    writer.span(sc.SPAN_DECODE_ADMISSION, EPOCH_NS + at, EPOCH_NS + at + 1, D, status=2, **about)
    return writer.records


def failed_load() -> list[SpanRecord]:
    """A request whose load failed on D 390 ns after its arrival: no first token."""
    gone = (sc.SPAN_DECODE_START, sc.SPAN_FIRST_DECODE, sc.SPAN_DECODE, sc.SPAN_READ_COMPLETE)
    spans = []
    for span in records(SHAPES["pull"]):
        attributes = dict(span.attributes)
        if span.resource[sc.ROLE] == D:
            attributes[sc.PEER_ENGINE_ID] = "p-engine-0"
        if span.name == sc.SPAN_REQUEST:
            span = replace(span, events=())
        if span.name == sc.SPAN_KV_WAIT:
            attributes[sc.ERROR_TYPE] = sc.ERROR_READ_FAILED
            span = replace(span, status=2)
        if span.name not in gone:
            spans.append(replace(span, attributes=attributes))
    return spans


PEER = "cmpl-r-1-0-00000000"
KNOWN: dict[str, Any] = {"pd__peer__engine__id": "p-engine-0"}


@pytest.mark.parametrize(
    "spans",
    [
        phantom(900, **KNOWN, pd__peer__request__engine_id=PEER),
        phantom(900, **KNOWN),
        [
            replace(s, trace_id=failed_load()[0].trace_id, parent_id=failed_load()[2].span_id)
            for s in phantom(900)
        ],
    ],
    ids=["same peer's leg", "same peer, just before", "same trace"],
)
def test_a_request_of_vllms_own_belongs_to_the_one_that_failed(spans: list[SpanRecord]) -> None:
    """It is a flag on that one and changes nothing else of it."""
    (alone,) = said(failed_load())
    assert alone["ttft_ns"] is None
    (found,) = said(failed_load() + spans)
    assert found == alone | {"flags": sorted([*alone["flags"], "phantom_request"])}


@pytest.mark.parametrize(
    "spans",
    [
        phantom(10, **KNOWN),
        phantom(6 * 10**9, **KNOWN),
        phantom(900, pd__peer__engine__id="p-engine-1"),
        phantom(900, **KNOWN, pd__peer__request__engine_id="cmpl-other-0-00000000"),
        phantom(900, **KNOWN, error__type="handshake_failed"),
    ],
    ids=["before the failure", "long after", "other peer", "other leg", "not aborted"],
)
def test_a_bare_id_alone_makes_no_phantom(spans: list[SpanRecord]) -> None:
    """Sixteen hex digits may be somebody's request: without evidence it is listed as one."""
    if spans[0].attributes.get(sc.PEER_ENGINE_REQUEST_ID):
        failed = [
            replace(s, attributes={**s.attributes, sc.PEER_ENGINE_REQUEST_ID: PEER})
            if s.resource[sc.ROLE] == D
            else s
            for s in failed_load()
        ]
    else:
        failed = failed_load()
    found = said(failed + spans)
    assert sorted(one["request_id"] for one in found) == [PHANTOM, "r-1"]


def test_a_bare_id_that_got_an_answer_is_a_request() -> None:
    """Even right after a failure on the same pair."""
    writer = Writer(PHANTOM, "pull")
    for name, start, end in (
        (sc.SPAN_DECODE_ADMISSION, 900, 905),
        (sc.SPAN_FIRST_DECODE, 905, 950),
    ):
        span = (EPOCH_NS + start, EPOCH_NS + end, D)
        writer.span(name, *span, pd__request__engine_id=PHANTOM, **KNOWN)
    assert len(said(failed_load() + writer.records)) == 2


def test_ranks_of_the_decode_engine_are_no_second_registration() -> None:
    """D's two ranks register with one rank of P: two events; a third one is a second."""
    spans = records(Shape(ranks=(Rank(),)))
    other = next(s for s in spans if s.name == sc.SPAN_REGISTRATION)
    ranks = {**other.resource, sc.TP_RANK: 1}
    spans.append(replace(other, span_id="e" * 16, resource=ranks))
    place = next(i for i, s in enumerate(spans) if s.name == sc.SPAN_MATCH)
    (event,) = spans[place].events
    more = [replace(event, time_ns=event.time_ns + late) for late in (3, 5)]
    for count, flags in ((1, []), (2, ["second_registration"])):
        heard = replace(spans[place], events=(event, *more[:count]))
        (found,) = said([*spans[:place], heard, *spans[place + 1 :]])
        assert found["flags"] == flags
