"""Entry point of `pdtrace`: sub-commands are imported only when they are called.

Each sub-command `name` is a module `pdtrace.cli.name_cmd` with a Typer app `app`.
"""

import importlib
import sys
from importlib.metadata import version
from typing import Final

COMMANDS: Final = {
    "clocks": "how far the clocks of the hosts are apart, and how well that is known",
    "cluster": "start real prefill and decode engines, router and collector on this machine",
    "collect": "receive OTLP and keep it in a store",
    "demo": "push and pull on real engines, and the split of both side by side",
    "doctor": "whether traces would come, and if not, why",
    "export": "write a store as OTLP JSON lines",
    "show": "one request as a waterfall, with a sentence for each phase",
    "split": "where each first token waited",
    "triage": "which factor explains slow first tokens",
}


def usage() -> str:
    """The top-level help, made without importing any sub-command."""
    width = max(map(len, COMMANDS))
    rows = "\n".join(f"  {name:<{width}}  {what}" for name, what in COMMANDS.items())
    return (
        "Usage: pdtrace COMMAND [ARGS]...\n\n"
        "Where a first token waited, for prefill/decode-disaggregated vLLM.\n\n"
        f"Commands:\n{rows}\n\n"
        "'pdtrace COMMAND --help' tells a command's options; 'pdtrace --version' the version.\n"
    )


def main(argv: list[str] | None = None) -> int:
    """Run one sub-command; returns its exit status (2 for a call that cannot be understood)."""
    args = sys.argv[1:] if argv is None else argv
    if not args or args[0] in ("-h", "--help"):
        print(usage(), end="")
        return 0 if args else 2
    if args[0] == "--version":
        print(f"pdtrace {version('pdtrace')}")
        return 0
    name, rest = args[0], args[1:]
    if name not in COMMANDS:
        print(f"pdtrace: no command {name!r}; 'pdtrace --help' lists them", file=sys.stderr)
        return 2
    try:
        module = importlib.import_module(f"pdtrace.cli.{name}_cmd")
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.startswith("pdtrace"):
            raise
        print(
            f"pdtrace {name} needs {error.name!r}: pip install 'pdtrace[analysis,collect,router]'",
            file=sys.stderr,
        )
        return 2
    module.app(args=rest, prog_name=f"pdtrace {name}")
    return 0
