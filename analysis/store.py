"""Span records from any mix of stores and files, each span once."""

import gc
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Final

from pdtrace.analysis import kv_log
from pdtrace.analysis.intake import OtlpError, Tally
from pdtrace.analysis.otlp import parse_object, parse_request
from pdtrace.analysis.records import SpanRecord
from pdtrace.analysis.segments import StoreError, StoreWriter, is_store
from pdtrace.analysis.sources import Message, Skipped, SourceError, plural, read_messages

__all__ = [
    "SourceError",
    "SpanBatch",
    "StoreError",
    "StoreWriter",
    "is_store",
    "read_spans",
]

_CONFLICTS_NAMED: Final = 10


@dataclass(frozen=True, slots=True)
class SpanBatch:
    """What was read. `notes` are sentences for the user about everything that was left out.

    `rejected` counts unusable spans by reason. `partial` is true when a trace store marked its
    own answer as cut, so that what is missing says nothing about the system traced.
    """

    records: list[SpanRecord]
    notes: list[str]
    rejected: dict[str, int]
    partial: bool = False


def read_spans(sources: Sequence[str | Path]) -> SpanBatch:
    """Read store directories, OTLP files (JSON or protobuf, also gzip) and vLLM's logs with the
    lines of `kv_log`, told by content.

    Of spans with one trace id and span id the first is kept; copies are counted, and noted as
    conflicting when their content differs. Raises `SourceError` when a source is missing or not
    OTLP, or when there is no usable span in all of them.
    """
    reading = _Reading()
    with _no_cycle_search():
        for source in sources:
            reading.read(Path(source))
    if not reading.spans:
        raise SourceError(_nothing(sources, reading))
    return SpanBatch(
        records=list(reading.spans.values()),
        notes=reading.notes + _tally_notes(reading.tally) + reading.duplicate_notes(),
        rejected=dict(reading.tally.rejected),
        partial=reading.tally.partial > 0,
    )


@contextmanager
def _no_cycle_search() -> Iterator[None]:
    """Records have no cycles; searching millions of them again and again doubles the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@dataclass(slots=True)
class _Reading:
    spans: dict[tuple[str, str], SpanRecord] = field(default_factory=dict)
    tally: Tally = field(default_factory=Tally)
    notes: list[str] = field(default_factory=list)
    copies: int = 0
    conflicts: Counter[tuple[str, str]] = field(default_factory=Counter)

    def read(self, source: Path) -> None:
        skipped = Skipped()
        understood = is_store(source)
        for message in read_messages(source, skipped):
            try:
                records = _parse(message, self.tally)
            except OtlpError as error:
                skipped.count_not_traces(str(error))
                continue
            understood = True
            for record in records:
                self._keep(record)
        if not understood:
            kinds = ", ".join(skipped.not_traces) or "nothing in it can be read"
            raise SourceError(f"{source} holds no OTLP traces: {kinds}")
        self.notes += skipped.sentences(source)

    def _keep(self, record: SpanRecord) -> None:
        key = (record.trace_id, record.span_id)
        first = self.spans.setdefault(key, record)
        if first is record:
            return
        if first == record:
            self.copies += 1
        else:
            self.conflicts[key] += 1

    def duplicate_notes(self) -> list[str]:
        notes = []
        if self.copies:
            spans = plural(self.copies, "span")
            notes.append(f"dropped {spans} that came again with the same content")
        for key, count in islice(self.conflicts.items(), _CONFLICTS_NAMED):
            kept = self.spans[key]
            notes.append(
                f"span {kept.name} {kept.span_id} of trace {kept.trace_id} came again "
                f"with other content ({plural(count, 'time')}); the first is kept"
            )
        unnamed = len(self.conflicts) - _CONFLICTS_NAMED
        if unnamed > 0:
            notes.append(f"{plural(unnamed, 'more span')} came again with other content")
        return notes


def _parse(message: Message, tally: Tally) -> list[SpanRecord]:
    if isinstance(message, bytes):
        return parse_request(message, tally)
    if kv_log.is_event(message):
        return kv_log.parse_event(message, tally)
    return parse_object(message, tally)


def _tally_notes(tally: Tally) -> list[str]:
    notes = [f"rejected {plural(n, 'span')}: {why}" for why, n in tally.rejected.items()]
    if tally.float_times:
        times = plural(tally.float_times, "time")
        notes.append(f"{times} written as floating point: exact to 256 ns only")
    if tally.dropped_events:
        notes.append(f"dropped {plural(tally.dropped_events, 'span event')} without a time")
    if tally.partial:
        notes.append("the trace store marked its answer as partial: spans are missing from it")
    return notes


def _nothing(sources: Sequence[str | Path], reading: _Reading) -> str:
    names = ", ".join(map(str, sources)) or "no source"
    why = "; ".join(_tally_notes(reading.tally) + reading.notes)
    return f"no usable span in {names}" + (f" ({why})" if why else "")
