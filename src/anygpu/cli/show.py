"""Prints inventories, diagnoses, usage and tables on a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from anygpu.base.printable import printable
from anygpu.base.tables import LONG, UNKNOWN, Column, Formats, Item, cells, pick
from anygpu.base.units import readable_seconds
from anygpu.hardware.cards import Card
from anygpu.hardware.device import Device, State
from anygpu.hardware.diagnosis import Diagnosis
from anygpu.hardware.diagnosis_context import Finding
from anygpu.hardware.inventory import Inventory, all_facts, explained, in_a_few_words, memory_of, more_words
from anygpu.hardware.usage.usage import ProcessUsage, UsageDocument

_MARKS: dict[State, tuple[str, str]] = {
    "verified": ("✓", "green"),
    "usable": ("?", "yellow"),
    "present": ("✗", "red"),
    "hung": ("✗", "red"),
    "absent": ("–", "dim"),
}
_SEVERITIES = {"problem": ("Problem", "red"), "advice": ("Advice", "yellow"), "note": ("Note", "cyan")}


def show_inventory(console: Console, inventory: Inventory, *, deep: bool = False) -> None:
    for card in inventory.cards:
        _show_card(console, card, [device for device in inventory.devices if device.card == card.id], deep=deep)
    if inventory.unavailable:
        console.print("[bold]Not available[/bold]")
        table = grid(3)
        for item in inventory.unavailable:
            table.add_row(_mark(item.state), item.id, Text(explained(item)))
        console.print(Padding(table, (0, 0, 1, 2)))
    console.print(Text(_how_we_know(inventory), style="dim"))


def show_diagnosis(console: Console, diagnosis: Diagnosis) -> None:
    console.print(Text(diagnosis.verdict, style="bold"))
    console.print()
    console.print("[bold]What can compute here[/bold]")
    table = grid(3)
    for device in diagnosis.inventory.devices:
        table.add_row(_mark(device.state), device.id, Text(in_a_few_words(device)))
    console.print(Padding(table, (0, 0, 1, 2)))
    for finding in diagnosis.findings:
        show_finding(console, finding)
    if not diagnosis.problems:
        console.print(Text("No problems found.", style="green"))


def show_findings(console: Console, verdict: str, findings: Sequence[Finding]) -> None:
    console.print(Text(verdict, style="bold"))
    console.print()
    for finding in findings:
        show_finding(console, finding)
    if not any(finding.severity == "problem" for finding in findings):
        console.print(Text("No problems found.", style="green"))


def _show_card(console: Console, card: Card, ways: list[Device], *, deep: bool) -> None:
    heading = Text(card.name, style="bold")
    heading.append(f"  {memory_of(card)}", style="default")
    console.print(heading)
    table = grid(3)
    for device in ways:
        table.add_row(_mark(device.state), device.id, Text(in_a_few_words(device)))
        table.add_row("", "", Text(more_words(device), style="dim"))
        if deep:
            for name, value in all_facts(device):
                table.add_row("", "", Text(f"{name}: {value}", style="dim"))
    if not ways:
        table.add_row(_mark("present"), "", Text("no engine can use this card; run `anygpu doctor` to see why"))
    if card.note is not None:
        table.add_row("", "", Text(card.note, style="yellow"))
    console.print(Padding(table, (0, 0, 1, 2)))


def show_finding(console: Console, finding: Finding) -> None:
    word, style = _SEVERITIES[finding.severity]
    line = Text(f"{word}: ", style=f"bold {style}")
    line.append(finding.title, style="bold")
    console.print(line)
    console.print(Padding(Text(finding.cause), (0, 0, 0, 2)))
    for step in finding.fix:
        # Not wrapped by us: a command must stay on one line to be copied.
        console.print(Text.assemble("  ", ("→ ", style), (step, "bold")), soft_wrap=True)
    console.print()


def grid(columns: int, *, right: int | None = None, style: str = "") -> Table:
    """A table without titles: the last column takes several lines, and the others one."""
    table = Table.grid(padding=(0, 2, 0, 0))
    for number in range(columns - 1):
        table.add_column(no_wrap=True, justify="right" if number == right else "left", style=style)
    table.add_column(overflow="fold")
    return table


def _mark(state: State) -> Text:
    return Text(*_MARKS[state])


def _how_we_know(inventory: Inventory) -> str:
    took = f"Took {readable_seconds(inventory.seconds)}."
    if not inventory.remembered:
        return f"✓: a computation on the device just gave the right result. {took}"
    oldest = max(inventory.remembered.values())
    ago = (
        f"{oldest / 3600:.0f} h" if oldest >= 3600 else f"{oldest / 60:.0f} min" if oldest >= 60 else f"{oldest:.0f} s"
    )
    return f"✓: a computation on the device gave the right result, up to {ago} ago; --deep checks again. {took}"


# -- tables

#: Texts in full, and nothing in place of what is not known.
PLAIN = LONG._replace(text=lambda text, letters: printable(text), unknown="")
#: The same with a mark for what is not known.
MARKED = PLAIN._replace(unknown=UNKNOWN)
_STYLES = {"": "", "dim": "dim", "good": "", "warn": "yellow", "bad": "bold red"}


def show_table(console: Console, columns: Sequence[Column[Item]], items: Iterable[Item], formats: Formats) -> None:
    """Print an empty line and a table. Names in it are whatever users have chosen: markup in them is only text."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for column in columns:
        prose = column.unit == "prose"
        table.add_column(column.title, justify="right" if column.right else "left", no_wrap=not prose)
    for item in items:
        table.add_row(*(Text(each.text, _STYLES[each.tone]) for each in cells(columns, item, formats)))
    console.print()
    console.print(table)


_PROCESSES: tuple[Column[tuple[str, ProcessUsage]], ...] = (
    Column("device", lambda each: each[0]),
    Column("process", lambda each: each[1].pid, "id"),
    Column("load", lambda each: each[1].load, "share"),
    Column("memory", lambda each: each[1].memory, "bytes"),
    Column("name", lambda each: each[1].name),
)


def show_usage(console: Console, document: UsageDocument) -> None:
    """A line for each device, then the processes that use them, then why something is not known."""
    from anygpu.observe.tables import DEVICES, DeviceRow

    rows = [DeviceRow(device, usage) for device, usage in document.usage.items()]
    show_table(console, pick(DEVICES, "device", "load", "memory", "°C", "power", "clock", "throttled"), rows, MARKED)
    cards = {usage.card: (device, usage) for device, usage in reversed(document.usage.items())}
    processes = [
        (device, process)
        for device, usage in document.usage.items()
        if cards[usage.card][0] == device
        for process in usage.processes or ()
    ]
    if processes:
        show_table(console, _PROCESSES, processes, MARKED)
    _show_unknown(console, document)


def _show_unknown(console: Console, document: UsageDocument) -> None:
    """Each reason once, with the devices and readings that it is about."""
    about: dict[str, dict[str, list[str]]] = {}
    for device, usage in document.usage.items():
        for reading, why in usage.unknown.items():
            about.setdefault(why, {}).setdefault(device, []).append(reading)
    if not about:
        return
    console.print()
    console.print(Text("–: not known", style="dim"))
    table = Table.grid(padding=(0, 2, 0, 0))
    for why, devices in about.items():
        readings = dict.fromkeys(reading for names in devices.values() for reading in names)
        what = ", ".join(reading.replace("_", " ") for reading in readings)
        table.add_row(Text(", ".join(devices), style="dim"), Text(f"{what}: {why}", style="dim"))
    console.print(Padding(table, (0, 0, 0, 2)))
