"""GPUs and accelerators as the Linux kernel lists them, whether a driver serves them or not.

This is how we can tell "there is no GPU" from "there is one, and its driver is missing". For AMD and Intel it is also
the source of the facts about a card; NVIDIA has a library of its own for that. Everything is read from files under
`root`, so tests can build a machine in a folder. On systems without `/sys/bus/pci` there is simply nothing to list.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import msgspec

from anygpu.hardware.device import Card, Unavailable, normal_pci
from anygpu.hardware.gpu_presence import ONLY_A_SCREEN

_VENDORS = {0x10DE: "NVIDIA", 0x1002: "AMD", 0x1022: "AMD", 0x8086: "Intel", 0x106B: "Apple"}

_DISPLAY = 0x03
_ACCELERATOR = 0x12

_PCI_IDS = ("usr/share/misc/pci.ids", "usr/share/hwdata/pci.ids")

_DRIVERS = {"AMD": ("amdgpu",), "Intel": ("i915", "xe")}
_FIXES = {
    "AMD": (
        "Run `sudo modprobe amdgpu`. If that fails, install the firmware (`sudo apt install firmware-amd-graphics` on "
        "Debian, `sudo apt install linux-firmware` on Ubuntu) and restart. A very new card needs a newer Linux kernel."
    ),
    "Intel": (
        "Run `sudo modprobe i915` (for Arc B and newer: `sudo modprobe xe`). If that fails, install the firmware "
        "(`sudo apt install firmware-misc-nonfree` on Debian 12, `firmware-intel-graphics` on Debian 13, "
        "`linux-firmware` on Ubuntu) and restart. A very new card needs a newer Linux kernel."
    ),
}
_NO_MEMORY_OF_ITS_OWN = "an integrated GPU uses the host's memory"


class PciDevice(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU or accelerator on the PCI bus."""

    #: As "0000:65:00.0".
    pci: str
    vendor_id: int
    device_id: int
    #: As "10de:2684".
    model: str
    #: "NVIDIA", "AMD", "Intel", "Apple", or "other (0x1af4)".
    vendor: str
    #: From the system's list of PCI names, when it is installed and knows the model.
    name: str | None
    #: "amdgpu", "nvidia", "vfio-pci", …; `None` when no driver has taken the device.
    kernel_driver: str | None
    #: True for an accelerator without display functions, such as an Instinct card or an NPU.
    accelerator: bool = False


def vendor_name(vendor_id: int) -> str:
    return _VENDORS.get(vendor_id, f"other (0x{vendor_id:04x})")


def pci_gpus(root: Path = Path("/")) -> list[PciDevice]:
    """The GPUs and accelerators on the PCI bus, in the order of their addresses."""
    found: dict[str, tuple[int, int, int]] = {}
    for folder in folders(root / "sys/bus/pci/devices", "*"):
        address = normal_pci(folder.name)
        pci_class, vendor_id, device_id = (read_number(folder / name).value for name in ("class", "vendor", "device"))
        if address is None or pci_class is None or vendor_id is None or device_id is None:
            continue
        if pci_class >> 16 in (_DISPLAY, _ACCELERATOR) and vendor_id not in ONLY_A_SCREEN:
            found[address] = (pci_class >> 16, vendor_id, device_id)
    names = _pci_names(root, {_model(vendor_id, device_id) for _, vendor_id, device_id in found.values()})
    return [
        PciDevice(
            pci=address,
            vendor_id=vendor_id,
            device_id=device_id,
            model=_model(vendor_id, device_id),
            vendor=vendor_name(vendor_id),
            name=names.get(_model(vendor_id, device_id)),
            kernel_driver=_kernel_driver(pci_folder(root, address)),
            accelerator=pci_class == _ACCELERATOR,
        )
        for address, (pci_class, vendor_id, device_id) in sorted(found.items(), key=lambda item: _order(item[0]))
    ]


def read(root: Path = Path("/")) -> list[Card | Unavailable]:
    """The cards of AMD and Intel, and those of them that no driver serves."""
    found: list[Card | Unavailable] = []
    counts = {"AMD": 0, "Intel": 0}
    for device in pci_gpus(root):
        # Intel's accelerators without a display are NPUs and FPGAs, and AMD's under its other vendor number are no GPUs
        # either: the drivers below do not serve them.
        if device.vendor_id not in (0x1002, 0x8086) or (device.vendor == "Intel" and device.accelerator):
            continue
        # A card without a driver has a number too, so that the others keep theirs when it gets one.
        card_id = f"{device.vendor.lower()}:{counts[device.vendor]}"
        counts[device.vendor] += 1
        if device.kernel_driver not in _DRIVERS[device.vendor]:
            found.append(_without_driver(card_id, device))
        elif device.vendor == "AMD":
            found.append(_amd(root, card_id, device))
        else:
            found.append(_intel(root, card_id, device))
    return found


def _without_driver(card_id: str, device: PciDevice) -> Unavailable:
    """The entry for a card that no kernel driver, or another one than is needed, is bound to."""
    name = device.name or _plain_name(device)
    drivers = " or ".join(_DRIVERS[device.vendor])
    if device.kernel_driver is None:
        reason = f"{name} is in the machine, but Linux has no driver running for it."
        fix = _FIXES[device.vendor]
    else:
        reason = f"{name} is held by the Linux driver {device.kernel_driver}, which does not compute on it."
        fix = f"Let {drivers} serve the card instead of {device.kernel_driver}."
        if device.kernel_driver.startswith("vfio"):
            reason = f"{name} is set aside for a virtual machine (by the Linux driver {device.kernel_driver})."
            fix = f"Use it inside that virtual machine, or give it back to {drivers}."
    return Unavailable(
        id=card_id,
        engine=device.vendor.lower(),
        state="present",
        cause="no_driver",
        reason=reason,
        fix=fix,
        pci=device.pci,
    )


def _amd(root: Path, card_id: str, device: PciDevice) -> Card:
    """A card of AMD's, with the memory that amdgpu tells."""
    folder = pci_folder(root, device.pci)
    total = read_number(folder / "mem_info_vram_total", _NO_MEMORY_OF_ITS_OWN)
    used = read_number(folder / "mem_info_vram_used", "the driver does not tell how much memory is in use")
    if total.value is None:
        # Why the total is missing says more than why the rest is.
        free = total
    elif used.value is None:
        free = used
    else:
        free = _Number(max(0, total.value - used.value))
    busy = read_number(folder / "gpu_busy_percent", "the driver does not tell how busy this card is")
    return _card(
        root,
        card_id,
        device,
        name=read_text(folder / "product_name").value,
        total=total,
        free=free,
        load=busy,
        no_uuid="the Linux kernel knows AMD cards by a serial number (unique_id), which is not a UUID",
        no_api="the Linux kernel does not know which versions of ROCm work with it",
    )


def _intel(root: Path, card_id: str, device: PciDevice) -> Card:
    """A card of Intel's, integrated or not, with its memory where the driver tells it."""
    folder = pci_folder(root, device.pci)
    # Intel's integrated GPU is always at this place; any other is a card, and only some drivers tell its memory.
    integrated = device.pci.endswith(":00:02.0")
    silent = _NO_MEMORY_OF_ITS_OWN if integrated else "this version of Intel's driver does not tell the card's memory"
    total = free = _Number(None, silent)
    if cards := folders(folder / "drm", "card[0-9]*"):
        # The i915 driver that Intel delivers itself has these two, unlike the one in the Linux kernel.
        total = read_number(cards[0] / "lmem_total_bytes", silent)
        free = read_number(cards[0] / "lmem_avail_bytes", "the driver does not tell how much memory is free")
    if not total.value:
        # The xe driver has this one instead, for each of the parts that a card may consist of.
        tiles = [read_number(tile / "physical_vram_size_bytes").value for tile in folders(folder, "tile[0-9]*")]
        vram = sum(size or 0 for size in tiles) if all(tiles) else 0
        total = _Number(vram) if vram else _Number(None, total.reason or silent)
    return _card(
        root,
        card_id,
        device,
        name=None,
        total=total,
        free=total if total.value is None else free,
        load=_Number(None, "Intel's driver does not tell how busy the GPU is"),
        no_uuid="the Linux kernel does not give Intel GPUs a UUID",
        no_api="the Linux kernel does not know which versions of Intel's compute libraries work with it",
    )


class _Number(NamedTuple):
    """A number, or the reason why it is not known."""

    value: int | None
    reason: str = ""


class _Text(NamedTuple):
    """A text, or the reason why it is not known."""

    value: str | None
    reason: str = ""


def _card(
    root: Path,
    card_id: str,
    device: PciDevice,
    *,
    name: str | None,
    total: _Number,
    free: _Number,
    load: _Number,
    no_uuid: str,
    no_api: str,
) -> Card:
    """Makes a card from what its driver shows in sysfs; numbers that are missing bring their reasons."""
    numbers = {"memory_total": total, "memory_free": free, "load": load}
    unknown = {fact: number.reason for fact, number in numbers.items() if number.value is None}
    unknown |= {"uuid": no_uuid, "driver_api": no_api, "compute_capability": "only NVIDIA numbers its cards this way"}
    return Card(
        id=card_id,
        vendor=device.vendor,
        name=name or device.name or _plain_name(device),
        source="sysfs",
        memory_total=total.value,
        memory_free=free.value,
        driver=_driver(root, device.kernel_driver or ""),
        load=None if load.value is None else load.value / 100,
        pci=device.pci,
        model=device.model,
        unknown=unknown,
    )


def _driver(root: Path, kernel_driver: str) -> str:
    """Drivers that come with the kernel have no version of their own: the kernel's is theirs."""
    own = read_text(root / "sys/module" / kernel_driver / "version").value
    if own:
        return f"{kernel_driver} {own}"
    release = read_text(root / "proc/sys/kernel/osrelease").value
    return f"{kernel_driver} (Linux {release})" if release else kernel_driver


def _kernel_driver(folder: Path) -> str | None:
    """Returns the name of the kernel's driver that is bound to the device; `None` without one."""
    try:
        return (folder / "driver").readlink().name
    except OSError:
        return None


def _pci_names(root: Path, models: set[str]) -> dict[str, str]:
    """The names of these models, from the list that Linux distributions install for `lspci`."""
    for place in _PCI_IDS:
        text = read_text(root / place).value if models else None
        if text is not None:
            return dict(_parse_pci_ids(text.splitlines(), models))
    return {}


def _parse_pci_ids(lines: Iterable[str], models: set[str]) -> Iterable[tuple[str, str]]:
    """Vendors start a line, their devices are one tab in, and cards built with these two tabs."""
    vendors = {model.partition(":")[0] for model in models}
    vendor = ""
    for line in lines:
        if not line.startswith("\t"):
            # After the vendors come the classes of devices, with numbers that look like those of vendors.
            if line.startswith("C "):
                return
            vendor = line[:4]
        elif vendor in vendors and f"{vendor}:{line[1:5]}" in models:
            yield f"{vendor}:{line[1:5]}", line[5:].strip()


def pci_folder(root: Path, address: str) -> Path:
    return root / "sys/bus/pci/devices" / address


def folders(parent: Path, pattern: str) -> list[Path]:
    """Returns the paths that match, in order; none if they cannot be listed."""
    try:
        return sorted(parent.glob(pattern))
    except OSError:
        return []


def _order(address: str) -> list[int]:
    return [int(part, 16) for part in address.replace(".", ":").split(":")]


def _model(vendor_id: int, device_id: int) -> str:
    return f"{vendor_id:04x}:{device_id:04x}"


def _plain_name(device: PciDevice) -> str:
    return f"{device.vendor} GPU {device.model}"


def read_text(file: Path, absent: str = "there is no such file") -> _Text:
    """Returns a file's text without white space around it, or the reason why it cannot be read."""
    try:
        return _Text(file.read_text(encoding="utf-8", errors="replace").strip())
    except (FileNotFoundError, NotADirectoryError):
        return _Text(None, absent)
    except OSError as error:
        # A driver too may refuse, with EPERM, while it resets or wakes the card; that is not about the user.
        if error.errno == errno.EACCES:
            return _Text(None, f"this user may not read {file}")
        return _Text(None, f"the driver did not respond when {file} was read ({error.strerror})")


def read_number(file: Path, absent: str = "there is no such file") -> _Number:
    """Returns a file's number, decimal or with 0x hexadecimal, or the reason why there is none."""
    text, reason = read_text(file, absent)
    if text is None:
        return _Number(None, reason)
    try:
        return _Number(int(text, 16 if text.startswith("0x") else 10))
    except ValueError:
        return _Number(None, f"{file} holds {text[:40]!r}, which is not a number")
