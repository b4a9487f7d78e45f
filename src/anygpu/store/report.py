"""Reports of a store: its statistics, and the effect of `optimise()`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import msgspec

from anygpu.base.events import drawn
from anygpu.base.units import readable_bytes

if TYPE_CHECKING:
    from anygpu.store.entry import NamedEntry
    from anygpu.store.tiers import Tiers


#: The kinds of copies. Bytes on disk are read into the host or the device as they are needed.
CopyKind = Literal["to_device", "to_host", "on_device", "to_disk"]
KINDS: tuple[CopyKind, ...] = ("to_device", "to_host", "on_device", "to_disk")

Tier = Literal["device", "host", "disk"]


class Copied(msgspec.Struct, frozen=True):
    """Copies of one kind since the store was made."""

    count: int = 0
    bytes: int = 0


class Owned(msgspec.Struct, frozen=True):
    """The tensors of one owner. Content that several owners share counts for each of them."""

    tensors: int = 0
    bytes: int = 0


class Statistics(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot of a store. Bytes of a tier are those of its contents, each counted once."""

    name: str
    device: str
    mode: str
    tensors: int
    #: Distinct contents: tensors of equal content share one.
    contents: int
    #: The size of all tensors if nothing were shared.
    bytes: int
    #: The bytes saved by sharing equal contents.
    bytes_saved: int
    device_bytes: int
    host_bytes: int
    #: In files of the store's own.
    disk_bytes: int
    #: In files and shared memory of others, which cost the store nothing.
    elsewhere_bytes: int
    #: On the device, of tensors that were released or overwritten while an array of them is in use.
    lingering_bytes: int
    peak_device_bytes: int
    #: `None` when there is no budget.
    budget: int | None
    host_budget: int | None
    leases: int
    pinned: int
    copies: dict[CopyKind, Copied]
    #: Contents that left the device, and that came back.
    evictions: int
    returns: int
    #: Returns to the device that were prefetched.
    fetched_ahead: int
    by_owner: dict[str, Owned]

    def __str__(self) -> str:
        """Returns one line: tensors, contents, and bytes by tier."""
        tiers = ", ".join(
            f"{readable_bytes(count)} {where}"
            for count, where in (
                (self.device_bytes, f"on {self.device}"),
                (self.host_bytes, "on the host"),
                (self.disk_bytes, "on disk"),
            )
        )
        return f"{self.tensors} tensors in {self.contents} contents: {tiers}; {readable_bytes(self.bytes_saved)} shared"

    def _repr_html_(self) -> str | None:
        return drawn(self)


class Moved(msgspec.Struct, frozen=True):
    """One content that changed its tier."""

    #: The names of the tensors that share it.
    names: tuple[str, ...]
    nbytes: int
    source: Tier
    target: Tier


class Dropped(msgspec.Struct, frozen=True):
    """One copy that was dropped, while another stayed."""

    names: tuple[str, ...]
    nbytes: int
    tier: Tier


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The effect of `optimise()`. For each tier, `before` + `gained` - `freed` is `after`."""

    moved: tuple[Moved, ...] = ()
    dropped: tuple[Dropped, ...] = ()
    #: Tensors that share the content of another one now, and what that was in bytes.
    deduplicated: tuple[str, ...] = ()
    deduplicated_bytes: int = 0
    before: dict[Tier, int] = {}
    after: dict[Tier, int] = {}

    @property
    def freed(self) -> dict[Tier, int]:
        """Bytes that left each tier."""
        return {tier: self._sum(tier, "source") + self._dropped(tier) for tier in _TIERS}

    @property
    def gained(self) -> dict[Tier, int]:
        """Bytes that came to each tier."""
        return {tier: self._sum(tier, "target") for tier in _TIERS}

    @property
    def saved(self) -> dict[Tier, int]:
        """How much less each tier holds."""
        return {tier: self.before.get(tier, 0) - self.after.get(tier, 0) for tier in _TIERS}

    def _sum(self, tier: Tier, end: Literal["source", "target"]) -> int:
        return sum(each.nbytes for each in self.moved if getattr(each, end) == tier)

    def _dropped(self, tier: Tier) -> int:
        return sum(each.nbytes for each in self.dropped if each.tier == tier)

    def __str__(self) -> str:
        saved = ", ".join(f"{readable_bytes(count)} less on {tier}" for tier, count in self.saved.items() if count > 0)
        done = f"{len(self.moved)} moved, {len(self.dropped)} copies dropped, {len(self.deduplicated)} deduplicated"
        return f"{done}: {saved or 'nothing to save'}"


_TIERS: tuple[Tier, ...] = ("device", "host", "disk")


class StoreCounters:
    """Running counters. The caller must hold the store's lock."""

    def __init__(self) -> None:
        """Starts all counters at 0; `copies` has how often, and how many bytes, for each kind."""
        self.copies: dict[CopyKind, list[int]] = {kind: [0, 0] for kind in KINDS}
        self.evictions = 0
        self.returns = 0
        self.fetched_ahead = 0
        self.peak_device_bytes = 0

    def copied(self, kind: CopyKind, nbytes: int) -> None:
        if nbytes:
            self.copies[kind][0] += 1
            self.copies[kind][1] += nbytes

    def frozen(self) -> dict[CopyKind, Copied]:
        return {kind: Copied(*pair) for kind, pair in self.copies.items()}


# -- collecting statistics


def statistics_of(name: str, entries: Sequence[NamedEntry], tiers: Tiers, counters: StoreCounters) -> Statistics:
    """The statistics of a store: bytes of names, contents, tiers and owners, and its counters.

    Under the store's lock.
    """
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


def _by_owner(entries: Sequence[NamedEntry]) -> dict[str, Owned]:
    """Counts tensors and bytes of each owner; content that owners share counts for each."""
    found: dict[str, Owned] = {}
    for entry in entries:
        before = found.get(entry.owner, Owned())
        found[entry.owner] = Owned(before.tensors + 1, before.bytes + entry.spec.nbytes)
    return found
