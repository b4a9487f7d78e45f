"""Machines made of folders: which of them may have a GPU."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from anygpu.hardware.gpu_presence import GpuEvidence, may_have_gpu, read_evidence, suggests_gpu
from tests.hardware.test_sysfs import add, write


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A machine with a network card and a disk."""
    (tmp_path / "sys/class").mkdir(parents=True)
    add(tmp_path, "0000:00:03.0", "1af4:1000", pci_class="020000")
    add(tmp_path, "0000:00:04.0", "144d:a808", pci_class="010802")
    write(tmp_path, "dev/null", "")
    return tmp_path


def found(root: Path) -> bool:
    return suggests_gpu(read_evidence(str(root), "linux"))


def add_drm(root: Path, name: str, driver: str | None) -> None:
    folder = root / "sys/class/drm" / name / "device"
    folder.mkdir(parents=True)
    if driver is not None:
        (folder / "driver").symlink_to(f"../../../../bus/platform/drivers/{driver}")


def test_a_server_without_one(root: Path) -> None:
    assert not found(root)


@pytest.mark.parametrize(
    ("model", "pci_class"),
    [
        ("10de:2684", "030000"),  # NVIDIA GeForce
        ("10de:2330", "030200"),  # NVIDIA data-centre card, without a screen
        ("1002:744c", "030000"),  # AMD Radeon
        ("1002:74a1", "120000"),  # AMD Instinct
        ("8086:9a49", "030000"),  # Intel, integrated
        ("8086:643e", "120000"),  # Intel NPU
        ("1af4:1050", "030000"),  # virtio: a host can pass a GPU through it
        ("1414:008e", "030200"),  # a part of a GPU, through Hyper-V
        ("1ae0:0063", "ff0000"),  # Google TPU
        ("beef:0001", "038000"),  # somebody's: in doubt it is one
    ],
)
def test_a_card_on_the_bus_counts_with_or_without_a_driver(root: Path, model: str, pci_class: str) -> None:
    add(root, "0000:65:00.0", model, pci_class=pci_class)
    assert found(root)


@pytest.mark.parametrize(
    ("model", "driver"),
    [
        ("1234:1111", "bochs-drm"),
        ("1013:00b8", "cirrus"),
        ("1b36:0100", "qxl"),
        ("1a03:2000", "ast"),
        ("102b:0522", "mgag200"),
        ("1414:5353", "hyperv_drm"),
        ("15ad:0405", "vmwgfx"),
        ("80ee:beef", "vboxvideo"),
        ("19e5:1711", "hibmc-drm"),
    ],
)
def test_what_only_has_a_screen_does_not_count(root: Path, model: str, driver: str) -> None:
    add(root, "0000:00:02.0", model)
    add_drm(root, "card0", driver)
    add_drm(root, "card0-VGA-1", None)
    assert not found(root)


def test_googles_network_card_and_disk_do_not_count(root: Path) -> None:
    add(root, "0000:00:05.0", "1ae0:0042", pci_class="020000")
    add(root, "0000:00:06.0", "1ae0:001f", pci_class="010802")
    assert not found(root)


@pytest.mark.parametrize("driver", ["panfrost", "panthor", "v3d", "tegra", "msm_dpu", None])
def test_a_gpu_beside_the_processor_counts(root: Path, driver: str | None) -> None:
    """It is on no PCI bus. A driver that is not known counts, too."""
    add_drm(root, "card1", driver)
    assert found(root)


@pytest.mark.parametrize(
    "node",
    [
        "nvidia0",
        "nvidiactl",
        "kfd",
        "dxg",
        "accel0",
        "accel/accel0",
        "nvhost-gpu",
        "mali0",
        "kgsl-3d0",
        "dri/renderD128",
    ],
)
def test_a_device_node_counts(root: Path, node: str) -> None:
    """In a container there may be nothing else of it."""
    write(root, f"dev/{node}", "")
    assert found(root)


def test_a_render_node_of_a_screen_does_not_count(root: Path) -> None:
    add_drm(root, "renderD128", "vgem")
    write(root, "dev/dri/renderD128", "")
    assert not found(root)


def test_what_shows_no_devices_may_have_one(tmp_path: Path) -> None:
    """A sandbox without /sys says nothing."""
    assert found(tmp_path)


@pytest.mark.parametrize("system", ["darwin", "win32", "freebsd14"])
def test_other_systems_may_have_one(tmp_path: Path, system: str) -> None:
    evidence = read_evidence(str(tmp_path), system)
    assert evidence == GpuEvidence(system)
    assert suggests_gpu(evidence)


def test_files_that_cannot_be_read_as_numbers(root: Path) -> None:
    write(root, "sys/bus/pci/devices/odd/class", "no number")
    write(root, "sys/bus/pci/devices/odd/vendor", "0x10de")
    assert not found(root)


def test_this_machine_is_asked_and_little_is_loaded() -> None:
    assert may_have_gpu() == suggests_gpu(read_evidence())
    script = """
import sys
import anygpu
before = set(sys.modules)
from anygpu.hardware.gpu_presence import may_have_gpu
may_have_gpu()
new = {name.partition(".")[0] for name in set(sys.modules) - before} - {"anygpu"}
assert not new & {"numpy", "msgspec", "pathlib", "ctypes", "subprocess", "platform"}, new
assert {name for name in set(sys.modules) - before if name.startswith("anygpu")} <= {
    "anygpu.hardware", "anygpu.hardware.gpu_presence"}, sorted(set(sys.modules) - before)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
