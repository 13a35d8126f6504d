"""What a request was, beside its times: the sizes, caches and hosts that its spans name."""

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from generator import Rank, Shape, records

from pdtrace.analysis.handoffs import join
from pdtrace.analysis.records import AttributeValue, SpanRecord
from pdtrace.analysis.store import read_spans
from pdtrace.analysis.table import build
from pdtrace.tracing import semconv as sc

DATA = Path(__file__).parent / "data"
COLUMNS = [
    "model", "prefill_host", "decode_host", "input_tokens", "prefill_cached_tokens",
    "external_tokens", "prefill_preemptions", "decode_preemptions", "transfer_bytes",
    "transfer_descriptors",
]  # fmt: skip


def facts(spans: list[SpanRecord]) -> list[list[object]]:
    rows = join(build(spans)).requests[COLUMNS]
    return [[None if pd.isna(v) else v for v in row] for row in rows.astype(object).values]


def saying(spans: list[SpanRecord], **said: AttributeValue) -> list[SpanRecord]:
    """Every WRITE says these of itself."""
    return [
        replace(s, attributes={**s.attributes, **said}) if s.name == sc.SPAN_WRITE_SUBMIT else s
        for s in spans
    ]


def test_a_request_is_described_by_what_its_spans_say() -> None:
    """A handoff of one rank, in a file of known content."""
    spans = read_spans([DATA / "c16_push_modes.otlp.jsonl"]).records
    row = ["demo-8b", "node-a", "node-a", 4800, 0, 4799, 0, 0, 629145600, 300]
    assert facts(spans) == [row, row, row]


def test_what_several_ranks_move_is_added() -> None:
    """Each rank names its own part; a rank that reports twice counts once."""
    spans = records(Shape(ranks=(Rank(), Rank(), Rank())))
    spans = saying(spans, **{sc.TRANSFER_BYTES: 1000, sc.TRANSFER_DESCRIPTORS: 7})
    again = [
        replace(s, span_id=f"f{s.span_id[1:]}") for s in spans if s.name == sc.SPAN_WRITE_SUBMIT
    ]
    assert facts(spans)[0][-2:] == facts([*spans, *again])[0][-2:] == [3000, 21]


@pytest.mark.parametrize("silent", [0, 1])
def test_a_sum_that_lacks_a_rank_is_not_known(silent: int) -> None:
    """One of two ranks does not say what it moved: the whole is not known, not smaller."""
    spans = saying(records(Shape(ranks=(Rank(), Rank()))), **{sc.TRANSFER_BYTES: 1000})
    spans = [
        replace(s, attributes={**s.attributes, sc.TRANSFER_BYTES: ""})
        if s.name == sc.SPAN_WRITE_SUBMIT and s.resource[sc.TP_RANK] == silent
        else s
        for s in spans
    ]
    assert facts(spans)[0][-2:] == [None, None]
