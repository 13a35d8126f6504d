"""The invariants of the split, each one a property over random requests."""

from collections.abc import Callable
from dataclasses import replace
from random import Random

import numpy as np
import pandas as pd
import pytest
from generated_truth import truth
from generator import EPOCH_NS, LOST, Rank, Shape, Writer, instants, records
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st
from reference_split import reference

from pdtrace.analysis import sweep
from pdtrace.analysis.handoffs import join
from pdtrace.analysis.records import EventRecord, SpanRecord
from pdtrace.analysis.split import Split, split
from pdtrace.analysis.table import build
from pdtrace.tracing import semconv as sc

# One call splits a whole batch at once, so a few large examples say more than many small ones.
SLOW = (HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example)
WITHOUT_SHRINKING = (Phase.explicit, Phase.reuse, Phase.generate)
BATCHES = settings(
    max_examples=3, deadline=None, suppress_health_check=SLOW, phases=WITHOUT_SHRINKING
)
FEW = settings(max_examples=50, deadline=None)


def one_way(shape: Shape) -> Shape:
    """Nothing is read back: push knows no such thing."""
    return replace(shape, back=())


length = st.integers(0, 60)
ranks = st.lists(
    st.builds(
        Rank,
        wait=st.integers(0, 9),
        submit=st.integers(1, 20),
        transfer=st.integers(1, 60),
        notified=st.integers(-70, 20),
    ),
    min_size=1,
    max_size=4,
).map(tuple)
shapes = st.builds(
    Shape,
    mode=st.sampled_from(["push", "pull"]),
    dispatch=st.sampled_from(["concurrent", "sequential"]),
    start=st.integers(0, 10**12),
    ingress=length,
    p_retry=st.one_of(st.just(0), st.integers(5, 60)),
    queue=length,
    prefill=st.integers(1, 400),
    handing=length,
    dispatched=st.integers(0, 30),
    hop=length,
    d_retry=st.one_of(st.just(0), st.integers(5, 60)),
    admission=length,
    capacity=st.one_of(length, st.integers(0, 800)),
    registration=st.integers(1, 400),
    handshake=st.one_of(st.just(0), st.integers(1, 300)),
    ranks=ranks,
    seen=length,
    requeue=length,
    queue_d=st.one_of(st.just(0), st.integers(1, 50)),
    recompute=st.one_of(st.just(0), st.integers(1, 200)),
    first_decode=st.integers(1, 60),
    egress=length,
    decode=st.integers(0, 900),
    tokens=st.integers(1, 40),
    router=st.booleans(),
    peers=st.booleans(),
    choices=st.sampled_from([1, 1, 1, 3]),
    back=st.one_of(st.just(()), ranks),
    back_wait=length,
    back_seen=length,
    back_requeue=length,
).map(lambda shape: one_way(shape) if shape.push else replace(shape, dispatch="sequential"))
batches = st.lists(shapes, min_size=10, max_size=16)


def spans_of(batch: list[Shape]) -> list[SpanRecord]:
    return [span for i, shape in enumerate(batch) for span in records(shape, f"r-{i}")]


def done(spans: list[SpanRecord]) -> Split:
    return split(join(build(spans)))


def nonzero(phases: pd.DataFrame, request_id: str) -> dict[str, int]:
    row = phases.loc[request_id]
    assert isinstance(row, pd.Series)
    return {str(name): int(value) for name, value in row.items() if value}


def same(one: Split, other: Split) -> None:
    """Both splits say the same, apart from the order of requests."""
    for frame in ("exposed", "hidden", "drag", "classes"):
        left, right = getattr(one, frame), getattr(other, frame)
        pd.testing.assert_frame_equal(left.sort_index(), right.sort_index())
    columns = ["ttft_ns", "handover_ns", "tpot_ns", "mode", "flags"]
    pd.testing.assert_frame_equal(
        one.requests[columns].sort_index(), other.requests[columns].sort_index()
    )


LATE_LEG = Shape(mode="push", dispatch="concurrent", router=False, prefill=1, hop=90)
"""Sent together, and without a router nothing shows it: D has it after the hand-over."""


@BATCHES
@given(batches)
@example([LATE_LEG])
@example([replace(LATE_LEG, d_retry=70, hop=20)])
def test_generated_truth_is_recovered_to_the_nanosecond(batch: list[Shape]) -> None:
    """Invariant 15 (and 1, 2, 7): phases, hidden time and TTFT are those that were drawn."""
    found = done(spans_of(batch))
    for i, shape in enumerate(batch):
        ttft, painted = truth(shape)
        assert found.requests.loc[f"r-{i}", "ttft_ns"] == ttft
        assert nonzero(found.exposed, f"r-{i}") == painted.exposed
        assert nonzero(found.hidden, f"r-{i}") == painted.hidden


@BATCHES
@given(batches)
def test_classes_and_phases_sum_to_ttft(batch: list[Shape]) -> None:
    """Invariant 1: as integers, in every row."""
    found = done(spans_of(batch))
    ttft = found.requests.loc[found.splittable, "ttft_ns"].to_numpy(np.int64)
    assert found.exposed.sum(axis=1).tolist() == ttft.tolist()
    assert found.classes.sum(axis=1).tolist() == ttft.tolist()
    assert all(str(dtype) == "int64" for dtype in found.exposed.dtypes)


@BATCHES
@given(batches, st.data())
def test_nothing_is_negative_even_from_broken_instants(
    batch: list[Shape], data: st.DataObject
) -> None:
    """Invariants 1, 2, 7, 13: also where spans were moved or lost, sums hold and drag ≤ union."""
    spans = spans_of(batch)
    kept = [span for span in spans if data.draw(st.integers(0, 5)) or span.name == "pd.request"]
    moved = []
    for span in kept:
        by = data.draw(st.integers(-30, 30))
        moved.append(replace(span, start_ns=span.start_ns + by, end_ns=span.end_ns + by))
    found = done(moved)
    assert (found.exposed >= 0).all(axis=None) and (found.hidden >= 0).all(axis=None)
    assert (found.drag >= 0).all(axis=None)
    assert (found.drag <= found.exposed + found.hidden).all(axis=None)
    ttft = found.requests.loc[found.splittable, "ttft_ns"].to_numpy(np.int64)
    assert found.exposed.sum(axis=1).tolist() == ttft.tolist()


@BATCHES
@given(batches, st.randoms(use_true_random=False))
def test_order_of_spans_changes_nothing(batch: list[Shape], random: Random) -> None:
    """Invariant 3."""
    spans = spans_of(batch)
    shuffled = list(spans)
    random.shuffle(shuffled)
    same(done(spans), done(shuffled))


@BATCHES
@given(batches, st.randoms(use_true_random=False))
def test_splitting_or_duplicating_a_span_changes_nothing(
    batch: list[Shape], random: Random
) -> None:
    """Invariant 4: a copy with the same id or another one, or two halves.

    But a second `pd.request` of another span id is a second request.
    """
    spans = spans_of(batch)
    changed: list[SpanRecord] = []
    for number, span in enumerate(spans):
        other, another = f"a{number:015x}", f"b{number:015x}"
        middle = random.randint(span.start_ns, span.end_ns)
        halves = [
            replace(span, end_ns=middle, span_id=other),
            replace(span, start_ns=middle, span_id=another),
        ]
        kinds = [[span], [span, span], halves, [span, replace(span, span_id=other)]]
        changed += random.choice(kinds[:2] if span.name == sc.SPAN_REQUEST else kinds)
    same(done(spans), done(changed))


@BATCHES
@given(batches, st.integers(-(10**9), 10**9))
def test_adding_a_constant_changes_nothing(batch: list[Shape], by: int) -> None:
    """Invariant 5, first half."""
    spans = spans_of(batch)
    same(done(spans), done([retimed(span, lambda t: t + by) for span in spans]))


@BATCHES
@given(batches, st.integers(2, 9))
def test_scaling_scales(batch: list[Shape], factor: int) -> None:
    """Invariant 5, second half."""
    spans = spans_of(batch)
    scaled = [retimed(s, lambda t: EPOCH_NS + (t - EPOCH_NS) * factor) for s in spans]
    one, other = done(spans), done(scaled)
    for frame in ("exposed", "hidden", "drag", "classes"):
        pd.testing.assert_frame_equal(getattr(one, frame) * factor, getattr(other, frame))


def retimed(span: SpanRecord, move: Callable[[int], int]) -> SpanRecord:
    """`span` with every time passed through `move`."""
    events = tuple(EventRecord(e.name, move(e.time_ns), e.attributes) for e in span.events)
    return replace(span, start_ns=move(span.start_ns), end_ns=move(span.end_ns), events=events)


intervals = st.lists(
    st.tuples(st.integers(0, 5), st.integers(0, 100), st.integers(1, 100)), max_size=12
)


def swept(found: list[tuple[int, int, int]], start: int, end: int) -> tuple[list[int], list[int]]:
    """Exposed and union by layer of (layer, start, length) in a window; layer 6 is the window."""
    rows = [(0, layer, at, at + long) for layer, at, long in found] + [(0, 6, start, end)]
    frame = pd.DataFrame(rows, columns=["key", "layer", "start_ns", "end_ns"], dtype="int64")
    window = (np.array([start], dtype=np.int64), np.array([end], dtype=np.int64))
    cut = sweep.segments(sweep.clip(frame, *window), 7)
    return sweep.exposed(cut, 1)[0].tolist(), sweep.union(cut, 1)[0].tolist()


@FEW
@given(intervals, st.integers(0, 5), st.integers(0, 100), st.integers(1, 60), st.integers(1, 60))
def test_lengthening_a_phase_never_lowers_it_nor_raises_a_lower_one(
    others: list[tuple[int, int, int]], layer: int, at: int, long: int, more: int
) -> None:
    """Invariant 6: on the sweep itself."""
    before, _ = swept([*others, (layer, at, long)], 0, 200)
    after, _ = swept([*others, (layer, at, long + more)], 0, 200)
    assert after[layer] >= before[layer]
    assert all(a <= b for a, b in zip(after[layer + 1 :], before[layer + 1 :], strict=True))


@FEW
@given(intervals)
def test_exposed_is_at_most_the_union(found: list[tuple[int, int, int]]) -> None:
    """Invariant 7."""
    exposed, union = swept(found, 0, 200)
    assert all(0 <= a <= b for a, b in zip(exposed, union, strict=True))


@BATCHES
@given(batches)
def test_batch_equals_the_slow_reference(batch: list[Shape]) -> None:
    """Invariant 8: one pass over many requests against one walk per request, from the spans."""
    found = done(spans_of(batch))
    for i, shape in enumerate(batch):
        ttft, painted = reference(records(shape, f"r-{i}"))
        assert found.requests.loc[f"r-{i}", "ttft_ns"] == ttft
        assert nonzero(found.exposed, f"r-{i}") == painted.exposed
        assert nonzero(found.hidden, f"r-{i}") == painted.hidden


@BATCHES
@given(batches, st.integers(0, 100))
def test_a_span_outside_the_causal_cone_changes_nothing(batch: list[Shape], at: int) -> None:
    """Invariant 9: what a lost try did, another producer's span, another request's spans."""
    batch = [replace(shape, p_retry=max(shape.p_retry, 5)) for shape in batch]
    spans = spans_of(batch)
    noise = records(Shape(start=40), "other")
    for i, shape in enumerate(batch):
        writer = Writer(f"r-{i}", shape.mode)
        start = EPOCH_NS + shape.start + shape.ingress + at
        for name, long in ((sc.SPAN_WRITE_SUBMIT, 50), (sc.SPAN_HANDSHAKE, 70)):
            end = start + long
            writer.span(name, start, end, sc.ROLE_PREFILL, attempt=LOST, status=2)
        noise += [replace(span, span_id=span.span_id[::-1]) for span in writer.records]
        noise.append(replace(spans[i], name="vllm_prefill", span_id=f"f{i:015x}"))
    found, alone = done([*spans, *noise]), done(spans)
    for frame in ("exposed", "hidden", "drag"):
        mine = getattr(found, frame).drop(index="other")
        pd.testing.assert_frame_equal(mine, getattr(alone, frame), check_index_type=False)


@FEW
@given(intervals, st.integers(1, 199))
def test_partitions_of_neighbouring_windows_add_up(
    found: list[tuple[int, int, int]], middle: int
) -> None:
    """Invariant 10: [a, b) plus [b, c) = [a, c)."""
    left, right, whole = (swept(found, *w)[0] for w in ((0, middle), (middle, 200), (0, 200)))
    assert [a + b for a, b in zip(left, right, strict=True)] == whole


@BATCHES
@given(st.lists(st.tuples(st.integers(0, 300), st.integers(1, 200)), min_size=9, max_size=20))
def test_registration_counts_only_past_the_hand_over(pairs: list[tuple[int, int]]) -> None:
    """Invariant 11: before it only `hidden` changes; d past it, coordination rises by d."""
    base = Shape(admission=0, capacity=0, hop=0, handing=0)
    until_end = base.ingress + base.queue + base.prefill - base.dispatched
    just = done(spans_of([replace(base, registration=until_end)] * len(pairs)))
    early = done(spans_of([replace(base, registration=max(until_end - by, 0)) for by, _ in pairs]))
    late = done(spans_of([replace(base, registration=until_end + by) for _, by in pairs]))
    pd.testing.assert_frame_equal(early.exposed, just.exposed)
    rise = late.classes["coordination"] - just.classes["coordination"]
    assert [int(rise[f"r-{i}"]) for i in range(len(pairs))] == [by for _, by in pairs]


@BATCHES
@given(batches)
def test_strictly_sequential_on_one_rank_hides_nothing(batch: list[Shape]) -> None:
    """Invariant 12: every length drawn is exposed as it is."""
    plain = [one_after_the_other(shape) for shape in batch]
    found = done(spans_of(plain))
    assert found.hidden.to_numpy().sum() == 0
    for i, shape in enumerate(plain):
        exposed = found.exposed.loc[f"r-{i}"]
        assert exposed["registration"] == shape.registration
        assert exposed["handshake"] == shape.handshake
        assert exposed["transfer"] == shape.ranks[0].transfer
        assert exposed["retry"] == shape.p_retry + shape.d_retry


def one_after_the_other(shape: Shape) -> Shape:
    """The same lengths, with D's leg after P's, on one rank."""
    rank = replace(shape.ranks[0], notified=0)
    return replace(shape, dispatch="sequential", ranks=(rank,), router=True, back=())


@BATCHES
@given(batches)
def test_drag_is_at_most_the_union_and_exact_where_nothing_overlaps(batch: list[Shape]) -> None:
    """Invariant 13, and: in a sequential request on one rank drag equals what is exposed."""
    found = done(spans_of(batch))
    assert (found.drag <= found.exposed + found.hidden).all(axis=None)
    plain = [one_after_the_other(shape) for shape in batch]
    alone = done(spans_of(plain))
    pd.testing.assert_frame_equal(alone.drag, alone.exposed)


@BATCHES
@given(batches)
def test_the_slowest_rank_is_named_with_its_lag(batch: list[Shape]) -> None:
    """Its completion less the lower median of all ranks; one rank alone is behind nobody."""
    found = done(spans_of(batch)).requests
    for i, shape in enumerate(batch):
        ends = sorted((done, rank) for rank, (*_, done, _) in enumerate(instants(shape).ranks))
        behind = ends[-1][0] - ends[(len(ends) - 1) // 2][0] if len(ends) > 1 else None
        name = f"{'p' if shape.push else 'd'}-engine-0/tp{ends[-1][1]}" if behind else ""
        row = found.loc[f"r-{i}"]
        said = row["rank_straggle_ns"]
        assert (None if said is pd.NA else said, row["slowest_rank"]) == (behind, name)


@pytest.mark.parametrize("tokens, expected", [(1, None), (2, 91), (10, 10), (11, 9)])
def test_tpot_is_the_mean_per_token_after_the_first_rounded_down(
    tokens: int, expected: int | None
) -> None:
    """91 ns over tokens - 1 steps; not known for a single token."""
    found = done(records(Shape(decode=91, tokens=tokens))).requests["tpot_ns"].iloc[0]
    assert (None if found is pd.NA else found) == expected
