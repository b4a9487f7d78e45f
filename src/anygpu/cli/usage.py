"""How the usage of devices looks on a screen."""

from __future__ import annotations

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from anygpu.base.printable import printable
from anygpu.base.units import readable_bytes
from anygpu.hardware.usage.usage import Usage, UsageDocument

_UNKNOWN = Text("–", style="dim")


def show_usage(console: Console, document: UsageDocument) -> None:
    """A line for each device, then whose processes they are, then why something is not known."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("device", "load", "memory", "°C", "power", "clock", "throttled"):
        table.add_column(name, justify="left" if name in ("device", "throttled") else "right", no_wrap=True)
    for device, usage in document.usage.items():
        table.add_row(device, *_cells(usage))
    console.print(table)
    _show_processes(console, document)
    _show_unknown(console, document)


def _cells(usage: Usage) -> list[Text]:
    return [
        _UNKNOWN if usage.load is None else Text(f"{usage.load:.0%}"),
        _of(_bytes(usage.memory_used), _bytes(usage.memory_total)),
        _UNKNOWN if usage.temperature is None else Text(f"{usage.temperature:.0f}"),
        _of(_watts(usage.power), _watts(usage.power_limit)),
        _of(_megahertz(usage.clock), _megahertz(usage.clock_limit)),
        _throttled(usage.throttled),
    ]


def _bytes(count: int | None) -> str | None:
    return None if count is None else readable_bytes(count)


def _watts(value: float | None) -> str | None:
    return None if value is None else f"{value:.0f} W"


def _megahertz(value: float | None) -> str | None:
    return None if value is None else f"{value / 1e6:.0f} MHz"


def _of(value: str | None, limit: str | None) -> Text:
    if value is None:
        return _UNKNOWN
    return Text(value) if limit is None else Text(f"{value} / {limit}")


def _throttled(reasons: tuple[str, ...] | None) -> Text:
    if reasons is None:
        return _UNKNOWN
    return Text(", ".join(reasons), style="bold red") if reasons else Text("no")


def _show_processes(console: Console, document: UsageDocument) -> None:
    seen: set[str] = set()
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("device", "process", "load", "memory", "name"):
        table.add_column(name, justify="right" if name in ("process", "load", "memory") else "left", no_wrap=True)
    for device, usage in document.usage.items():
        if usage.card in seen:
            continue
        seen.add(usage.card)
        for process in usage.processes or ():
            load = _UNKNOWN if process.load is None else Text(f"{process.load:.0%}")
            memory = _UNKNOWN if process.memory is None else Text(readable_bytes(process.memory))
            # A name is whatever the process has chosen, so no markup of it counts, and no escapes reach the screen.
            table.add_row(device, str(process.pid), load, memory, Text(printable(process.name or "–")))
    if table.row_count:
        console.print()
        console.print(table)


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
