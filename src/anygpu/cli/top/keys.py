"""The keys of `anygpu top`. Those of htop and nvitop do here what they do there."""

from __future__ import annotations

from typing import NamedTuple

from rich.text import Text

from anygpu.cli.top.pages import PAGES, Page


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
        found.append(f"  {column.name:<24}", style="bold").append(f"{column.meaning}\n")
    found.append("\nEsc closes this. The colours are those of your terminal.", style="dim")
    return found
