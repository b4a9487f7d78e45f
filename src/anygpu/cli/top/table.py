"""Rows on the screen: only those that can be seen are drawn, so that two hundred functions cost no more than twenty."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from rich.segment import Segment
from rich.style import Style
from textual.binding import Binding, BindingType
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from anygpu.base.tables import Column
from anygpu.cli.top.pages import PageRow, fit, heading, widths

#: The colours are the terminal's own, so that they can be read on a light ground and on a dark one.
_STYLES = {
    "": Style(),
    "dim": Style(dim=True),
    "good": Style(color="green"),
    "warn": Style(color="yellow"),
    "bad": Style(color="red", bold=True),
}
_HEAD, _SORTED, _CURSOR = Style(reverse=True), Style(reverse=True, bold=True), Style(reverse=True)


class Rows(ScrollView, can_focus=True):
    """A header that stays, rows below it, and a cursor that stays on its row wherever that goes."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "move(-1)", show=False),
        Binding("down", "move(1)", show=False),
        Binding("pageup", "move_page(-1)", show=False),
        Binding("pagedown", "move_page(1)", show=False),
        Binding("home", "move(-1000000)", show=False),
        Binding("end", "move(1000000)", show=False),
        Binding("enter", "choose", show=False),
    ]

    class Chosen(Message):
        """Enter was pressed on a row, or it was clicked twice."""

        def __init__(self, row: PageRow) -> None:
            self.row = row
            super().__init__()

    class Moved(Message):
        """The cursor is elsewhere, and perhaps other rows are seen."""

    class HeadClicked(Message):
        """A column's name was clicked."""

        def __init__(self, column: int) -> None:
            self.column = column
            super().__init__()

    def __init__(self, *, id: str, cursor: bool = True) -> None:
        super().__init__(id=id)
        self._cursor_is_shown = cursor
        self.can_focus = cursor
        self._columns: Sequence[Column[Any]] = ()
        self.rows: Sequence[PageRow] = ()
        self._sorted_by: int | None = None
        self._descending = False
        self._empty = ""
        self._at: tuple[str, ...] | None = None

    def show(
        self,
        columns: Sequence[Column[Any]],
        rows: Sequence[PageRow],
        *,
        sorted_by: int | None = None,
        descending: bool = False,
        empty: str = "",
    ) -> None:
        self._columns, self.rows, self._empty = columns, rows, empty
        self._sorted_by, self._descending = sorted_by, descending
        self.virtual_size = Size(0, len(rows) + 1)
        self.refresh()

    @property
    def cursor(self) -> int:
        """The row that it is on; that of the same name as before, and the first if there is none."""
        if self._at is not None:
            for number, row in enumerate(self.rows):
                if row.name == self._at:
                    return number
        return 0

    @property
    def chosen(self) -> PageRow | None:
        return self.rows[self.cursor] if self.rows else None

    @property
    def part(self) -> str:
        """Which of the rows can be seen, if not all."""
        first, room = self.scroll_offset.y, self.size.height - 1
        if len(self.rows) <= room:
            return ""
        return f"{first + 1}–{min(first + room, len(self.rows))} of {len(self.rows)}"

    def action_move(self, by: int) -> None:
        if not self.rows:
            return
        to = min(max(0, self.cursor + by), len(self.rows) - 1)
        # At the top it stays at the top, whatever is there; elsewhere it stays with its row.
        self._at = self.rows[to].name if to else None
        self.scroll_to_region(Region(0, to, 1, 2), animate=False, force=True)
        self.refresh()
        self.post_message(self.Moved())

    def action_move_page(self, by: int) -> None:
        self.action_move(by * max(1, self.size.height - 2))

    def action_choose(self) -> None:
        if self.chosen is not None:
            self.post_message(self.Chosen(self.chosen))

    def click_at(self, x: int, y: int, *, twice: bool) -> None:
        """In characters from its corner."""
        if y == 0:
            begin = 0
            for number, width in enumerate(widths(self._columns, self.size.width)):
                if width and begin <= x <= begin + width:
                    self.post_message(self.HeadClicked(number))
                    return
                begin += width + bool(width)
            return
        number = self.scroll_offset.y + y - 1
        if self._cursor_is_shown and 0 <= number < len(self.rows):
            self.action_move(number - self.cursor)
            if twice:
                self.action_choose()

    def render_line(self, y: int) -> Strip:
        width = self.size.width
        if y == 0:
            return self._head(width)
        number = self.scroll_offset.y + y - 1
        if number < len(self.rows):
            return self._row(self.rows[number], width, on=self._cursor_is_shown and number == self.cursor)
        if not self.rows and y == min(2, self.size.height - 1):
            return Strip([Segment(fit(f" {self._empty}", width, right=False), Style(dim=True))], width)
        return Strip.blank(width)

    def _head(self, width: int) -> Strip:
        segments = []
        for number, (column, room) in enumerate(zip(self._columns, widths(self._columns, width), strict=True)):
            if not room:
                continue
            is_sorted = number == self._sorted_by
            name = heading(column)
            if is_sorted:
                mark = "▼" if self._descending else "▲"
                name = f"{name}{mark}" if len(name) < room else f"{name[: room - 1]}{mark}"
            segments.append(Segment(fit(name, room, right=column.right) + " ", _SORTED if is_sorted else _HEAD))
        return Strip(segments).adjust_cell_length(width, _HEAD)

    def _row(self, row: PageRow, width: int, *, on: bool) -> Strip:
        segments = []
        for column, cell, room in zip(self._columns, row.cells, widths(self._columns, width), strict=True):
            if room:
                style = _CURSOR if on else _STYLES[cell.tone]
                segments.append(Segment(fit(cell.text, room, right=column.right), style))
                segments.append(Segment(" ", _CURSOR if on else _STYLES[""]))
        return Strip(segments).adjust_cell_length(width, _CURSOR if on else _STYLES[""])
