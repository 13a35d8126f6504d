"""Tables of the analysis on a terminal."""

import os
from typing import Final, Literal

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

from pdtrace.analysis import report
from pdtrace.analysis.printable import plain

WIDE: Final = 200


def standard_console() -> Console:
    """Standard output; what goes into a file or a pipe is not folded to the width of a terminal."""
    plain = Console()
    return plain if plain.is_terminal or "COLUMNS" in os.environ else Console(width=WIDE)


def drawn(table: report.Table) -> RichTable:
    """The table for a console: columns of numbers stand on the right."""
    made = RichTable(box=SIMPLE_HEAD, pad_edge=False)
    for place, name in enumerate(table.header):
        numeric = place > 0 and all(_is_number(row[place]) for row in table.rows)
        side: Literal["left", "right"] = "right" if numeric else "left"
        made.add_column(printed(name), justify=side, overflow="fold", no_wrap=place == 0)
    for row in table.rows:
        made.add_row(*(printed(cell) for cell in row))
    return made


def printed(text: str) -> str:
    """The text as rich's markup that prints it: names come from outside, with whatever in them."""
    return escape(plain(text))


def _is_number(cell: str) -> bool:
    return cell in (report.TOO_FEW, report.NOT_KNOWN) or cell.lstrip(">= +-")[:1].isdigit()
