"""Options of every command that reads sources: how much of them, what a trace store is asked."""

import functools
import inspect
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from pdtrace.analysis.query import LIMIT, SINCE, Query, QueryError, instant_ns, length_ns
from pdtrace.analysis.sources import DEFAULT_LIMITS, Limits

Sources = Annotated[
    list[str],
    typer.Argument(help="Stores, files, directories, globs, addresses (s3://…, Tempo, Jaeger)."),
]
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


def _limits(
    span_bytes: SpanBytes = DEFAULT_LIMITS.span_bytes,
    plain_bytes: PlainBytes = DEFAULT_LIMITS.plain_bytes,
    since: Since = SINCE,
    until: Until = "now",
    service: Service = "",
    min_duration: MinDuration = "",
    limit: Limit = LIMIT,
    token_file: TokenFile = None,
    tenant: Tenant = "",
) -> Limits:
    """What the options say; raises `typer.BadParameter`."""
    now_ns = time.time_ns()
    try:
        query = Query(
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
    return Limits(span_bytes, plain_bytes, query)


def reading(command: Callable[..., None]) -> Callable[..., None]:
    """The command with these options in the place of its parameter `limits`.

    Typer reads a command's options off its signature, so that is where they are put.
    """
    own, options = inspect.signature(command), inspect.signature(_limits)

    @functools.wraps(command)
    def called(**given: object) -> None:
        asked: dict[str, Any] = {name: given.pop(name) for name in options.parameters}
        command(**given, limits=_limits(**asked))

    kept = [one for one in own.parameters.values() if one.name != "limits"]
    every = [*kept, *options.parameters.values()]
    shown: Any = called
    shown.__signature__ = own.replace(
        parameters=[one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in every]
    )
    shown.__annotations__ = {one.name: one.annotation for one in every}
    return called


def sayable(texts: Sequence[str] | None) -> tuple[str, ...]:
    """Arguments as text: bytes that are none are in no name, so anything may stand for them."""
    return tuple(text.encode("utf-8", "replace").decode() for text in texts or ())
