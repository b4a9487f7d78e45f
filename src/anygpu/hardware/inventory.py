"""The result of probing a machine, and its devices in words, the same on a terminal and in a notebook."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from anygpu.base.printable import encode_json
from anygpu.base.units import readable_bytes
from anygpu.hardware.cards import Card, assemble
from anygpu.hardware.device import Device, Unavailable
from anygpu.hardware.selection import is_stand_in

SCHEMA = "anygpu.devices/1"


class Inventory(msgspec.Struct, frozen=True, kw_only=True):
    """Devices that can be used, what cannot and why, and the cards behind them."""

    schema: str = SCHEMA
    devices: tuple[Device, ...] = ()
    unavailable: tuple[Unavailable, ...] = ()
    cards: tuple[Card, ...] = ()
    #: How long this look at the machine took.
    seconds: float = 0.0
    #: For each engine that was not probed again: how many seconds ago it was.
    remembered: dict[str, float] = {}

    def to_json(self) -> bytes:
        return msgspec.json.format(encode_json(self), indent=2)

    @property
    def gpus(self) -> tuple[Device, ...]:
        return tuple(device for device in self.devices if device.kind == "gpu")


def take_inventory(
    items: Iterable[Device | Unavailable | Card], *, seconds: float = 0.0, remembered: dict[str, float] | None = None
) -> Inventory:
    found = list(items)
    devices, cards = assemble(
        [item for item in found if isinstance(item, Device)],
        [item for item in found if isinstance(item, Card)],
    )
    return Inventory(
        devices=tuple(devices),
        unavailable=tuple(item for item in found if isinstance(item, Unavailable)),
        cards=tuple(cards),
        seconds=seconds,
        remembered=remembered or {},
    )


# -- words


def in_a_few_words(device: Device) -> str:
    if device.software:
        what = f"{device.name}, software on the CPU"
    elif device.kind == "cpu":
        what = "the CPU"
    else:
        what = f"{device.name}, {device.form} {device.kind.upper()}"
    through = " and ".join((device.api, *device.also_through))
    doubt = "" if device.verified else f"; only {device.state}: not verified by a computation"
    named = "; used only when named" if is_stand_in(device) else ""
    return f"{what}, through {through}{doubt}{named}"


def more_words(device: Device) -> str:
    parts = [f"driver {device.driver}"] if device.driver is not None else []
    if device.kind != "cpu" or device.software:
        parts.append(memory_of(device))
    return " · ".join([*parts, " ".join(device.features)])


def memory_of(facts: Device | Card) -> str:
    if facts.memory_total is None:
        return f"memory unknown ({facts.unknown['memory_total']})"
    total = readable_bytes(facts.memory_total)
    return total if facts.memory_free is None else f"{total}, {readable_bytes(facts.memory_free)} free"


def all_facts(device: Device) -> list[tuple[str, str]]:
    """Facts that `in_a_few_words` leaves out."""
    facts = [
        (name, str(value))
        for name in ("uuid", "pci", "model", "compute_capability")
        if (value := getattr(device, name))
    ]
    if device.load is not None:
        facts.append(("load", f"{device.load:.0%}"))
    facts += [(name, f"{value:,}") for name, value in device.limits.items()]
    return facts + [(name, f"unknown: {why}") for name, why in device.unknown.items()]


def explained(item: Unavailable) -> str:
    return item.reason if item.fix is None else f"{item.reason} {item.fix}"
