"""Tables of the analysis on a terminal."""

from typing import Literal

from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table as RichTable

from pdtrace.analysis import report


def drawn(table: report.Table) -> RichTable:
    """The table for a console: columns of numbers stand on the right."""
    made = RichTable(box=SIMPLE_HEAD, pad_edge=False)
    for place, name in enumerate(table.header):
        numeric = place > 0 and all(_is_number(row[place]) for row in table.rows)
        side: Literal["left", "right"] = "right" if numeric else "left"
        made.add_column(escape(name), justify=side, overflow="fold", no_wrap=place == 0)
    for row in table.rows:
        made.add_row(*(escape(cell) for cell in row))
    return made


def _is_number(cell: str) -> bool:
    return cell in (report.TOO_FEW, report.NOT_KNOWN) or cell.lstrip(">= +-")[:1].isdigit()
