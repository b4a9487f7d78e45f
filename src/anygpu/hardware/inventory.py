"""The result of probing a machine, and the doctor's case: which GPUs there are, and how they are reached."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Literal

import msgspec

from anygpu.base.printable import encode_json
from anygpu.base.units import readable_bytes
from anygpu.hardware.device import Card, Device, Unavailable, assemble, plain_name
from anygpu.hardware.evidence import Evidence
from anygpu.hardware.selection import is_stand_in
from anygpu.hardware.sysfs import PciDevice

# -- the result of probing a machine, and its devices in words, the same on a terminal and in a notebook


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
    """The inventory of what probes found, with each device assigned to its card."""
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
    """Returns a device in part of a sentence: its name, its kind, and through which interfaces it is reached."""
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
    """Returns driver, memory and features of a device, separated by dots."""
    parts = [f"driver {device.driver}"] if device.driver is not None else []
    if device.kind != "cpu" or device.software:
        parts.append(memory_of(device))
    return " · ".join([*parts, " ".join(device.features)])


def memory_of(facts: Device | Card) -> str:
    """Returns total and free memory in words, or why it is unknown."""
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


# -- the case that the doctor looks at: which GPUs there are, by all that is known, and through what they work


#: problem  a GPU that is there cannot be used, or a device misbehaves
#: advice   everything works, and something would work better
#: note     good to know; nothing to do
Severity = Literal["problem", "advice", "note"]

#: The vendors' own sources of facts, as `Unavailable.engine` names them.
_VENDOR_SOURCES = ("nvidia", "amd", "intel")

#: Virtio, VMware, VirtualBox and Hyper-V: what their virtual machines show on the bus is a screen, unless a driver
#: finds more in it, and then an engine reports a device.
_VIRTUAL_SCREENS = (0x1AF4, 0x15AD, 0x80EE, 0x1414)


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One cause, and its fix."""

    #: Stable, for programs: "torch_without_gpu", "no_vulkan_driver", …
    code: str
    severity: Severity
    #: What is the matter, in one sentence.
    title: str
    #: Why that is so, for someone who knows nothing about GPUs.
    cause: str
    #: What to type or do, in order.
    fix: tuple[str, ...] = ()
    #: The device, card or engine it is about.
    about: str = ""


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """A real GPU that some source knows of, and the devices through which it was seen to compute."""

    name: str
    vendor: str
    ways: tuple[Device, ...] = ()


class DiagnosisContext(msgspec.Struct, frozen=True):
    """The input of a rule."""

    inventory: Inventory
    evidence: Evidence

    def unavailable(self, engine: str, *causes: str) -> list[Unavailable]:
        return [item for item in self.inventory.unavailable if item.engine == engine and item.cause in causes]

    def cards(self, vendor: str) -> list[Card]:
        return [card for card in self._cards if card.vendor == vendor]

    @property
    def gpus(self) -> list[Gpu]:
        """Once each, whether a vendor's tool, an engine or only the bus knows of it."""
        known = [Gpu(name=card.name, vendor=card.vendor, ways=tuple(self._ways_into(card))) for card in self._cards]
        others = [
            Gpu(name=each.name or f"{each.vendor} {each.model}", vendor=each.vendor) for each in self.only_on_the_bus()
        ]
        return known + others

    def only_on_the_bus(self, vendor: str | None = None) -> list[PciDevice]:
        """The GPUs that only Linux lists."""
        known = {card.pci for card in self._cards} | {device.pci for device in self.inventory.gpus}
        # A card without an address is one of those on the bus, and which one makes no difference here.
        without_address = Counter(card.vendor for card in self._cards if card.pci is None)
        found = []
        for each in self.evidence.pci:
            if not _is_gpu(each) or each.pci in known or vendor not in (None, each.vendor):
                continue
            if without_address[each.vendor]:
                without_address[each.vendor] -= 1
                continue
            found.append(each)
        return found

    @property
    def vendors(self) -> list[str]:
        return list(dict.fromkeys(gpu.vendor for gpu in self.gpus))

    @property
    def seems_to_have_a_gpu(self) -> bool:
        """Whether no source names a GPU, yet a vendor's tool fails on one, or there is a node for one without a bus."""
        stumbles = any(
            (item.engine in _VENDOR_SOURCES and item.cause != "no_device") or item.pci is not None
            for item in self.inventory.unavailable
        )
        return stumbles or bool(self.evidence.nodes and not self.evidence.pci)

    def severity_of_a_missing_way(self, *vendors: str) -> Severity:
        """A way that is missing matters where there is a GPU (of these vendors) and no other way to it."""
        gpus = [gpu for gpu in self.gpus if not vendors or gpu.vendor in vendors]
        if any(not gpu.ways for gpu in gpus):
            return "problem"
        if gpus:
            return "advice"
        # Only Linux lets us look at the bus, so elsewhere an empty list means nothing.
        return "problem" if self.seems_to_have_a_gpu or self.evidence.system != "Linux" else "note"

    @property
    def _cards(self) -> list[Card]:
        """Without the processor, without TPUs, and without those that are one of the others under another name."""
        not_gpus = {device.card for device in self.inventory.devices if device.kind != "gpu"}
        return [card for card in self.inventory.cards if card.id not in not_gpus | {"cpu"} and not _is_doubtful(card)]

    def _ways_into(self, card: Card) -> Iterator[Device]:
        """Yields the verified devices of a card.

        Of cards that cannot be told apart, those of the same model or name.
        """
        doubtful = {each.id for each in self.inventory.cards if _is_doubtful(each)}
        for device in self.inventory.gpus:
            alike = (device.model or card.id) == card.model or plain_name(device.name) == plain_name(card.name)
            if device.verified and (device.card == card.id or (device.card in doubtful and alike)):
                yield device


def _is_gpu(each: PciDevice) -> bool:
    """Accelerators without a display are GPUs where NVIDIA or AMD made them, and NPUs or FPGAs elsewhere."""
    if each.accelerator:
        return each.vendor_id in (0x10DE, 0x1002)
    return each.vendor_id not in _VIRTUAL_SCREENS


def _is_doubtful(card: Card) -> bool:
    """Whether it was made for a device that is one of the other cards, without knowing which."""
    return card.id.startswith("unmatched:") and card.note is not None


def together(names: Iterable[str]) -> str:
    """`A`, `A and B`, `A, B and 2 × C`."""
    counted = [name if count == 1 else f"{count} × {name}" for name, count in Counter(list(names)).items()]
    return " and ".join(filter(None, (", ".join(counted[:-1]), counted[-1])))
