"""Whose work the graphics drivers of Linux do: all count it alike, in /proc/PID/fdinfo of whoever has a card open.

amdgpu, i915, xe, nouveau, panfrost and others write the keys of the kernel's page "DRM client usage stats". Busy times
are counters, so two looks make a share. A process of another user shows nothing, unless we are root.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from anygpu.hardware.cards import normal_pci
from anygpu.hardware.usage.usage import NO_SECOND_LOOK, ProcessUsage, share

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
    # What is resident says more than what was asked for; old drivers have only the last.
    for key in ("resident-", "memory-", "total-"):
        parts = [count for name, count in _numbers(values, key).items() if name.startswith(_OWN_MEMORY)]
        if parts:
            return sum(parts)
    return None


def _numbers(values: Mapping[str, str], prefix: str) -> dict[str, int]:
    found = {}
    for name, value in values.items():
        if name.startswith(prefix):
            number, _, unit = value.partition(" ")
            if number.isdecimal() and unit.strip() in _UNITS:
                found[name.removeprefix(prefix)] = int(number) * _UNITS[unit.strip()]
    return found
