"""`pdtrace demo`: push and pull on real engines on this machine, and the split of both."""

from pathlib import Path
from statistics import median
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)

from pdtrace.analysis.load import load
from pdtrace.analysis.report_html import page, shown
from pdtrace.analysis.sources import SourceError
from pdtrace.analysis.split import Split, split
from pdtrace.analysis.table import SpansTable
from pdtrace.analysis.timeline import timeline
from pdtrace.cli.interrupt import stop_on_signals
from pdtrace.cli.split_cmd import print_tables
from pdtrace.cli.tables import standard_console
from pdtrace.connector.cluster import ClusterError
from pdtrace.connector.demo import DemoRun, DemoSettings, run_demo
from pdtrace.connector.processes import ProcessError
from pdtrace.tracing import semconv as sc

app = typer.Typer(add_completion=False)

_SHARED = (sc.SPAN_PREFILL_END, sc.SPAN_DECODE_START)
EXPECTED_SPANS = {
    "push": {*_SHARED, sc.SPAN_REGISTRATION, sc.SPAN_WRITE_SUBMIT, sc.SPAN_WRITE_COMPLETE},
    "pull": {*_SHARED, sc.SPAN_READ_SUBMIT, sc.SPAN_READ_COMPLETE},
}
"""What every answered request must have left, by mode."""


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Directory for report, stores and logs.")] = Path(
        "runs/demo"
    ),
    requests: Annotated[int, typer.Option(min=1, help="Requests per mode.")] = 24,
    concurrency: Annotated[int, typer.Option(min=1, help="Requests under way at once.")] = 3,
    model: Annotated[
        str, typer.Option(help="Demo model (small, large-kv) or a model directory.")
    ] = "large-kv",
) -> None:
    """Start two real engines, send a mixed workload in push and in pull mode, split both.

    Exit status: 0 all well, 1 something is missing or wrong, 130 interrupted.
    """
    stop_on_signals()
    console = standard_console()
    settings = DemoSettings(
        directory=_fresh(out), model=model, requests=requests, concurrency=concurrency
    )
    try:
        with _Bars(console) as bars:
            runs = run_demo(settings, bars.progress)
        faults = _report(runs, out, console)
    except (ClusterError, ProcessError, SourceError) as error:
        typer.echo(f"pdtrace demo: {error}", err=True)
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        typer.echo("pdtrace demo: interrupted; everything it started is stopped", err=True)
        raise typer.Exit(130) from None
    for fault in faults:
        typer.echo(f"pdtrace demo: {fault}", err=True)
    if faults:
        raise typer.Exit(1)


def _fresh(out: Path) -> Path:
    """The directory of this run: an earlier demo's files there are moved aside, not mixed in."""
    if (out / "push").exists() or (out / "pull").exists():
        number = 1
        while (aside := out.with_name(f"{out.name}.{number}")).exists():
            number += 1
        out.rename(aside)
    out.mkdir(parents=True, exist_ok=True)
    return out


class _Bars:
    """One progress line per thing that is going on; plain lines where there is no terminal."""

    def __init__(self, console: Console) -> None:
        self._plain = not console.is_terminal
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
            disable=self._plain,
        )
        self._task: TaskID | None = None
        self._what = ""

    def __enter__(self) -> "_Bars":
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def progress(self, what: str, done: int, of: int) -> None:
        """Show that `what` is at `done` of `of`; another `what` completes the one before."""
        if what != self._what:
            self._finish()
            self._what = what
            self._task = self._bars.add_task(what, total=of)
            if self._plain:
                print(what, flush=True)
        elif self._plain and done == of:
            print(f"{what}: {done} of {of}", flush=True)
        if self._task is not None:
            self._bars.update(self._task, completed=done)

    def _finish(self) -> None:
        if self._task is not None:
            total = self._bars.tasks[self._task].total
            self._bars.update(self._task, completed=total)


def _report(runs: list[DemoRun], out: Path, console: Console) -> list[str]:
    """Tables, page and what is wrong, one sentence each."""
    stores = [run.store for run in runs]
    loaded = load(stores)
    done = split(loaded.handoffs)
    pieces = timeline(loaded.handoffs, done, shown(done))
    print_tables(done, console)
    html = out / "report.html"
    html.write_text(
        page(done, pieces, [str(store) for store in stores], loaded.notes),
        encoding="utf-8",
    )
    console.print(f"\nReport: {html}\nStores: {', '.join(map(str, stores))}", highlight=False)
    faults = [fault for run in runs for fault in _faults(run, loaded.table, done)]
    for run in runs:
        console.print(_agreement(run, done), highlight=False)
    return faults


def _faults(run: DemoRun, table: SpansTable, done: Split) -> list[str]:
    faults = []
    spans = table.spans
    names = spans.groupby("request_id")["name"].agg(set)
    for result in run.results:
        missing = EXPECTED_SPANS[run.mode] - names.get(result.request_id, set())
        if missing:
            faults.append(f"{run.mode}: {result.request_id} lacks {', '.join(sorted(missing))}")
        if result.request_id not in done.splittable:
            faults.append(f"{run.mode}: {result.request_id} could not be split")
    return faults


def _agreement(run: DemoRun, done: Split) -> str:
    """The client's stopwatch against the trace: the way to the router and back lies between."""
    ids = [str(request_id) for request_id in done.splittable]
    ttft = dict(zip(ids, done.requests.loc[ids, "ttft_ns"].astype("int64"), strict=True))
    unknown = dict(zip(ids, done.classes["unattributed"], strict=True))
    seen = {r.request_id: r.ttft_ns for r in run.results if r.request_id in unknown}
    beyond = [own - ttft[i] for i, own in seen.items() if own is not None]
    if not beyond:
        return f"{run.mode}: no request could be split"
    shares = [unknown[i] / ttft[i] for i in seen]
    return (
        f"{run.mode}: {len(beyond)} of {len(run.results)} requests split; client's TTFT minus the "
        f"trace's, median {median(beyond) / 1e6:+.2f} ms (edge); unattributed median "
        f"{median(shares):.2%}, worst {max(shares):.2%}"
    )
