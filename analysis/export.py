"""Stores and files out as OTLP JSON lines, one request per line, in the strict form."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from pdtrace.analysis.intake import OtlpError
from pdtrace.analysis.otlp import json_to_protobuf, protobuf_to_json
from pdtrace.analysis.sources import Skipped, SourceError, read_messages


def json_lines(sources: Sequence[str | Path], notes: list[str]) -> Iterator[bytes]:
    """Every message of the sources as one line of strict OTLP JSON, line end included.

    Nothing is judged or deduplicated: what was received goes out. Appends sentences about what
    could not be read to `notes`. Raises `SourceError` as `read_spans` does.
    """
    written = 0
    for source in map(Path, sources):
        skipped = Skipped()
        for message in read_messages(source, skipped):
            try:
                data = message if isinstance(message, bytes) else json_to_protobuf(message)
                line = protobuf_to_json(data)
            except OtlpError as error:
                skipped.count_not_traces(str(error))
                continue
            written += 1
            yield line + b"\n"
        notes += skipped.sentences(source)
    if not written:
        names = ", ".join(map(str, sources))
        raise SourceError("; ".join([f"no OTLP traces in {names}", *notes]))
