"""Tables, described once: what the columns are called, how their values are found, and in which unit they are.

A `Column` knows nothing of where it is shown. A surface (a terminal, a page, a notebook) has `Formats`, which write the
values of each unit as there is room for them; `cell` puts both together. What is unknown is `None`, and never a zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Generic, Literal, NamedTuple, TypeVar

from anygpu.base.printable import printable
from anygpu.base.units import readable_bytes, readable_seconds

Item = TypeVar("Item")

#: In place of a value that is not known.
UNKNOWN = "–"

#: The meaning of a cell: nothing special, unimportant, good, a warning, bad.
Tone = Literal["", "dim", "good", "warn", "bad"]
#: "text" and "prose", which may take several lines, are aligned to the left, and all others to the right.
Unit = Literal[
    "text", "prose", "id", "count", "seconds", "long", "bytes", "share", "age", "ratio", "celsius", "watts", "hertz"
]  # fmt: skip
#: A pair is a value and its limit, as in "3 GiB / 8 GiB".
Value = float | str | tuple[float | None, float | None] | None


class Column(NamedTuple, Generic[Item]):
    """One column of a table whose rows are made of items."""

    title: str
    value: Callable[[Item], Value]
    unit: Unit = "text"
    #: Characters on a terminal; of a column that takes what is left, or a part of it, the least.
    width: int = 8
    #: Explains the column, for the help of a terminal.
    meaning: str = ""
    tone: Tone | Callable[[Item], Tone] = ""
    #: The title where there is little room; the title itself by default.
    short: str = ""
    takes_rest: bool = False
    #: Columns that do not fit are left out in this order, the highest first; 0 never is.
    optional: int = 0
    #: Characters of a text on a page.
    letters: int = 60

    @property
    def right(self) -> bool:
        return self.unit not in ("text", "prose")


def by_title(*columns: Column[Item]) -> dict[str, Column[Item]]:
    return {column.title: column for column in columns}


def pick(columns: Mapping[str, Column[Item]], *titles: str) -> tuple[Column[Item], ...]:
    return tuple(columns[title] for title in titles)


class Cell(NamedTuple):
    """One value of a table as a surface shows it."""

    text: str
    #: The value to sort by; `None` if it is unknown.
    key: float | str | None = None
    tone: Tone = ""


class Formats(NamedTuple):
    """How a surface writes values."""

    units: Mapping[Unit, Callable[[float], str]]
    #: Writes a text in at most so many letters.
    text: Callable[[str, int], str] = printable
    unknown: str = UNKNOWN


def cell(column: Column[Item], item: Item, formats: Formats) -> Cell:
    """The cell of an item in a column. Zeros are dim: what is not zero should be seen."""
    value = column.value(item)
    tone = column.tone(item) if callable(column.tone) else column.tone
    if value is None or (isinstance(value, tuple) and value[0] is None):
        return Cell(formats.unknown, None, "dim")
    if isinstance(value, str):
        text = formats.text(value, column.letters)
        return Cell(text or formats.unknown, text.lower(), tone)
    write = formats.units[column.unit]
    if isinstance(value, tuple):
        known = [each for each in value if each is not None]
        return Cell(" / ".join(write(each) for each in known), known[0], tone)
    return Cell(write(value), value, tone if value else "dim")


def cells(columns: Iterable[Column[Item]], item: Item, formats: Formats) -> tuple[Cell, ...]:
    return tuple(cell(column, item, formats) for column in columns)


def to_text(columns: Sequence[Column[Item]], items: Iterable[Item]) -> str:
    """The table as lines of text, as wide as it needs to be."""
    rows = [tuple(column.title for column in columns)]
    rows += [tuple(each.text for each in cells(columns, item, LONG)) for item in items]
    widths = [max(map(len, texts)) for texts in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            text.rjust(width) if column.right else text.ljust(width)
            for column, text, width in zip(columns, row, widths, strict=True)
        ).rstrip()
        for row in rows
    )


# -- how values read


def compact(value: float) -> str:
    """In at most five characters: 7, 12.3, 950, 1,234, 12.3k, 4.56M."""
    if value < 100 and value != int(value):
        return f"{value:.1f}"
    if value < 10_000:
        return f"{value:,.0f}"
    for size, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.{0 if value >= 100 * size else 1}f}{unit}"
    raise AssertionError("unreachable")


def counted(value: float) -> str:
    return f"{value:.1f}" if value < 10 and value != int(value) else f"{value:,.0f}"


def percent(value: float) -> str:
    return f"{value * 100:.1f}%" if value < 0.0995 else f"{value:.0%}"


def short_bytes(value: float) -> str:
    return readable_bytes(int(value)).replace(" bytes", " B").replace("iB", "")


def short_seconds(value: float) -> str:
    return readable_seconds(value) if value < 1000 else clock(value)


def clock(seconds: float) -> str:
    """As a clock: 12s, 3:05, 2:03:04, 5d 3h."""
    whole = int(max(0.0, seconds))
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02d}"
    if whole < 100 * 3600:
        return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"
    return f"{whole // 86400}d {whole // 3600 % 24}h"


def rounded_age(seconds: float) -> str:
    """In one unit: 12 s, 3 min, 2 h."""
    if seconds < 60:
        return f"{max(0.0, seconds):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 3600 else f"{seconds / 3600:.0f} h"


def long_seconds(seconds: float) -> str:
    """Sums, which may be hours."""
    if seconds < 120:
        return readable_seconds(seconds)
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:,.1f} h"


#: For sentences, files and notebooks.
LONG = Formats(
    {
        "id": str,
        "count": counted,
        "seconds": readable_seconds,
        "long": long_seconds,
        "bytes": lambda value: readable_bytes(int(value)),
        "share": lambda value: f"{value:.0%}",
        "age": lambda value: f"{rounded_age(value)} ago",
        "ratio": lambda value: f"{value:.2f}",
        "celsius": lambda value: f"{value:.0f}",
        "watts": lambda value: f"{value:.0f} W",
        "hertz": lambda value: f"{value / 1e6:.0f} MHz",
    }
)
#: For a screen that is full of numbers.
SHORT = Formats(
    {
        **LONG.units,
        "count": compact,
        "seconds": short_seconds,
        "long": short_seconds,
        "bytes": short_bytes,
        "share": percent,
        "age": clock,
    },
    lambda text, letters: printable(text),
)
