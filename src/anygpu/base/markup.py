"""HTML that cannot be broken by what it shows: every text is escaped unless it is HTML already."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import NamedTuple

from anygpu.base.tables import LONG, Column, Formats, Item, cell

#: A longer text of the user's is cut: a notebook keeps all that it shows.
LONGEST_TEXT = 2000

#: Each is seen on white and on black paper: both contrasts are above 3.
BLUE, VIOLET, ORANGE, RED = "#3b82c4", "#8b5cf6", "#c2740a", "#dc4446"
TEAL, PINK, GREY, OLIVE = "#0f8f83", "#d6409f", "#7c8894", "#8a7d00"

# Colours are those of JupyterLab's theme where there is one, and otherwise those of the text around it.
# The class twice: JupyterLab and Sphinx have rules for tables, lists and code that would win otherwise.
_STYLE = """
.anygpu-out{color:var(--jp-content-font-color1,inherit);font-family:var(--jp-content-font-family,inherit);
font-size:var(--jp-content-font-size1,14px);line-height:1.45;max-width:960px;margin:4px 0}
& p{margin:2px 0}
& .soft{opacity:.75}
& .bad{font-weight:600;border-bottom:2px solid #dc4446}
& .hidden{position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%);white-space:nowrap}
& code,& pre{font-family:var(--jp-code-font-family,ui-monospace,monospace);font-size:.93em;background:none;
color:inherit;padding:0;border:0}
& pre{margin:4px 0;white-space:pre;overflow-x:auto;line-height:1.35}
& .wide{overflow-x:auto}
& table{border-collapse:collapse;margin:6px 0;font-size:inherit;border:0;width:auto;table-layout:auto}
& th,& td{padding:3px 16px 3px 0;text-align:left;vertical-align:top;white-space:normal;max-width:none;color:inherit;
border:0;border-bottom:1px solid var(--jp-border-color2,rgba(128,128,128,.35));background:none}
& tr,& tbody tr:nth-child(n),& tr:hover{background:none}
& th{font-weight:600}
& .n{text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums}
& .k{white-space:nowrap}
& svg.bar{display:block;width:100%;min-width:100px;height:9px;margin:5px 0;border-radius:2px;
background:var(--jp-border-color3,rgba(128,128,128,.18))}
& ul{list-style:none;margin:2px 0;padding:0}
& ul.legend li{display:inline-block;margin:0 14px 0 0;white-space:nowrap}
& .swatch{display:inline-block;width:9px;height:9px;border-radius:2px;margin-right:5px}
& details{margin:4px 0}
& summary{cursor:pointer}
& svg.anygpu-graph{max-width:100%;height:auto}
""".replace("&", ".anygpu-out.anygpu-out")
_STYLE_TAG = f"<style>{_STYLE.strip()}</style>"


#: Texts are cut and escaped where they are put into the page.
HTML = LONG._replace(text=lambda text, letters: text, unknown="")


class Html(str):
    """A text that is HTML already."""

    __slots__ = ()


class Share(NamedTuple):
    """One part of a bar."""

    name: str
    size: float
    #: Its size as people read it.
    shown: str
    colour: str


def safe(value: object) -> Html:
    """The text escaped, without control characters and halves of surrogate pairs; HTML stays as it is."""
    if isinstance(value, Html):
        return value
    text = str(value)
    if len(text) > LONGEST_TEXT:
        text = text[: LONGEST_TEXT - 1] + "…"
    shown = "".join(
        letter if letter.isprintable() or letter == "\n" else "\N{REPLACEMENT CHARACTER}" for letter in text
    )
    return Html(escape(shown.encode("utf-8", "replace").decode()))


def join(parts: Iterable[object]) -> Html:
    return Html("".join(map(safe, parts)))


def tag(name: str, *content: object, **attributes: str) -> Html:
    """An element. `class_` is its class, and an underscore in an attribute's name is a hyphen."""
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{safe(value)}"' for key, value in attributes.items() if value
    )
    return Html(f"<{name}{written}>{join(content)}</{name}>")


def framed(label: str, *content: object) -> str:
    """What a cell shows, in our style; `label` is for those who hear it."""
    body = tag("div", *content, class_="anygpu-out", role="group", aria_label=label)
    return str(body).replace(">", f">{_STYLE_TAG}", 1)


def paragraph(*content: object, look: str = "") -> Html:
    return tag("p", *content, class_=look)


def spoken(text: str) -> Html:
    """For those who hear the page: a name for what the eye understands by itself."""
    return tag("span", text, class_="hidden")


def details(summary: object, *content: object) -> Html:
    """Returns a summary whose content is shown when the reader opens it."""
    return tag("details", tag("summary", summary), *content)


def pairs(rows: Iterable[tuple[str, object]], label: str) -> Html:
    """A table of names and values; nothing for no rows."""
    body = [tag("tr", tag("th", name, scope="row", class_="k"), tag("td", value)) for name, value in rows]
    return tag("div", tag("table", *body, aria_label=label), class_="wide") if body else Html("")


def table(
    head: Sequence[str], rows: Iterable[Sequence[object]], label: str, numbers: Sequence[int] = (), class_: str = ""
) -> Html:
    """A table with a row of titles; columns in `numbers` are aligned to the right."""

    def look(column: int) -> str:
        return "n" if column in numbers else ""

    names = [tag("th", name, scope="col", class_=look(column)) for column, name in enumerate(head)]
    body = [tag("tr", *(tag("td", cell, class_=look(column)) for column, cell in enumerate(row))) for row in rows]
    titles = tag("thead", tag("tr", *names)) if any(head) else ""
    return tag("div", tag("table", titles, tag("tbody", *body), aria_label=label, class_=class_), class_="wide")


def column_table(columns: Sequence[Column[Item]], items: Iterable[Item], label: str, formats: Formats = HTML) -> Html:
    """A table that is described by columns. A value may be HTML, which stays as it is."""
    rows = [[_content(column, item, formats) for column in columns] for item in items]
    numbers = [place for place, column in enumerate(columns) if column.right]
    return table([column.title for column in columns], rows, label, numbers)


def _content(column: Column[Item], item: Item, formats: Formats) -> object:
    """Returns a cell's content: HTML as it is, or its text, marked if it is bad."""
    value = column.value(item)
    if isinstance(value, Html):
        return value
    found = cell(column, item, formats)
    return tag("span", found.text, class_="bad") if found.tone == "bad" else found.text


def bar(shares: Sequence[Share], whole: float | None = None) -> Html:
    """The parts beside each other, as shares of `whole`, which is their sum by default."""
    total = sum(each.size for each in shares) if whole is None else whole
    label = ", ".join(f"{each.name} {each.shown}" for each in shares)
    if total <= 0:
        return Html("")
    parts, x = [], 0.0
    for each in shares:
        width = 100 * each.size / total
        about = tag("title", f"{each.name} {each.shown}")
        parts.append(
            f'<rect x="{x:.2f}" y="0" width="{width:.2f}" height="9" fill="{safe(each.colour)}">{about}</rect>'
        )
        x += width
    return Html(
        f'<svg class="bar" role="img" aria-label="{safe(label)}" viewBox="0 0 100 9" preserveAspectRatio="none">'
        f"{''.join(parts)}</svg>"
    )


def legend(shares: Sequence[Share]) -> Html:
    """Returns the names, sizes and colours of a bar's parts; nothing for no parts."""
    items = [
        tag("li", tag("span", class_="swatch", style=f"background:{each.colour}"), f"{each.name} {each.shown}")
        for each in shares
    ]
    return tag("ul", *items, class_="legend") if items else Html("")


def clipped(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"
