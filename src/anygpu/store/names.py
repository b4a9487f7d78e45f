"""The names of a store: their holders, insertion under a name, and a store as one model sees it."""

from __future__ import annotations

import difflib
import os
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy.typing as npt

from anygpu.array.core.array import Array
from anygpu.array.core.recording import dtype_name
from anygpu.base.typing import HostArray
from anygpu.errors import NameTaken, StoreClosed, UnknownTensor
from anygpu.program.primitives import Spec
from anygpu.store.contents import Content, HostBytes, resident_value, values_of
from anygpu.store.deduplication import Deduplication
from anygpu.store.entry import DeferredLock, Holder, Lease, NamedEntry, Path, StoreKey, key_of
from anygpu.store.report import StoreCounters
from anygpu.store.tensor import Copying, Tensor
from anygpu.store.tensor_files.header import content_hash
from anygpu.store.tiers import Tiers
from anygpu.workers.device_arrays.handle import DeviceHandle

if TYPE_CHECKING:
    from anygpu.store.store import Store
    from anygpu.store.tensor_files.saving import Saved


# -- the names of a store and their holders. The caller must hold the store's lock


class Names:
    """Entries by name. An entry is removed with its last reference or lease."""

    def __init__(self, store: str, tiers: Tiers) -> None:
        """Starts without names; `_orphans` are released tensors whose views are in use."""
        self.store = store
        self.entries: dict[StoreKey, NamedEntry] = {}
        self.closed = False
        self._tiers = tiers
        #: Released tensors that still have views.
        self._orphans: list[weakref.ref[NamedEntry]] = []

    def check_open(self) -> None:
        if self.closed:
            raise StoreClosed(self.store)

    def find(self, key: StoreKey) -> NamedEntry:
        """Returns the entry of a key; raises `UnknownTensor` with similar names."""
        self.check_open()
        entry = self.entries.get(key)
        if entry is None:
            raise self._unknown(key)
        return entry

    def known(self, entry: NamedEntry) -> NamedEntry:
        """The entry; raises `UnknownTensor` if it was released."""
        self.check_open()
        if entry.released:
            raise self._unknown(entry.key)
        return entry

    def _unknown(self, key: StoreKey) -> UnknownTensor:
        """Returns the error for a key that is not there, with up to three similar names of its namespace."""
        others = [each[-1] for each in self.entries if each[:-1] == key[:-1]]
        alike = difflib.get_close_matches(key[-1], others, 3)
        where = f"{self.store}, namespace {'/'.join(key[:-1])}," if key[:-1] else self.store
        return UnknownTensor(key[-1], where, alike)

    # -- contents under names

    def check_owner(self, key: StoreKey, owner: str) -> NamedEntry | None:
        """The current entry of the name. Raises `NameTaken` if it has another owner."""
        self.check_open()
        entry = self.entries.get(key)
        if entry is not None and (entry.owner != owner or owner not in entry.holders):
            others = sorted({*entry.holders, *entry.leases})
            raise NameTaken(key[-1], entry.owner if entry.owner in entry.holders else others[0])
        return entry

    def replaced(self, key: StoreKey, owner: str) -> Content | None:
        """The content that is freed when another is put under the name."""
        entry = self.check_owner(key, owner)
        return entry.content if entry is not None and len(entry.content.tensors) == 1 else None

    def replace(self, entry: NamedEntry, content: Content) -> None:
        """Make the content the next version of the tensor."""
        old = entry.content
        if old is content:
            return
        entry.content = content
        self._tiers.link(content, entry)
        self._tiers.unlink(old, entry)
        entry.version += 1
        if entry.tensor._shared is not None:
            entry.tensor._shared.version += 1

    def remove_for(self, entry: NamedEntry, owner: str) -> None:
        """Remove an entry for a tensor of another shape or type; raises `NameTaken` if the entry has other holders."""
        others = sorted({*entry.holders, *entry.leases} - {owner}) or sorted(entry.leases)
        if others:
            raise NameTaken(entry.name, others[0])
        entry.holders.clear()
        self.free_if_unheld(entry)

    # -- references

    def end_lease(self, entry: NamedEntry, holder: str, right: list[bool]) -> None:
        """End one lease; `right` is its own, and empty afterwards."""
        if not right:
            return
        right.clear()
        count = entry.leases.get(holder, 0)
        if count > 1:
            entry.leases[holder] = count - 1
        else:
            entry.leases.pop(holder, None)
        self.free_if_unheld(entry)

    def holder_is_gone(self, entry: NamedEntry, holder: str) -> None:
        if holder in entry.holders:
            entry.holders.remove(holder)
            self.free_if_unheld(entry)

    def free_if_unheld(self, entry: NamedEntry) -> None:
        """Removes an entry that has no reference, lease or pin left. Views in use keep its last value."""
        if entry.is_held or entry.released:
            return
        entry.released = True
        if entry.is_viewed:
            if entry.content.on_device:
                entry.last_value = entry.content.value
            elif entry.content.copied:
                entry.last_host_values = entry.content.read()[0]
            self._orphans.append(weakref.ref(entry))
        self.forget_orphans()
        self.entries.pop(entry.key, None)
        self._tiers.unlink(entry.content, entry)

    def forget_orphans(self) -> None:
        """Forget released tensors whose views are gone."""
        left: list[weakref.ref[NamedEntry]] = []
        for each in self._orphans:
            entry = each()
            if entry is not None and entry.is_viewed:
                left.append(each)
            elif entry is not None:
                entry.last_value = entry.last_host_values = None
        self._orphans = left

    def close(self) -> None:
        """Releases every reference and lease. Views that are in use stay valid."""
        self.closed = True
        for entry in list(self.entries.values()):
            entry.holders.clear()
            entry.leases.clear()
            self.free_if_unheld(entry)


# -- insertion into a store: find equal content, bring the values to the device, and enter them under a name


class Insertion:
    """Enters arrays and host values into a store."""

    def __init__(
        self,
        new_entry: Callable[[StoreKey, str, Content], NamedEntry],
        device: DeviceHandle,
        names: Names,
        tiers: Tiers,
        equals: Deduplication,
        guard: DeferredLock,
        counters: StoreCounters,
    ) -> None:
        """Joins the parts of one store that putting a tensor needs, and owns none of them."""
        self._new_entry = new_entry
        self._device = device
        self._names = names
        self._tiers = tiers
        self._deduplication = equals
        self._guard = guard
        self._counters = counters

    def put(self, key: StoreKey, array: Any, owner: str, *, hashing: bool) -> NamedEntry:
        """Enter an array or anything that NumPy takes."""
        self._check_name(key, owner)
        if isinstance(array, Array) and array._device is self._device:
            return self._put_resident(key, owner, array, hashing)
        return self._put_values(key, owner, *values_of(array), hashing)

    def put_again(self, key: StoreKey, known: NamedEntry, owner: str) -> NamedEntry:
        """Enter the content of another entry of the same store under a second name."""
        with self._guard:
            self._names.check_owner(key, owner)
            return self._enter(key, owner, self._names.known(known).content)

    def put_host(
        self, key: StoreKey, source: HostBytes, owner: str, *, claimed_hash: str | None, hashing: bool
    ) -> NamedEntry:
        """Enter bytes of a file or of shared memory. They are brought to the device when they are first used.

        `claimed_hash` is the hash that the file or another process states, as `anygpu.tensor_files` makes them. It is
        not trusted: if another tensor has it, the bytes decide whether they become one.
        """
        self._check_name(key, owner)
        spec = Spec(source.values.shape, dtype_name(source.values.dtype))
        known = (
            self._deduplication.with_claimed_hash(source.values, spec, claimed_hash)
            if hashing and claimed_hash is not None
            else None
        )
        with self._guard:
            if known is not None and known.tensors:
                source.close()
                return self._enter(key, owner, known)
            content = Content(self._device, spec)
            content.claimed_hash = claimed_hash
            if source.kind == "memory":
                self._tiers.make_host_room(spec.nbytes)
                content.host = source
            else:
                content.backing = source
            content.remember()
            return self._enter(key, owner, content)

    def _check_name(self, key: StoreKey, owner: str) -> None:
        """Check the name before anything is computed or copied."""
        with self._guard:
            self._names.check_owner(key, owner)

    def _put_resident(self, key: StoreKey, owner: str, array: Array, hashing: bool) -> NamedEntry:
        """Enters an array that is on the device, without a copy where it can. Equal content is looked for first."""
        value, copied = resident_value(array, self._device)
        known, fingerprint = self._deduplication.with_buffer_of(value), None
        if known is None and hashing:
            known, fingerprint = self._deduplication.on_device(value)
        with self._guard:
            self._counters.copied("on_device", copied)
            if known is not None and known.tensors:
                return self._enter(key, owner, known)
            self._tiers.make_room(value.spec.nbytes, but=self._names.replaced(key, owner))
            content = self._tiers.resident(value)
            content.fingerprint = fingerprint
            return self._enter(key, owner, content)

    def _put_values(self, key: StoreKey, owner: str, values: HostArray, from_device: int, hashing: bool) -> NamedEntry:
        """Enter host values under a name: as a reference to equal content if there is some, and as new content
        otherwise.
        """
        spec = Spec(values.shape, dtype_name(values.dtype))
        digest = content_hash(values) if hashing else None
        with self._guard:
            self._names.check_open()
            self._counters.copied("to_host", from_device)
            known = self._tiers.by_digest.get(digest) if digest is not None else None
            if known is not None:
                return self._enter(key, owner, known)
            content = self._tiers.upload(values, spec, but=self._names.replaced(key, owner))
            content.digest = digest
            # Another thread may have put equal content meanwhile.
            known = self._tiers.by_digest.get(digest) if digest is not None else None
            return self._enter(key, owner, content if known is None else known)

    # -- the caller must hold the lock

    def _enter(self, key: StoreKey, owner: str, content: Content) -> NamedEntry:
        """Enter the content under the key, as a new entry or as the next version of the existing one."""
        entry = self._names.check_owner(key, owner)
        if entry is not None and entry.spec != content.spec:
            self._names.remove_for(entry, owner)
            entry = None
        if entry is None:
            entry = self._names.entries[key] = self._new_entry(key, owner, content)
            self._tiers.link(content, entry)
            return entry
        if (entry.pins or entry.leases) and not content.on_device:
            self._bring_instead(entry, content)
            self._names.check_owner(key, owner)
        self._names.replace(entry, content)
        return entry

    def _bring_instead(self, entry: NamedEntry, content: Content) -> None:
        """Bring a new content of a pinned or leased entry to the device before it replaces the old one."""
        self._tiers.link(content, entry)
        try:
            self._tiers.bring(content)
            self._names.known(entry)
        except BaseException:
            self._tiers.unlink(content, entry)
            raise


# -- A store as one model sees it, with names of its own


class Namespace:
    """A store as one model sees it: the same tensors, and names of its own."""

    def __init__(self, store: Store, namespace: Path) -> None:
        self.store = store
        self.path = key_of(namespace, "")[:-1]

    def put(self, name: str, array: Any, *, owner: str = "main", hash: bool | None = None) -> Tensor:
        return self.store.put(name, array, owner=owner, namespace=self.path, hash=hash)

    def get(self, name: str) -> Tensor:
        return self.store.get(name, namespace=self.path)

    def share(self, name: str, with_: Iterable[Holder]) -> Tensor:
        return self.store.share(name, with_, namespace=self.path)

    def lease(self, name: str, *, holder: Holder = "main") -> Lease:
        return self.store.lease(name, holder=holder, namespace=self.path)

    def release(self, name: str, *, holder: Holder | None = None) -> None:
        self.store.release(name, holder=holder, namespace=self.path)

    def pin(self, name: str) -> Tensor:
        return self.store.pin(name, namespace=self.path)

    def unpin(self, name: str) -> None:
        self.store.unpin(name, namespace=self.path)

    def view(
        self,
        name: str,
        index: Any = None,
        *,
        shape: int | tuple[int, ...] | None = None,
        dtype: npt.DTypeLike | None = None,
        device: object | None = None,
        copy: Copying = "allow",
    ) -> Array:
        return self.store.view(name, index, shape=shape, dtype=dtype, device=device, copy=copy, namespace=self.path)

    def synchronise(self, name: str, where: Literal["host", "device"]) -> Tensor:
        return self.store.synchronise(name, where, namespace=self.path)

    def prefetch(self, names: str | Sequence[str], *, wait: bool = False) -> None:
        self.store.prefetch(names, namespace=self.path, wait=wait)

    def open(
        self,
        path: str | os.PathLike[str],
        names: Iterable[str] | None = None,
        *,
        owner: str | None = None,
        outside_links: bool = False,
    ) -> dict[str, Tensor]:
        return self.store.open(path, names, owner=owner, namespace=self.path, outside_links=outside_links)

    def save(
        self,
        path: str | os.PathLike[str],
        names: Sequence[str] | None = None,
        *,
        metadata: Mapping[str, str] | None = None,
        shard_bytes: int | None = None,
    ) -> Saved:
        return self.store.save(path, names, namespace=self.path, metadata=metadata, shard_bytes=shard_bytes)

    def names(self) -> list[str]:
        return self.store.names(self.path)

    def namespace(self, namespace: Path) -> Namespace:
        return Namespace(self.store, (*self.path, *key_of(namespace, "")[:-1]))

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and (*self.path, name) in self.store

    def __repr__(self) -> str:
        return f"<namespace {'/'.join(map(repr, self.path))} of {self.store!r}>"
