"""The screen of `anygpu top`."""

from __future__ import annotations

import contextlib
import threading
from typing import ClassVar, NamedTuple

from rich.cells import cell_len
from rich.text import Text
from textual import events, work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.css.query import NoMatches
from textual.screen import ModalScreen
from textual.widgets import Input, Static
from textual.worker import get_current_worker

from anygpu.base.printable import printable
from anygpu.cli.top.pages import (
    DEVICES,
    NO_PROCESS,
    PAGES,
    Page,
    Picture,
    Row,
    Watching,
    details,
    device_rows,
    filtered,
    heading,
    headline,
    in_order,
)
from anygpu.cli.top.table import Rows
from anygpu.errors import AnyGPUError


class Key(NamedTuple):
    """`textual` are its names for Textual, `shown` is what the help calls it."""

    shown: str
    meaning: str
    textual: str
    action: str = ""


KEYS = (
    Key("q, F10, Ctrl-C", "quit", "q,f10,ctrl+c", "quit"),
    Key("?, h, F1", "this help", "question_mark,h,f1", "help"),
    *(Key("", page.title, str(number), f"page({number - 1})") for number, page in enumerate(PAGES, 1)),
    Key(f"1 to {len(PAGES)}", ", ".join(page.title.lower() for page in PAGES), ""),
    Key("Tab, →", "the next page", "tab,right", "next_page(1)"),
    Key("Shift-Tab, ←", "the page before", "shift+tab,left", "next_page(-1)"),
    Key("↑ ↓ PgUp PgDn Home End", "move the cursor", ""),
    Key("Enter", "all about the line under the cursor", ""),
    Key("/, F3, F4", "filter: only lines that have all these words", "slash,f3,f4,backslash", "filter"),
    Key("Esc", "no filter", "escape", "show_all"),
    Key("> ., F6", "sort by the next column, or click on its name", "greater_than_sign,full_stop,f6", "sort(1)"),
    Key("< ,", "sort by the column before", "less_than_sign,comma", "sort(-1)"),
    Key("r, I", "reverse the sort", "r,I", "reverse"),
    Key("p, Z", "pause, and go on", "p,Z", "pause"),
    Key("Space", "look now", "space", "look"),
    Key("+ -", "refresh faster, slower", "plus", "faster(0.5)"),
    Key("", "", "minus", "faster(2.0)"),
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


class Note(ModalScreen[None]):
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
    """Asks all processes every `interval` seconds, in a thread, and shows what they say."""

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
        # The screen may be closed by now.
        if not get_current_worker().is_cancelled:
            self.call_from_thread(self._seen, picture, trouble)

    @work(thread=True, group="devices")
    def _find_devices(self) -> None:
        from anygpu.workers.discovery import discover

        self._watching.devices = discover(timeout=_PROBE_SECONDS, low_priority=True).devices

    def on_unmount(self) -> None:
        self.workers.cancel_all()
        self._at_once.set()
        self._watching.close()

    # -- what is shown

    def _seen(self, picture: Picture, trouble: str | None) -> None:
        self._picture, self._trouble, self._looked = picture, trouble, True
        # While it is being closed, nothing is there any more to be drawn on.
        with contextlib.suppress(NoMatches):
            self._draw()

    @property
    def page(self) -> Page:
        return PAGES[self._page]

    def _draw(self) -> None:
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
        rows = device_rows(self._picture.cards)
        most = max(1, _DEVICES_AT_24 + (self.size.height - 24) // 4)
        table = self.query_one("#devices", Rows)
        table.show(DEVICES, rows, empty="Looking for devices …")
        wanted = 1 + min(max(1, len(rows)), most)
        if table.styles.height is None or table.styles.height.value != wanted:
            table.styles.height = wanted

    def _draw_tabs(self) -> None:
        tabs = Text(no_wrap=True, overflow="ellipsis")
        for number, page in enumerate(PAGES):
            found = len(page.rows(self._picture.looks)) if page.title in ("Losses", "Anomalies") else 0
            label = f" {number + 1} {page.title}{f' ({found})' if found else ''} "
            style = "reverse bold" if number == self._page else "yellow" if found else ""
            tabs.append(label, style=style)
        self.query_one("#tabs", Static).update(tabs)

    def _draw_keys(self) -> None:
        keys = "? help  / filter  < > sort  r reverse  Enter details  p pause  q quit"
        if self.words:
            keys = f"filter: {printable(self.words)}   Esc shows all"
        part = self.query_one("#rows", Rows).part
        spare = max(1, self.size.width - cell_len(keys) - len(part))
        shown = Text(keys + " " * spare + part, style="dim", no_wrap=True, overflow="ellipsis")
        self.query_one("#keys", Static).update(shown)

    def _draw_rows(self) -> None:
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
        column, descending = self._sort[self._page]
        # A second click on the same column turns it around.
        self._sort[self._page] = (message.column, not descending if message.column == column else True)
        self._draw_rows()

    def on_rows_moved(self, message: Rows.Moved) -> None:
        self._draw_keys()

    def on_rows_chosen(self, message: Rows.Chosen) -> None:
        self._show_details(message.row)

    def _show_details(self, row: Row) -> None:
        self.push_screen(Note(details(self.page, row, self._picture.looks)))

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
        self.interval = min(60.0, max(0.1, self.interval * factor))
        self._at_once.set()
        self.notify(f"Looks every {self.interval:g} s", timeout=2, markup=False)

    def action_look(self) -> None:
        self._at_once.set()

    def action_help(self) -> None:
        self.push_screen(Note(help_text(self.page)))

    def action_filter(self) -> None:
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
        self.query_one("#words").remove_class("asked")
        self.query_one("#keys").remove_class("hidden")
        self.query_one("#rows").focus()
        self._draw()
