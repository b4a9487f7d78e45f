"""Collects the statistics of a store. The caller must hold the store's lock."""

from __future__ import annotations

from collections.abc import Sequence

from anygpu.store.entry import Entry
from anygpu.store.report import Counters, Owned, Statistics
from anygpu.store.tiers import Tiers


def statistics_of(name: str, entries: Sequence[Entry], tiers: Tiers, counters: Counters) -> Statistics:
    contents = list(tiers)
    total = sum(entry.spec.nbytes for entry in entries)
    by_tier = tiers.bytes_by_tier()
    elsewhere = [each for each in contents if each.backing is not None and each.backing.kind != "disk"]
    return Statistics(
        name=name,
        device=tiers.device_handle.device,
        mode=tiers.mode,
        tensors=len(entries),
        contents=len(contents),
        bytes=total,
        bytes_saved=total - sum(content.nbytes for content in contents),
        device_bytes=by_tier["device"],
        host_bytes=by_tier["host"],
        disk_bytes=by_tier["disk"],
        elsewhere_bytes=sum(content.nbytes for content in elsewhere),
        lingering_bytes=tiers.lingering_bytes(),
        peak_device_bytes=counters.peak_device_bytes,
        budget=tiers.budgets.device,
        host_budget=tiers.budgets.host,
        leases=sum(sum(entry.leases.values()) for entry in entries),
        pinned=sum(bool(entry.pins) for entry in entries),
        copies=counters.frozen(),
        evictions=counters.evictions,
        returns=counters.returns,
        fetched_ahead=counters.fetched_ahead,
        by_owner=_by_owner(entries),
    )


def _by_owner(entries: Sequence[Entry]) -> dict[str, Owned]:
    found: dict[str, Owned] = {}
    for entry in entries:
        before = found.get(entry.owner, Owned())
        found[entry.owner] = Owned(before.tensors + 1, before.bytes + entry.spec.nbytes)
    return found
