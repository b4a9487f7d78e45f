"""AMD's and Intel's cards, as the drivers of Linux show them below /sys: amdgpu, i915 and xe.

Everything is read from files below `root`, so tests can build a machine in a folder. A card may vanish at any moment:
each file that is gone costs its reading and nothing else.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import NamedTuple

from anygpu.hardware.sysfs import folders, pci_folder, read_number, read_text
from anygpu.hardware.usage.usage import NO_SECOND_LOOK, Readings

#: What amdgpu's bits mean, in the table that is the same for all cards (format 1.3).
_AMD_THROTTLERS = (
    (range(8), "power limit"),
    (range(16, 24), "current limit"),
    (range(32, 48), "temperature"),
    (range(48, 56), "overheating was signalled"),
)
#: The table's head: its size, its format and its revision.
_AMD_HEAD = struct.Struct("<HBB")
#: Where the bits are: those of the one card in formats 1.0 to 1.3, and those of all cards in 1.3.
_AMD_BITS, _AMD_COMMON_BITS = 68, 112

#: Intel's names of reasons, in the files of i915 (throttle_reason_…) and of xe (reason_…).
_INTEL_REASONS = {
    "pl1": "power limit",
    "pl2": "power limit",
    "pl4": "current limit",
    "thermal": "temperature",
    "soc_thermal": "temperature",
    "mem_thermal": "temperature",
    "prochot": "overheating was signalled",
    "ratl": "temperature",
    "vr_thermalert": "temperature",
    "vr_tdc": "current limit",
}

_NO_THROTTLING = "the driver does not tell whether the card is throttled"
_NO_SENSOR = "the driver offers no such sensor for this card"


class Energy(NamedTuple):
    """A counter: two of them make a power."""

    seconds: float
    joules: float | None


def read_amd(root: Path, pci: str) -> Readings:
    folder, found = pci_folder(root, pci), Readings()
    for name, file in (("memory_total", "mem_info_vram_total"), ("memory_used", "mem_info_vram_used")):
        number = read_number(folder / file, "an integrated GPU uses the host's memory")
        found.add(name, number.value, number.reason)
    busy = read_number(folder / "gpu_busy_percent", "the driver does not tell how busy this card is")
    found.add("load", None if busy.value is None else busy.value / 100, busy.reason)
    sensors = _sensors(folder)
    _add_sensor(found, sensors, "temperature", ("temp1_input",), 1e-3)
    # Cards of the last years have an average or a current value; some have both.
    _add_sensor(found, sensors, "power", ("power1_average", "power1_input"), 1e-6)
    _add_sensor(found, sensors, "power_limit", ("power1_cap",), 1e-6)
    _add_sensor(found, sensors, "clock", ("freq1_input",), 1.0)
    current, highest = _amd_clocks(folder / "pp_dpm_sclk")
    found.add("clock", current, _NO_SENSOR)
    found.add("clock_limit", highest, "the driver does not tell the card's highest clock")
    _add_amd_throttling(found, folder / "gpu_metrics")
    return found


def read_intel(root: Path, pci: str, before: Energy | None, after: Energy) -> Readings:
    folder, found = pci_folder(root, pci), Readings()
    integrated = pci.endswith(":00:02.0")
    for card in folders(folder / "drm", "card[0-9]*"):
        total = read_number(card / "lmem_total_bytes").value
        free = read_number(card / "lmem_avail_bytes").value
        if total and free is not None:
            found.add("memory_total", total)
            found.add("memory_used", total - free)
    silent = "an integrated GPU uses the host's memory" if integrated else "Intel's driver does not tell it"
    found.lack(silent, "memory_total", "memory_used")
    sensors = _sensors(folder)
    # xe numbers the sensor of the package 2, and i915 has only one.
    _add_sensor(found, sensors, "temperature", ("temp2_input", "temp1_input"), 1e-3)
    _add_sensor(found, sensors, "power_limit", ("power1_max", "power2_max"), 1e-6)
    found.add("power", *_power(before, after))
    _add_intel_clocks(found, folder)
    _add_intel_throttling(found, folder)
    return found


def intel_energy(root: Path, pci: str, now: float) -> Energy:
    """The energy counter of the card."""
    sensors = _sensors(pci_folder(root, pci))
    values = [read_number(sensors / name).value for name in ("energy1_input", "energy2_input")] if sensors else []
    known = [value for value in values if value is not None]
    return Energy(now, known[0] / 1e6 if known else None)


def _power(before: Energy | None, after: Energy) -> tuple[float | None, str]:
    if after.joules is None:
        return None, _NO_SENSOR
    if before is None or before.joules is None or after.seconds <= before.seconds:
        return None, NO_SECOND_LOOK
    watts = (after.joules - before.joules) / (after.seconds - before.seconds)
    return (watts, "") if watts >= 0 else (None, "the driver's counter of energy was reset")


def _sensors(folder: Path) -> Path | None:
    found = folders(folder / "hwmon", "hwmon[0-9]*")
    return found[0] if found else None


def _add_sensor(found: Readings, sensors: Path | None, name: str, files: tuple[str, ...], scale: float) -> None:
    reason = _NO_SENSOR
    for file in files if sensors is not None else ():
        assert sensors is not None
        number = read_number(sensors / file, _NO_SENSOR)
        if number.value is not None:
            found.add(name, number.value * scale)
            return
        if number.reason != _NO_SENSOR:
            reason = number.reason
    found.lack(reason, name)


def _amd_clocks(file: Path) -> tuple[float | None, float | None]:
    """The current and the highest one, from lines like `1: 1500Mhz *`."""
    current, highest = None, None
    for line in (read_text(file).value or "").splitlines():
        words = line.lower().partition(":")[2].split()
        if words and words[0].endswith("mhz") and words[0].removesuffix("mhz").isdecimal():
            clock = float(words[0].removesuffix("mhz")) * 1e6
            highest = max(highest or 0.0, clock)
            if "*" in words:
                current = clock
    return current, highest


def _add_amd_throttling(found: Readings, file: Path) -> None:
    try:
        table = file.read_bytes()
        size, form, revision = _AMD_HEAD.unpack_from(table)
    except (OSError, struct.error):
        found.lack(_NO_THROTTLING, "throttled")
        return
    if form != 1 or revision > 3 or len(table) < size or size < _AMD_BITS + 4:
        found.lack(f"the driver tells it in a form (version {form}.{revision}) that anygpu does not know", "throttled")
    elif revision == 3 and size >= _AMD_COMMON_BITS + 8:
        (bits,) = struct.unpack_from("<Q", table, _AMD_COMMON_BITS)
        # Every bit is set where the firmware does not tell.
        if bits == 0xFFFF_FFFF_FFFF_FFFF:
            found.lack(_NO_THROTTLING, "throttled")
        else:
            found.add("throttled", _words(bits))
    else:
        (bits,) = struct.unpack_from("<I", table, _AMD_BITS)
        if bits == 0xFFFF_FFFF:
            found.lack(_NO_THROTTLING, "throttled")
        else:
            # Which bit means what depends on the chip.
            found.add("throttled", ("the driver does not say why",) if bits else ())


def _words(bits: int) -> tuple[str, ...]:
    named = [words for numbers, words in _AMD_THROTTLERS if any(bits >> number & 1 for number in numbers)]
    return tuple(named) if named or not bits else ("the driver does not say why",)


def _intel_engines(folder: Path) -> list[Path]:
    """The folders of clocks: i915 has one for each part of a card, and xe two levels of them."""
    return [*folders(folder / "drm", "card[0-9]*/gt/gt[0-9]*"), *folders(folder, "tile[0-9]*/gt[0-9]*/freq0")]


def _add_intel_clocks(found: Readings, folder: Path) -> None:
    for name, files in (
        ("clock", ("rps_act_freq_mhz", "act_freq")),
        ("clock_limit", ("rps_RP0_freq_mhz", "rp0_freq")),
    ):
        values = [read_number(part / file).value for part in _intel_engines(folder) for file in files]
        known = [value for value in values if value is not None]
        found.add(name, max(known) * 1e6 if known else None, "the driver does not tell the GPU's clock")


def _add_intel_throttling(found: Readings, folder: Path) -> None:
    known, reasons = False, set()
    for part in _intel_engines(folder):
        for prefix, place in (("throttle_reason_", part), ("reason_", part / "throttle")):
            for file in folders(place, f"{prefix}*"):
                name, number = file.name.removeprefix(prefix), read_number(file).value
                if number is None or number not in (0, 1):
                    continue
                known = True
                if number and name != "status":
                    reasons.add(_INTEL_REASONS.get(name, name.replace("_", " ")))
    found.add("throttled", tuple(sorted(reasons)) if known else None, _NO_THROTTLING)
