"""Anchors: placement on the wall clock, and what a step of it does."""

import os
import time
from pathlib import Path

from pdtrace.tracing import semconv as sc
from pdtrace.tracing.clock import STEP_NS, Anchor, Clock, clock_id, namespace_ns, process_clock
from pdtrace.tracing.testing import EPOCH_NS, SettableClock


def test_an_anchor_places_a_monotonic_instant() -> None:
    """Unix time is the instant plus the anchor's offset, as integers."""
    assert Anchor(5).to_wall_ns(37) == 42


def test_a_step_of_the_wall_clock_starts_a_new_anchor() -> None:
    """The old anchor keeps its offset, so a span that began on it is not bent."""
    clock = SettableClock()
    before = clock.anchor()
    clock.step = 3_600 * 10**9
    assert clock.refresh() is True
    assert before.to_wall_ns(1) == EPOCH_NS + 1
    assert clock.anchor().to_wall_ns(1) == EPOCH_NS + 1 + clock.step


def test_jitter_is_no_step() -> None:
    """Reading differences up to the threshold keep the anchor."""
    clock = SettableClock()
    before = clock.anchor()
    clock.step = STEP_NS
    assert clock.refresh() is False
    assert clock.anchor() is before


def test_the_tightest_reading_wins() -> None:
    """Of several readings the one with the least time between its two sides gives the offset."""
    widths = iter([50, 4, 90, 60, 70])
    now = [1000]

    def mono() -> int:
        return now[0]

    def wall() -> int:
        width = next(widths)
        now[0] += width
        return 5_000 + now[0] - width // 2

    assert Clock(wall, mono).anchor() == Anchor(5_000)


def test_the_real_clock_agrees_with_the_system() -> None:
    """Wall time by the anchor lies between two readings of the system's clock."""
    clock = Clock()
    slack = STEP_NS
    before = time.time_ns()
    assert before - slack <= clock.wall_now_ns() <= time.time_ns() + slack


def test_two_processes_of_one_boot_share_the_clock_id() -> None:
    """The id is the kernel's boot id."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write_end, clock_id().encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read_end, 100).decode() == clock_id() != ""


def test_only_a_later_anchor_is_stated_by_spans() -> None:
    """The first one is stated by the resource."""
    clock = SettableClock()
    assert clock.anchor().restated() == {} and clock.anchor() is clock.first
    clock.step = 7 * STEP_NS
    clock.refresh()
    assert clock.anchor().restated() == {sc.CLOCK_ANCHOR_NS: EPOCH_NS + 7 * STEP_NS}


def test_an_anchor_is_stated_by_the_monotonic_clock_of_the_host(tmp_path: Path) -> None:
    """In a time namespace the monotonic clock is ahead by what the kernel tells."""
    offsets = tmp_path / "timens_offsets"
    offsets.write_text("monotonic        3600        25\nboottime            0         0\n")
    inside = Clock(lambda: 10**18, lambda: 4_000_000_000_000, namespace_ns(offsets))
    assert inside.first.of_host_ns == 10**18 - 400_000_000_000 + 25
    assert inside.first.to_wall_ns(4_000_000_000_000) == 10**18


def test_a_kernel_without_time_namespaces_has_no_offset(tmp_path: Path) -> None:
    """Or one that tells something else."""
    assert namespace_ns(tmp_path / "none") == 0
    (tmp_path / "other").write_text("monotonic soon\n")
    assert namespace_ns(tmp_path / "other") == 0


def test_a_process_has_one_clock() -> None:
    """All recorders of an engine place their spans by one anchor."""
    assert process_clock() is process_clock()
