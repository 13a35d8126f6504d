"""Stores and files out: as OTLP JSON lines, or as the spans table in Parquet."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from pdtrace.analysis.hours import in_order, with_kept, write_hours
from pdtrace.analysis.intake import OtlpError
from pdtrace.analysis.otlp import json_to_protobuf, protobuf_to_json
from pdtrace.analysis.sources import (
    DEFAULT_LIMITS,
    Batch,
    Limits,
    SourceError,
    expand,
    read_messages,
)
from pdtrace.analysis.spill import Spill
from pdtrace.analysis.tabulate import collect


def json_lines(sources: Sequence[str | Path], notes: list[str]) -> Iterator[bytes]:
    """Every message of the sources as one line of strict OTLP JSON, line end included.

    Nothing is judged or deduplicated: what was received goes out. Appends sentences about what
    could not be read to `notes`. Raises `SourceError` as `tabulate` does.
    """
    written = 0
    for place in expand(sources):
        skipped = place.skipped
        for message in read_messages(place.path, skipped):
            if isinstance(message, Batch):
                skipped.count_not_traces("a spans table, which keeps no whole spans")
                continue
            try:
                data = message if isinstance(message, bytes) else json_to_protobuf(message.value)
                line = protobuf_to_json(data)
            except OtlpError as error:
                skipped.count_not_traces(str(error))
                continue
            written += 1
            yield line + b"\n"
        notes += skipped.sentences(place.path)
    if not written:
        names = ", ".join(map(str, sources))
        raise SourceError("; ".join([f"no OTLP traces in {names}", *notes]))


def to_parquet(
    sources: Sequence[str | Path], directory: Path, limits: Limits = DEFAULT_LIMITS
) -> tuple[list[Path], list[str], bool]:
    """The spans table of the sources, into one file an hour: the files, notes, and `partial`.

    What an hour's file holds already stays in it, each span once, so exporting again adds only
    what is new. Raises `SourceError` as `tabulate` does, `OSError` when a file cannot be written.
    """
    spill = Spill()
    builder, reading = collect(sources, limits, spill)
    builder.spill_rest()
    if not spill.paths:
        raise SourceError(reading.nothing(sources))
    written = write_hours(in_order(with_kept(spill.paths, directory)), directory)
    return written, [*reading.notes, *reading.tally_notes()], reading.tally.partial > 0
