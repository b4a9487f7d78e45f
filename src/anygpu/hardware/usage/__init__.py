"""The use of cards at one moment: memory, load, temperature, power, clocks, throttling, and processes.

A look at a card is one record, in which every reading is a value, or `None` with the reason. What drivers say is not
believed without a check: a card in trouble reports 511 °C, or more memory in use than it has. How cards are read is in
`reading`, and what Linux shows of them in `linux_cards`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec

from anygpu.base.units import readable_bytes
from anygpu.receipts.receipt import require_reasons

#: Readings that may be unknown.
READINGS = (
    "memory_used",
    "memory_total",
    "load",
    "temperature",
    "power",
    "power_limit",
    "clock",
    "clock_limit",
    "throttled",
    "processes",
)

NO_SECOND_LOOK = "it is the difference between two looks, and this was the first one"


class ProcessUsage(msgspec.Struct, frozen=True, kw_only=True):
    """The use of a card by one process."""

    pid: int
    name: str | None = None
    #: Bytes of the card's memory.
    memory: int | None = None
    #: Share of the time in which the card worked for it, 0 to 1.
    load: float | None = None
    #: For each field that is `None`: why it is not known.
    unknown: dict[str, str] = {}

    def __post_init__(self) -> None:
        require_reasons(self, ("name", "memory", "load"))


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """The use of a card at one moment."""

    #: The card, as `Card.id`.
    card: str
    #: Source of the values: "nvml", "sysfs", "proc" for the processor, or "worker" for a device that is software.
    source: str
    #: Bytes.
    memory_used: int | None = None
    memory_total: int | None = None
    #: Share of the time in which it was busy, 0 to 1.
    load: float | None = None
    #: Degrees Celsius.
    temperature: float | None = None
    #: Watts.
    power: float | None = None
    power_limit: float | None = None
    #: Hertz.
    clock: float | None = None
    clock_limit: float | None = None
    #: Why it runs slower than it could, in words; empty if it does not.
    throttled: tuple[str, ...] | None = None
    processes: tuple[ProcessUsage, ...] | None = None
    #: For each field that is `None`: why it is not known.
    unknown: dict[str, str] = {}

    def __post_init__(self) -> None:
        require_reasons(self, READINGS)

    @property
    def memory_free(self) -> int | None:
        """Bytes that are not in use; `None` if either number is unknown."""
        if self.memory_used is None or self.memory_total is None:
            return None
        return self.memory_total - self.memory_used

    def __str__(self) -> str:
        """The readings that there are, on one line."""
        parts = []
        if self.load is not None:
            parts.append(f"{self.load:.0%} busy")
        if self.memory_used is not None:
            total = f" of {readable_bytes(self.memory_total)}" if self.memory_total is not None else ""
            parts.append(f"{readable_bytes(self.memory_used)}{total} used")
        if self.temperature is not None:
            parts.append(f"{self.temperature:.0f} °C")
        if self.power is not None:
            parts.append(f"{self.power:.0f} W")
        if self.throttled:
            parts.append(f"throttled: {', '.join(self.throttled)}")
        return f"{self.card}: {', '.join(parts) or 'nothing is known'}"


class UsageDocument(msgspec.Struct, frozen=True, kw_only=True):
    """The use of all devices."""

    schema: str = "anygpu.usage/1"
    #: How far two looks were apart: loads and powers are those between them.
    seconds: float
    #: By the devices' ids; devices of one card have the same record.
    usage: dict[str, Usage]

    def to_json(self) -> bytes:
        """Returns the documented schema as indented JSON."""
        return msgspec.json.format(msgspec.json.encode(self), indent=2)


class _Check(NamedTuple):
    """The bounds of a possible reading."""

    least: float
    most: float
    words: Callable[[float], str]


#: Beyond these no card is: what reports more is broken, or reports an error as a number.
_POSSIBLE: Mapping[str, _Check] = {
    "memory_used": _Check(0, 1 << 50, lambda value: readable_bytes(int(value))),
    "memory_total": _Check(1, 1 << 50, lambda value: readable_bytes(int(value))),
    "load": _Check(0.0, 1.0, lambda value: f"{value:.0%}"),
    "temperature": _Check(-40.0, 150.0, lambda value: f"{value:g} °C"),
    "power": _Check(0.0, 5_000.0, lambda value: f"{value:g} W"),
    "power_limit": _Check(1.0, 5_000.0, lambda value: f"{value:g} W"),
    "clock": _Check(0.0, 20e9, lambda value: f"{value / 1e6:g} MHz"),
    "clock_limit": _Check(1e6, 20e9, lambda value: f"{value / 1e6:g} MHz"),
}

#: A counter that was read a moment later may have run ahead a little.
_ROUNDING = 1.05


class Readings:
    """Readings of a card so far, and the reasons why others are missing."""

    def __init__(self) -> None:
        self.known: dict[str, Any] = {}
        self.unknown: dict[str, str] = {}

    def add(self, name: str, value: object, otherwise: str = "") -> None:
        """The value if there is one, and the reason otherwise. A value stays."""
        if name in self.known:
            return
        if value is None:
            self.unknown[name] = otherwise
        else:
            self.known[name] = value
            self.unknown.pop(name, None)

    def lack(self, reason: str, *names: str) -> None:
        """Notes one reason for readings that are not known yet."""
        for name in names:
            self.add(name, None, reason)

    def usage(self, card: str, source: str, silent: str) -> Usage:
        """The record; readings without a reason are unknown because of `silent`."""
        known, unknown = dict(self.known), dict(self.unknown)
        for name, check in _POSSIBLE.items():
            value = known.get(name)
            if value is None:
                continue
            if name == "load" and check.most < value <= check.most * _ROUNDING:
                known[name] = check.most
            elif not check.least <= value <= check.most:  # also not a number
                del known[name]
                unknown[name] = f"the driver reports {check.words(value)}, which cannot be"
        used, total = known.get("memory_used"), known.get("memory_total")
        if used is not None and total is not None and used > total:
            del known["memory_used"]
            unknown["memory_used"] = (
                f"the driver reports {readable_bytes(used)} in use, and the card has {readable_bytes(total)}"
            )
        missing = {name: unknown.get(name) or silent for name in READINGS if known.get(name) is None}
        return Usage(card=card, source=source, unknown=missing, **known)


def share(busy: float, elapsed: float) -> float | None:
    """The ratio of two counters' differences; `None` if a counter was reset, or no time has passed."""
    return busy / elapsed if elapsed > 0 and busy >= 0 else None


def gone(card: str, source: str, reason: str) -> Usage:
    """The record of a card that does not answer any more."""
    return Usage(card=card, source=source, unknown=dict.fromkeys(READINGS, reason))
