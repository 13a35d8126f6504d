"""Small OTLP documents, each with one span that has a number, and sources made of them."""

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa

from pdtrace.analysis.framing import framed
from pdtrace.analysis.otlp import json_to_protobuf
from pdtrace.analysis.store import StoreWriter, read_spans
from pdtrace.analysis.tabulate import tabulate

START_NS = 1_795_946_400_000_000_000


def document(number: int, **changes: Any) -> dict[str, Any]:
    span = {
        "traceId": f"{number:032x}",
        "spanId": f"{number:016x}",
        "name": "a.step",
        "startTimeUnixNano": str(START_NS),
        "endTimeUnixNano": str(START_NS + number),
    }
    return {"resourceSpans": [{"scopeSpans": [{"spans": [span | changes]}]}]}


def message(number: int, **changes: Any) -> bytes:
    return json_to_protobuf(document(number, **changes))


def json_lines(*documents: dict[str, Any]) -> bytes:
    return b"".join(json.dumps(doc).encode() + b"\n" for doc in documents)


def zstd(data: bytes) -> bytes:
    return bytes(pa.compress(data, "zstd", asbytes=True))


def in_four_bytes(*messages: bytes) -> bytes:
    """Messages with their lengths, as the Collector's file exporter writes them."""
    return b"".join(len(one).to_bytes(4, "big") + one for one in messages)


def write_every_format(where: Path) -> list[Path]:
    """The same two spans as every kind of source."""
    one, two = document(1), document(2)
    both = {"resourceSpans": one["resourceSpans"] + two["resourceSpans"]}
    with StoreWriter(where / "store") as writer:
        writer.append(message(1))
        writer.append(message(2))
    contents = {
        "lines": json_lines(one, two),
        "blank-lines": b"\n\r\n" + json_lines(one) + b"\n" + json_lines(two) + b"\n",
        "no-last-line-end": json_lines(one, two).rstrip(),
        "byte-order-mark": b"\xef\xbb\xbf" + json_lines(one, two),
        "object": json.dumps(both, indent=1).encode(),
        "array": json.dumps([one, two], indent=1).encode(),
        "message": json_to_protobuf(both),
        "framed": framed(message(1)) + framed(message(2)),
        "four-bytes": in_four_bytes(message(1), message(2)),
        "four-bytes-zstd": in_four_bytes(zstd(message(1)), zstd(message(2))),
        "four-bytes-zstd-json": in_four_bytes(*(zstd(json.dumps(d).encode()) for d in (one, two))),
    }
    contents |= {f"{name}-gz": gzip.compress(data) for name, data in contents.items()}
    contents["lines-gz-members"] = gzip.compress(json_lines(one)) + gzip.compress(json_lines(two))
    for name, data in contents.items():
        (where / name).write_bytes(data)
    return [where / "store", *(where / name for name in contents)]


def numbers(*sources: Path) -> list[int]:
    """Which spans are read, by the number that `document` gave them."""
    return [int(record.span_id, 16) for record in read_spans(sources).records]


def spans(*sources: Path) -> list[int]:
    """Which spans the table has, by the number that `document` gave them."""
    return [int(text, 16) for text in tabulate(sources).table.spans["span_id"]]
