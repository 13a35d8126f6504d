"""`pdtrace collect`: receive OTLP and keep it in a store until told to stop."""

import ipaddress
import json
import signal
import threading
from pathlib import Path
from typing import Annotated, Final, NoReturn

import typer

from pdtrace.analysis.atomic import atomic_file
from pdtrace.analysis.collect import GRPC_PORT, HTTP_PORT, Collector, ListenError
from pdtrace.analysis.counted import plural
from pdtrace.analysis.receive import Counts
from pdtrace.analysis.retention import Retention
from pdtrace.analysis.security import SecurityError, Tls, Token
from pdtrace.analysis.segments import KEEP_ALL, StoreError, StoreWriter

_MB: Final = 1 << 20
_GB: Final = 1 << 30
_TIDY_S: Final = 1.0

app = typer.Typer(add_completion=False)


@app.command()
def collect(
    store: Annotated[Path, typer.Argument(help="Directory of the store; made where needed.")],
    grpc_port: Annotated[int, typer.Option(help="OTLP/gRPC; 0 takes a free port.")] = GRPC_PORT,
    http_port: Annotated[int, typer.Option(help="OTLP/HTTP; 0 takes a free port.")] = HTTP_PORT,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    segment_mb: Annotated[
        float, typer.Option(min=0.001, help="Close a segment of the store at this size, MB.")
    ] = KEEP_ALL.segment_bytes / _MB,
    segment_minutes: Annotated[
        float, typer.Option(min=0.001, help="Close a segment at this age.")
    ] = KEEP_ALL.segment_s / 60,
    keep_gb: Annotated[
        float | None,
        typer.Option(min=0.0, help="Remove the oldest segments of a store that is larger, GB."),
    ] = None,
    keep_hours: Annotated[
        float | None, typer.Option(min=0.0, help="Remove segments whose newest span is older.")
    ] = None,
    tls_cert: Annotated[
        Path | None, typer.Option(help="Listen with TLS: this certificate (PEM, with its chain).")
    ] = None,
    tls_key: Annotated[Path | None, typer.Option(help="The certificate's key (PEM).")] = None,
    tls_client_ca: Annotated[
        Path | None, typer.Option(help="Senders need a certificate that one of these signed (PEM).")
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option(help="Senders need this file's token, as a bearer token.")
    ] = None,
    ready_file: Annotated[
        Path | None, typer.Option(help="Write the addresses here as JSON when ready.")
    ] = None,
) -> None:
    """Receive OTLP traces (gRPC and HTTP) and keep them in STORE; stop with SIGTERM or SIGINT.

    Without --keep-gb and --keep-hours nothing is ever removed.
    """
    if (tls_cert is None) != (tls_key is None) or (tls_client_ca and not tls_cert):
        _fail("TLS needs both --tls-cert and --tls-key")
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    retention = Retention(
        segment_bytes=round(segment_mb * _MB),
        segment_s=segment_minutes * 60,
        keep_bytes=None if keep_gb is None else round(keep_gb * _GB),
        keep_s=None if keep_hours is None else keep_hours * 3600,
    )
    tls = Tls(tls_cert, tls_key, tls_client_ca) if tls_cert and tls_key else None
    try:
        token = None if token_file is None else Token.of_file(token_file)
        writer = StoreWriter(store, retention)
        with Collector(writer, host, grpc_port, http_port, tls, token) as collector:
            _announce(collector, store, ready_file)
            if not (_is_loopback(host) or tls_client_ca or token):
                _warn(f"whoever reaches {host} can write to {store}: give --token-file")
            while not stopping.wait(_TIDY_S):
                collector.tidy()
    except (ListenError, SecurityError, StoreError) as error:
        _fail(str(error))
    except OSError as error:
        _fail(f"{error.filename or store}: {error.strerror or error}")
    typer.echo(_summary(collector.counts, writer.removed))


def _announce(collector: Collector, store: Path, ready_file: Path | None) -> None:
    grpc, http = collector.grpc_address, collector.http_address
    if ready_file is not None:
        with atomic_file(ready_file) as file:
            file.write(json.dumps({"grpc": grpc, "http": http}).encode() + b"\n")
    typer.echo(f"OTLP/gRPC on {grpc}, OTLP/HTTP on {http}, store {store}")


def _summary(counts: Counts, removed: int) -> str:
    return (
        f"stored {plural(counts.messages, 'message')} with {plural(counts.spans, 'span')}; "
        f"rejected {counts.rejected}, not stored for want of disk {counts.unavailable}"
        + (f", of room {counts.busy}" if counts.busy else "")
        + (f"; removed {plural(removed, 'old segment')}" if removed else "")
    )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _warn(sentence: str) -> None:
    typer.echo(f"pdtrace collect: {sentence}", err=True)


def _fail(sentence: str) -> NoReturn:
    _warn(sentence)
    raise typer.Exit(1)
