"""What a finished run left in its store: spans by request, and the split that they give."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import orjson

from pdtrace.analysis import report
from pdtrace.analysis.load import load
from pdtrace.analysis.records import SpanRecord
from pdtrace.analysis.split import split
from pdtrace.analysis.store import read_spans
from pdtrace.tracing import semconv as sc


@dataclass(frozen=True, kw_only=True)
class Traces:
    """`records`: the spans, all on one anchor, so that times of processes can be compared.
    `splits`: the lines of `pdtrace split --json` by request id."""

    records: Sequence[SpanRecord]
    splits: dict[str, dict[str, Any]]

    @classmethod
    def of(cls, source: Path, **more: Any) -> Self:
        """Everything in a store, of which nothing was left out."""
        batch = read_spans([source])
        assert not batch.notes and not batch.rejected
        done = split(load([source]).handoffs)
        lines = [orjson.loads(line) for line in report.json_lines(done)]
        splits = {line["request_id"]: line for line in lines}
        return cls(records=on_one_anchor(batch.records), splits=splits, **more)

    def spans(self, request_id: str, name: str | None = None) -> list[SpanRecord]:
        """The request's spans in order of start, those of a name if given."""
        mine = [r for r in self.records if r.attributes.get(sc.REQUEST_ID) == request_id]
        return sorted(
            (span for span in mine if name in (None, span.name)), key=lambda span: span.start_ns
        )

    def span(self, request_id: str, name: str, role: str | None = None) -> SpanRecord:
        """The request's one span of a name, on engines of a role if given."""
        found = self.spans(request_id, name)
        (one,) = [span for span in found if role in (None, span.resource[sc.ROLE])]
        return one

    def count(self, request_id: str) -> dict[str, int]:
        """How many spans of each name the request has."""
        names = [span.name for span in self.spans(request_id)]
        return {name: names.count(name) for name in names}


def on_one_anchor(records: Sequence[SpanRecord]) -> list[SpanRecord]:
    """As one process of the host would have placed them, had it written all."""
    said = [{**r.resource, **r.attributes}.get(sc.CLOCK_ANCHOR_NS) for r in records]
    anchors = [anchor if isinstance(anchor, int) else 0 for anchor in said]
    return [_earlier(r, a - min(anchors)) for r, a in zip(records, anchors, strict=True)]


def _earlier(record: SpanRecord, by_ns: int) -> SpanRecord:
    return replace(
        record,
        start_ns=record.start_ns - by_ns,
        end_ns=record.end_ns - by_ns,
        events=tuple(replace(e, time_ns=e.time_ns - by_ns) for e in record.events),
        attributes={k: v for k, v in record.attributes.items() if k != sc.CLOCK_ANCHOR_NS},
        resource={k: v for k, v in record.resource.items() if k != sc.CLOCK_ANCHOR_NS},
    )


def assert_exact_and_complete(line: dict[str, Any], most_unattributed: float = 0.05) -> None:
    """Classes and phases sum to TTFT to the nanosecond; next to nothing is unattributed."""
    assert sum(line["classes"].values()) == line["ttft_ns"]
    assert sum(line["phases"].values()) == line["ttft_ns"]
    assert line["classes"]["unattributed"] <= most_unattributed * line["ttft_ns"]
