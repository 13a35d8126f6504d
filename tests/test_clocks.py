"""Offsets estimated from messages whose truth is known: the truth is always inside."""

from collections.abc import Iterable
from dataclasses import dataclass
from random import Random

import numpy as np
import pandas as pd
from generator import EPOCH_NS
from hypothesis import given, settings
from hypothesis import strategies as st
from skew import Skew

from pdtrace.analysis.clock_drift import NO_BOUND, DriftCone, slack
from pdtrace.analysis.clock_pairs import PairOfClocks, pairs_of
from pdtrace.analysis.clocks import Clocks

MS = 10**6
SECOND = 10**9
SOME = settings(max_examples=25, deadline=None)


@dataclass(frozen=True)
class Traffic:
    """Messages between clocks; every `kind` is the same here."""

    rows: tuple[tuple[str, str, str, int, int], ...]

    def __add__(self, other: "Traffic") -> "Traffic":
        return Traffic(self.rows + other.rows)

    @property
    def frame(self) -> pd.DataFrame:
        columns = ["request_id", "sender", "receiver", "sent_ns", "received_ns"]
        return pd.DataFrame(list(self.rows), columns=columns).assign(kind="message")


def traffic(
    random: Random, one: Skew, other: Skew, times: Iterable[int], slowest_ns: int = 20 * MS
) -> Traffic:
    """One message from `one` to `other` at each true time, in flight for up to `slowest_ns`."""
    rows = []
    for number, at in enumerate(times):
        arrival = at + random.randint(0, slowest_ns)
        name = f"{one.name}{other.name}-{number}"
        rows.append((name, one.name, other.name, one.shows(at), other.shows(arrival)))
    return Traffic(tuple(rows))


def both_ways(random: Random, one: Skew, other: Skew, count: int, long_s: int = 600) -> Traffic:
    """`count` messages each way, spread over the time."""
    forth, back = (
        [EPOCH_NS + random.randrange(long_s * SECOND) for _ in range(count)] for _ in range(2)
    )
    return traffic(random, one, other, forth) + traffic(random, other, one, back)


def interval(clocks: Clocks, one: Skew, other: Skew, true_ns: int) -> tuple[int, int]:
    """Lower and upper bound on `other` less `one` at a true time."""
    low, high = clocks.names.index(one.name), clocks.names.index(other.name)
    first = min(low, high)
    by = (one, other)[first != low]
    at = clocks.axis(np.array([by.shows(true_ns)]), np.array([first]))
    bounds = clocks.between(at, at)[0]
    return -int(bounds[low, high]), int(bounds[high, low])


def truth(one: Skew, other: Skew, true_ns: int) -> int:
    return other.less_truth(true_ns) - one.less_truth(true_ns)


def holds(clocks: Clocks, one: Skew, other: Skew, long_s: int = 600) -> None:
    """The truth is inside at any time, and before and after all evidence."""
    for share in range(-1, 12):
        at = EPOCH_NS + share * long_s * SECOND // 10
        low, high = interval(clocks, one, other, at)
        assert low <= truth(one, other, at) <= high, (share, low, truth(one, other, at), high)


def only(clocks: Clocks) -> PairOfClocks:
    (pair,) = pairs_of(clocks)
    return pair


offsets = st.integers(-(10**11), 10**11)
drifts = st.integers(-24_000, 24_000)
A, B = Skew("a"), Skew("b", 37 * MS, 12_000)


@SOME
@given(offsets, offsets, drifts, drifts, st.randoms(use_true_random=False), st.integers(1, 60))
def test_the_truth_is_inside_for_any_offset_and_drift(
    offset: int, other: int, drift: int, other_drift: int, random: Random, count: int
) -> None:
    """Two clocks that drift by less than is allowed for; few or many messages."""
    a, b = Skew("a", offset, drift), Skew("b", other, other_drift)
    clocks = Clocks(both_ways(random, a, b, count).frame, ["a", "b"], 50)
    holds(clocks, a, b)
    assert clocks.evidence["kept"].all()


def test_without_drift_the_interval_is_the_intersection() -> None:
    """Lower bound from what b sent, upper bound from what a sent; to the nanosecond."""
    rows = (("r", "a", "b", 100, 1150), ("r", "a", "b", 200, 1260), ("r", "b", "a", 1300, 340))
    best = only(Clocks(Traffic(rows).frame, ["a", "b"], 0)).best
    assert (best.lo_ns, best.hi_ns) == (960, 1050)
    assert (best.midpoint_ns, best.halfwidth_ns) == (1005, 45)


def test_the_midpoint_is_rounded_down_and_the_half_width_up() -> None:
    """Also below zero."""
    rows = (("r", "a", "b", 100, 95), ("r", "b", "a", 90, 98))
    best = only(Clocks(Traffic(rows).frame, ["a", "b"], 0)).best
    assert (best.lo_ns, best.hi_ns) == (-8, -5)
    assert (best.midpoint_ns, best.halfwidth_ns) == (-7, 2)


def test_a_bound_weakens_with_time_by_what_the_clocks_may_drift() -> None:
    """50 ppm are 50 us a second, rounded up, before and after."""
    cone = DriftCone.of(np.array([10 * SECOND]), np.array([7]), 50_000)
    at = np.array([8 * SECOND, 10 * SECOND, 10 * SECOND + 1, 11 * SECOND])
    assert cone.at(at).tolist() == [100_007, 7, 8, 50_007]


@SOME
@given(
    st.lists(st.tuples(st.integers(0, 10**12), st.integers(-(10**7), 10**7)), min_size=1),
    st.lists(st.integers(-(10**11), 2 * 10**12), min_size=1),
    st.integers(0, 100_000),
)
def test_the_cone_is_the_smallest_of_all_bounds(
    bounds: list[tuple[int, int]], times: list[int], ppb: int
) -> None:
    """But for the rounding of a nanosecond, and never below it."""
    time, bound = (np.array(values, dtype=np.int64) for values in zip(*sorted(bounds), strict=True))
    found = DriftCone.of(time, bound, ppb).at(np.array(times))
    for at, one in zip(times, found.tolist(), strict=True):
        best = int((bound + slack(np.abs(at - time), ppb)).min())
        assert best <= one <= best + 2


def test_one_way_traffic_bounds_one_side_only() -> None:
    """An inequality, no midpoint."""
    frame = traffic(Random(1), A, B, [EPOCH_NS + SECOND]).frame
    best = only(Clocks(frame, ["a", "b"], 50)).best
    assert best.lo_ns is None and best.hi_ns is not None and best.halfwidth_ns is None
    low, high = interval(Clocks(frame, ["a", "b"], 50), A, B, EPOCH_NS)
    assert (low, high >= NO_BOUND) == (-NO_BOUND, False)


def test_half_a_percent_of_mispaired_messages_is_outvoted() -> None:
    """The strict intersection is empty; the truth is inside, and the contradictions are listed."""
    random = Random(5)
    good = both_ways(random, A, B, 2000)
    other = both_ways(random, A, B, 10).rows
    wrong = [(f"wrong-{i}", *row[1:4], row[4] - 300 * MS) for i, row in enumerate(other)]
    clocks = Clocks((good + Traffic(tuple(wrong))).frame, ["a", "b"], 50)
    holds(clocks, A, B)
    pair = only(clocks)
    assert {one.request_id for one in pair.contradictions} == {f"wrong-{i}" for i in range(20)}
    assert (pair.agreeing, pair.messages, pair.degraded) == (4000, 4020, False)
    assert all(250 * MS < (one.by_ns or 0) < 350 * MS for one in pair.contradictions)
    assert pair.best.halfwidth_ns is not None and pair.best.halfwidth_ns < 3 * MS


def test_more_than_one_percent_of_contradictions_degrades_a_pair() -> None:
    """Three of a hundred."""
    random = Random(6)
    wrong = tuple(
        (f"wrong-{i}", *row[1:4], row[4] - 300 * MS)
        for i, row in enumerate(both_ways(random, A, B, 3).rows[:3])
    )
    clocks = Clocks((both_ways(random, A, B, 50) + Traffic(wrong)).frame, ["a", "b"], 50)
    holds(clocks, A, B)
    assert only(clocks).degraded
    assert only(clocks).agreeing == 100


def test_one_against_one_cannot_be_decided() -> None:
    """Two messages that contradict each other leave nothing."""
    rows = (("r", "a", "b", 100, 120), ("s", "b", "a", 200, 100))
    pair = only(Clocks(Traffic(rows).frame, ["a", "b"], 0))
    assert (pair.best.lo_ns, pair.best.hi_ns, pair.agreeing) == (None, None, 0)


def test_a_clock_that_was_set_begins_a_new_epoch() -> None:
    """No evidence is lost on either side but next to the step, and the truth is inside."""
    set_at = EPOCH_NS + 300 * SECOND
    b = Skew("b", 37 * MS, 12_000, set_at, 80 * MS)
    clocks = Clocks(both_ways(Random(7), A, b, 500).frame, ["a", "b"], 50)
    for at_s in (0, 100, 250, 350, 500, 600):
        low, high = interval(clocks, A, b, EPOCH_NS + at_s * SECOND)
        assert low <= truth(A, b, EPOCH_NS + at_s * SECOND) <= high
        assert high - low < 30 * MS
    pair = only(clocks)
    (found,) = pair.set_at_ns
    assert abs(found - set_at) < 60 * SECOND
    assert pair.agreeing > 960


def test_other_clocks_in_between_tighten_an_interval() -> None:
    """P and D hear each other slowly, and a router both fast."""
    random = Random(8)
    r, p, d = Skew("r"), Skew("p", -8 * MS, 9_000), Skew("d", 5 * MS, -11_000)
    slow = [EPOCH_NS + i * SECOND for i in range(60)]
    direct = traffic(random, p, d, slow, 90 * MS) + traffic(random, d, p, slow, 90 * MS)
    fast = Traffic(())
    for engine in (p, d):
        fast += traffic(random, r, engine, slow, MS) + traffic(random, engine, r, slow, MS)
    alone = Clocks(direct.frame, ["p", "d"], 50)
    together = Clocks((direct + fast).frame, ["r", "p", "d"], 50)
    at = EPOCH_NS + 30 * SECOND
    wide, narrow = (interval(clocks, p, d, at) for clocks in (alone, together))
    assert narrow[1] - narrow[0] < 2 * MS < wide[1] - wide[0]
    holds(together, p, d, 60)
    pair = next(one for one in pairs_of(together) if one.start == "p")
    assert (pair.best.lower_from, pair.best.upper_from) == ("through other clocks",) * 2


def test_a_contradiction_around_three_clocks_is_named_and_the_weakest_message_dropped() -> None:
    """p and d alone contradict nothing: the one message goes that has no support."""
    random = Random(9)
    r, p, d = Skew("r"), Skew("p", -8 * MS), Skew("d", 5 * MS)
    good = both_ways(random, r, p, 40, 60) + both_ways(random, r, d, 40, 60)
    wrong = Traffic((("wrong", "p", "d", p.shows(EPOCH_NS), d.shows(EPOCH_NS) - 500 * MS),))
    clocks = Clocks((good + wrong).frame, ["r", "p", "d"], 50)
    assert {frozenset(cycle) for cycle in clocks.cycles} == {frozenset({"r", "p", "d"})}
    lost = clocks.evidence[~clocks.evidence["kept"]]
    assert lost["request_id"].tolist() == ["wrong"]
    holds(clocks, p, d, 60)


def test_order_of_messages_changes_nothing() -> None:
    """Shuffled evidence, contradictions included, gives the same bounds."""
    random = Random(10)
    rows = list(both_ways(random, A, B, 200).rows)
    rows[3] = (*rows[3][:4], rows[3][4] - 400 * MS)
    one = Clocks(Traffic(tuple(rows)).frame, ["a", "b"], 50)
    random.shuffle(rows)
    other = Clocks(Traffic(tuple(rows)).frame, ["a", "b"], 50)
    times = np.arange(0, 600 * SECOND, SECOND)
    assert np.array_equal(one.tight(times), other.tight(times))
