"""Span records from any mix of stores, files, directories and globs."""

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from pdtrace.analysis import jaeger, kv_log
from pdtrace.analysis.counted import plural
from pdtrace.analysis.foreign_dynamo import parse_trace, trace_event
from pdtrace.analysis.ids import TRACE_ID_BYTES, hex_id
from pdtrace.analysis.intake import OtlpError, Tally
from pdtrace.analysis.otlp import parse_object, parse_request
from pdtrace.analysis.producers import adapter
from pdtrace.analysis.records import SpanRecord
from pdtrace.analysis.segments import StoreError, StoreWriter, is_store
from pdtrace.analysis.sources import (
    Batch,
    Document,
    Limits,
    Message,
    Place,
    SourceError,
    expand,
    read_messages,
)

__all__ = [
    "Batch",
    "Limits",
    "Reading",
    "SourceError",
    "SpanBatch",
    "StoreError",
    "StoreWriter",
    "is_store",
    "read_spans",
]


@dataclass(frozen=True, slots=True)
class SpanBatch:
    """Every span that was read, in the order of reading, copies of a span included.

    `notes` are sentences for the user about everything that was left out; `rejected` counts
    unusable spans by reason. `partial` is true when a trace store marked its own answer as cut.
    """

    records: list[SpanRecord]
    notes: list[str]
    rejected: dict[str, int]
    partial: bool = False


def read_spans(sources: Sequence[str | Path]) -> SpanBatch:
    """All spans of the sources with all their attributes: for few of them; `tabulate` is for many.

    Raises `SourceError` when a source is missing, when it holds no traces, or when there is no
    usable span in all of them.
    """
    reading = Reading()
    records: list[SpanRecord] = []
    for found in reading.messages(sources):
        if isinstance(found, Batch):
            raise SourceError("a Parquet table keeps no records: tabulate it")
        records += found
    if not records:
        raise SourceError(reading.nothing(sources))
    return SpanBatch(
        records=records,
        notes=reading.notes + reading.tally_notes(),
        rejected=dict(reading.tally.rejected),
        partial=reading.tally.partial > 0,
    )


@contextmanager
def no_cycle_search() -> Iterator[None]:
    """Records have no cycles; searching millions of them again and again doubles the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@dataclass(slots=True)
class Reading:
    """One pass over sources: what comes out of it, and everything that was left out."""

    limits: Limits = field(default_factory=Limits)
    as_rows: bool = False
    """Rows are wanted where they are to be had sooner than records."""
    tally: Tally = field(default_factory=Tally)
    notes: list[str] = field(default_factory=list)
    passed_over: list[str] = field(default_factory=list)
    """Files in directories that hold no spans, and why."""

    def messages(self, sources: Sequence[str | Path]) -> Iterator[list[SpanRecord] | Batch]:
        """The records of one message after the other; of a spans table batches of its rows.

        Raises `SourceError` when a source is missing or holds no traces; a file that was only
        found in a directory is passed over instead, unless all of them are.
        """
        self.tally.span_bytes = self.limits.span_bytes
        places = expand(sources)
        with no_cycle_search():
            for place in places:
                yield from self._place(place)
        if places and len(self.passed_over) == len(places):
            raise SourceError(f"no traces in {names(sources)}: {self.passed_over[0]}")

    def _place(self, place: Place) -> Iterator[list[SpanRecord] | Batch]:
        try:
            yield from self._read(place)
        except SourceError as error:
            if not place.searched:
                raise
            self.passed_over.append(str(error))

    def _read(self, place: Place) -> Iterator[list[SpanRecord] | Batch]:
        understood = isinstance(place.path, Path) and is_store(place.path)
        skipped = place.skipped
        for message in read_messages(place.path, skipped, self.limits, self.as_rows):
            if isinstance(message, Batch):
                understood = True
                yield message
                continue
            try:
                records = _parse(message, self.tally)
            except OtlpError as error:
                skipped.count_not_traces(str(error))
                continue
            understood = True
            yield self._adapted(records)
        if not understood:
            kinds = ", ".join(skipped.not_traces) or "nothing in it can be read"
            raise SourceError(f"{place.path} holds no traces: {kinds}")
        self.notes += skipped.sentences(place.path)
        self.tally.partial += skipped.incomplete

    def _adapted(self, records: list[SpanRecord]) -> list[SpanRecord]:
        """The records, those of other producers in the words of our own."""
        for place, record in enumerate(records):
            adapt = adapter(record.name)
            if adapt is not None:
                records[place] = adapt(record, self.tally)
        return records

    def tally_notes(self) -> list[str]:
        """Sentences about spans that were refused, values that were ignored, precision lost."""
        tally = self.tally
        notes = [
            f"rejected {plural(n, 'span')}: {why}"
            + (f" (the first: {tally.examples[why]})" if why in tally.examples else "")
            for why, n in tally.rejected.items()
        ]
        notes += [f"ignored {plural(n, 'value')}: {what}" for what, n in tally.ignored.items()]
        if tally.float_times:
            times = plural(tally.float_times, "time")
            notes.append(f"{times} written as floating point: exact to 256 ns only")
        if tally.micro_times:
            spans = plural(tally.micro_times, "span")
            notes.append(f"{spans} of Jaeger, whose times are whole microseconds: exact to 1 µs")
        if tally.adjusted:
            spans = plural(tally.adjusted, "span")
            notes.append(f"{spans} whose times the trace store moved (clock skew adjustment)")
        if tally.dropped_events:
            notes.append(f"dropped {plural(tally.dropped_events, 'span event')} without a time")
        if self.passed_over:
            files = plural(len(self.passed_over), "file")
            notes.append(f"passed over {files} without traces ({self.passed_over[0]})")
        if tally.partial:
            notes.append("the trace store marked its answer as partial: spans are missing from it")
        return notes

    def nothing(self, sources: Sequence[object]) -> str:
        """Why there is no usable span."""
        why = "; ".join(self.tally_notes() + self.notes)
        if self.tally.listed:
            found = plural(len(self.tally.listed), "trace")
            why = f"a search result names {found} and holds no spans: give the traces themselves"
        return f"no usable span in {names(sources)}" + (f" ({why})" if why else "")


def names(sources: Sequence[object]) -> str:
    """The sources for a sentence."""
    return ", ".join(map(str, sources)) or "no source"


def _parse(message: Message, tally: Tally) -> list[SpanRecord]:
    if isinstance(message, bytes):
        return parse_request(message, tally)
    assert isinstance(message, Document)
    value, size = message
    if kv_log.is_event(value):
        return kv_log.parse_event(value, tally)
    if jaeger.is_jaeger(value):
        return jaeger.parse_jaeger(value, tally, size)
    event = trace_event(value)
    if event is not None:
        return parse_trace(event, tally)
    listed = _listed(value)
    if listed:
        tally.listed += listed
        return []
    return parse_object(value, tally, size)


def _listed(value: dict[str, object]) -> list[str]:
    """Trace ids of a result of Tempo's search, which holds no spans; their zeros restored."""
    traces = value.get("traces")
    if not isinstance(traces, list):
        return []
    ids = [one.get("traceID", one.get("traceId")) for one in traces if isinstance(one, dict)]
    return [found for found in (hex_id(text, TRACE_ID_BYTES) for text in ids) if found]
