"""Tables of the analysis in HTML, with the colours of the phases."""

from html import escape
from typing import Final

from pdtrace.analysis import phases
from pdtrace.analysis.report import Table


def html_table(
    table: Table,
    numeric_from: int,
    group_by: int | None = None,
    swatch_in: int | None = None,
) -> str:
    """The table, every cell escaped; its title is the caller's.

    `numeric_from`: columns from this one on stand on the right; `group_by`: a column that, with
    those before it, is said once for rows that share it; `swatch_in`: the column whose cells
    name phases and get their colour in front.
    """

    def cells(tag: str, row: tuple[str, ...]) -> str:
        return "".join(
            f"<{tag}{_NUMERIC if place >= numeric_from else ''}>"
            f"{swatch(cell) if place == swatch_in else ''}{escape(cell)}</{tag}>"
            for place, cell in enumerate(row)
        )

    body, last = [], None
    for row in table.rows:
        fresh = group_by is not None and row[group_by] != last
        shown = row
        if group_by is not None:
            repeated = range(0 if fresh else group_by + 1)
            shown = tuple("" if place in repeated else cell for place, cell in enumerate(row))
            last = row[group_by]
        body.append(f"<tr{_GROUP if fresh else ''}>")
        body.append(cells("td", shown) + "</tr>")
    head = f"<thead><tr>{cells('th', table.header)}</tr></thead>"
    return f"<table>{head}<tbody>{''.join(body)}</tbody></table>"


_NUMERIC: Final = ' class="num"'
_GROUP: Final = ' class="head"'


def swatch(phase: str) -> str:
    """A square in the colour of a phase; nothing for other words."""
    return f'<i class="swatch s-{phase}"></i>' if phase in phases.PRIORITY else ""
