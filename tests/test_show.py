"""What is shown of one request: every piece and number is the split's, every phase is explained."""

from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pandas as pd
import pytest
from generator import EPOCH_NS, Rank, Shape, Writer, records

from pdtrace.analysis import phases
from pdtrace.analysis.charts import Piece, Whisker
from pdtrace.analysis.handoffs import Handoffs, join
from pdtrace.analysis.load import load
from pdtrace.analysis.records import SpanRecord
from pdtrace.analysis.show import Shown, show
from pdtrace.analysis.show_text import lines
from pdtrace.analysis.split import Split, split
from pdtrace.analysis.stretches import length, overlap
from pdtrace.analysis.subject_words import FLAG_WORDS
from pdtrace.analysis.table import build
from pdtrace.tracing import semconv as sc

MS = 10**6
DATA = Path(__file__).parent / "data"
ANOTHER_CLOCK = "ffffffff-0000-4c7e-9d30-6f1b2a9c0a01"


def of(shape: Shape, request_id: str = "r", width_ns: int | None = None) -> Shown:
    widths = None if width_ns is None else pd.Series({request_id: width_ns})
    return show(join(build(records(shape, request_id)), widths), request_id)


def text(shown: Shown, width: int) -> list[str]:
    return ["".join(run.text for run in line) for line in lines(shown, width)]


def sentences(shown: Shown) -> dict[str, str]:
    return {line.phase: line.sentence for line in shown.phases}


def random_shape(rng: Random) -> Shape:
    """Any kind of request, times up to some ms, zero now and then."""

    def ns(most: int = 40 * MS) -> int:
        return rng.choice((0, rng.randint(1, 900), rng.randint(1, most)))

    def ranks(least: int) -> tuple[Rank, ...]:
        return tuple(
            Rank(ns(), rng.randint(1, MS), rng.randint(1, 50 * MS), rng.randint(-MS, MS))
            for _ in range(rng.randint(least, 4))
        )

    mode = rng.choice(["push", "pull"])
    return Shape(
        mode=mode,
        dispatch=rng.choice(["concurrent", "sequential"]),
        ingress=ns(),
        p_retry=rng.choice((0, 5 * MS)),
        queue=ns(),
        prefill=rng.randint(2, 400 * MS),
        handing=ns(),
        hop=ns(),
        d_retry=rng.choice((0, 7 * MS)),
        admission=ns(),
        capacity=ns(600 * MS),
        registration=rng.randint(1, 300 * MS),
        handshake=ns(300 * MS),
        ranks=ranks(1),
        back=ranks(0) if mode == "pull" else (),
        seen=ns(),
        requeue=ns(),
        queue_d=ns(),
        recompute=ns(),
        first_decode=rng.randint(1, 60 * MS),
        egress=ns(),
        router=rng.random() < 0.7,
        choices=rng.choice((1, 1, 3)),
    )


@pytest.fixture(scope="module")
def many() -> tuple[Handoffs, Split]:
    """Random requests, every third with a gap that no span covers."""
    rng, spans = Random(7), []
    for number in range(12):
        mine = records(random_shape(rng), f"r{number}")
        lost = rng.choice((sc.SPAN_KV_WAIT, sc.SPAN_PREFILL, sc.SPAN_DECODE_ADMISSION))
        spans += [span for span in mine if number % 3 or span.name != lost]
    handoffs = join(build(spans))
    return handoffs, split(handoffs)


@pytest.fixture(scope="module")
def all_shown(many: tuple[Handoffs, Split]) -> dict[str, Shown]:
    return {label: show(many[0], label) for label in many[1].splittable}


def stretches(pieces: list[Piece], owned: bool) -> list[tuple[int, int]]:
    return [(piece.start_ns, piece.end_ns) for piece in pieces if piece.owned is owned]


def test_pieces_of_all_lanes_are_the_split(
    many: tuple[Handoffs, Split], all_shown: dict[str, Shown]
) -> None:
    """Exposed and hidden per phase to the nanosecond; nothing lies outside the window."""
    _, done = many
    assert len(all_shown) > 8
    for label, shown in all_shown.items():
        assert shown.window_ns == done.requests.loc[label, "ttft_ns"]
        for phase in phases.NAMES:
            mine = [piece for piece in shown.pieces if piece.phase == phase]
            assert length(stretches(mine, True)) == done.exposed.loc[label, phase]
            assert length(stretches(mine, False)) == done.hidden.loc[label, phase]
            assert overlap(stretches(mine, True), stretches(mine, False)) == 0
        assert all(0 <= p.start_ns < p.end_ns <= shown.window_ns for p in shown.pieces)
        assert {piece.lane for piece in shown.pieces} <= set(shown.lanes)


def test_every_phase_that_took_time_has_its_numbers_and_a_sentence(
    many: tuple[Handoffs, Split], all_shown: dict[str, Shown]
) -> None:
    """In reading order; sums are those of the split, drag as well."""
    _, done = many
    union = done.exposed + done.hidden
    for label, shown in all_shown.items():
        took = [name for name in phases.READING_ORDER if union.loc[label, name]]
        assert [line.phase for line in shown.phases] == took
        for line in shown.phases:
            frames = (done.exposed, done.hidden, done.drag)
            wanted = tuple(frame[line.phase][label] for frame in frames)
            assert (line.exposed_ns, line.hidden_ns, line.drag_ns) == wanted
            assert line.sentence.endswith(".") and not line.crosses and line.resolved


@pytest.mark.parametrize("width", [40, 60, 61, 73, 80, 120, 200])
def test_no_line_is_wider_than_asked(all_shown: dict[str, Shown], width: int) -> None:
    """From 60 columns on; every phase's key stands below the lanes."""
    for shown in all_shown.values():
        drawn = text(shown, width)
        assert max(map(len, drawn)) <= max(width, 60)
        for line, key in zip(shown.phases, "abcdefghijklmnopqrst", strict=False):
            assert any(row.startswith(f"{key} {line.phase} ") for row in drawn)


def test_several_ranks_have_lanes_and_the_last_one_is_named() -> None:
    """Each says what it moved; the sentence adds it up and names who was late."""
    ranks = (
        Rank(submit=2 * MS, transfer=15 * MS),
        Rank(submit=3 * MS, transfer=50 * MS),
        Rank(submit=2 * MS, transfer=17 * MS),
    )
    spans = [
        replace(span, attributes={**span.attributes, sc.TRANSFER_BYTES: 10**8})
        if span.name == sc.SPAN_WRITE_SUBMIT
        else span
        for span in records(Shape(prefill=300 * MS, ranks=ranks), "r")
    ]
    shown = show(join(build(spans)), "r")
    tps = {f"prefill/tp{n}": f"P tp{n}" for n in range(3)}
    assert shown.lanes == {"router": "router", "prefill": "P", **tps, "decode": "D"}
    assert sentences(shown)["transfer"] == (
        "300.0 MB went from p-engine-0 to d-engine-0 (NIXL WRITE, at least 5.9 GB/s over "
        "51.000 ms); the last of 3 ranks was tp1, at 353.000 ms, 34.000 ms after the median. "
        "Completion is polled, so this is an upper bound."
    )
    assert "the last of 3 ranks was tp1, at 303.000 ms" in sentences(shown)["submit"]


def on_another_clock(role: str, shape: Shape) -> list[SpanRecord]:
    """This role's engine has another clock than all others."""
    return [
        replace(span, resource={**span.resource, sc.CLOCK_ID: ANOTHER_CLOCK})
        if span.resource[sc.ROLE] == role
        else span
        for span in records(shape, "r")
    ]


def two_clocks(**shape: Any) -> list[SpanRecord]:
    """D has another clock than router and P."""
    return on_another_clock(sc.ROLE_DECODE, Shape(mode="pull", dispatch="sequential", **shape))


def test_phases_between_clocks_have_error_bars_and_may_not_be_resolved() -> None:
    """10 ms of hop against ± 4 are resolved, 3 ms of egress are not; the rest is exact."""
    spans = two_clocks(prefill=300 * MS, handing=0, hop=10 * MS, egress=3 * MS)
    shown = show(join(build(spans), pd.Series({"r": 4 * MS})), "r")
    crossing = {line.phase: line.resolved for line in shown.phases if line.crosses}
    assert crossing == {"hop": True, "egress": False}
    token = shown.window_ns - 3 * MS
    hop = next(line for line in shown.phases if line.phase == "hop")
    assert shown.whiskers == (
        Whisker("router", "egress", token, 4 * MS),
        Whisker("router", "hop", hop.to_ns, 4 * MS),
    )
    assert sentences(shown)["egress"].endswith("only known to ± 4.000 ms.")
    assert any(row.startswith("     ± ") and "├" in row for row in text(shown, 80))
    assert "± 4.000 ms" in shown.advice[1] and "several clocks" in shown.advice[2]


def behind(role: str, **longer_ms: int) -> Shown:
    """Legs sent together; P ends at 325 ms, and this role has a clock known to ± 4 ms."""
    lengths_ms = {"ingress": 5, "queue": 20, "prefill": 300, "handing": 0}
    lengths_ms |= {"dispatched": 1, "hop": 2, "admission": 1, "capacity": 1, "registration": 8}
    lengths_ms |= {"seen": 5, "requeue": 1, "first_decode": 9, "egress": 6} | longer_ms
    shape: dict[str, Any] = {name: ms * MS for name, ms in lengths_ms.items()}
    spans = on_another_clock(role, Shape(**shape, ranks=(Rank(0, MS, MS),)))
    return show(join(build(spans), pd.Series({"r": 4 * MS})), "r")


@pytest.mark.parametrize("exposed_ms", [3, 10])
@pytest.mark.parametrize(
    "phase, longer_ms",
    [
        ("hop", {"hop": 324}),
        ("retry", {"d_retry": 322}),
        ("admission", {"admission": 322}),
        ("decode_capacity", {"capacity": 321}),
        ("handshake", {"handshake": 316}),
    ],
)
def test_what_is_exposed_behind_another_clock_is_as_uncertain(
    phase: str, longer_ms: dict[str, int], exposed_ms: int
) -> None:
    """What D did before P ended is exact or long, yet its exposed part begins on P's clock."""
    ((name, ms),) = longer_ms.items()
    shown = behind(sc.ROLE_DECODE, **{name: ms + exposed_ms})
    crossing = {p.phase: (p.exposed_ns, p.resolved) for p in shown.phases if p.crosses}
    hop = {} if phase == "hop" else {"hop": (0, False)}
    registration = 4 if phase == "handshake" else 8
    assert crossing == {
        **hop,
        phase: (exposed_ms * MS, exposed_ms > 4),
        "registration": (registration * MS, True),
        "landed_to_seen": (5 * MS, True),
        "egress": (6 * MS, True),
    }
    doubt = "the clocks of the two ends of its exposed part are only known to ± 4.000 ms."
    assert sentences(shown)[phase].endswith(doubt) is (exposed_ms < 4)


def test_what_is_exposed_until_another_clock_is_as_uncertain() -> None:
    """P hands blocks over for 10 ms, of which D's waiting for capacity leaves it the first 3."""
    shown = behind(sc.ROLE_DECODE, handing=10, admission=325, capacity=20)
    crossing = {p.phase: (p.exposed_ns, p.resolved) for p in shown.phases if p.crosses}
    assert crossing["match"] == (3 * MS, False)
    assert crossing.keys() == {"match", "hop", "registration", "landed_to_seen", "egress"}


@pytest.mark.parametrize("role, at_ms", [(sc.ROLE_DECODE, 328), (sc.ROLE_PREFILL, 325)])
def test_an_exposed_part_has_its_error_bar_where_the_clock_is_not_the_arrivals(
    role: str, at_ms: int
) -> None:
    """At its end if that is D's, at its beginning if P's; what is wholly exposed has none."""
    shown = behind(role, admission=325)
    bars = {w for w in shown.whiskers if w.phase in ("admission", "decode_capacity")}
    assert bars == {Whisker("decode", "admission", at_ms * MS, 4 * MS)}


def test_an_estimated_offset_is_carried_into_the_picture() -> None:
    """A decode host is behind: hop 10.2 and egress 4.1 ms, each ± 4.1, drift aside."""
    handoffs = load([DATA / "c05_clock_skew.otlp.jsonl"]).handoffs
    (label,) = handoffs.requests.index
    shown = show(handoffs, label)
    crossing = {p.phase: (round(p.exposed_ns, -4), p.resolved) for p in shown.phases if p.crosses}
    assert crossing == {"hop": (10_200_000, True), "egress": (4_100_000, False)}
    assert [(w.phase, round(w.at_ns, -4)) for w in shown.whiskers] == [
        ("egress", 361_900_000),
        ("hop", 214_100_000),
    ]


def test_clocks_that_were_never_compared_draw_nothing() -> None:
    """The router's own TTFT stays; no bar is invented."""
    shown = show(join(build(two_clocks())), "r")
    assert (shown.pieces, shown.phases, shown.whiskers) == ((), (), ())
    assert shown.headline == "TTFT 0.000 ms"
    assert shown.advice == ("What its phases took is not known.",)
    assert ("clocks_not_aligned", FLAG_WORDS["clocks_not_aligned"]) in shown.facts


def test_a_request_without_a_first_token_shows_what_is_known() -> None:
    """Its phases up to the last one, the last span and the outcome; no TTFT and no drag."""
    writer = Writer("gone", "push")
    end, error = EPOCH_NS + 900 * MS, "aborted"
    writer.span(sc.SPAN_REQUEST, EPOCH_NS, end, status=2, error__type=error)
    writer.span(sc.SPAN_PREFILL_QUEUE, EPOCH_NS + 5 * MS, EPOCH_NS + 20 * MS, sc.ROLE_PREFILL)
    writer.span(sc.SPAN_PREFILL, EPOCH_NS + 20 * MS, EPOCH_NS + 220 * MS, sc.ROLE_PREFILL)
    shown = show(join(build(writer.records)), "gone")
    assert shown.headline == "No first token"
    assert [(line.phase, line.exposed_ns, line.drag_ns) for line in shown.phases] == [
        ("ingress", 5 * MS, None),
        ("prefill_queue", 15 * MS, None),
        ("prefill", 200 * MS, None),
    ]
    assert shown.window_ns == 220 * MS
    assert dict(shown.facts)["outcome"] == "aborted"
    assert shown.advice == (
        "The last that is known of it: pd.request on router ended with aborted, 900.000 ms after "
        "its arrival.",
    )


def test_a_request_of_which_nothing_is_drawn_is_still_told() -> None:
    """One span without any phase: facts, outcome, the last span."""
    writer = Writer("open", "push")
    writer.span(sc.SPAN_LEG, EPOCH_NS, EPOCH_NS + MS, pd__leg="prefill")
    shown = show(join(build(writer.records)), "open")
    assert (shown.pieces, shown.window_ns) == ((), 0)
    assert "it may still run" in dict(shown.facts)["outcome"]
    assert shown.advice[0].endswith("ended, 1.000 ms after its arrival.")


def test_a_request_that_only_others_tell_of_begins_with_the_first_known_instant() -> None:
    """vLLM's KV-connector log has neither arrival nor first token; its phases are shown."""
    logs = [DATA / "kv_log_prefill.log", DATA / "kv_log_decode.log"]
    shown = show(load(logs).handoffs, "8923dc80dda492bc")
    assert [(line.phase, line.exposed_ns, line.from_ns) for line in shown.phases] == [
        ("match", 4_500_000, 188_000_000),
        ("registration", 4_000_000, 0),
        ("submit", 2_500_000, 192_500_000),
        ("transfer", 31_000_000, 195_000_000),
    ]
    assert shown.headline == "Time of the first token not known"
    assert shown.advice[-1].startswith("When it arrived is not known")


def test_text_from_outside_cannot_steer_the_terminal() -> None:
    """Escape sequences and line ends in an id are written out."""
    shown = of(Shape(), "a\x1b[2J\nb")
    assert text(shown, 60)[0].startswith("request   a\\x1b[2J\\nb")
    assert not any("\x1b" in row or "\n" in row for row in text(shown, 60))


def test_every_flag_has_words() -> None:
    """A flag that the split can give is explained."""
    from pdtrace.analysis import evidence

    names = {"missing_router", "missing_prefill", "missing_decode", "missing_transfer"}
    names |= {"cold_handshake", "joined_by_request_id", "load_failed_recompute"}
    names |= {
        "second_registration",
        "retried",
        "several_choices",
        "partial_trace",
        evidence.ADJUSTED,
    }
    names |= {"foreign_evidence", evidence.LEASE_EXPIRED, evidence.MISPAIRED, evidence.PHANTOM}
    names |= {evidence.ABORTED, evidence.CLOCKS_NOT_ALIGNED, evidence.CLOCKS_NOT_KNOWN}
    assert names <= set(FLAG_WORDS)
