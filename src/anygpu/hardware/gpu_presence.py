"""Whether this machine can have a GPU at all: a look at a few files, without a child process and without a driver.

Short scripts ask this early, so only modules of Python's core are imported. In doubt the answer is yes: then the
machine is looked at properly, once calls have paid for that.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

#: With "on", devices that compute on the processor are automatic, as stand-ins for GPUs in tests.
VARIABLE = "ANYGPU_SOFTWARE_DEVICES"

#: Vendors of PCI display adapters that only put a picture on a screen: the emulated ones of virtual machines and the
#: ones in the management chips of servers. Listed as GPUs, each would be a card whose driver seems to be missing.
#: Virtio is not here, because a host can pass a real GPU through it.
ONLY_A_SCREEN = frozenset(
    {
        0x1013,  # Cirrus, emulated by QEMU and Xen
        0x102B,  # Matrox, in management chips
        0x1234,  # Bochs, the default of QEMU
        0x1A03,  # ASPEED, in management chips
        0x1B36,  # QXL, for remote screens
    }
)
#: Models of vendors that have other devices, too.
_SCREEN_MODELS = frozenset(
    {
        (0x1414, 0x5353),  # Hyper-V
        (0x15AD, 0x0405),  # VMware, older and newer
        (0x15AD, 0x0406),
        (0x19E5, 0x1711),  # Huawei, in management chips
        (0x80EE, 0xBEEF),  # VirtualBox
    }
)
_DISPLAY, _ACCELERATOR = 0x03, 0x12
#: Google's TPUs have no class of their own; its other devices on the bus are a network card and a disk.
_GOOGLE, _GOOGLES_OTHERS = 0x1AE0, frozenset({0x001F, 0x0042})

#: Linux drivers of screens and of framebuffers, which compute nothing.
_SCREEN_DRIVERS = frozenset(
    (
        *("ast", "bochs", "bochs-drm", "cirrus", "cirrus-qemu", "gm12u320", "gud", "hibmc-drm", "hyperv_drm"),
        *("mgag200", "ofdrm", "qxl", "udl", "vboxvideo", "vgem", "vkms", "vmwgfx"),
        *("efi-framebuffer", "simple-framebuffer", "simpledrm", "vesa-framebuffer"),
    )
)

#: How names of device nodes begin that only GPUs and accelerators have. Those of Tegra, Mali and Adreno are last.
_NODES = ("nvidia", "kfd", "dxg", "accel", "nvhost-gpu", "nvgpu", "mali", "kgsl-3d")


class PciFunction(NamedTuple):
    """One function on the PCI bus: the upper byte of its class, and its model."""

    pci_class: int
    vendor: int
    device: int


class GpuEvidence(NamedTuple):
    """Signs of GPUs in the files of a machine."""

    #: As `sys.platform` names it.
    system: str
    #: Whether the Linux kernel shows its devices at all: a sandbox may hide them.
    shows_devices: bool = True
    #: Those that may be graphics cards or accelerators.
    pci: tuple[PciFunction, ...] = ()
    #: The Linux driver of each card and render node of the kernel's graphics; "" where it is not known.
    drm_drivers: tuple[str, ...] = ()
    #: Names in /dev that only GPUs have.
    nodes: tuple[str, ...] = ()


def suggests_gpu(evidence: GpuEvidence) -> bool:
    """Whether there may be a GPU or an accelerator, whether a driver serves it or not. Pure."""
    if evidence.system != "linux" or not evidence.shows_devices or evidence.nodes:
        return True
    if any(driver not in _SCREEN_DRIVERS for driver in evidence.drm_drivers):
        return True
    return any(_computes(function) for function in evidence.pci)


def _computes(function: PciFunction) -> bool:
    """Whether a PCI function can compute: a display or an accelerator, but not one that only draws a screen."""
    pci_class, vendor, device = function
    if pci_class not in (_DISPLAY, _ACCELERATOR):
        return vendor == _GOOGLE and device not in _GOOGLES_OTHERS
    return vendor not in ONLY_A_SCREEN and (vendor, device) not in _SCREEN_MODELS


def read_evidence(root: str = "/", system: str = sys.platform) -> GpuEvidence:
    """The signs under `root`, read in about a millisecond."""
    if system != "linux":
        return GpuEvidence(system)
    return GpuEvidence(
        system,
        shows_devices=os.path.isdir(os.path.join(root, "sys/class")),
        pci=tuple(_pci_functions(os.path.join(root, "sys/bus/pci/devices"))),
        drm_drivers=tuple(_drm_drivers(root)),
        nodes=tuple(name for name in _names(os.path.join(root, "dev")) if name.startswith(_NODES)),
    )


@cache
def may_have_gpu() -> bool:
    """Whether this machine may have a GPU; asked once for each process."""
    return suggests_gpu(read_evidence())


def software_devices_are_automatic() -> bool:
    """Whether calls may go to devices that compute on the processor without naming them: for tests alone."""
    return os.environ.get(VARIABLE) == "on"


def probes_by_itself() -> bool:
    """Whether calls that name no device are worth a look at the machine. If not, NumPy is all that they can use."""
    return software_devices_are_automatic() or may_have_gpu()


def _pci_functions(folder: str) -> Iterator[PciFunction]:
    """Yields the displays and accelerators on the bus; Google's TPUs are of no such class."""
    for name in _names(folder):
        pci_class = _number(os.path.join(folder, name, "class"))
        vendor = _number(os.path.join(folder, name, "vendor"))
        if pci_class is None or vendor is None:
            continue
        if pci_class >> 16 in (_DISPLAY, _ACCELERATOR) or vendor == _GOOGLE:
            yield PciFunction(pci_class >> 16, vendor, _number(os.path.join(folder, name, "device")) or 0)


def _drm_drivers(root: str) -> Iterator[str]:
    """Of cards and render nodes; names with a hyphen are sockets for screens. A render node may be there alone."""
    known = os.path.join(root, "sys/class/drm")
    nodes = (name for name in _names(os.path.join(root, "dev/dri")) if name.startswith("renderD"))
    for name in {*_names(known), *nodes}:
        if name.startswith(("card", "renderD")) and "-" not in name:
            try:
                yield os.path.basename(os.readlink(os.path.join(known, name, "device/driver")))
            except OSError:
                yield ""


def _names(folder: str) -> list[str]:
    """Lists a folder; empty if there is none."""
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _number(file: str) -> int | None:
    """Reads a hexadecimal number from a file of sysfs; `None` if there is none."""
    try:
        with open(file, "rb") as opened:
            return int(opened.read(32), 16)
    except (OSError, ValueError):
        return None
