"""One look at the machine: what is remembered where that is still valid, and probes for the rest."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from anygpu.base.cache_folder import cache_folder, decoded, sealed, unsealed, write_file
from anygpu.base.own_files import blake2b, read_file
from anygpu.engines.catalogue import EngineEntry, catalogue
from anygpu.engines.disk_cache import version_of
from anygpu.hardware import evidence as evidence_of_this_machine
from anygpu.hardware import host
from anygpu.hardware.device import Device, Unavailable
from anygpu.hardware.diagnosis import Diagnosis, diagnose
from anygpu.hardware.evidence import Evidence
from anygpu.hardware.inventory import Inventory, take_inventory
from anygpu.workers.child_messages import ProbeItem
from anygpu.workers.child_process import Child
from anygpu.workers.probe_runner import CARDS, ProbeDeadlines, run_probes

# -- what earlier probes found, kept on disk for as long as nothing has changed that could change it
#
# A result counts only under the fingerprint of the machine (drivers, nodes, variables) and of the engine's libraries,
# for a day at most, and only when the probe ended well: a device that hung yesterday is asked again today.


#: The format that the checksum in the file's first line is for.
_PURPOSE = b"probes"

VALID_SECONDS = 24 * 3600.0

#: Failures that may be gone at the next try, so they are never taken for granted.
_NEVER_CACHED = ("hung", "crashed", "garbage", "failed", "import_failed", "lost", "wrong_result")

_STALE = "it was read when the device was last probed, and changes constantly"


class CachedProbe(msgspec.Struct, frozen=True, kw_only=True):
    """One engine's last good result."""

    fingerprint: str
    probed_at: float
    items: tuple[Device | Unavailable, ...]


def fingerprint(entry: EngineEntry, evidence: Evidence) -> str:
    """Changes with everything that could change what the engine's probe finds."""
    versions = {name: version_of(name) for name in entry.versions}
    # Other engines' libraries do not matter to this one; anygpu's own version stands for the code of the probe.
    machine = msgspec.structs.replace(evidence, libraries={"anygpu": evidence.libraries.get("anygpu", "")}, user="")
    identity = (entry, versions, machine, sys.executable)
    return blake2b(msgspec.json.encode(identity, order="sorted"), digest_size=32).hexdigest()


def read_cached(path: Path, fingerprints: Mapping[str, str], now: float) -> dict[str, CachedProbe]:
    """The results that are still valid. A file that is missing, torn, changed or foreign is as good as none."""
    return {name: each for name, each in _read(path, now).items() if each.fingerprint == fingerprints.get(name)}


def _read(path: Path, now: float) -> dict[str, CachedProbe]:
    """All results that are not too old, whatever their fingerprints."""
    stored = decoded(msgspec.json.decode, unsealed(read_file(path), _PURPOSE), dict[str, CachedProbe])
    return {
        name: record
        for name, record in (stored or {}).items()
        if 0 <= now - record.probed_at < VALID_SECONDS and all(item.engine == name for item in record.items)
    }


def write_cached(
    path: Path, results: Mapping[str, list[ProbeItem]], fingerprints: Mapping[str, str], now: float
) -> None:
    """Add what was just found to what is stored. A folder that cannot be written is no reason to fail.

    `fingerprints` are those of the engines that were asked for; what is stored of others stays.
    """
    stored = _read(path, now)
    records = {
        name: each for name, each in stored.items() if each.fingerprint == fingerprints.get(name, each.fingerprint)
    }
    for name, items in results.items():
        kept = tuple(item for item in items if isinstance(item, Device | Unavailable))
        if name in fingerprints and all(_is_cacheable(item) for item in kept):
            records[name] = CachedProbe(fingerprint=fingerprints[name], probed_at=now, items=kept)
    write_file(path, sealed(msgspec.json.encode(records), _PURPOSE))


def without_stale_facts(item: Device | Unavailable) -> Device | Unavailable:
    """A remembered item without the facts that are not facts any more."""
    if not isinstance(item, Device):
        return item
    if item.kind == "cpu":
        free = min(host.memory_free(), item.memory_total or sys.maxsize)
        return msgspec.structs.replace(item, memory_free=free)
    stale = {name: _STALE for name in ("memory_free", "load") if getattr(item, name) is not None}
    return msgspec.structs.replace(item, unknown={**item.unknown, **stale}, **dict.fromkeys(stale))


def _is_cacheable(item: Device | Unavailable) -> bool:
    if isinstance(item, Device):
        return item.verified
    return item.cause not in _NEVER_CACHED


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
