"""The screen of `anygpu top`. Imports Textual.

`Rows` is a table of which only the rows that can be seen are drawn, so that two hundred functions cost no more than
twenty. `KEYS` are the shortcuts with their help, and `Top` is the application: it asks processes in a thread, and draws
on Textual's.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual import events, work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.css.query import NoMatches
from textual.geometry import Region, Size
from textual.message import Message
from textual.screen import ModalScreen
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.widgets import Input, Static
from textual.worker import get_current_worker

from anygpu.base.printable import printable
from anygpu.base.tables import Column
from anygpu.cli.top.pages import (
    DEVICES,
    NO_PROCESS,
    PAGES,
    STYLES,
    Page,
    PageRow,
    Picture,
    Watching,
    details,
    device_rows,
    filtered,
    fit,
    heading,
    headline,
    in_order,
    widths,
)
from anygpu.errors import AnyGPUError

#: The colours are the terminal's own, so that they can be read on a light ground and on a dark one.
_STYLES = {tone: Style.parse(style) for tone, style in STYLES.items()}
_HEAD, _SORTED, _CURSOR = Style(reverse=True), Style(reverse=True, bold=True), Style(reverse=True)


class Rows(ScrollView, can_focus=True):
    """A header that stays, rows below it, and a cursor that stays on its row wherever that goes.

    Without `cursor` it cannot be focused. What happens on it is posted as messages.
    """

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
        """Draws these rows from now on; `empty` is shown if there are none."""
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
        """The row under the cursor; `None` if there are no rows."""
        return self.rows[self.cursor] if self.rows else None

    @property
    def part(self) -> str:
        """Which of the rows can be seen, if not all."""
        first, room = self.scroll_offset.y, self.size.height - 1
        if len(self.rows) <= room:
            return ""
        return f"{first + 1}–{min(first + room, len(self.rows))} of {len(self.rows)}"

    def action_move(self, by: int) -> None:
        """Moves the cursor by so many rows, as far as there are rows, and scrolls to it."""
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
        """A click, in characters from the widget's corner: on a column's name, or on a row."""
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
        """One line of the widget, as Textual asks for it: the header, a row, or the remark that there are none."""
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
        """The names of the columns, with a mark on the one that rows are sorted by."""
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
        """The cells of a row in the widths that the columns have now; reversed under the cursor."""
        segments = []
        for column, cell, room in zip(self._columns, row.cells, widths(self._columns, width), strict=True):
            if room:
                style = _CURSOR if on else _STYLES[cell.tone]
                segments.append(Segment(fit(cell.text, room, right=column.right), style))
                segments.append(Segment(" ", _CURSOR if on else _STYLES[""]))
        return Strip(segments).adjust_cell_length(width, _CURSOR if on else _STYLES[""])


class Shortcut(NamedTuple):
    """A key: `shown` is its name in the help, `textual` are its names for Textual. Either may be empty."""

    shown: str
    meaning: str
    textual: str
    action: str = ""


KEYS = (
    Shortcut("q, F10, Ctrl-C", "quit", "q,f10,ctrl+c", "quit"),
    Shortcut("?, h, F1", "this help", "question_mark,h,f1", "help"),
    *(Shortcut("", page.title, str(number), f"page({number - 1})") for number, page in enumerate(PAGES, 1)),
    Shortcut(f"1 to {len(PAGES)}", ", ".join(page.title.lower() for page in PAGES), ""),
    Shortcut("Tab, →", "the next page", "tab,right", "next_page(1)"),
    Shortcut("Shift-Tab, ←", "the page before", "shift+tab,left", "next_page(-1)"),
    Shortcut("↑ ↓ PgUp PgDn Home End", "move the cursor", ""),
    Shortcut("Enter", "all about the line under the cursor", ""),
    Shortcut("/, F3, F4", "filter: only lines that have all these words", "slash,f3,f4,backslash", "filter"),
    Shortcut("Esc", "no filter", "escape", "show_all"),
    Shortcut("> ., F6", "sort by the next column, or click on its name", "greater_than_sign,full_stop,f6", "sort(1)"),
    Shortcut("< ,", "sort by the column before", "less_than_sign,comma", "sort(-1)"),
    Shortcut("r, I", "reverse the sort", "r,I", "reverse"),
    Shortcut("p, Z", "pause, and go on", "p,Z", "pause"),
    Shortcut("Space", "look now", "space", "look"),
    Shortcut("+ -", "refresh faster, slower", "plus", "faster(0.5)"),
    Shortcut("", "", "minus", "faster(2.0)"),
)  # fmt: skip


def help_text(page: Page) -> Text:
    """The keys, and what the columns of the page are."""
    found = Text()
    found.append("Keys\n", style="bold")
    for key in KEYS:
        if key.shown:
            found.append(f"  {key.shown:<24}", style="bold").append(f"{key.meaning}\n")
    found.append(f"\nColumns of {page.title}\n", style="bold")
    for column in page.columns:
        found.append(f"  {heading(column):<24}", style="bold").append(f"{column.meaning}\n")
    found.append("\nEsc closes this. The colours are those of your terminal.", style="dim")
    return found


#: Rows of devices on a screen of 24 lines, and for each line more.
_DEVICES_AT_24 = 5
_PROBE_SECONDS = 15.0


class TextPage(ModalScreen[None]):
    """A page of text above everything. Any of the usual keys closes it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(keys, "dismiss", show=False) for keys in ("escape", "q", "enter", "question_mark", "h", "f1", "f10")
    ]

    def __init__(self, content: Text) -> None:
        self._content = content
        super().__init__()

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="note"):
            yield Static(self._content, markup=False)


class Top(App[None]):
    """Asks all processes every `interval` seconds, in a thread, and shows what they say.

    `words` filter the rows from the start. Without `probe` devices are not looked for, as in tests.
    """

    CSS = """
    Screen { background: ansi_default; color: ansi_default; }
    #title, #tabs, #keys { height: 1; width: 100%; }
    #devices { height: 3; margin-top: 0; }
    #tabs { margin-top: 1; }
    #rows { height: 1fr; }
    Rows { background: ansi_default; color: ansi_default; overflow-x: hidden; scrollbar-size: 0 0; }
    #words { display: none; height: 1; border: none; padding: 0; background: ansi_default; color: ansi_default; }
    #words.asked { display: block; }
    #keys.hidden { display: none; }
    Note { align: center middle; background: ansi_default; }
    #note { width: 100%; height: 100%; padding: 1 2; background: ansi_default; color: ansi_default;
            scrollbar-size: 0 0; }
    """
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        # Tab would go to the next widget otherwise.
        Binding(key.textual, key.action, key.meaning, show=False, priority="tab" in key.textual)
        for key in KEYS
        if key.action
    ]

    def __init__(
        self, *, interval: float = 1.0, words: str = "", watching: Watching | None = None, probe: bool = True
    ) -> None:
        super().__init__()
        self.theme = "ansi-dark"
        self.interval = interval
        self.words = words
        self._watching = watching or Watching()
        self._probe = probe
        self._page = 0
        #: The column of each page, and whether the largest come first.
        self._sort = {number: (page.sort, page.descending) for number, page in enumerate(PAGES)}
        self._picture = Picture((), (), {})
        self._looked = False
        self._paused = False
        self._trouble: str | None = None
        self._at_once = threading.Event()

    def compose(self) -> ComposeResult:
        yield Static(id="title", markup=False)
        yield Rows(id="devices", cursor=False)
        yield Static(id="tabs", markup=False)
        yield Rows(id="rows")
        yield Static(id="keys", markup=False)
        yield Input(placeholder="words that a line must have; Esc for all", id="words", value=self.words, compact=True)

    def on_mount(self) -> None:
        self.query_one("#rows").focus()
        self._draw()
        self._watch()
        if self._probe:
            self._find_devices()

    # -- in threads

    @work(thread=True, exclusive=True, group="watch")
    def _watch(self) -> None:
        """The thread that looks, until the screen is closed; an error of ours is shown in the title."""
        worker = get_current_worker()
        while not worker.is_cancelled:
            if not self._paused:
                trouble, picture = None, self._picture
                try:
                    picture = self._watching.look()
                except AnyGPUError as error:
                    trouble = str(error)
                self._tell(picture, trouble)
            self._at_once.wait(self.interval)
            self._at_once.clear()

    def _tell(self, picture: Picture, trouble: str | None) -> None:
        """Hands a picture to Textual's thread, unless the screen is closed by now."""
        # The screen may be closed by now.
        if not get_current_worker().is_cancelled:
            self.call_from_thread(self._seen, picture, trouble)

    @work(thread=True, group="devices")
    def _find_devices(self) -> None:
        """A thread that probes the devices of this machine once, with low priority."""
        from anygpu.workers.discovery import discover

        self._watching.devices = discover(timeout=_PROBE_SECONDS, low_priority=True).devices

    def on_unmount(self) -> None:
        self.workers.cancel_all()
        self._at_once.set()
        self._watching.close()

    # -- what is shown

    def _seen(self, picture: Picture, trouble: str | None) -> None:
        """Draws a new picture, on Textual's thread."""
        self._picture, self._trouble, self._looked = picture, trouble, True
        # While it is being closed, nothing is there any more to be drawn on.
        with contextlib.suppress(NoMatches):
            self._draw()

    @property
    def page(self) -> Page:
        return PAGES[self._page]

    def _draw(self) -> None:
        """Draws the title, the devices and the rows."""
        looks = self._picture.looks
        title = Text(f"anygpu top · {headline(looks)}", style="bold", no_wrap=True, overflow="ellipsis")
        if self._paused:
            title.append(" · paused: p goes on", style="yellow")
        if self._trouble:
            title.append(f" · {self._trouble}", style="red")
        self.query_one("#title", Static).update(title)
        self._draw_devices()
        self._draw_rows()

    def _draw_devices(self) -> None:
        """Draws the cards; their table is as high as they need, within a share of the screen."""
        rows = device_rows(self._picture.cards)
        most = max(1, _DEVICES_AT_24 + (self.size.height - 24) // 4)
        table = self.query_one("#devices", Rows)
        table.show(DEVICES, rows, empty="Looking for devices …")
        wanted = 1 + min(max(1, len(rows)), most)
        if table.styles.height is None or table.styles.height.value != wanted:
            table.styles.height = wanted

    def _draw_tabs(self) -> None:
        """Draws the names of the pages, with the number of losses and anomalies."""
        tabs = Text(no_wrap=True, overflow="ellipsis")
        for number, page in enumerate(PAGES):
            found = len(page.rows(self._picture.looks)) if page.title in ("Losses", "Anomalies") else 0
            label = f" {number + 1} {page.title}{f' ({found})' if found else ''} "
            style = "reverse bold" if number == self._page else "yellow" if found else ""
            tabs.append(label, style=style)
        self.query_one("#tabs", Static).update(tabs)

    def _draw_keys(self) -> None:
        """Draws the line of keys, or the filter, and which of the rows can be seen."""
        keys = "? help  / filter  < > sort  r reverse  Enter details  p pause  q quit"
        if self.words:
            keys = f"filter: {printable(self.words)}   Esc shows all"
        part = self.query_one("#rows", Rows).part
        spare = max(1, self.size.width - cell_len(keys) - len(part))
        shown = Text(keys + " " * spare + part, style="dim", no_wrap=True, overflow="ellipsis")
        self.query_one("#keys", Static).update(shown)

    def _draw_rows(self) -> None:
        """Draw the rows of the current page, filtered and sorted, or why there are none."""
        column, descending = self._sort[self._page]
        rows = filtered(self.page.rows(self._picture.looks), self.words)
        if not self._looked:
            empty = "Looking for processes …"
        elif self._trouble:
            empty = self._trouble
        elif not self._picture.looks:
            empty = NO_PROCESS
        else:
            empty = f"No line has {self.words!r}. Esc shows all." if self.words else self.page.empty
        shown = in_order(rows, column, descending=descending)
        table = self.query_one("#rows", Rows)
        table.show(self.page.columns, shown, sorted_by=column, descending=descending, empty=empty)
        self._draw_tabs()
        self._draw_keys()

    def on_resize(self, event: events.Resize) -> None:
        self.call_after_refresh(self._draw)

    def on_click(self, event: events.Click) -> None:
        if isinstance(event.widget, Rows):
            event.widget.click_at(event.x, event.y, twice=event.chain == 2)

    def on_rows_head_clicked(self, message: Rows.HeadClicked) -> None:
        """Sorts by the column; a second click on the same one turns the order around."""
        column, descending = self._sort[self._page]
        # A second click on the same column turns it around.
        self._sort[self._page] = (message.column, not descending if message.column == column else True)
        self._draw_rows()

    def on_rows_moved(self, message: Rows.Moved) -> None:
        self._draw_keys()

    def on_rows_chosen(self, message: Rows.Chosen) -> None:
        self._show_details(message.row)

    def _show_details(self, row: PageRow) -> None:
        self.push_screen(TextPage(details(self.page, row, self._picture.looks)))

    # -- keys

    def action_page(self, number: int) -> None:
        self._page = number % len(PAGES)
        self.query_one("#rows", Rows).scroll_to(y=0, animate=False)
        self._draw()

    def action_next_page(self, by: int) -> None:
        self.action_page(self._page + by)

    def action_sort(self, by: int) -> None:
        column, descending = self._sort[self._page]
        column = (column + by) % len(self.page.columns)
        self._sort[self._page] = (column, descending)
        self._draw_rows()

    def action_reverse(self) -> None:
        column, descending = self._sort[self._page]
        self._sort[self._page] = (column, not descending)
        self._draw_rows()

    def action_pause(self) -> None:
        self._paused = not self._paused
        self._at_once.set()
        self._draw()

    def action_faster(self, factor: float) -> None:
        """Multiplies the interval, within 0.1 and 60 seconds, and looks at once."""
        self.interval = min(60.0, max(0.1, self.interval * factor))
        self._at_once.set()
        self.notify(f"Looks every {self.interval:g} s", timeout=2, markup=False)

    def action_look(self) -> None:
        self._at_once.set()

    def action_help(self) -> None:
        self.push_screen(TextPage(help_text(self.page)))

    def action_filter(self) -> None:
        """Opens the field for words in place of the line of keys."""
        words = self.query_one("#words", Input)
        words.value = self.words
        words.add_class("asked")
        self.query_one("#keys").add_class("hidden")
        words.focus()

    def action_show_all(self) -> None:
        self.words = ""
        self._leave_filter()

    def on_input_changed(self, event: Input.Changed) -> None:
        self.words = event.value
        self._draw_rows()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self.words = event.value
        self._leave_filter()

    def _leave_filter(self) -> None:
        """Closes the field for words, and draws with those that there are."""
        self.query_one("#words").remove_class("asked")
        self.query_one("#keys").remove_class("hidden")
        self.query_one("#rows").focus()
        self._draw()
