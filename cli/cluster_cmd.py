"""`pdtrace cluster`: real prefill and decode engines, router and collector on this machine."""

import shlex
import threading
from pathlib import Path
from typing import Annotated, cast

import typer

from pdtrace.cli.interrupt import stop_on_signals
from pdtrace.connector.cluster import Cluster, ClusterError
from pdtrace.connector.cluster_settings import ClusterSettings, Layout, Mode
from pdtrace.connector.processes import ProcessError

app = typer.Typer(add_completion=False, no_args_is_help=True)

_WATCH_SECONDS = 1.0


@app.callback()
def cluster() -> None:
    """Real vLLM engines on CPU with NIXL between them."""


@app.command(context_settings={"allow_extra_args": True})
def up(
    context: typer.Context,
    mode: Annotated[str, typer.Option(help="push or pull; none: one plain engine")] = "push",
    prefills: Annotated[int, typer.Option(min=1, help="Prefill engines.")] = 1,
    decodes: Annotated[int, typer.Option(min=1, help="Decode engines.")] = 1,
    model: Annotated[str, typer.Option(help="small, large-kv or a model directory")] = "small",
    layout: Annotated[
        str, typer.Option(help="uni: scheduler and worker in one process; mp: one each")
    ] = "uni",
    untraced: Annotated[bool, typer.Option(help="vLLM's own connectors, no collector.")] = False,
    store: Annotated[Path | None, typer.Option(help="Where the collector keeps spans.")] = None,
    run_dir: Annotated[Path | None, typer.Option(help="Where logs go.")] = None,
) -> None:
    """Start a cluster, keep it until Ctrl-C or SIGTERM. What follows -- goes to every engine."""
    if mode not in ("push", "pull", "none"):
        raise typer.BadParameter(f"{mode!r} is not push, pull or none", param_hint="--mode")
    if layout not in ("uni", "mp"):
        raise typer.BadParameter(f"{layout!r} is not uni or mp", param_hint="--layout")
    settings = ClusterSettings(
        mode=cast(Mode, mode),
        prefills=prefills,
        decodes=decodes,
        model=model,
        layout=cast(Layout, layout),
        traced=not untraced and mode != "none",
        store=store,
        run_dir=run_dir,
        flags=tuple(context.args),
    )
    stop_on_signals()
    try:
        _run(settings)
    except (ClusterError, ProcessError) as error:
        typer.echo(f"pdtrace cluster: {error}", err=True)
        raise typer.Exit(1) from error
    except KeyboardInterrupt:
        typer.echo("stopped")


def _run(settings: ClusterSettings) -> None:
    """Until a signal, or until a process of the cluster ends."""
    running = Cluster(settings)
    typer.echo(f"starting; logs in {running.run_dir}")
    with running:
        typer.echo(describe(running))
        try:
            while True:
                running.check()
                threading.Event().wait(_WATCH_SECONDS)
        except KeyboardInterrupt:
            typer.echo("stopping")
            raise


def describe(running: Cluster) -> str:
    """Addresses of a running cluster, and a request to try."""
    rows = [
        (engine.name, f"{engine.url}  (log {engine.process.log})") for engine in running.engines
    ]
    if running.router_url is not None:
        rows.insert(0, ("router", running.router_url))
    if running.collector is not None:
        rows.append(("collector", f"gRPC {running.collector.grpc}, HTTP {running.collector.http}"))
        rows.append(("store", str(running.store)))
    rows.append(("logs", str(running.run_dir)))
    width = max(len(name) for name, _ in rows)
    lines = [f"{name:<{width}}  {value}" for name, value in rows]
    return "\n".join([*lines, "", "Try:", f"  {curl(running)}", "", "Ctrl-C stops everything."])


def curl(running: Cluster) -> str:
    """A command that sends one prompt."""
    url = running.router_url or running.engines[0].url
    body = f'{{"model": "{running.model}", "prompt": "Where did my first token wait?"}}'
    return (
        f"curl -s {url}/v1/completions -H 'Content-Type: application/json' -d {shlex.quote(body)}"
    )
