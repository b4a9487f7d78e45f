"""One look at the machine: what is remembered where that is still valid, and probes for the rest."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from anygpu.base.cache_folder import cache_folder
from anygpu.engines.catalogue import EngineEntry, catalogue
from anygpu.hardware import evidence as evidence_of_this_machine
from anygpu.hardware.diagnosis import Diagnosis, diagnose
from anygpu.hardware.evidence import Evidence
from anygpu.hardware.inventory import Inventory, take_inventory
from anygpu.workers.child_process import Child
from anygpu.workers.probe_cache import fingerprint, read_cached, without_stale_facts, write_cached
from anygpu.workers.probe_messages import ProbeItem
from anygpu.workers.probe_runner import CARDS, run_probes
from anygpu.workers.probe_state import ProbeDeadlines


def discover(
    *,
    refresh: bool = False,
    deep: bool = False,
    timeout: float,
    entries: Sequence[EngineEntry] | None = None,
    evidence: Evidence | None = None,
    with_cards: bool = True,
    adopt: dict[str, Child | None] | None = None,
    low_priority: bool = False,
) -> Inventory:
    """Everything there is on this machine, usable or not. For `adopt` and `low_priority` see `run_probes`."""
    began = time.monotonic()
    now = time.time()
    entries = catalogue() if entries is None else entries
    evidence = evidence or evidence_of_this_machine.gather()
    path = _cache()
    fingerprints = _fingerprints(entries, evidence)
    known = {} if refresh or deep else read_cached(path, fingerprints, now)
    deadlines = ProbeDeadlines.within(timeout)
    fresh = run_probes(
        [entry for entry in entries if entry.name not in known],
        deep=deep,
        deadlines=deadlines,
        with_cards=with_cards,
        adopt=adopt,
        low_priority=low_priority,
        # At once: a short process may be over before the slowest engine has answered.
        when_done=lambda name, items: write_cached(path, {name: items}, fingerprints, now),
    )
    items: list[ProbeItem] = []
    for entry in entries:
        items += (
            [without_stale_facts(item) for item in known[entry.name].items]
            if entry.name in known
            else fresh[entry.name]
        )
    items += fresh.get(CARDS, ())
    return take_inventory(
        items,
        seconds=time.monotonic() - began,
        remembered={name: now - record.probed_at for name, record in known.items()},
    )


def remembered(entries: Sequence[EngineEntry]) -> set[str]:
    """The engines of which an earlier probe still holds: to discover what they have starts no child."""
    return set(read_cached(_cache(), _fingerprints(entries, evidence_of_this_machine.gather()), time.time()))


def _cache() -> Path:
    return cache_folder() / "probes.json"


def _fingerprints(entries: Sequence[EngineEntry], evidence: Evidence) -> dict[str, str]:
    return {entry.name: fingerprint(entry, evidence) for entry in entries if entry.probe_in == "child"}


def diagnose_machine(*, timeout: float, deep: bool = False) -> Diagnosis:
    """Probe everything anew, and say what is wrong with it."""
    evidence = evidence_of_this_machine.gather()
    return diagnose(discover(refresh=True, deep=deep, timeout=timeout, evidence=evidence), evidence)
