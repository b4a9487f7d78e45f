"""What `anygpu top` shows of devices: those of this machine, and those that processes tell of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from anygpu.base.printable import printable
from anygpu.cli.top.pages import UNKNOWN, Cell, Column, Row, Tone, bytes_
from anygpu.hardware.device import Device
from anygpu.hardware.usage.usage import Usage
from anygpu.observe.looking import Look

COLUMNS = (
    Column("DEVICE", "a card or the processor, and the devices that use it", 14, right=False, takes_rest=True),
    Column("LOAD", "share of the time in which it works", 17, right=False),
    Column("MEMORY", "in use, of all", 17, right=False),
    Column("HELD", "what the observed processes hold there", 8),
    Column("°C", "temperature", 4),
    Column("POWER", "watts, of at most", 11),
    Column("CLOCK", "its clock, of at most", 15, optional=2),
)
_BAR = 10
_HOT = 85.0


class Card(NamedTuple):
    """A card, the processor, or software that behaves like a card."""

    name: str
    devices: tuple[str, ...]
    load: float | None
    memory_used: int | None
    memory_total: int | None
    temperature: float | None
    power: float | None
    power_limit: float | None
    clock: float | None
    clock_limit: float | None
    throttled: tuple[str, ...]
    held: int | None


def cards(own: Mapping[str, Usage], devices: Sequence[Device], looks: Sequence[Look]) -> list[Card]:
    """`own` is what this process has read, of `devices`. Processes tell of their own software and of what it misses."""
    software = {device.id for device in devices if device.software}
    usages: dict[str, list[Usage]] = {}
    names: dict[str, dict[str, None]] = {}
    for device, usage in own.items():
        if device not in software:
            usages[usage.card] = [usage]
            names.setdefault(usage.card, {})[device] = None
    known = set(usages)
    held: dict[str, int] = {}
    for look in looks:
        if look.snapshot is None or look.trouble is not None:
            continue
        for device, usage in look.snapshot.usage.items():
            names.setdefault(usage.card, {})[device] = None
            if usage.card not in known:
                usages.setdefault(usage.card, []).append(usage)
            if device in look.snapshot.memory:
                held[usage.card] = held.get(usage.card, 0) + look.snapshot.memory[device].bytes
    return [_card(name, tuple(names[name]), each, held.get(name)) for name, each in usages.items()]


def _card(name: str, devices: tuple[str, ...], usages: Sequence[Usage], held: int | None) -> Card:
    """Of software each process has its own, and they add up; of a card all say the same."""
    first = usages[0]
    load, used = first.load, first.memory_used
    if first.source == "worker":
        loads = [each.load for each in usages if each.load is not None]
        used_by = [each.memory_used for each in usages if each.memory_used is not None]
        load, used = min(1.0, sum(loads)) if loads else None, sum(used_by) if used_by else None
    return Card(
        name,
        tuple(each for each in devices if each != name),
        load,
        used,
        first.memory_total,
        first.temperature,
        first.power,
        first.power_limit,
        first.clock,
        first.clock_limit,
        first.throttled or (),
        held,
    )


def rows(found: Sequence[Card]) -> list[Row]:
    return [_row(card) for card in found]


def _row(card: Card) -> Row:
    name = card.name if not card.devices else f"{card.name} ({', '.join(card.devices)})"
    if card.throttled:
        name = f"{card.name}: throttled, {', '.join(card.throttled)}"
    hot: Tone = "bad" if card.temperature is not None and card.temperature >= _HOT else ""
    memory = UNKNOWN
    if card.memory_used is not None:
        memory = bytes_(card.memory_used) + (f" / {bytes_(card.memory_total)}" if card.memory_total else "")
    share = card.memory_used / card.memory_total if card.memory_used is not None and card.memory_total else 0.0
    cells = (
        Cell(printable(name), card.name, "bad" if card.throttled else ""),
        Cell(bar(card.load), card.load, _tone(card.load)),
        Cell(memory, card.memory_used, _tone(share) if share > 0.8 else "dim" if memory == UNKNOWN else ""),
        _known(None if card.held is None else bytes_(card.held)),
        Cell(UNKNOWN if card.temperature is None else f"{card.temperature:.0f}", card.temperature, hot),
        _known(_of(card.power, card.power_limit, 1.0, "W")),
        _known(_of(card.clock, card.clock_limit, 1e6, "MHz")),
    )
    return Row((card.name,), cells)


def bar(share: float | None) -> str:
    """In characters that every terminal has."""
    if share is None:
        return UNKNOWN
    full = round(share * _BAR)
    return f"{'█' * full}{'░' * (_BAR - full)} {share:>4.0%}"


def _known(words: str | None) -> Cell:
    return Cell(UNKNOWN, None, "dim") if words is None else Cell(words, words)


def _of(value: float | None, limit: float | None, size: float, unit: str) -> str | None:
    if value is None:
        return None
    most = "" if limit is None else f"/{limit / size:.0f}"
    return f"{value / size:.0f}{most} {unit}"


def _tone(share: float | None) -> Tone:
    if share is None:
        return "dim"
    return "bad" if share >= 0.95 else "warn" if share >= 0.8 else "good"
