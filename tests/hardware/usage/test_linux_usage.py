"""Machines made of folders: AMD's and Intel's cards at work, and whose processes they work for."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Mapping
from pathlib import Path

import pytest

from anygpu.hardware.device import Device, unknown_facts
from anygpu.hardware.usage import NO_SECOND_LOOK, READINGS, Usage
from anygpu.hardware.usage.linux_cards import parse
from anygpu.hardware.usage.reading import UsageReader
from anygpu.testing import ManualClock
from tests.hardware.test_sysfs import GIB, add, write

AMD, INTEL, XE = "0000:03:00.0", "0000:00:02.0", "0000:04:00.0"

AMD_FILES = {
    "mem_info_vram_total": str(24 * GIB),
    "mem_info_vram_used": str(3 * GIB),
    "gpu_busy_percent": "37",
    "hwmon__hwmon4__temp1_input": "61000",
    "hwmon__hwmon4__power1_average": "215000000",
    "hwmon__hwmon4__power1_cap": "355000000",
    "hwmon__hwmon4__freq1_input": "2482000000",
    "pp_dpm_sclk": "0: 500Mhz\n1: 2482Mhz *\n2: 2526Mhz",
}


def device(card: str, pci: str) -> Device:
    nothing = unknown_facts("-", "memory_total", "memory_free", "driver", "compute_capability", "load", "uuid")
    return Device(
        id="webgpu:0",
        engine="webgpu",
        kind="gpu",
        form="discrete",
        name="a card",
        state="verified",
        api="Vulkan",
        card=card,
        pci=pci,
        unknown=nothing,
    )


def client(root: Path, pid: int, number: int, lines: Mapping[str, str], name: str = "python3") -> None:
    """A process that has a card open."""
    folder = root / "proc" / str(pid)
    for part in ("fd", "fdinfo"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    link = folder / "fd" / str(number)
    if not link.is_symlink():
        link.symlink_to("/dev/dri/renderD128")
    write(root, f"proc/{pid}/comm", name + "\n")
    text = "".join(f"{key}:\t{value}\n" for key, value in lines.items())
    write(root, f"proc/{pid}/fdinfo/{number}", f"pos:\t0\nflags:\t02\n{text}")


class Machine:
    def __init__(self, root: Path, card: str, pci: str) -> None:
        self.root = root
        self.clock = ManualClock()
        self.device = device(card, pci)
        self.reader = UsageReader(root=root, clock=self.clock)

    def look(self) -> Usage:
        return self.reader.read([self.device])["webgpu:0"]


@pytest.fixture
def amd(tmp_path: Path) -> Machine:
    add(tmp_path, AMD, "1002:744c", "amdgpu", **AMD_FILES)
    return Machine(tmp_path, "amd:0", AMD)


def metrics(form: int, revision: int, *, bits: int = 0, common: int = 0, size: int = 120) -> bytes:
    table = bytearray(size)
    struct.pack_into("<HBB", table, 0, size, form, revision)
    struct.pack_into("<I", table, 68, bits)
    if size >= 120:
        struct.pack_into("<Q", table, 112, common)
    return bytes(table)


class TestAmd:
    def test_a_card(self, amd: Machine) -> None:
        found = amd.look()
        assert (found.card, found.source) == ("amd:0", "sysfs")
        assert (found.memory_used, found.memory_total, found.load) == (3 * GIB, 24 * GIB, 0.37)
        assert (found.temperature, found.power, found.power_limit) == (61.0, 215.0, 355.0)
        assert (found.clock, found.clock_limit) == (2482e6, 2526e6)
        assert found.processes == ()
        assert found.unknown == {"throttled": "the driver does not tell whether the card is throttled"}

    @pytest.mark.parametrize(
        ("table", "expected"),
        [
            (metrics(1, 3), ()),
            (metrics(1, 3, common=1 << 2 | 1 << 36), ("power limit", "temperature")),
            (metrics(1, 3, common=1 << 57), ("the driver does not say why",)),
            (metrics(1, 1, bits=4, size=96), ("the driver does not say why",)),
            (metrics(1, 1, size=96), ()),
            (metrics(1, 3, common=(1 << 64) - 1), None),
            (metrics(2, 3), None),
            (b"\x78", None),
            (metrics(1, 3)[:60], None),
        ],
    )
    def test_throttling(self, amd: Machine, table: bytes, expected: tuple[str, ...] | None) -> None:
        (amd.root / "sys/bus/pci/devices" / AMD / "gpu_metrics").write_bytes(table)
        assert amd.look().throttled == expected

    def test_nonsense(self, amd: Machine) -> None:
        folder = amd.root / "sys/bus/pci/devices" / AMD
        (folder / "gpu_busy_percent").write_text("65535\n")
        (folder / "hwmon/hwmon4/temp1_input").write_text("-273151\n")
        (folder / "hwmon/hwmon4/power1_average").write_text("lots\n")
        found = amd.look()
        assert found.unknown["load"] == "the driver reports 65535%, which cannot be"
        assert found.unknown["temperature"] == "the driver reports -273.151 °C, which cannot be"
        assert found.unknown["power"].endswith("holds 'lots', which is not a number")

    def test_a_card_that_vanishes(self, amd: Machine) -> None:
        amd.look()
        shutil.rmtree(amd.root / "sys/bus/pci/devices" / AMD)
        assert amd.look().unknown == dict.fromkeys(READINGS, "the card has vanished from the bus")

    def test_whose_processes(self, amd: Machine) -> None:
        card = {"drm-driver": "amdgpu", "drm-pdev": AMD, "drm-client-id": "7", "drm-memory-vram": "2048 KiB"}
        client(amd.root, 50, 3, card | {"drm-engine-compute": "1000000000 ns"})
        client(amd.root, 50, 4, card | {"drm-engine-compute": "1000000000 ns"})
        client(amd.root, 60, 3, card | {"drm-client-id": "9", "drm-engine-gfx": "0 ns"}, name="Xorg")
        (first, second) = amd.look().processes or ()
        assert {first.pid, second.pid} == {50, 60}
        assert first.memory == second.memory == 2 << 20, "two descriptors of one client count once"
        assert first.unknown == {"load": NO_SECOND_LOOK}
        amd.clock.advance(2.0)
        client(amd.root, 50, 3, card | {"drm-engine-compute": "2500000000 ns"})
        client(amd.root, 50, 4, card | {"drm-engine-compute": "2500000000 ns"})
        (first, second) = amd.look().processes or ()
        assert (first.pid, first.name, first.load) == (50, "python3", 0.75)
        assert (second.pid, second.name, second.load) == (60, "Xorg", 0.0)

    def test_a_counter_that_was_reset(self, amd: Machine) -> None:
        card = {"drm-pdev": AMD, "drm-client-id": "7"}
        client(amd.root, 50, 3, card | {"drm-engine-compute": "1000000000 ns"})
        amd.look()
        amd.clock.advance(1.0)
        client(amd.root, 50, 3, card | {"drm-engine-compute": "5 ns"})
        (process,) = amd.look().processes or ()
        assert process.load is None


class TestIntel:
    def test_i915(self, tmp_path: Path) -> None:
        gt = "drm__card0__gt__gt0__"
        folder = add(
            tmp_path,
            INTEL,
            "8086:56a0",
            "i915",
            **{
                "hwmon__hwmon2__energy1_input": "1000000",
                "hwmon__hwmon2__power1_max": "190000000",
                "hwmon__hwmon2__temp1_input": "48000",
                gt + "rps_act_freq_mhz": "2400",
                gt + "rps_RP0_freq_mhz": "2450",
                gt + "throttle_reason_status": "1",
                gt + "throttle_reason_pl1": "1",
                gt + "throttle_reason_thermal": "0",
            },
        )
        machine = Machine(tmp_path, "intel:0", INTEL)
        card = {"drm-pdev": INTEL, "drm-client-id": "1"}
        engines = {"drm-engine-render": "0 ns", "drm-engine-capacity-video": "2"}
        client(tmp_path, 50, 3, card | engines)
        first = machine.look()
        assert first.unknown["power"] == NO_SECOND_LOOK
        machine.clock.advance(2.0)
        (folder / "hwmon/hwmon2/energy1_input").write_text("91000000\n")
        client(tmp_path, 50, 3, card | engines | {"drm-engine-render": "1000000000 ns"})
        found = machine.look()
        assert (found.power, found.power_limit, found.temperature) == (45.0, 190.0, 48.0)
        assert (found.clock, found.clock_limit, found.throttled) == (2400e6, 2450e6, ("power limit",))
        assert found.load == 0.5
        assert found.unknown["memory_total"] == "an integrated GPU uses the host's memory"

    def test_xe_counts_cycles(self, tmp_path: Path) -> None:
        frequency = "tile0__gt0__freq0__"
        add(
            tmp_path,
            XE,
            "8086:e20b",
            "xe",
            **{
                frequency + "act_freq": "2850",
                frequency + "rp0_freq": "2850",
                frequency + "throttle__status": "0",
                frequency + "throttle__reason_thermal": "0",
            },
        )
        machine = Machine(tmp_path, "intel:0", XE)
        card = {"drm-pdev": XE, "drm-client-id": "1", "drm-resident-vram0": "3 GiB"}
        client(tmp_path, 50, 3, card | {"drm-cycles-ccs": "100", "drm-total-cycles-ccs": "1000"})
        machine.look()
        machine.clock.advance(1.0)
        client(tmp_path, 50, 3, card | {"drm-cycles-ccs": "700", "drm-total-cycles-ccs": "2000"})
        found = machine.look()
        assert (found.load, found.throttled, found.clock) == (0.6, (), 2850e6)
        (process,) = found.processes or ()
        assert (process.load, process.memory) == (0.6, 3 * GIB)


@pytest.mark.parametrize(
    "text", ["", "pos: 0\nflags: 02\n", "drm-driver: amdgpu", "drm-pdev: nowhere\ndrm-client-id: 4", "drm-pdev"]
)
def test_files_that_are_not_about_a_card(text: str) -> None:
    assert parse(1, text) is None
