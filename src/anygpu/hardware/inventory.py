"""All that a probe found, in one value."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from anygpu.base.printable import encode_json
from anygpu.hardware.cards import Card, assemble
from anygpu.hardware.device import Device, Unavailable

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
