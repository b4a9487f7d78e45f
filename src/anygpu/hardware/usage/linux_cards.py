"""AMD's and Intel's cards, as the drivers of Linux show them below /sys: amdgpu, i915 and xe.

Everything is read from files below `root`, so tests can build a machine in a folder. A card may vanish at any moment:
each file that is gone costs its reading and nothing else.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from anygpu.hardware.device import normal_pci
from anygpu.hardware.sysfs import folders, pci_folder, read_number, read_text
from anygpu.hardware.usage.usage import NO_SECOND_LOOK, ProcessUsage, Readings, share

# -- whose work the graphics drivers of Linux do: all count it alike, in /proc/PID/fdinfo of whoever has a card open
#
# amdgpu, i915, xe, nouveau, panfrost and others write the keys of the kernel's page "DRM client usage stats". Busy
# times are counters, so two looks make a share. A process of another user shows nothing, unless we are root.


_UNITS = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "ns": 1, "Hz": 1, "MHz": 10**6}
#: Memory of the card itself, as drivers call it; the rest of what they list is the host's.
_OWN_MEMORY = ("vram", "local", "lmem")

_NO_MEMORY = "the driver does not tell the memory of a process"
_NO_LOAD = "the driver does not tell how long it worked for a process"


class Client(NamedTuple):
    """One opened card of one process. Several descriptors may be the same client."""

    pid: int
    pci: str
    #: The kernel's number of the client.
    number: str
    #: Nanoseconds by engine.
    busy: Mapping[str, int]
    #: Cycles by engine, and all that the engine had meanwhile: xe counts these instead.
    cycles: Mapping[str, tuple[int, int]]
    #: How many engines have one name.
    capacity: Mapping[str, int]
    #: Bytes of the card's own memory; `None` where the driver does not tell.
    memory: int | None


def read_clients(root: Path = Path("/")) -> list[Client]:
    """All clients of all cards that this user may see. A process that ends meanwhile is left out."""
    found: dict[tuple[int, str, str], Client] = {}
    try:
        processes = [folder for folder in (root / "proc").iterdir() if folder.name.isdecimal()]
    except OSError:
        return []
    for process in processes:
        try:
            files = list((process / "fdinfo").iterdir())
        except OSError:  # another user's, or it has ended
            continue
        for file in files:
            if not _is_drm(process / "fd" / file.name):
                continue
            try:
                client = parse(int(process.name), file.read_text(errors="replace"))
            except OSError:
                continue
            if client is not None:
                found[client.pid, client.pci, client.number] = client
    return list(found.values())


def parse(pid: int, text: str) -> Client | None:
    """A client, if the file is about a card that sits on the bus."""
    values: dict[str, str] = {}
    for line in text.splitlines():
        name, colon, value = line.partition(":")
        if colon and name.startswith("drm-"):
            values[name.removeprefix("drm-")] = value.strip()
    pci, number = normal_pci(values.get("pdev")), values.get("client-id")
    if pci is None or number is None:
        return None
    busy = _numbers(values, "engine-")
    capacity = {name.removeprefix("capacity-"): count for name, count in busy.items() if name.startswith("capacity-")}
    spent, whole = _numbers(values, "cycles-"), _numbers(values, "total-cycles-")
    return Client(
        pid,
        pci,
        number,
        {name: count for name, count in busy.items() if not name.startswith("capacity-")},
        {name: (count, whole[name]) for name, count in spent.items() if name in whole},
        capacity,
        _memory(values),
    )


def processes_of(
    pci: str, before: Iterable[Client] | None, after: Iterable[Client], seconds: float, names: Mapping[int, str | None]
) -> tuple[ProcessUsage, ...]:
    """The use of a card by each process between two looks; without the first one, loads are unknown."""
    earlier = (
        None if before is None else {(client.pid, client.number): client for client in before if client.pci == pci}
    )
    memory: dict[int, list[int | None]] = {}
    loads: dict[int, list[float | None]] = {}
    for client in after:
        if client.pci != pci:
            continue
        memory.setdefault(client.pid, []).append(client.memory)
        then = None if earlier is None else earlier.get((client.pid, client.number))
        loads.setdefault(client.pid, []).append(None if then is None else _load(then, client, seconds))
    found = []
    for pid, parts in memory.items():
        held = [part for part in parts if part is not None]
        shares = [part for part in loads[pid] if part is not None]
        unknown = {}
        if not held:
            unknown["memory"] = _NO_MEMORY
        if not shares:
            unknown["load"] = NO_SECOND_LOOK if earlier is None else _NO_LOAD
        name = names.get(pid)
        if name is None:
            unknown["name"] = "it has ended meanwhile"
        found.append(
            ProcessUsage(
                pid=pid,
                name=name,
                memory=sum(held) if held else None,
                load=min(1.0, sum(shares)) if shares else None,
                unknown=unknown,
            )
        )
    return tuple(sorted(found, key=lambda each: (-(each.load or 0.0), -(each.memory or 0), each.pid)))


def busiest_engine(pci: str, before: Iterable[Client] | None, after: Iterable[Client], seconds: float) -> float | None:
    """How busy the busiest engine of a card was, as far as the processes that we may see tell."""
    if before is None:
        return None
    earlier = {(client.pid, client.number): client for client in before if client.pci == pci}
    sums: dict[str, float] = {}
    for client in after:
        then = earlier.get((client.pid, client.number)) if client.pci == pci else None
        if then is not None:
            for engine, part in _loads(then, client, seconds).items():
                sums[engine] = sums.get(engine, 0.0) + part
    return min(1.0, max(sums.values())) if sums else None


def _load(before: Client, after: Client, seconds: float) -> float | None:
    """The load of the busiest engine."""
    parts = _loads(before, after, seconds)
    return max(parts.values()) if parts else None


def _loads(before: Client, after: Client, seconds: float) -> dict[str, float]:
    """Returns the share of time that each engine was busy between two looks, from times or from cycles."""
    found: dict[str, float | None] = {}
    for engine, count in after.busy.items():
        engines = max(1, after.capacity.get(engine, 1))
        found[engine] = share((count - before.busy.get(engine, count)) / 1e9 / engines, seconds)
    for engine, (spent, whole) in after.cycles.items():
        then = before.cycles.get(engine)
        if then is not None:
            engines = max(1, after.capacity.get(engine, 1))
            found[engine] = share((spent - then[0]) / engines, whole - then[1])
    return {engine: part for engine, part in found.items() if part is not None}


def _is_drm(link: Path) -> bool:
    """Whether the descriptor is a card's: reading all the others would take far longer."""
    try:
        return "/dev/dri/" in str(link.readlink())
    except OSError:
        return False


def _memory(values: Mapping[str, str]) -> int | None:
    """Returns the bytes of the card's own memory that a client takes; `None` if the driver does not tell."""
    # What is resident says more than what was asked for; old drivers have only the last.
    for key in ("resident-", "memory-", "total-"):
        parts = [count for name, count in _numbers(values, key).items() if name.startswith(_OWN_MEMORY)]
        if parts:
            return sum(parts)
    return None


def _numbers(values: Mapping[str, str], prefix: str) -> dict[str, int]:
    """Returns the numbers whose keys begin with a prefix, in bytes or plain, by the rest of the key."""
    found = {}
    for name, value in values.items():
        if name.startswith(prefix):
            number, _, unit = value.partition(" ")
            if number.isdecimal() and unit.strip() in _UNITS:
                found[name.removeprefix(prefix)] = int(number) * _UNITS[unit.strip()]
    return found


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
    """Memory, load, temperature, power, clocks and throttling of a card, as amdgpu shows them."""
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
    """Memory, clocks and power of a card, as i915 and xe show them; power is that between two readings."""
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
    """Returns watts between two readings of a counter, or the reason why they are unknown."""
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
    """Adds the first sensor that there is, scaled; without one the reason."""
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
    """Add why an AMD card runs slower, from the bits of its table of metrics."""
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
    """Adds the highest clock of the card's parts, now and at most, in hertz."""
    for name, files in (
        ("clock", ("rps_act_freq_mhz", "act_freq")),
        ("clock_limit", ("rps_RP0_freq_mhz", "rp0_freq")),
    ):
        values = [read_number(part / file).value for part in _intel_engines(folder) for file in files]
        known = [value for value in values if value is not None]
        found.add(name, max(known) * 1e6 if known else None, "the driver does not tell the GPU's clock")


def _add_intel_throttling(found: Readings, folder: Path) -> None:
    """Adds the reasons why any part of the card runs slower; an empty tuple if it does not."""
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
