"""The functions that `import anygpu` offers."""

from __future__ import annotations

import time
from collections.abc import Sequence

from anygpu.engines.catalogue import EngineEntry, catalogue
from anygpu.hardware import evidence as evidence_of_this_machine
from anygpu.hardware.device import Device
from anygpu.hardware.diagnosis import Diagnosis, diagnose
from anygpu.hardware.evidence import Evidence
from anygpu.hardware.inventory import Inventory, take_inventory
from anygpu.hardware.selection import Power, prefer, require
from anygpu.workers.messages import Item
from anygpu.workers.probing import Deadlines
from anygpu.workers.remembered import cache_folder, fingerprint, recall, refreshed, remember
from anygpu.workers.survey import survey

PROBE_SECONDS = 15.0


def devices(
    on: str | Sequence[str] | None = None,
    *,
    min_memory: int = 0,
    max_load: float = 1.0,
    power: Power | None = None,
    refresh: bool = False,
    timeout: float = PROBE_SECONDS,
) -> list[Device]:
    """The verified devices of this machine that fit, best first.

    Without arguments every verified device is listed; the CPU is always among them. When nothing fits,
    `DeviceUnavailable` says why, device by device. What an earlier call found is used again as long as no driver and
    no library has changed; `refresh=True` looks anew.
    """
    preference = prefer(on, min_memory=min_memory, max_load=max_load, power=power)
    inventory = look(refresh=refresh, timeout=timeout)
    return list(require(inventory.devices, preference, inventory.unavailable))


def doctor(*, deep: bool = False, timeout: float = PROBE_SECONDS) -> Diagnosis:
    """Why is my GPU not used? Probes everything anew and explains, with the command that fixes each problem."""
    evidence = evidence_of_this_machine.gather()
    inventory = look(refresh=True, deep=deep, timeout=timeout, evidence=evidence)
    return diagnose(inventory, evidence)


def look(
    *,
    refresh: bool = False,
    deep: bool = False,
    timeout: float = PROBE_SECONDS,
    entries: Sequence[EngineEntry] | None = None,
    evidence: Evidence | None = None,
) -> Inventory:
    """Everything there is on this machine, usable or not."""
    began = time.monotonic()
    now = time.time()
    entries = catalogue() if entries is None else entries
    evidence = evidence or evidence_of_this_machine.gather()
    path = cache_folder() / "probes.json"
    fingerprints = {entry.name: fingerprint(entry, evidence) for entry in entries if entry.probe_in == "child"}
    known = {} if refresh or deep else recall(path, fingerprints, now)
    deadlines = Deadlines(total=timeout, step=min(Deadlines().step, timeout * 0.6))
    fresh = survey([entry for entry in entries if entry.name not in known], deep=deep, deadlines=deadlines)
    remember(path, fresh, fingerprints, now)
    items: list[Item] = []
    for entry in entries:
        items += [refreshed(item) for item in known[entry.name].items] if entry.name in known else fresh[entry.name]
    items += fresh["cards"]
    return take_inventory(
        items,
        seconds=time.monotonic() - began,
        remembered={name: now - record.probed_at for name, record in known.items()},
    )
