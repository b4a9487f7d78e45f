"""Cards: the physical things. One card may be reached through several engines.

`assemble` is where the views come together. It is a pure function: devices as the engines saw them and cards as the
vendors' own tools saw them go in; devices that know their card, and cards that know their ways in, come out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from anygpu.hardware.device import Device
from anygpu.receipts.receipt import require_reasons

_NOT_PART_OF_A_NAME = ("nvidia", "amd", "intel", "corporation", "graphics", "gpu")

#: How a device was recognised as a way into a card.
Match = Literal["uuid", "pci", "model", "name", "host"]


class CardDevice(msgspec.Struct, frozen=True):
    """A device that leads into a card, and how we know."""

    device: str
    matched_by: Match


class Card(msgspec.Struct, frozen=True, kw_only=True, tag=str.lower):
    """One physical piece of hardware."""

    #: "nvidia:0", "amd:0", … in PCI order; "cpu" for the host; "unmatched:<device id>" when it is unknown.
    id: str
    vendor: str
    name: str
    #: Source of the values: "nvml", "nvidia-smi", "sysfs", or the engine's name when no vendor tool did.
    source: str
    ways: tuple[CardDevice, ...] = ()
    #: A sentence when a device could not be matched with certainty.
    note: str | None = None
    memory_total: int | None = None
    memory_free: int | None = None
    driver: str | None = None
    #: The newest version of the vendor's programming interface that the driver serves, as "12.4" for CUDA.
    driver_api: str | None = None
    compute_capability: str | None = None
    load: float | None = None
    uuid: str | None = None
    pci: str | None = None
    model: str | None = None
    #: For each fact that is `None`: why it is not known.
    unknown: dict[str, str] = {}

    def __post_init__(self) -> None:
        require_reasons(
            self,
            ("memory_total", "memory_free", "driver", "driver_api", "compute_capability", "load", "uuid", "pci"),
        )


def normal_uuid(text: str | bytes | None) -> str | None:
    """`GPU-0a1b…`, `0A1B-…` and sixteen raw bytes are one identity: 32 lower-case hexadecimal digits."""
    if text is None:
        return None
    digits = text.hex() if isinstance(text, bytes) else text.lower().removeprefix("gpu-").replace("-", "")
    if len(digits) != 32 or not set(digits) <= set("0123456789abcdef") or not digits.strip("0"):
        return None
    return digits


def normal_pci(text: str | None) -> str | None:
    """`00000000:65:00.0` and `0000:65:00.0` are one address; so is `65:00.0`."""
    if text is None:
        return None
    parts = text.strip().lower().split(":")
    if len(parts) == 2:
        parts.insert(0, "0")
    try:
        domain, bus = int(parts[0], 16), int(parts[1], 16)
        device, function = (int(part, 16) for part in parts[2].split("."))
    except (ValueError, IndexError):
        return None
    return f"{domain:04x}:{bus:02x}:{device:02x}.{function:x}"


def plain_name(name: str) -> str:
    """A card's name without what each interface adds: maker, trade marks, driver in brackets, bus after a slash."""
    words = re.sub(r"\((r|tm)\)", "", name.lower()).split("(")[0].split("/")[0].split()
    return " ".join(word for word in words if word not in _NOT_PART_OF_A_NAME)


def assemble(devices: Iterable[Device], cards: Iterable[Card]) -> tuple[list[Device], list[Card]]:
    """Match every device to a card, by the strongest evidence that both sides have."""
    known = list(cards)
    ways: dict[str, list[CardDevice]] = {card.id: [] for card in known}
    matched: list[Device] = []
    for device in devices:
        card, matched_by, note = _card_of(device, known)
        if card is None:
            card = _card_from(device, note)
            known.append(card)
            ways[card.id] = []
            matched_by = "host" if card.id == "cpu" else "name"
        ways[card.id].append(CardDevice(device.id, matched_by))
        matched.append(_with_facts_of(card, device))
    return matched, [msgspec.structs.replace(card, ways=tuple(ways[card.id])) for card in known]


def _card_of(device: Device, cards: Sequence[Card]) -> tuple[Card | None, Match, str | None]:
    """The card of a device, how it was matched, and the reason if it could not be."""
    if device.kind == "cpu":
        return next((card for card in cards if card.id == "cpu"), None), "host", None
    for card in cards:
        if device.uuid and device.uuid == card.uuid:
            return card, "uuid", None
    for card in cards:
        if device.pci and device.pci == card.pci:
            return card, "pci", None
    # Identities that differ are evidence against a match, so a model or name only counts where one side has none.
    candidates = [card for card in cards if card.id != "cpu" and not _contradicts(device, card)]
    same_model = [card for card in candidates if device.model and device.model == card.model]
    if len(same_model) == 1:
        return same_model[0], "model", None
    same_name = [card for card in candidates if plain_name(device.name) == plain_name(card.name)]
    if len(same_name) == 1:
        return same_name[0], "name", None
    if alike := same_model or same_name:
        names = ", ".join(card.id for card in alike)
        return (
            None,
            "name",
            f"{device.id} is one of {names}, but {device.api} gives no UUID or PCI address to tell which.",
        )
    return None, "name", None


def _contradicts(device: Device, card: Card) -> bool:
    by_uuid = device.uuid is not None and card.uuid is not None and device.uuid != card.uuid
    by_pci = device.pci is not None and card.pci is not None and device.pci != card.pci
    by_model = device.model is not None and card.model is not None and device.model != card.model
    return by_uuid or by_pci or by_model


def _card_from(device: Device, note: str | None) -> Card:
    """A card that only an engine knows of."""
    facts = {
        name: getattr(device, name)
        for name in ("memory_total", "memory_free", "driver", "compute_capability", "load", "uuid", "pci", "model")
    }
    if device.kind == "cpu":
        # The facts of one engine's driver are not the facts of the processor.
        facts["driver"] = None
    reasons = {name: why for name, why in device.unknown.items() if name in facts}
    if device.kind == "cpu":
        reasons["driver"] = "a processor needs no driver"
    reasons["driver_api"] = "no vendor tool reported this card"
    return Card(
        id="cpu" if device.kind == "cpu" else f"unmatched:{device.id}",
        vendor=device.vendor or "unknown",
        name=device.name,
        source=device.engine,
        note=note,
        unknown=reasons,
        **facts,
    )


def _with_facts_of(card: Card, device: Device) -> Device:
    """The device with facts that only the vendor's tool knows."""
    learned = {}
    unknown = dict(device.unknown)
    if device.kind != "cpu":
        for name in ("memory_total", "memory_free", "driver", "compute_capability", "load", "uuid", "pci"):
            value = getattr(card, name)
            if getattr(device, name) is None and value is not None:
                learned[name] = value
                del unknown[name]
    return msgspec.structs.replace(device, card=card.id, unknown=unknown, **learned)
