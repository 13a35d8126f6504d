"""The spans table: what is kept, what is left out and counted, and its schema."""

from dataclasses import replace

import pytest
from generator import Shape, records

from pdtrace.analysis.columns import REJECT_LONG_ID
from pdtrace.analysis.records import AttributeValue
from pdtrace.analysis.table import (
    EVENT_COLUMNS,
    REJECT_BACKWARDS,
    REJECT_DUPLICATE,
    REJECT_NO_REQUEST,
    SPAN_COLUMNS,
    TableError,
    build,
    validate,
)
from pdtrace.tracing import semconv as sc


def test_every_column_has_its_dtype_also_without_rows() -> None:
    """An empty table has the same schema as a full one."""
    for table in (build([]), build(records(Shape()))):
        validate(table.spans, SPAN_COLUMNS)
        validate(table.events, EVENT_COLUMNS)


def test_times_beyond_the_precision_of_a_float_survive() -> None:
    """Nanoseconds since 1970 do not fit a double."""
    odd = 1_795_946_400_123_456_789
    (span, *_) = records(Shape())
    table = build([replace(span, start_ns=odd, end_ns=odd + 1)])
    assert (table.spans["start_ns"][0], table.spans["end_ns"][0]) == (odd, odd + 1)


def test_unusable_spans_are_counted_by_reason() -> None:
    """Backwards, without a request, with an id that is none, and a copy."""
    (span, other, *_) = records(Shape())
    table = build(
        [
            span,
            span,
            replace(other, end_ns=other.start_ns - 1),
            replace(other, attributes={}),
            replace(other, attributes={**other.attributes, sc.REQUEST_ID: "x" * 1025}),
            replace(other, attributes={**other.attributes, sc.ENGINE_REQUEST_ID: "x" * 1024}),
        ]
    )
    assert table.rejected == {
        REJECT_BACKWARDS: 1, REJECT_NO_REQUEST: 1, REJECT_LONG_ID: 1, REJECT_DUPLICATE: 1,
    }  # fmt: skip
    assert len(table.spans) == 2


def test_the_longest_of_conflicting_copies_stays_in_any_order() -> None:
    """A stated rule, so that the order of reading decides nothing."""
    (span, *_) = records(Shape())
    longer = replace(span, end_ns=span.end_ns + 40)
    for pair in ([span, longer], [longer, span]):
        assert build(pair).spans["end_ns"].tolist() == [longer.end_ns]


@pytest.mark.parametrize("said, read", [(7, 7), ("7", 7), (7.0, 7), (7.5, None), (True, None)])
def test_integer_attributes_are_read_from_every_spelling(
    said: AttributeValue, read: int | None
) -> None:
    """Exporters write integers as numbers, text, or whole doubles."""
    (span, *_) = records(Shape())
    table = build([replace(span, attributes={**span.attributes, sc.OUTPUT_TOKENS: said})])
    assert table.spans["output_tokens"].dropna().tolist() == ([] if read is None else [read])


def test_a_wrong_column_is_named() -> None:
    """Validation happens once, at load, and says what is wrong."""
    spans = build(records(Shape())).spans
    with pytest.raises(TableError, match="'clock_id' is missing"):
        validate(spans.drop(columns="clock_id"), SPAN_COLUMNS)
    with pytest.raises(TableError, match="'start_ns' is float64, not int64"):
        validate(spans.astype({"start_ns": "float64"}), SPAN_COLUMNS)
