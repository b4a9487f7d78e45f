"""Machines made of folders: what the kernel would show for their GPUs, and what we make of it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from anygpu.hardware import sysfs
from anygpu.hardware.device import Card, Unavailable

GIB = 1 << 30

PCI_IDS = """\
# Comments and empty lines are to be skipped.

1002  Advanced Micro Devices, Inc. [AMD/ATI]
\t744c  Navi 31 [Radeon RX 7900 XT/7900 XTX/7900M]
\t\t1002 0e3b  A card that somebody built with it
8086  Intel Corporation
\t56a0  DG2 [Arc A770]
10de  NVIDIA Corporation
\t2684  AD102 [GeForce RTX 4090]
C 03  Display controller
\t00  VGA compatible controller
C 10de  Not a vendor
\t2684  Not a device
"""


def add(
    root: Path, pci: str, model: str, driver: str | None = None, *, pci_class: str = "030000", **files: str
) -> Path:
    """Put a device into the machine; `files` are the ones that its driver shows, with `__` for a subfolder."""
    if os.name == "nt":
        pytest.skip("Windows has no file names with colons")
    vendor, device = model.split(":")
    folder = root / "sys/bus/pci/devices" / pci
    folder.mkdir(parents=True)
    basics = {"class": f"0x{pci_class}", "vendor": f"0x{vendor}", "device": f"0x{device}"}
    for name, text in (basics | files).items():
        file = folder / name.replace("__", "/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")
    if driver:
        home = root / "sys/bus/pci/drivers" / driver
        home.mkdir(parents=True, exist_ok=True)
        (folder / "driver").symlink_to(f"../../../../bus/pci/drivers/{driver}")
    return folder


def write(root: Path, path: str, text: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write(tmp_path, "proc/sys/kernel/osrelease", "6.8.0-45-generic\n")
    return tmp_path


def only_card(root: Path) -> Card:
    [card] = sysfs.read(root)
    assert isinstance(card, Card)
    return card


def only_unavailable(root: Path) -> Unavailable:
    [unavailable] = sysfs.read(root)
    assert isinstance(unavailable, Unavailable)
    return unavailable


AMD_FILES = {
    "mem_info_vram_total": str(24 * GIB),
    "mem_info_vram_used": str(3 * GIB),
    "gpu_busy_percent": "37",
    "unique_id": "b54f1a9f1c3a7e21",
}


def test_amd_card(root: Path) -> None:
    add(root, "0000:03:00.0", "1002:744c", "amdgpu", **AMD_FILES, product_name="Radeon RX 7900 XTX")
    card = only_card(root)
    assert (card.id, card.vendor, card.source) == ("amd:0", "AMD", "sysfs")
    assert card.name == "Radeon RX 7900 XTX"
    assert card.memory_total == 24 * GIB
    assert card.memory_free == 21 * GIB
    assert card.load == 0.37
    assert card.driver == "amdgpu (Linux 6.8.0-45-generic)"
    assert (card.pci, card.model) == ("0000:03:00.0", "1002:744c")
    assert set(card.unknown) == {"uuid", "driver_api", "compute_capability"}
    assert "unique_id" in card.unknown["uuid"]


def test_version_of_a_driver_that_has_its_own(root: Path) -> None:
    add(root, "0000:03:00.0", "1002:744c", "amdgpu", **AMD_FILES)
    write(root, "sys/module/amdgpu/version", "6.12.12\n")
    assert only_card(root).driver == "amdgpu 6.12.12"


def test_driver_where_the_kernel_hides_its_version(root: Path) -> None:
    add(root, "0000:03:00.0", "1002:744c", "amdgpu", **AMD_FILES)
    (root / "proc/sys/kernel/osrelease").unlink()
    assert only_card(root).driver == "amdgpu"


def test_name_falls_back_to_the_list_of_pci_names_and_then_to_the_model(root: Path) -> None:
    folder = add(root, "0000:03:00.0", "1002:744c", "amdgpu", **AMD_FILES)
    assert only_card(root).name == "AMD GPU 1002:744c"
    write(root, "usr/share/hwdata/pci.ids", PCI_IDS)
    assert only_card(root).name == "Navi 31 [Radeon RX 7900 XT/7900 XTX/7900M]"
    # Many cards have this file with nothing in it.
    (folder / "product_name").write_text("\n")
    assert only_card(root).name == "Navi 31 [Radeon RX 7900 XT/7900 XTX/7900M]"


def test_amd_without_memory_of_its_own(root: Path) -> None:
    add(root, "0000:c1:00.0", "1002:15bf", "amdgpu", gpu_busy_percent="0")
    card = only_card(root)
    assert card.memory_total is None
    assert card.unknown["memory_total"] == "an integrated GPU uses the host's memory"
    assert card.unknown["memory_free"] == card.unknown["memory_total"]
    assert card.load == 0.0


def test_amd_accelerator_is_a_card(root: Path) -> None:
    add(root, "0000:03:00.0", "1002:740f", "amdgpu", pci_class="120000", **AMD_FILES)
    assert only_card(root).id == "amd:0"
    assert sysfs.pci_gpus(root)[0].accelerator


def test_amd_without_driver(root: Path) -> None:
    add(root, "0000:03:00.0", "1002:744c")
    missing = only_unavailable(root)
    assert (missing.id, missing.engine, missing.state, missing.cause) == ("amd:0", "amd", "present", "no_driver")
    assert missing.pci == "0000:03:00.0"
    assert missing.reason == "AMD GPU 1002:744c is in the machine, but Linux has no driver running for it."
    assert missing.fix is not None
    assert "firmware-amd-graphics" in missing.fix


def test_card_set_aside_for_a_virtual_machine(root: Path) -> None:
    add(root, "0000:03:00.0", "1002:744c", "vfio-pci")
    missing = only_unavailable(root)
    assert missing.cause == "no_driver"
    assert "virtual machine" in missing.reason
    assert "amdgpu" in (missing.fix or "")


def test_card_of_a_driver_that_does_not_compute(root: Path) -> None:
    add(root, "0000:03:00.0", "1002:6798", "radeon")
    assert "held by the Linux driver radeon" in only_unavailable(root).reason


def test_intel_integrated(root: Path) -> None:
    add(root, "0000:00:02.0", "8086:9a49", "i915", drm__card0__gt_cur_freq_mhz="300")
    card = only_card(root)
    assert (card.id, card.name) == ("intel:0", "Intel GPU 8086:9a49")
    assert card.driver == "i915 (Linux 6.8.0-45-generic)"
    assert card.memory_total is None
    assert card.unknown["memory_total"] == card.unknown["memory_free"] == "an integrated GPU uses the host's memory"
    assert {"load", "uuid", "driver_api", "compute_capability"} <= set(card.unknown)


def test_intel_arc_with_local_memory(root: Path) -> None:
    write(root, "usr/share/misc/pci.ids", PCI_IDS)
    add(root, "0000:03:00.0", "8086:56a0", "xe", drm__card1__lmem_total_bytes=str(16 * GIB))
    card = only_card(root)
    assert card.name == "DG2 [Arc A770]"
    assert card.memory_total == 16 * GIB
    assert card.memory_free is None
    assert "memory is free" in card.unknown["memory_free"]
    assert card.driver == "xe (Linux 6.8.0-45-generic)"


def test_intel_arc_with_free_memory(root: Path) -> None:
    files = {"drm__card1__lmem_total_bytes": str(16 * GIB), "drm__card1__lmem_avail_bytes": str(15 * GIB)}
    add(root, "0000:03:00.0", "8086:56a0", "i915", **files)
    assert only_card(root).memory_free == 15 * GIB


def test_intel_card_in_tiles(root: Path) -> None:
    files = {f"tile{number}__physical_vram_size_bytes": str(64 * GIB) for number in (0, 1)}
    add(root, "0000:03:00.0", "8086:0bd5", "xe", pci_class="038000", **files, drm__card0__dev="226:0")
    assert only_card(root).memory_total == 128 * GIB


def test_intel_card_whose_driver_is_silent_is_not_called_integrated(root: Path) -> None:
    add(root, "0000:03:00.0", "8086:56a0", "i915", tile0__id="0")
    card = only_card(root)
    assert card.memory_total is None
    assert "does not tell the card's memory" in card.unknown["memory_total"]


def test_intel_without_driver(root: Path) -> None:
    add(root, "0000:03:00.0", "8086:e20b")
    missing = only_unavailable(root)
    assert (missing.id, missing.engine, missing.cause) == ("intel:0", "intel", "no_driver")
    assert "newer Linux kernel" in (missing.fix or "")


def test_intel_npu_is_listed_and_is_no_card(root: Path) -> None:
    add(root, "0000:00:0b.0", "8086:7d1d", "intel_vpu", pci_class="120000")
    assert [device.accelerator for device in sysfs.pci_gpus(root)] == [True]
    assert sysfs.read(root) == []


def test_nvidia_without_driver(root: Path) -> None:
    write(root, "usr/share/misc/pci.ids", PCI_IDS)
    add(root, "0000:65:00.0", "10de:2684")
    assert sysfs.pci_gpus(root) == [
        sysfs.PciDevice(
            pci="0000:65:00.0",
            vendor_id=0x10DE,
            device_id=0x2684,
            model="10de:2684",
            vendor="NVIDIA",
            name="AD102 [GeForce RTX 4090]",
            kernel_driver=None,
            accelerator=False,
        )
    ]
    assert sysfs.read(root) == []


def test_eight_gpus_in_pci_order(root: Path) -> None:
    # As text, 10000 comes before 0001 and "a" after "9"; as addresses they are numbers.
    amd = ["10000:01:00.0", "0000:c3:00.0", "0000:03:00.0", "0001:03:00.0"]
    nvidia = ["0000:43:00.0", "0000:83:00.0", "0000:0a:00.0", "0002:03:00.0"]
    for address in amd:
        add(root, address, "1002:740f", "amdgpu", pci_class="038000", **AMD_FILES)
    for address in nvidia:
        add(root, address, "10de:2330", "nvidia", pci_class="030200")
    assert [device.pci for device in sysfs.pci_gpus(root)] == [
        "0000:03:00.0",
        "0000:0a:00.0",
        "0000:43:00.0",
        "0000:83:00.0",
        "0000:c3:00.0",
        "0001:03:00.0",
        "0002:03:00.0",
        "10000:01:00.0",
    ]
    cards = sysfs.read(root)
    assert [(card.id, card.pci) for card in cards] == [
        ("amd:0", "0000:03:00.0"),
        ("amd:1", "0000:c3:00.0"),
        ("amd:2", "0001:03:00.0"),
        ("amd:3", "10000:01:00.0"),
    ]


def test_cards_keep_their_number_beside_one_without_driver(root: Path) -> None:
    add(root, "0000:03:00.0", "1002:744c")
    add(root, "0000:43:00.0", "1002:744c", "amdgpu", **AMD_FILES)
    add(root, "0000:00:02.0", "8086:9a49", "i915")
    found = sysfs.read(root)
    assert [(type(one), one.id) for one in found] == [(Card, "intel:0"), (Unavailable, "amd:0"), (Card, "amd:1")]


@pytest.mark.parametrize("model", ["1234:1111", "1013:00b8", "1b36:0100", "102b:0536", "1a03:2000"])
def test_adapters_that_only_show_a_picture_are_no_gpus(root: Path, model: str) -> None:
    add(root, "0000:00:01.0", model)
    assert sysfs.pci_gpus(root) == []


def test_virtual_gpus_are_listed(root: Path) -> None:
    add(root, "0000:00:01.0", "1af4:1050", "virtio-pci", pci_class="038000")
    [device] = sysfs.pci_gpus(root)
    assert (device.vendor, device.kernel_driver) == ("other (0x1af4)", "virtio-pci")
    assert sysfs.read(root) == []


def test_other_hardware_is_not_listed(root: Path) -> None:
    add(root, "0000:00:1f.3", "8086:a348", "snd_hda_intel", pci_class="040300")
    add(root, "0000:01:00.0", "144d:a80a", "nvme", pci_class="010802")
    assert sysfs.pci_gpus(root) == []


def test_broken_entries_are_passed_over(root: Path) -> None:
    folder = add(root, "0000:03:00.0", "1002:744c", "amdgpu", **AMD_FILES)
    (folder / "vendor").unlink()
    add(root, "not-an-address", "1002:744c")
    assert sysfs.pci_gpus(root) == []


def refuse(monkeypatch: pytest.MonkeyPatch, name: str, error: OSError) -> None:
    """Make reading files of this name fail. Tests may run as root, whom file modes do not stop."""
    read_text = Path.read_text

    def refusing(self: Path, *arguments: Any, **options: Any) -> str:
        if self.name == name:
            raise error
        return read_text(self, *arguments, **options)

    monkeypatch.setattr(Path, "read_text", refusing)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (PermissionError(13, "Permission denied"), "this user may not read"),
        # amdgpu answers so while it resets the card.
        (PermissionError(1, "Operation not permitted"), "the driver did not respond"),
        (OSError(5, "Input/output error"), "the driver did not respond"),
    ],
)
@pytest.mark.parametrize(
    ("file", "facts"),
    [
        ("mem_info_vram_total", {"memory_total", "memory_free"}),
        ("mem_info_vram_used", {"memory_free"}),
        ("gpu_busy_percent", {"load"}),
    ],
)
def test_unreadable_file_is_an_unknown_fact(
    root: Path, monkeypatch: pytest.MonkeyPatch, file: str, facts: set[str], error: OSError, reason: str
) -> None:
    add(root, "0000:03:00.0", "1002:744c", "amdgpu", **AMD_FILES)
    refuse(monkeypatch, file, error)
    card = only_card(root)
    for fact in facts:
        assert getattr(card, fact) is None
        assert card.unknown[fact].startswith(reason)
        assert file in card.unknown[fact]
    assert set(card.unknown) == facts | {"uuid", "driver_api", "compute_capability"}


def test_directory_in_place_of_a_file_is_an_unknown_fact(root: Path) -> None:
    folder = add(root, "0000:03:00.0", "1002:744c", "amdgpu", **AMD_FILES)
    (folder / "gpu_busy_percent").unlink()
    (folder / "gpu_busy_percent").mkdir()
    assert only_card(root).load is None


def test_text_in_place_of_a_number_is_an_unknown_fact(root: Path) -> None:
    add(root, "0000:03:00.0", "1002:744c", "amdgpu", **AMD_FILES | {"gpu_busy_percent": "N/A"})
    assert "'N/A', which is not a number" in only_card(root).unknown["load"]


def test_unreadable_name_falls_back(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add(root, "0000:03:00.0", "1002:744c", "amdgpu", **AMD_FILES, product_name="Radeon")
    refuse(monkeypatch, "product_name", PermissionError(13, "Permission denied"))
    assert only_card(root).name == "AMD GPU 1002:744c"


def test_machine_without_sysfs(tmp_path: Path) -> None:
    assert sysfs.pci_gpus(tmp_path) == []
    assert sysfs.read(tmp_path) == []
    assert sysfs.pci_gpus(tmp_path / "nowhere") == []


def test_this_machine_can_be_read() -> None:
    assert len(sysfs.read()) <= len(sysfs.pci_gpus())


def test_pci_names_stop_before_the_classes() -> None:
    models = {"10de:2684", "1002:744c", "1002:0e3b", "8086:ffff"}
    assert dict(sysfs._parse_pci_ids(PCI_IDS.splitlines(), models)) == {
        "10de:2684": "AD102 [GeForce RTX 4090]",
        "1002:744c": "Navi 31 [Radeon RX 7900 XT/7900 XTX/7900M]",
    }
