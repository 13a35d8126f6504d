"""`pdtrace collect`: receive OTLP and keep it in a store until told to stop."""

import json
import signal
import threading
from pathlib import Path
from typing import Annotated

import typer

from pdtrace.analysis.atomic import atomic_file
from pdtrace.analysis.collect import GRPC_PORT, HTTP_PORT, Collector, ListenError
from pdtrace.analysis.counted import plural
from pdtrace.analysis.receive import Counts
from pdtrace.analysis.segments import StoreError

app = typer.Typer(add_completion=False)


@app.command()
def collect(
    store: Annotated[Path, typer.Argument(help="Directory of the store; made where needed.")],
    grpc_port: Annotated[int, typer.Option(help="OTLP/gRPC; 0 takes a free port.")] = GRPC_PORT,
    http_port: Annotated[int, typer.Option(help="OTLP/HTTP; 0 takes a free port.")] = HTTP_PORT,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    ready_file: Annotated[
        Path | None, typer.Option(help="Write the addresses here as JSON when ready.")
    ] = None,
) -> None:
    """Receive OTLP traces (gRPC and HTTP) and keep them in STORE; stop with SIGTERM or SIGINT."""
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    collector = Collector(store, host, grpc_port, http_port)
    try:
        with collector:
            _announce(collector, store, ready_file)
            stopping.wait()
    except (ListenError, StoreError) as error:
        _fail(str(error))
    except OSError as error:
        _fail(f"{error.filename or store}: {error.strerror or error}")
    typer.echo(_summary(collector.counts))


def _announce(collector: Collector, store: Path, ready_file: Path | None) -> None:
    grpc, http = collector.grpc_address, collector.http_address
    if ready_file is not None:
        with atomic_file(ready_file) as file:
            file.write(json.dumps({"grpc": grpc, "http": http}).encode() + b"\n")
    typer.echo(f"OTLP/gRPC on {grpc}, OTLP/HTTP on {http}, store {store}")


def _summary(counts: Counts) -> str:
    return (
        f"stored {plural(counts.messages, 'message')} with {plural(counts.spans, 'span')}; "
        f"rejected {counts.rejected}, not stored for want of disk {counts.unavailable}"
    )


def _fail(sentence: str) -> None:
    typer.echo(f"pdtrace collect: {sentence}", err=True)
    raise typer.Exit(1)
