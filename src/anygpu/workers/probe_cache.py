"""Results of earlier probes on disk, valid until anything changes that could change them.

A result counts only under the fingerprint of the machine (drivers, nodes, variables) and of the engine's libraries, for
a day at most, and only when the probe ended well: a device that hung yesterday is asked again today.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec

from anygpu.base.cache_folder import decoded, sealed, unsealed, write_file
from anygpu.base.digest import blake2b
from anygpu.base.own_files import read_file
from anygpu.engines.catalogue import EngineEntry
from anygpu.engines.distributions import version_of
from anygpu.hardware import host
from anygpu.hardware.device import Device, Unavailable
from anygpu.hardware.evidence import Evidence
from anygpu.workers.probe_messages import ProbeItem

#: What the checksum in the file's first line is for.
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
