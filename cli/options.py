"""Options that several commands share: how much of a source is read."""

import time
from pathlib import Path
from typing import Annotated, Final

import typer

from pdtrace.analysis.query import Query, QueryError, instant_ns, length_ns
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

Since = Annotated[
    str,
    typer.Option(help="Of a running trace store: from (1h before now, a date, Unix s)."),
]
Until = Annotated[str, typer.Option(help="Of a running trace store: up to.")]
Service = Annotated[str, typer.Option(help="Of a running trace store: traces of this service.")]
MinDuration = Annotated[
    str, typer.Option(help="Of a running trace store: traces that took at least 250ms, 2s, ...")
]
Limit = Annotated[
    int, typer.Option(min=1, help="Of a running trace store: at most so many traces.")
]
TokenFile = Annotated[
    Path | None, typer.Option(help="File with the bearer token of a running trace store.")
]
Tenant = Annotated[str, typer.Option(help="Tenant of a running trace store (X-Scope-OrgID).")]


def asked(
    since: str,
    until: str,
    service: str,
    min_duration: str,
    limit: int,
    token_file: Path | None,
    tenant: str,
) -> Query:
    """What a running trace store is asked for; raises `typer.BadParameter`."""
    now_ns = time.time_ns()
    try:
        return Query(
            since_ns=instant_ns(since, now_ns),
            until_ns=instant_ns(until, now_ns),
            service=service,
            min_duration_ns=length_ns(min_duration) if min_duration else 0,
            limit=limit,
            token_file=token_file,
            tenant=tenant,
        )
    except QueryError as error:
        raise typer.BadParameter(str(error)) from error
