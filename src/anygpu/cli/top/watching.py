"""One picture of `anygpu top`: all processes and the devices of this machine, as text and as JSON."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from anygpu.base.printable import encode_json
from anygpu.base.tables import Cell, Column
from anygpu.cli.top.pages import (
    DEVICES,
    NO_PROCESS,
    PAGES,
    Row,
    cards,
    device_rows,
    fit,
    heading,
    headline,
    in_order,
    widths,
)
from anygpu.hardware.device import Device
from anygpu.hardware.usage.reading import UsageReader
from anygpu.hardware.usage.usage import Usage
from anygpu.observe.looking import Following, Look
from anygpu.observe.snapshot import Snapshot
from anygpu.observe.tables import DeviceRow


class Picture(NamedTuple):
    """Everything at a moment."""

    looks: tuple[Look, ...]
    cards: tuple[DeviceRow, ...]
    usage: dict[str, Usage]


class Silent(msgspec.Struct, frozen=True, kw_only=True):
    """A process that has not answered."""

    pid: int
    why: str


class TopDocument(msgspec.Struct, frozen=True, kw_only=True):
    """The document that `anygpu top --once --json` prints."""

    schema: str = "anygpu.top/1"
    #: Seconds since 1970.
    time: float
    processes: tuple[Snapshot, ...]
    silent: tuple[Silent, ...] = ()
    #: Usage of the devices of this machine, by id.
    usage: dict[str, Usage] = {}

    def to_json(self) -> bytes:
        return msgspec.json.format(encode_json(self), indent=2)


class Watching:
    """Takes one picture after the other. For one thread at a time."""

    def __init__(self, following: Following | None = None, devices: Sequence[Device] = ()) -> None:
        self._following = following or Following()
        self._reader = UsageReader()
        #: The devices of this machine, once they are known.
        self.devices: Sequence[Device] = devices

    def look(self) -> Picture:
        looks = self._following.look()
        devices = self.devices
        usage = self._reader.read([each for each in devices if not each.software])
        return Picture(tuple(looks), tuple(cards(usage, devices, looks)), usage)

    def close(self) -> None:
        self._following.close()


def document(picture: Picture) -> TopDocument:
    answered = [look for look in picture.looks if look.trouble is None and look.snapshot is not None]
    silent = [look for look in picture.looks if look.trouble is not None and look.ended is None]
    return TopDocument(
        time=time.time(),
        processes=tuple(look.snapshot for look in answered if look.snapshot is not None),
        silent=tuple(Silent(pid=look.process.pid, why=look.trouble or "") for look in silent),
        usage=picture.usage,
    )


STYLES = {"": "", "dim": "dim", "good": "green", "warn": "yellow", "bad": "bold red"}


def show_once(console: Console, picture: Picture) -> None:
    """All pages that have anything to say, one below the other."""
    console.print(Text(f"anygpu top · {headline(picture.looks)}"))
    if picture.cards:
        _show(console, "", DEVICES, device_rows(picture.cards))
    if not picture.looks:
        console.print()
        console.print(Text(NO_PROCESS))
        return
    for page in PAGES:
        rows = page.rows(picture.looks)
        if rows:
            _show(console, page.title, page.columns, in_order(rows, page.sort, descending=page.descending))


def _show(console: Console, title: str, columns: Sequence[Column[Any]], rows: Sequence[Row]) -> None:
    console.print()
    if title:
        console.print(Text(title, style="bold"))
    if console.is_terminal:
        room = widths(columns, console.width)
    else:  # to a file, nothing is left out or cut off
        room = [
            max(cell_len(each) for each in (heading(column), *(row.cells[number].text for row in rows)))
            for number, column in enumerate(columns)
        ]
    shown = [(number, column, width) for number, (column, width) in enumerate(zip(columns, room, strict=True)) if width]
    head = " ".join(fit(heading(column), width, right=column.right) for _, column, width in shown)
    console.print(Text(head.rstrip(), style="dim"), soft_wrap=True)
    for row in rows:
        line = Text(" ").join(_styled(row.cells[number], column, width) for number, column, width in shown)
        line.rstrip()
        console.print(line, soft_wrap=True)


def _styled(cell: Cell, column: Column[Any], width: int) -> Text:
    return Text(fit(cell.text, width, right=column.right), style=STYLES[cell.tone])
