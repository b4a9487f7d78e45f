"""`Store`: named tensors, shared by their holders, on the device as long as there is room.

The class joins the parts of a store and holds their one lock: names and holders (`names`), contents and their copies
(`tiers`), what moves when (`policy`), equal contents (`deduplication`), files and shared memory (`backings`). A method
that changes something runs to its end also when Ctrl-C comes.
"""

from __future__ import annotations

import itertools
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy.typing as npt

from anygpu.array.core.array import Array
from anygpu.array.core.device import device_for
from anygpu.array.core.expression import Value
from anygpu.base.interrupts import uninterrupted, whole
from anygpu.base.typing import HostArray
from anygpu.base.units import bytes_from
from anygpu.errors import InvalidOption, NotHeld
from anygpu.store import policy
from anygpu.store.backings import SharedNames
from anygpu.store.contents import Content, HostBytes, settle, values_of
from anygpu.store.deduplication import Deduplication
from anygpu.store.entry import DeferredLock, Holder, Lease, NamedEntry, Path, StoreKey, key_of, label_of
from anygpu.store.names import Insertion, Names, Namespace
from anygpu.store.policy import Prefetcher, StoreMode
from anygpu.store.report import CopyKind, Report, Statistics, StoreCounters, statistics_of
from anygpu.store.shared_store import Found
from anygpu.store.tensor import Copying, Tensor, tensor_of
from anygpu.store.tiers import Folder, Tiers
from anygpu.workers.device_arrays.handle import DeviceHandle

if TYPE_CHECKING:
    from anygpu.store.tensor_files.saving import Saved

_names = itertools.count(1)
_stores: weakref.WeakSet[Store] = weakref.WeakSet()


class Store:
    """Named tensors on one device, shared without copies.

    `device` is where tensors are used; `budget` and `host_budget` are the most bytes of each tier ("512MiB" or a
    number), and `disk` a folder for what is left over, or `True` for a temporary one. `hash` finds equal contents.
    With `shared`, every process of this user that opens a store of this name finds what the others have put.
    """

    def __init__(
        self,
        name: str | None = None,
        *,
        device: object | None = None,
        budget: int | str | None = None,
        host_budget: int | str | None = None,
        disk: str | os.PathLike[str] | bool | None = None,
        mode: StoreMode = "balanced",
        hash: bool = True,
        shared: bool = False,
    ) -> None:
        """Makes an empty store on one device, which is opened when the first tensor needs it.

        Budgets are bytes, or texts such as "512MiB"; `None` is no limit. Raises `InvalidOption`, and `StoreError` if a
        shared store of that name cannot be used.
        """
        if shared and name is None:
            raise InvalidOption('a shared store needs a name: Store("models", shared=True).')
        if mode not in get_args(StoreMode):
            raise InvalidOption(f'mode is "speed", "memory" or "balanced"; got {mode!r}.')
        handle = device_for(device)
        if not isinstance(handle, DeviceHandle):
            raise InvalidOption(f"Store(device=...) needs a compute device; {handle.device!r} is not one.")
        self.name = name if name is not None else f"store-{next(_names)}"
        self._device_handle = handle
        self._hash = hash
        self._guard = DeferredLock()
        self._counters = StoreCounters()
        budgets = policy.Budgets(
            device=_bytes("budget", budget), host=_bytes("host_budget", host_budget), disk=bool(disk)
        )
        folder = Folder(disk) if disk else None
        self._tiers = Tiers(self.name, handle, budgets, mode, folder, self._guard, self._counters)
        self._names = Names(self.name, self._tiers)
        self._deduplication = Deduplication(self._tiers, self._guard)
        self._insertion = Insertion(
            self._new_entry, handle, self._names, self._tiers, self._deduplication, self._guard, self._counters
        )
        self._prefetcher = Prefetcher(self._prefetch)
        self._shared_names = uninterrupted(lambda: SharedNames(self.name)) if shared else None
        _stores.add(self)

    @property
    def device(self) -> str:
        """The device that the tensors are brought to."""
        return self._device_handle.device

    @property
    def mode(self) -> StoreMode:
        """ "speed", "memory" or "balanced": which copies are kept beside those on the device."""
        return self._tiers.mode

    @property
    def budget(self) -> int | None:
        """The most bytes of tensors on the device; `None` for no limit."""
        return self._tiers.budgets.device

    # -- tensors by name

    def put(
        self,
        name: str,
        array: Any,
        *,
        owner: str = "main",
        namespace: Path = "",
        hash: bool | None = None,
    ) -> Tensor:
        """Keep the array under a name. Its owner holds the first reference, and may put another one in its place.

        What is on the store's device already stays where it is; everything else is copied there. Equal content is
        kept once. In a shared store it is copied to shared memory as well, where other processes find it.
        """
        if not isinstance(array, Array):
            array = values_of(array)[0]  # by the caller's own thread: this may be code of a user
        return self._put(name, array, owner, namespace, self._hash if hash is None else hash)

    @whole
    def _put(self, name: str, array: Any, owner: str, namespace: Path, hashing: bool) -> Tensor:
        """Enters an array under a name, and publishes it in a shared store; if that fails, nothing is kept."""
        key = self._key(namespace, name)
        if isinstance(array, Tensor) and array._entry.store is self:
            entry = self._insertion.put_again(key, array._entry, owner)
        else:
            entry = self._insertion.put(key, array, owner, hashing=hashing)
        if self._shared_names is not None:
            try:
                self._publish(entry)
            except BaseException:
                self.release(name, holder=owner, namespace=namespace)
                raise
        return tensor_of(entry)

    @whole
    def _put_host(
        self,
        name: str,
        source: HostBytes,
        *,
        owner: str = "main",
        namespace: Path = "",
        claimed_hash: str | None = None,
    ) -> Tensor:
        """Enter values that are on the host, and stay there until they are used."""
        key = key_of(namespace, name)
        entry = self._insertion.put_host(key, source, owner, claimed_hash=claimed_hash, hashing=self._hash)
        return tensor_of(entry)

    @whole
    def open(
        self,
        path: str | os.PathLike[str],
        names: Iterable[str] | None = None,
        *,
        owner: str | None = None,
        namespace: Path = "",
        outside_links: bool = False,
    ) -> dict[str, Tensor]:
        """Keep the tensors of a safetensors file, or of a model's folder; they are read when they are used.

        Without `owner` each has the one that it was saved with.
        """
        from anygpu.store.backings import open_into

        return open_into(self, path, names, owner=owner, namespace=namespace, outside_links=outside_links)

    def save(
        self,
        path: str | os.PathLike[str],
        names: Sequence[str] | None = None,
        *,
        namespace: Path = "",
        metadata: Mapping[str, str] | None = None,
        shard_bytes: int | None = None,
    ) -> Saved:
        """Save the tensors of a namespace as a safetensors file, or as a folder of files.

        The old one stays until the new one is whole.
        See `anygpu.tensor_files.save`.
        """
        from anygpu.store.backings import save_from

        return save_from(self, path, names, namespace=namespace, metadata=metadata or {}, shard_bytes=shard_bytes)

    def get(self, name: str, *, namespace: Path = "") -> Tensor:
        """The tensor of that name, the same object for every caller. Raises `UnknownTensor` with similar names."""
        key = self._key(namespace, name)
        with self._reading():
            return tensor_of(self._names.find(key))

    def namespace(self, namespace: Path) -> Namespace:
        """Returns the same store under a namespace: names there are its own, and tensors are shared."""
        return Namespace(self, namespace)

    def names(self, namespace: Path | None = None) -> list[str]:
        """The names in one namespace; without one, the names outside of all namespaces."""
        prefix = key_of(namespace or "", "")[:-1]
        return [key[-1] for key in self.keys() if key[:-1] == prefix]

    def keys(self) -> list[tuple[str, ...]]:
        """All keys: the namespace, and the name last. In a shared store this includes tensors of other processes."""
        with self._reading():
            self._names.check_open()
            own = list(self._names.entries)
        return own if self._shared_names is None else list(dict.fromkeys((*own, *self._shared_names.keys())))

    def __contains__(self, name: object) -> bool:
        return (name if isinstance(name, tuple) else (name,)) in self.keys()

    def __len__(self) -> int:
        return len(self._names.entries)

    def __iter__(self) -> Iterator[Tensor]:
        with self._reading():
            return iter([tensor_of(entry) for entry in self._names.entries.values()])

    # -- holders

    @whole
    def share(self, name: str, with_: Iterable[Holder], *, namespace: Path = "") -> Tensor:
        """Each of them holds one reference from now on, however often it is shared with them.

        A holder is a name, or an object, whose reference is released when it is gone.
        """
        if isinstance(with_, str):
            raise InvalidOption(f'with_ is a list of holders: with_=["{with_}"].')
        holders = list(with_)
        for holder in holders:
            if not isinstance(holder, str):
                weakref.ref(holder)  # raises for an object without weak references, before anything has changed
        key = self._key(namespace, name)
        with self._guard:
            entry = self._names.find(key)
            for holder in holders:
                label = label_of(holder)
                if label not in entry.holders:
                    entry.holders.add(label)
                    if not isinstance(holder, str):
                        self._guard.note_when_gone(holder, partial(self._names.holder_is_gone, entry, label))
            return tensor_of(entry)

    @whole
    def lease(self, name: str, *, holder: Holder = "main", namespace: Path = "") -> Lease:
        """The tensor, on the device, where it stays until the lease is over."""
        label = label_of(holder)
        key = self._key(namespace, name)
        with self._guard:
            entry = self._names.find(key)
            end = partial(self._names.end_lease, entry, label, [True])
            entry.leases[label] = entry.leases.get(label, 0) + 1
            try:
                self._bring(entry)
            except BaseException:
                end()
                raise
            lease = Lease(tensor_of(entry), label, end)
            lease.unwatch = self._guard.note_when_gone(lease, end)
            return lease

    @whole
    def release(self, name: str, *, holder: Holder | None = None, namespace: Path = "") -> None:
        """Release a holder's reference, by default the owner's. The tensor is freed with its last reference."""
        with self._guard:
            entry = self._names.find(key_of(namespace, name))
            label = entry.owner if holder is None else label_of(holder)
            if label not in entry.holders:
                raise NotHeld(name, label)
            entry.holders.remove(label)
            self._names.free_if_unheld(entry)
        if entry.released and self._shared_names is not None:
            self._shared_names.withdraw(entry.key)

    @whole
    def pin(self, name: str, *, namespace: Path = "") -> Tensor:
        """Keep it on the device until `unpin`. Pins are counted."""
        key = self._key(namespace, name)
        with self._guard:
            entry = self._names.find(key)
            entry.pins += 1
            try:
                self._bring(entry)
            except BaseException:
                entry.pins -= 1
                raise
            return tensor_of(entry)

    @whole
    def unpin(self, name: str, *, namespace: Path = "") -> None:
        """Takes back one pin; raises `NotHeld` if there is none."""
        with self._guard:
            entry = self._names.find(key_of(namespace, name))
            if not entry.pins:
                raise NotHeld(name, "a pin")
            entry.pins -= 1

    # -- copies and tiers

    def view(
        self,
        name: str,
        index: Any = None,
        *,
        shape: int | tuple[int, ...] | None = None,
        dtype: npt.DTypeLike | None = None,
        device: object | None = None,
        copy: Copying = "allow",
        namespace: Path = "",
    ) -> Array:
        """`Tensor.view` by name."""
        tensor = self.get(name, namespace=namespace)
        return tensor.view(index, shape=shape, dtype=dtype, device=device, copy=copy)

    @whole
    def synchronise(self, name: str, where: Literal["host", "device"], *, namespace: Path = "") -> Tensor:
        """Let the host, or the device, have what was written last. Nothing is copied if it has.

        In a shared store other processes see what was written after it was synchronised with the host.
        """
        if where not in ("host", "device"):
            raise InvalidOption(f'synchronise takes "host" or "device"; got {where!r}.')
        key = self._key(namespace, name)
        with self._guard:
            entry = self._names.find(key)
            if where == "device":
                self._bring(entry)
            elif self._shared_names is None:
                self._tiers.copy_to_host(self._settled_content(entry))
        if where == "host" and self._shared_names is not None:
            self._publish(entry)
        return tensor_of(entry)

    @whole
    def prefetch(self, names: str | Sequence[str], *, namespace: Path = "", wait: bool = False) -> None:
        """Bring tensors to the device, in this order, while the caller does something else.

        It stops when no unused room is left. With `wait` it returns when that is done.
        """
        keys = [self._key(namespace, name) for name in ([names] if isinstance(names, str) else names)]
        with self._guard:
            entries = [self._names.find(key) for key in keys]
        self._prefetcher.fetch(entries)
        if wait:
            self._prefetcher.wait()

    @whole
    def optimise(self) -> Report:
        """Share what is equal, and move or drop what was not used since the last time, as the mode has it."""
        self._names.check_open()
        with self._guard:
            before = self._tiers.bytes_by_tier()
        merged, merged_moves = self._deduplication.merge() if self._hash else ([], [])
        with self._guard:
            self._names.check_open()
            moved, dropped = self._tiers.tidy()
            after = self._tiers.bytes_by_tier()
        return Report(
            moved=tuple(moved),
            dropped=(*merged_moves, *dropped),
            deduplicated=tuple(merged),
            deduplicated_bytes=sum(each.nbytes for each in merged_moves),
            before=before,
            after=after,
        )

    @whole
    def statistics(self) -> Statistics:
        """The tensors of each tier, and the bytes copied so far."""
        with self._guard:
            self._names.forget_orphans()
            return statistics_of(self.name, list(self._names.entries.values()), self._tiers, self._counters)

    # -- closing

    @whole
    def close(self) -> None:
        """Release all tensors and leases. May be called twice."""
        self._prefetcher.close()
        with self._guard:
            self._names.close()
            self._tiers.close()
        if self._shared_names is not None:
            self._shared_names.close()

    @property
    def closed(self) -> bool:
        """Whether `close` was called, after which every use raises `StoreClosed`."""
        return self._names.closed

    def __enter__(self) -> Store:
        self._names.check_open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self._names.closed else f"{len(self._names.entries)} tensors on {self.device}"
        return f"<store {self.name!r}, {state}>"

    # -- for tensors, views and leases

    def _value_of(self, entry: NamedEntry) -> Value:
        """Returns the value of an entry on the device. The usual way takes the lock once, and copies nothing."""
        with self._reading():
            there = None if entry.released or self._names.closed else self._tiers.value_there(entry.content)
        if there is not None:
            self._prefetcher.observe(entry, came_back=False)
            return there
        return self._brought(entry)

    @whole
    def _brought(self, entry: NamedEntry) -> Value:
        """The value of an entry on the device; it is brought there if it was evicted."""
        with self._guard:
            if entry.released and not self._names.closed and entry.is_viewed:
                last = self._last_value(entry)
                if last is not None:
                    return last
            self._names.known(entry)
            returns = self._counters.returns
            ahead = entry.content.prefetched
            self._bring(entry)
            value = entry.content.value
            came_back = ahead or self._counters.returns > returns
        self._prefetcher.observe(entry, came_back=came_back)
        return value

    def _last_value(self, entry: NamedEntry) -> Value | None:
        """The last value of a released tensor, for a view that is still in use."""
        if entry.last_value is None and entry.last_host_values is not None:
            entry.last_value = self._tiers.upload_orphan(entry.last_host_values, entry.spec)
            entry.last_host_values = None
        return entry.last_value

    def _prefetch(self, entry: NamedEntry) -> None:
        """Brings a tensor to the device ahead of its use. Called on the prefetcher's thread."""
        with self._guard:
            self._names.known(entry)
            self._tiers.bring(entry.content, ahead=True)

    @whole
    def _on_host(self, entry: NamedEntry) -> HostArray:
        """Returns the values on the host as a read-only view."""
        with self._guard:
            content = self._settled_content(entry)
            self._tiers.touch(content)
            values = self._tiers.values_of(content)
        shown = values.view()
        shown.flags.writeable = False
        return shown

    @whole
    def _write(self, entry: NamedEntry, new: Value) -> None:
        """Make `new` the entry's next version. It is computed now; the old content is freed unless it is shared."""
        with self._guard:
            self._names.known(entry)
            old = entry.content
            self._tiers.make_room(new.spec.nbytes, but=old if len(old.tensors) == 1 else None)
        settle(new, self._device_handle)
        with self._guard:
            self._names.known(entry)
            self._names.replace(entry, self._tiers.resident(new))

    def _count(self, kind: CopyKind, nbytes: int) -> None:
        with self._reading():
            self._counters.copied(kind, nbytes)

    def _add_view(self, entry: NamedEntry, view: Value) -> None:
        with self._reading():
            if not entry.released:
                self._tiers.add_view(entry.content, view)

    def _holders(self, entry: NamedEntry) -> tuple[str, ...]:
        with self._reading():
            return tuple(sorted({*entry.holders, *entry.leases}))

    def _later(self, note: Callable[[], None]) -> None:
        self._guard.note(note)

    def _reading(self) -> threading.Lock:
        """The lock, for reading one thing: an interrupt releases it and leaves nothing half done."""
        if self._guard.has_notes:
            uninterrupted(self._guard.settle)
        return self._guard.lock

    # -- the caller holds the lock

    def _new_entry(self, key: StoreKey, owner: str, content: Content) -> NamedEntry:
        return NamedEntry(self, key, owner, content, Tensor)

    def _bring(self, entry: NamedEntry) -> None:
        """Bring it to the device. Meanwhile other threads may write to it or release it."""
        while True:
            content = entry.content
            self._tiers.bring(content)
            self._names.known(entry)
            if entry.content is content:
                return

    def _settled_content(self, entry: NamedEntry) -> Content:
        """Its content, after waiting until that is not moving."""
        while self._names.known(entry).content.moving:
            self._guard.wait()
        return entry.content

    # -- other processes

    def _key(self, namespace: Path, name: str) -> StoreKey:
        """The key of a name, after importing what other processes have published under it."""
        key = key_of(namespace, name)
        if self._shared_names is not None and self._news(key) is not None:
            uninterrupted(lambda: self._take_news(key))
        return key

    def _news(self, key: StoreKey) -> Found | None:
        """Returns a tensor that another process has published under the key since it was last taken, or `None`."""
        if self._shared_names is None:
            return None
        with self._reading():
            self._names.check_open()
            here = key in self._names.entries
        return self._shared_names.news(key, here=here)

    def _take_news(self, key: StoreKey) -> None:
        """Enters what another process has published under the key, if there is something new."""
        found = self._news(key)
        if found is not None and self._shared_names is not None:
            self._shared_names.seen(key, found)
            source = HostBytes(found.values, "shared")
            claimed_hash = found.hash or None
            self._put_host(key[-1], source, owner=found.owner, namespace=key[:-1], claimed_hash=claimed_hash)

    def _publish(self, entry: NamedEntry) -> None:
        """Publish the current content to other processes. It crosses through the host, which is counted."""
        if self._shared_names is None:
            return
        with self._guard:
            content = self._settled_content(entry)
            if content.backing is not None and content.backing.kind == "shared" and self._shared_names.has(entry.key):
                return
            values = self._tiers.values_of(content)
            claimed_hash = content.digest or content.claimed_hash or ""
        source = self._shared_names.publish(entry.key, values, owner=entry.owner, hash=claimed_hash)
        with self._guard:
            if content.tensors:
                self._tiers.set_backing(content, source)


def _bytes(name: str, wanted: int | str | None) -> int | None:
    """Returns a budget in bytes; raises `InvalidOption` for what is neither a number nor a size."""
    found = bytes_from(wanted) if isinstance(wanted, str) else wanted
    if (found is None and wanted is not None) or (found is not None and (isinstance(found, bool) or found < 0)):
        raise InvalidOption(f'{name}= is a number of bytes such as "512MiB" or 2**29; got {wanted!r}.')
    return found if found is None else int(found)


def _forked() -> None:
    """Makes locks and prefetchers anew in a forked child, which has none of the other threads."""
    for store in list(_stores):
        store._guard.anew()
        store._prefetcher.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
