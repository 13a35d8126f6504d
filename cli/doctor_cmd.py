"""`pdtrace doctor`: is everything there that traces need, and if not, what is missing."""

import json
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from pdtrace.connector.doctor import (
    Finding,
    Verdict,
    as_json,
    clock_findings,
    settings_findings,
)
from pdtrace.connector.doctor_otlp import endpoint_findings
from pdtrace.connector.doctor_pair import pair_findings
from pdtrace.connector.doctor_vllm import (
    hook_findings,
    installed_findings,
    plugin_findings,
)

app = typer.Typer(add_completion=False)
_STYLES = {Verdict.OK: "green", Verdict.PROBLEM: "bold red", Verdict.UNKNOWN: "yellow"}


@app.command()
def doctor(
    prefill: Annotated[str, typer.Option(help="URL of a running prefill engine.")] = "",
    decode: Annotated[str, typer.Option(help="URL of a running decode engine.")] = "",
    prefill_side: Annotated[
        str, typer.Option(help="HOST:PORT of the prefill engine's NIXL side channel.")
    ] = "",
    decode_side: Annotated[
        str, typer.Option(help="HOST:PORT of the decode engine's NIXL side channel.")
    ] = "",
    as_json_: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Check this environment, the OTLP endpoint and, given both URLs, a pair of engines.

    Run it where the engines run, with their environment. Exit status: 0 all well, 1 a problem was
    found, 2 the call itself is wrong.
    """
    if bool(prefill) != bool(decode):
        raise typer.BadParameter("--prefill and --decode belong together")
    if (prefill_side or decode_side) and not prefill:
        raise typer.BadParameter("a side channel needs --prefill and --decode")
    findings = [
        *installed_findings(),
        *plugin_findings(),
        *settings_findings(),
        *hook_findings(),
        *endpoint_findings(),
        *clock_findings(),
    ]
    if prefill:
        findings += pair_findings(prefill, decode, prefill_side, decode_side)
    if as_json_:
        typer.echo(json.dumps(as_json(findings), indent=2))
    else:
        _print(findings)
    if any(finding.verdict is Verdict.PROBLEM for finding in findings):
        raise typer.Exit(1)


def _print(findings: list[Finding]) -> None:
    console = Console()
    table = Table(show_edge=False, box=None, pad_edge=False)
    for column in ("", "", "", ""):
        table.add_column(column, overflow="fold")
    topic = ""
    for finding in findings:
        if topic and finding.topic != topic:
            table.add_section()
        style = _STYLES.get(finding.verdict, "dim")
        shown = finding.topic if finding.topic != topic else ""
        topic = finding.topic
        table.add_row(shown, finding.item, f"[{style}]{finding.verdict}[/]", finding.value)
    console.print(table, highlight=False)
    problems = sum(finding.verdict is Verdict.PROBLEM for finding in findings)
    what = "problem" if problems == 1 else "problems"
    console.print(f"\n{problems} {what}" if problems else "\nall well", highlight=False)
