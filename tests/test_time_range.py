"""Time ranges as people write them."""

import pytest

from pdtrace.cli.time_range import TimeRange, TimeRangeError

S = 1_000_000_000
END = 1_795_946_400 * S  # 2026-11-29 10:00:00 UTC


@pytest.mark.parametrize(
    "text, start, end",
    [
        ("2026-11-29T09:00:00Z..2026-11-29T09:30:00Z", END - 3600 * S, END - 1800 * S),
        ("2026-11-29T11:00:00+02:00..", END - 3600 * S, None),
        ("2026-11-29 09:00..2026-11-29 09:30", END - 3600 * S, END - 1800 * S),
        ("2026-11-29T09:59:59.123456Z..", END - 876_544_000, None),
        ("-30m", END - 1800 * S, None),
        ("-1.5h..-90s", END - 5400 * S, END - 90 * S),
        ("..-1d", None, END - 86400 * S),
        ("2026-11-29 .. now", END - 36_000 * S, END + 1),
    ],
)
def test_a_range_is_start_and_end(text: str, start: int | None, end: int | None) -> None:
    """ISO 8601 with or without zone, or counted back from the end; one side may be open."""
    assert TimeRange.parse(text).at(END) == (start, end)


@pytest.mark.parametrize(
    "text, words",
    [
        ("", "no time range"),
        ("..", "no time range"),
        ("yesterday..", "'yesterday' is no time"),
        ("-30..", "'-30' is no time"),
        ("2026-11-29", "has no end"),
        ("-10m..-20m", "must not end before it begins"),
        ("2026-11-29T25:00:00Z..", "is no time"),
    ],
)
def test_what_is_no_range_is_told_in_a_sentence(text: str, words: str) -> None:
    """Which part, and how to write it."""
    with pytest.raises(TimeRangeError, match=words):
        TimeRange.parse(text).at(END)
