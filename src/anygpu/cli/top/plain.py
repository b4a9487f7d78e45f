"""`anygpu top --once`: one picture as text."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from anygpu.cli.top import devices
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
    shown = widths(columns, console.width) if console.is_terminal else [column.width for column in columns]
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="dim", pad_edge=False)
    for column, width in zip(columns, shown, strict=True):
        if width:
            # To a file nothing is cut off.
            most = width if console.is_terminal else None
            table.add_column(column.name, justify="right" if column.right else "left", no_wrap=True, max_width=most)
    for row in rows:
        table.add_row(*[_styled(cell) for cell, width in zip(row.cells, shown, strict=True) if width])
    console.print(table, soft_wrap=not console.is_terminal)


def _styled(cell: Cell) -> Text:
    return Text(cell.text, style=STYLES[cell.tone], overflow="ellipsis")
