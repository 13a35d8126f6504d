"""`pdtrace show`: one request as a waterfall, with a sentence for each phase."""

import shutil
import sys
from pathlib import Path
from typing import Annotated, Final

import orjson
import pandas as pd
import typer
from rich.console import Console
from rich.text import Text

from pdtrace.analysis.find import Names, NotFound, SeveralFound, find, request_name
from pdtrace.analysis.handoffs import Handoffs
from pdtrace.analysis.load import Loaded
from pdtrace.analysis.printable import plain
from pdtrace.analysis.report import milliseconds
from pdtrace.analysis.report_style import COLOURS
from pdtrace.analysis.show import Shown, as_json, show
from pdtrace.analysis.show_html import page
from pdtrace.analysis.show_text import SOFT, Line, lines
from pdtrace.analysis.sought import load_sought
from pdtrace.analysis.sources import Limits, SourceError
from pdtrace.analysis.workers import every_core
from pdtrace.cli.options import Sources, reading, sayable
from pdtrace.cli.output import failure, finish, standard_output, write
from pdtrace.tracing.ids import base_request_id

LISTED = 20

app = typer.Typer(add_completion=False)
_NAME: Final = "show"


@app.command()
@reading
def show_command(
    sources: Sources,
    limits: Limits,
    request: Annotated[
        str,
        typer.Argument(
            metavar="REQUEST_OR_TRACE_ID",
            help="A request id, its beginning, ID#2 for the second request with an id, one of "
            "vLLM's own ids, or a trace id.",
        ),
    ],
    as_json_: Annotated[
        bool, typer.Option("--json", help="The same as one JSON object, times in ns.")
    ] = False,
    html: Annotated[
        Path | None, typer.Option(help="Write one self-contained HTML page here.")
    ] = None,
    perfetto: Annotated[
        Path | None, typer.Option(help="Write a trace here that ui.perfetto.dev opens.")
    ] = None,
) -> None:
    """Show one request as a waterfall, with a sentence for each phase.

    Exit status: 0 all well, 1 nothing could be read or no single request goes by that name, 3 the
    source said that its answer was cut.
    """
    (request,) = sayable([request])
    names = Names(request, (base_request_id(request),))
    loaded = _load(sources, names, limits)
    label = _label(loaded.handoffs, names)
    shown = show(loaded.handoffs, label)
    if html is not None:
        write(_NAME, html, page(shown, sources, loaded.notes).encode("utf-8", "replace"))
    if perfetto is not None:
        write(_NAME, perfetto, _trace(loaded, label, shown))
    if as_json_:
        with standard_output():
            sys.stdout.buffer.write(orjson.dumps(as_json(shown)) + b"\n")
    else:
        _print(shown)
    finish(loaded.notes, loaded.partial)


def _load(sources: list[str], names: Names, limits: Limits) -> Loaded:
    try:
        return load_sought(sources, names, limits, every_core)
    except SourceError as error:
        raise failure(_NAME, str(error)) from None
    except NotFound as error:
        raise failure(_NAME, plain(str(error))) from None


def _label(handoffs: Handoffs, names: Names) -> str:
    try:
        return find(handoffs.requests, handoffs.spans, names)
    except NotFound as error:
        raise failure(_NAME, plain(str(error))) from None
    except SeveralFound as error:
        sentence = f"{plain(str(error))}; name one of them as it stands here:"
        raise failure(_NAME, "\n".join([sentence, *_listing(handoffs, error.labels)])) from None


def _listing(handoffs: Handoffs, labels: list[str]) -> list[str]:
    """One line per request: what to call it, its mode, its TTFT or how it ended."""
    requests = handoffs.requests
    again = requests["id"].duplicated(keep=False)
    listed = []
    for row in requests.assign(again=again).loc[labels[:LISTED]].to_dict("records"):
        name = plain(request_name(row["id"], row["instance"], row["again"]))
        none = pd.isna(row["ttft_ns"])
        ttft = "" if none else f"TTFT {milliseconds(int(row['ttft_ns']), row['lower_bound'])} ms"
        said = ttft or f"no TTFT ({row['outcome'] or 'open'})"
        listed.append(f"  {name}  {row['mode'] or 'mode not known'}, {said}")
    more = len(labels) - len(listed)
    return [*listed, f"  … and {more} more"] if more else listed


def _trace(loaded: Loaded, label: str, shown: Shown) -> bytes:
    try:
        from pdtrace.analysis.perfetto import trace
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith("perfetto"):
            raise
        raise failure(_NAME, "--perfetto needs pip install 'pdtrace[perfetto]'") from None
    return trace(loaded.handoffs, loaded.table, label, shown.pieces)


def _print(shown: Shown) -> None:
    width = shutil.get_terminal_size((80, 24)).columns
    console = Console(width=max(width, 60), highlight=False, soft_wrap=True)
    with standard_output():
        for line in lines(shown, width):
            console.print(_rich(line), end="\n")


def _rich(line: Line) -> Text:
    styles = {**COLOURS, SOFT: "dim"}
    whole = "".join(run.text for run in line).rstrip()
    text = Text.assemble(*((run.text, styles.get(run.style, run.style)) for run in line))
    return text[: len(whole)] if len(text) > len(whole) else text
