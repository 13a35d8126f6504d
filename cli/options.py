"""Options that several commands share: how much of a source may be read."""

from typing import Annotated, Final

import typer

from pdtrace.analysis.sources import DEFAULT_LIMITS

SpanBytes = Annotated[
    int,
    typer.Option(
        "--max-span-bytes", min=1, help="A span larger than this is left out, and counted."
    ),
]
PlainBytes = Annotated[
    int,
    typer.Option(
        "--max-decompressed-bytes",
        min=1,
        help="Of a compressed file no more than this is read, and it is said.",
    ),
]
SPAN_BYTES: Final = DEFAULT_LIMITS.span_bytes
PLAIN_BYTES: Final = DEFAULT_LIMITS.plain_bytes
