"""Devices as frozen facts: their names, their properties, and why others are not usable.

The name of a device has its engine, which of its devices, and the machine if that is another one: `numpy` and
`torch:cuda:0` are devices of this machine, `torch:cuda:0@node-7` is one of a fleet.

Cards are the physical things, and one may be reached through several engines.

`assemble` is where the views come together. It is a pure function: devices as the engines saw them and cards as the
vendors' own tools saw them go in; devices that know their card, and cards that know their ways in, come out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec
import numpy as np

from anygpu.base import events
from anygpu.base.events import drawn
from anygpu.base.typing import HostArray
from anygpu.hardware.preference import CPU as CPU
from anygpu.receipts.receipt import require_reasons

if TYPE_CHECKING:
    from anygpu.hardware.usage.usage import Usage


# -- names


#: As the name of a device: any that is on another machine.
FLEET = "fleet"


class DeviceName(NamedTuple):
    """The parts of a device's id."""

    engine: str
    #: What the engine calls the device: "0", "cuda:1"; empty for an engine with one device.
    local: str
    #: The machine that it is on; `None` for this one.
    node: str | None

    @property
    def there(self) -> str:
        """Its id on its own machine."""
        return f"{self.engine}:{self.local}" if self.local else self.engine


def parse_device(identity: str) -> DeviceName:
    """The parts of an id."""
    there, at, node = identity.partition("@")
    engine, _, local = there.partition(":")
    return DeviceName(engine, local, node if at else None)


def at_node(identity: str, node: str) -> str:
    """The id of a device of another machine, from its id there."""
    return f"{identity}@{node}"


def node_of(identity: str) -> str | None:
    """The machine that the device is on; `None` for this one."""
    _, at, node = identity.partition("@")
    return node if at else None


def names_a_fleet(wanted: str) -> bool:
    """Whether a name in `on=` can only mean devices of other machines."""
    return "@" in wanted or wanted.lower() == FLEET


# -- facts


DeviceKind = Literal["gpu", "cpu", "npu"]

#: absent    the library, the driver or the hardware is not there
#: present   it is listed, but it cannot be opened or it computes wrongly
#: usable    it opens; nothing has been computed on it yet
#: verified  a real computation gave the right result
#: hung      it did not respond within the deadline
State = Literal["absent", "present", "usable", "verified", "hung"]

#: How the device sits in the machine. `software` is a GPU interface that runs on the CPU.
DeviceForm = Literal["discrete", "integrated", "virtual", "software", "host"]

#: The features that engines report under one name, whatever their library calls them.
FEATURES = ("f16", "bf16", "f64", "i64", "subgroups", "timestamps", "unified_memory")

#: Why something is not usable, for programs; the sentence for people is `Unavailable.reason`.
Cause = Literal[
    "not_installed",  # the Python library is not installed
    "import_failed",  # it is installed but cannot be imported
    "cpu_only_build",  # it is installed in a build without GPU support
    "no_loader",  # the system library that finds drivers (Vulkan, OpenCL) is missing
    "no_driver",  # the loader finds no driver, or the vendor's driver is not there
    "no_device",  # the driver is there and finds no device
    "no_permission",  # the device node may not be opened by this user
    "driver_too_old",  # the driver does not serve the installed library
    "driver_mismatch",  # the kernel's driver and the library differ in version
    "other_version",  # a machine of a fleet has versions that may compute other values
    "lost",  # the card fell off the bus
    "wrong_result",  # it computes, but not what it should
    "hung",  # no answer within the deadline
    "crashed",  # the probing process died
    "garbage",  # the probing process sent an unreadable response
    "failed",  # an error of another kind; `detail` has it
]

_FACTS_THAT_MAY_BE_UNKNOWN = ("memory_total", "memory_free", "driver", "compute_capability", "load", "uuid", "pci")


class Device(msgspec.Struct, frozen=True, kw_only=True, tag=str.lower):
    """One way into one piece of hardware, through one engine.

    A card that three engines can use is three devices; `card` tells that they are one.
    """

    #: The engine, and where it has several what it calls the device: "numpy", "webgpu:0", "torch:cuda:1";
    #: on another machine with its name: "torch:cuda:1@node-7".
    id: str
    engine: str
    kind: DeviceKind
    form: DeviceForm
    name: str
    state: State
    #: What the engine talks to: "Vulkan", "Metal", "CUDA", "ROCm", "OpenCL 3.0", "CPU", …
    api: str
    #: Other interfaces through which the same engine sees the same hardware.
    also_through: tuple[str, ...] = ()
    vendor: str | None = None
    memory_total: int | None = None
    memory_free: int | None = None
    driver: str | None = None
    compute_capability: str | None = None
    #: Share of time in which the device was busy lately, 0 to 1.
    load: float | None = None
    #: The vendor's identity of the card, as 32 hexadecimal digits.
    uuid: str | None = None
    #: `domain:bus:device.function`, lower case.
    pci: str | None = None
    #: PCI vendor and device number as `10de:2684`, where only the model is known.
    model: str | None = None
    features: tuple[str, ...] = ()
    limits: dict[str, int] = {}
    #: The card this device is a way into (see `Card.id`); set when all probes are brought together.
    card: str | None = None
    #: For each fact that is `None`: why it is not known.
    unknown: dict[str, str] = {}

    def __post_init__(self) -> None:
        require_reasons(self, _FACTS_THAT_MAY_BE_UNKNOWN)

    @property
    def software(self) -> bool:
        """True for a GPU interface that runs on the CPU, such as llvmpipe or PoCL."""
        return self.form == "software"

    @property
    def computes_on_processor(self) -> bool:
        """True for NumPy and every other device that the processor computes for, software adapters included."""
        return self.kind == "cpu" or self.form == "software"

    @property
    def verified(self) -> bool:
        return self.state == "verified"

    def usage(self, seconds: float = 0.1) -> Usage:
        """The use of its card: memory, load, temperature, power, clocks, and processes.

        Two looks, so many seconds apart, because some drivers count busy time and energy. What a driver does not tell
        is `None`, with the reason in `unknown`.
        """
        usage: Usage = events.usage_of(self, seconds)
        return usage

    @property
    def node(self) -> str | None:
        """The machine of a fleet that it is on; `None` for this one."""
        return node_of(self.id)

    def __str__(self) -> str:
        return f"{self.id} ({self.name})"

    def __repr__(self) -> str:
        return f"<Device {self}, {self.kind}, {self.state}>"

    def _repr_html_(self) -> str | None:
        return drawn(self)


class Unavailable(msgspec.Struct, frozen=True, kw_only=True, tag=str.lower):
    """Something that could have been a device and is not, with the reason and the fix."""

    #: What it would have been: a device id, or an engine with a part, as "torch:cuda".
    id: str
    #: The engine or the source of facts ("nvidia", "amd", …) that reports it.
    engine: str
    state: State
    cause: Cause
    #: One sentence for people.
    reason: str
    #: What to do about it, as a sentence or a command; `None` when there is nothing to do.
    fix: str | None = None
    #: The library's own words, for bug reports.
    detail: str | None = None
    pci: str | None = None
    #: What a diagnosis can compare, such as the CUDA version that a library was built for.
    facts: dict[str, str] = {}

    def __str__(self) -> str:
        return f"{self.id}: {self.reason}"

    def __repr__(self) -> str:
        return f"<Unavailable {self}>"


def unknown_facts(reason: str, *names: str) -> dict[str, str]:
    """The same reason for several facts."""
    return dict.fromkeys(names, reason)


def reasons_for(reasons: Mapping[str, str], facts: Mapping[str, object]) -> dict[str, str]:
    """The reasons for facts that are unknown; those of facts which turned out to be known are dropped."""
    return {name: why for name, why in reasons.items() if facts.get(name) is None}


# -- the small computation that a device must get right before it is offered to anyone
#
# `y = x·x + 3·x` over an odd number of elements, so that kernels which round sizes up are caught, and on whole numbers
# that every dtype holds exactly, so that the check is equality and needs no tolerance.


VerifiedType = Literal["float32", "int32", "float16", "float64", "int64"]

#: Every device must compute these.
ALWAYS: tuple[VerifiedType, ...] = ("float32", "int32")

#: With `--deep`, a device must also compute what its features promise.
BY_FEATURE: dict[str, VerifiedType] = {"f16": "float16", "f64": "float64", "i64": "int64"}

SIZE = 1021


def types_to_verify(features: tuple[str, ...], *, deep: bool) -> tuple[VerifiedType, ...]:
    if not deep:
        return ALWAYS
    return ALWAYS + tuple(dtype for feature, dtype in BY_FEATURE.items() if feature in features)


def inputs(dtype: VerifiedType) -> HostArray:
    # float16 holds whole numbers exactly only up to 2048, so the values stay small; the period is not a power of two.
    return (np.arange(SIZE) % 67 - 33).astype(dtype)


def expected(dtype: VerifiedType) -> HostArray:
    values = inputs(dtype)
    return np.asarray(values * values + np.asarray(3, dtype) * values)


def mistake(dtype: VerifiedType, result: HostArray) -> str | None:
    """`None` when the result is right, otherwise a sentence on the first thing that is wrong."""
    wanted = expected(dtype)
    if result.shape != wanted.shape or result.dtype != wanted.dtype:
        return f"{dtype}: got {result.dtype} of shape {result.shape} instead of {wanted.dtype} of shape {wanted.shape}"
    wrong = np.flatnonzero(result != wanted)
    if len(wrong) == 0:
        return None
    first = int(wrong[0])
    example = f"[{first}] is {result[first]} instead of {wanted[first]}"
    return f"{dtype}: {len(wrong)} of {SIZE} values are wrong; {example}"


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
    """Whether any identity that both sides know differs: UUID, PCI address or model."""
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
