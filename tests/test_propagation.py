"""W3C trace context in and out."""

import pytest

from pdtrace.tracing.ids import derived_trace_id
from pdtrace.tracing.propagation import (
    TraceContext,
    context_of,
    format_traceparent,
    parse_traceparent,
    traceparent_of,
)

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"
VALID = f"00-{TRACE}-{PARENT}-01"


def test_a_valid_traceparent_is_read() -> None:
    """Trace id, parent and the sampled flag."""
    assert parse_traceparent(VALID) == TraceContext(int(TRACE, 16), int(PARENT, 16), True)
    unsampled = parse_traceparent(f"00-{TRACE}-{PARENT}-00")
    assert unsampled is not None and unsampled.sampled is False


def test_a_later_version_may_carry_more() -> None:
    """The specification lets unknown versions append fields."""
    assert parse_traceparent(f"cc-{TRACE}-{PARENT}-01-what") is not None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "00",
        f"ff-{TRACE}-{PARENT}-01",
        f"00-{'0' * 32}-{PARENT}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE[:-1]}-{PARENT}-01",
        f"00-{TRACE}-{PARENT}-01x",
        "\x00" * 55,
    ],
)
def test_malformed_context_is_no_context(text: str) -> None:
    """It is ignored, never repaired and never an error."""
    assert parse_traceparent(text) is None


def test_what_is_formatted_is_read_back() -> None:
    """Formatting and parsing are inverse."""
    context = TraceContext(int(TRACE, 16), int(PARENT, 16), True)
    assert parse_traceparent(format_traceparent(*context)) == context


def test_without_context_the_trace_is_derived_and_has_no_parent() -> None:
    """Both engines reach the same trace id with nothing propagated."""
    assert context_of("", "abc") == TraceContext(derived_trace_id("abc"), 0, True)
    assert context_of("garbage", "abc") == TraceContext(derived_trace_id("abc"), 0, True)


def test_headers_come_before_the_body() -> None:
    """The first valid one of the two carriers is taken; a broken header does not hide the body."""
    other = f"00-{TRACE}-{'1' * 16}-01"
    assert traceparent_of({"traceparent": VALID}, {"traceparent": other}) == VALID
    assert traceparent_of({"traceparent": "broken"}, {"traceparent": other}) == other
    assert traceparent_of(None, None) == ""
    assert traceparent_of({}, {"traceparent": 7}) == ""
