"""Which messages between hosts are evidence on their clocks, and which are not."""

from dataclasses import replace

import pytest
from generator import Rank, Shape, Writer, instants, records
from skew import Skew, by_role, skewed

from pdtrace.analysis import clock_evidence as ce
from pdtrace.analysis.attempts import own_spans
from pdtrace.analysis.clock_evidence import messages
from pdtrace.analysis.records import SpanRecord
from pdtrace.analysis.table import build
from pdtrace.tracing import semconv as sc

R, P, D = sc.ROLE_ROUTER, sc.ROLE_PREFILL, sc.ROLE_DECODE
THREE = by_role(router=Skew(R), prefill=Skew(P), decode=Skew(D))
Message = tuple[str, str, str, int, int]
"""Kind, sender, receiver, sent, received."""


def found(spans: list[SpanRecord]) -> set[Message]:
    """The messages of spans whose three hosts have clocks of their own, all showing the truth."""
    table = build(skewed(spans, THREE))
    rows = messages(own_spans(table.spans), table.events)
    columns = ["kind", "sender", "receiver", "sent_ns", "received_ns"]
    return set(rows[columns].itertuples(index=False, name=None))


def kinds(spans: list[SpanRecord]) -> set[str]:
    return {kind for kind, *_ in found(spans)}


def routed(shape: Shape) -> set[Message]:
    """Those between the router and the engines."""
    at = instants(shape)
    return {
        (ce.LEG_TO_PREFILL, R, P, at.t0, at.p_first),
        (ce.LEG_TO_DECODE, R, D, at.leg_d, at.d_has),
        (ce.PREFILL_ANSWER, P, R, at.p_end, at.handed),
        (ce.FIRST_TOKEN, D, R, at.token, at.t1),
    }


def test_pull_has_these_messages() -> None:
    """Router to engines and back, P's answer that D is sent with, the READ's notification."""
    shape = Shape(mode="pull", dispatch="sequential")
    at = instants(shape)
    lease = next(s for s in records(shape) if s.name == sc.SPAN_LEASE)
    seen = Writer("r-1", "pull", lease.trace_id)
    event = ((sc.EVENT_NOTIFICATION_SEEN, at.told, 0),)
    seen.span(sc.SPAN_LEASE, lease.start_ns, at.told, P, events=event)
    spans = [s for s in records(shape) if s.name != sc.SPAN_LEASE]
    told = replace(seen.records[0], span_id=lease.span_id)
    assert found([*spans, told]) == routed(shape) | {
        (ce.PREFILL_RESPONSE, P, D, at.p_end, at.d_has),
        (ce.READ_NOTIFICATION, D, P, at.ranks[0][0], at.told),
    }


def test_concurrent_push_has_these_messages() -> None:
    """Each rank's WRITE by itself; D's leg did not wait for P's answer."""
    shape = Shape(ranks=(Rank(), Rank(wait=3, transfer=9, notified=4)))
    at = instants(shape)
    assert found(records(shape)) == routed(shape) | {
        (ce.REGISTRATION, D, P, at.received, at.received),
        *((ce.WRITE_NOTIFICATION, P, D, begin, seen) for begin, *_, seen in at.ranks),
    }


def test_sequential_push_waits_for_the_answer_only_if_the_router_says_so() -> None:
    """Without the router nothing but two clocks tells in which order the legs were sent."""
    shape = Shape(dispatch="sequential")
    assert ce.PREFILL_RESPONSE in kinds(records(shape))
    alone = kinds(records(replace(shape, router=False)))
    assert alone == {ce.REGISTRATION, ce.WRITE_NOTIFICATION}


def test_neither_the_end_of_posting_nor_of_the_write_says_anything() -> None:
    """The call may return, and P may poll, after D has seen the notification."""
    shape = Shape(ranks=(Rank(submit=9, transfer=4, notified=-4),))
    begin, posted, done, seen = instants(shape).ranks[0]
    assert posted == seen < done
    sent = {message[3] for message in found(records(shape)) if message[2] == D}
    assert begin in sent and not {posted, done} & sent


def test_lost_tries_say_only_what_is_certain() -> None:
    """Every try got there after the first leg left; whose answer or KV cache it was, none tells."""
    shape = Shape(mode="pull", dispatch="sequential", p_retry=9, d_retry=9)
    at = instants(shape)
    assert found(records(shape)) == {
        *((ce.LEG_TO_PREFILL, R, P, at.t0, has) for has in (at.p_first, at.p_has)),
        *((ce.LEG_TO_DECODE, R, D, at.leg_d, has) for has in (at.d_first, at.d_has)),
        (ce.FIRST_TOKEN, D, R, at.token, at.t1),
    }


def test_tries_that_name_each_other_are_a_pair() -> None:
    """The try that was lost served nobody."""
    shape = Shape(mode="pull", dispatch="sequential", p_retry=9, peers=True)
    at = instants(shape)
    assert (ce.PREFILL_RESPONSE, P, D, at.p_end, at.d_has) in found(records(shape))


def test_an_id_that_was_used_twice_says_nothing() -> None:
    """Which leg is of which request is known by the clocks only."""
    again = [replace(s, span_id=s.span_id[::-1]) for s in records(Shape(start=5000, router=False))]
    renamed = [
        replace(
            s,
            attributes={
                **s.attributes,
                sc.ENGINE_REQUEST_ID: f"{s.attributes[sc.ENGINE_REQUEST_ID]}-again",
            },
        )
        for s in again
    ]
    assert found([*records(Shape(router=False)), *renamed]) == set()


@pytest.mark.parametrize("known", [True, False])
def test_a_handshake_sample_bounds_both_ways(known: bool) -> None:
    """Asked, served and answered, between D and the one clock of the engine that it asked."""
    writer = Writer("r-1", "push")
    sample = {sc.CLOCK_SENT_NS: 100, sc.CLOCK_REMOTE_NS: 130, sc.CLOCK_RECEIVED_NS: 190}
    peer = "p-engine-0" if known else "somebody"
    writer.span(sc.SPAN_HANDSHAKE, 90, 200, D, pd__peer__engine__id=peer)
    said = {**writer.records[0].attributes, **sample}
    shake = replace(writer.records[0], span_id="e" * 16, attributes=said)
    expected = {
        (ce.HANDSHAKE_REQUEST, D, P, 100, 130),
        (ce.HANDSHAKE_REPLY, P, D, 130, 190),
    }
    plain = found(records(Shape()))
    assert found([*records(Shape()), shake]) == plain | (expected if known else set())


def test_the_last_notification_of_several_ranks_counts() -> None:
    """Two ranks of D were told by one of P, one of them before the last WRITE was posted."""
    shape = Shape(ranks=(Rank(submit=6),))
    at = instants(shape)
    seen = at.ranks[0][3]
    both = tuple((sc.EVENT_NOTIFICATION_SEEN, seen + by, 0) for by in (-2, 0))
    writer = Writer("r-1", "push")
    writer.span(sc.SPAN_KV_WAIT, at.allocated, at.told, D, events=both)
    spans = [s for s in records(shape) if s.name != sc.SPAN_KV_WAIT]
    told = replace(writer.records[0], span_id="e" * 16)
    expected = (ce.WRITE_NOTIFICATION, P, D, at.ranks[0][0], seen)
    assert [m for m in found([*spans, told]) if m[0] == ce.WRITE_NOTIFICATION] == [expected]


def test_the_first_of_all_tokens_counts() -> None:
    """Of several choices the router passed on one, and none was before the first."""
    shape = Shape(choices=3)
    at = instants(shape)
    tokens = [m for m in found(records(shape)) if m[0] == ce.FIRST_TOKEN]
    assert tokens == [(ce.FIRST_TOKEN, D, R, at.token, at.t1)]


def test_hosts_without_a_clock_id_give_no_evidence() -> None:
    """An empty id is not known to be one clock with anything, nor another one."""
    spans = [replace(s, resource={**s.resource, sc.CLOCK_ID: ""}) for s in records(Shape())]
    table = build(spans)
    assert messages(own_spans(table.spans), table.events).empty
