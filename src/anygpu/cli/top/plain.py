"""`anygpu top --once`: one picture as text."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from anygpu.cli.top import devices
from anygpu.cli.top.fitting import fit
from anygpu.cli.top.pages import NOBODY, PAGES, Cell, Column, Row, headline, in_order, widths
from anygpu.cli.top.watching import Picture

STYLES = {"": "", "dim": "dim", "good": "green", "warn": "yellow", "bad": "bold red"}


def show_once(console: Console, picture: Picture) -> None:
    """All pages that have anything to say, one below the other."""
    console.print(Text(f"anygpu top · {headline(picture.looks)}"))
    if picture.cards:
        _show(console, "", devices.COLUMNS, devices.rows(picture.cards))
    if not picture.looks:
        console.print()
        console.print(Text(NOBODY))
        return
    for page in PAGES:
        rows = page.rows(picture.looks)
        if rows:
            _show(console, page.title, page.columns, in_order(rows, page.sort, descending=page.descending))


def _show(console: Console, title: str, columns: Sequence[Column], rows: Sequence[Row]) -> None:
    console.print()
    if title:
        console.print(Text(title, style="bold"))
    if console.is_terminal:
        room = widths(columns, console.width)
    else:  # to a file, nothing is left out or cut off
        room = [
            max(cell_len(each) for each in (column.name, *(row.cells[number].text for row in rows)))
            for number, column in enumerate(columns)
        ]
    shown = [(number, column, width) for number, (column, width) in enumerate(zip(columns, room, strict=True)) if width]
    head = " ".join(fit(column.name, width, right=column.right) for _, column, width in shown)
    console.print(Text(head.rstrip(), style="dim"), soft_wrap=True)
    for row in rows:
        line = Text(" ").join(_styled(row.cells[number], column, width) for number, column, width in shown)
        line.rstrip()
        console.print(line, soft_wrap=True)


def _styled(cell: Cell, column: Column, width: int) -> Text:
    return Text(fit(cell.text, width, right=column.right), style=STYLES[cell.tone])
