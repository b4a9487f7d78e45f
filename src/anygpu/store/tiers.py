"""The contents of a store on the device, the host and disk, and their moves. The caller must hold the store's lock."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import tempfile
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from weakref import ref

import numpy as np

from anygpu.array.core.expression import Value
from anygpu.base.typing import HostArray
from anygpu.errors import InvalidOption, OverBudget
from anygpu.program.primitives import Spec
from anygpu.store import policy
from anygpu.store.contents import Content, HostBytes, uploaded
from anygpu.store.entry import DeferredLock, NamedEntry
from anygpu.store.policy import Budgets, StoreMode, TierFull, TierItem, TierMove
from anygpu.store.report import Dropped, Moved, StoreCounters, Tier
from anygpu.workers.device_arrays.handle import DeviceHandle
from anygpu.workers.device_arrays.lineage import TrackedBuffer
from anygpu.workers.device_arrays.recoverable import RecoverableDevice

# -- on disk


class Folder:
    """A private folder inside the given one, or a temporary one, created when it is first needed."""

    def __init__(self, where: str | os.PathLike[str] | bool) -> None:
        """Checks where the folder is to be, and creates nothing; raises `InvalidOption`."""
        if not isinstance(where, bool | str | os.PathLike):
            raise InvalidOption(f"disk= is a folder, or True for a temporary one; got {where!r}.")
        self._parent = None if isinstance(where, bool) else Path(where)
        self._path: Path | None = None
        self._end: weakref.finalize[[Path, int], Folder] | None = None

    @property
    def path(self) -> Path:
        """Returns the folder, which is created when it is first asked for, and removed with this object."""
        if self._path is None:
            if self._parent is not None:
                self._parent.mkdir(parents=True, exist_ok=True)
            self._path = Path(tempfile.mkdtemp(prefix="anygpu-store-", dir=self._parent))
            self._end = weakref.finalize(self, _remove, self._path, os.getpid())
        return self._path

    def write(self, number: int, values: HostArray, spec: Spec) -> HostBytes:
        """The values in a file, mapped into memory, so that reading them costs memory only while that is there."""
        path = self.path / f"{number}.bin"
        np.ascontiguousarray(values).tofile(path)
        if not values.nbytes:
            return HostBytes(np.zeros(spec.shape, values.dtype), "disk", lambda: _unlink(path))
        mapped = np.memmap(path, values.dtype, "r", shape=spec.shape or (1,)).reshape(spec.shape)
        return HostBytes(np.asarray(mapped), "disk", lambda: _unlink(path))

    def close(self) -> None:
        if self._end is not None:
            self._end()
        self._path = self._end = None


def _unlink(path: Path) -> None:
    # Where a mapped file cannot be deleted, it goes with the folder.
    with contextlib.suppress(OSError):
        path.unlink()


def _remove(path: Path, process: int) -> None:
    if os.getpid() == process:  # a process that was forked leaves it to the one that made it
        shutil.rmtree(path, ignore_errors=True)


# -- all tiers


_ticks = itertools.count(1)


class Tiers:
    """Every content of a store, and the budgets."""

    def __init__(
        self,
        store: str,
        device: DeviceHandle,
        budgets: Budgets,
        mode: StoreMode,
        folder: Folder | None,
        guard: DeferredLock,
        counters: StoreCounters,
    ) -> None:
        """Starts without contents. `guard` is the store's lock, which is released around slow copies.

        `_coming` are bytes that are on their way to the device; `_lingering` are buffers that left the store and live
        on in arrays of the user's.
        """
        self.store = store
        self.device_handle = device
        self.budgets = budgets
        self.mode = mode
        self.contents: dict[int, Content] = {}
        self.by_digest: dict[str, Content] = {}
        self.by_claimed_hash: dict[str, Content] = {}
        self._folder = folder
        self._guard = guard
        self._counters = counters
        #: Bytes of contents that are on their way to the device.
        self._coming = 0
        #: Views of contents: their buffer, and the key of the content.
        self._aliases: list[tuple[ref[Any], int]] = []
        #: Contents that were released while an array or a view of them is in use: its buffer, the key and the size.
        self._lingering: list[tuple[ref[Any], int, int]] = []
        #: The time of the last `tidy`.
        self._looked = 0

    # -- which tensors have which content

    def link(self, content: Content, entry: NamedEntry) -> None:
        """Adds an entry to a content, and names the array after it for messages about its loss."""
        content.tensors.add(entry)
        self.contents[content.key] = content
        if content.tracked is not None:
            content.tracked.lineage.name = f"the tensor {entry.name!r} of the store {self.store}"
        if content.digest is not None:
            self.by_digest.setdefault(content.digest, content)
        if content.claimed_hash is not None:
            self.by_claimed_hash.setdefault(content.claimed_hash, content)
        self._note_peak()

    def unlink(self, content: Content, entry: NamedEntry) -> None:
        """Remove an entry from a content. The content is closed with its last entry."""
        content.tensors.discard(entry)
        if content.tensors:
            return
        self.contents.pop(content.key, None)
        if content.digest is not None and self.by_digest.get(content.digest) is content:
            del self.by_digest[content.digest]
        if content.claimed_hash is not None and self.by_claimed_hash.get(content.claimed_hash) is content:
            del self.by_claimed_hash[content.claimed_hash]
        if content.moving:
            return  # `bring` closes it
        if content.on_device:
            aliases = [alias for alias, base in self._aliases if base == content.key]
            self._aliases = [each for each in self._aliases if each[1] != content.key]
            self._lingering = [each for each in self._lingering if _is_there(each[0]())]
            held = [ref(content.value.buffer), *aliases]
            self._lingering += [(each, content.key, content.nbytes) for each in held]
        content.close()
        self._guard.changed()

    def touch(self, content: Content) -> None:
        content.used = next(_ticks)

    # -- to the device

    def upload(self, values: HostArray, spec: Spec, *, but: Content | None = None) -> Content:
        """A new content from host values, which may be the user's own memory."""
        self.make_room(spec.nbytes, but=but)
        content = Content(self.device_handle, spec)
        self._coming += spec.nbytes
        try:
            with self._guard.unlocked():
                content.value.buffer, copied = uploaded(self.device_handle, values)
        finally:
            self._coming -= spec.nbytes
        self._counters.copied("to_device", copied)
        self._settle_copies(content)
        return content

    def upload_orphan(self, values: HostArray, spec: Spec) -> Value:
        """Upload the values of a released tensor for its views. The store counts them, but does not own them."""
        value = Value.on(self.device_handle, uploaded(self.device_handle, values)[0], spec)
        self._counters.copied("to_device", spec.nbytes)
        self._lingering.append((ref(value.buffer), -next(_ticks), spec.nbytes))
        return value

    def resident(self, value: Value) -> Content:
        """A new content from a value that is on the device already."""
        content = Content(self.device_handle, value.spec)
        content.value = value
        self._counters.copied("on_device", content.make_contiguous())
        self._settle_copies(content)
        return content

    def _settle_copies(self, content: Content) -> None:
        """Make or forgo a host copy of a new content, as the mode says."""
        self.touch(content)
        if policy.makes_host_copy(self.mode) and not content.shares_host:
            try:
                self.copy_to_host(content)
            except OverBudget:
                return  # it can still be copied when it leaves
        elif self.mode == "memory":
            content.forgo_copies(self._no_copy_reason())

    def _no_copy_reason(self) -> str:
        return f'the store {self.store} keeps one copy of each tensor (mode="memory")'

    def bring(self, content: Content, *, ahead: bool = False) -> None:
        """Bring it to the device, if it is not there. The lock is released while it is copied."""
        while content.moving:
            self._guard.wait()
        if content.closed:
            return  # its entries have another content by now
        if not content.on_device:
            self.make_room(content.nbytes, but=content, already=False)
            content.moving = True
            self._coming += content.nbytes
            try:
                with self._guard.unlocked():
                    copied = content.bring()
            finally:
                content.moving = False
                self._coming -= content.nbytes
                self._guard.changed()
                if not content.tensors:
                    content.close()
            self._counters.copied("to_device", copied)
            self._counters.returns += 1
            content.prefetched = ahead
            if not policy.keeps_host_copy(self.mode) and content.host is not None:
                self._drop_host(content)
            self._note_peak()
        elif content.prefetched and not ahead:
            content.prefetched = False
            self._counters.fetched_ahead += 1
        self.touch(content)

    def value_there(self, content: Content) -> Value | None:
        """The value, if it is on the device and needs no bookkeeping; else `None`."""
        if content.moving or content.closed or content.prefetched or not content.on_device:
            return None
        self.touch(content)
        return content.value

    def make_room(self, nbytes: int, *, but: Content | None = None, already: bool = True) -> None:
        """Make room for `nbytes` more on the device. Raises `OverBudget` if too much is pinned or in use.

        `but` is not moved; with `already` it is about to go, so that its bytes count as free.
        """
        if self.budgets.device is None:
            return
        freed = but.nbytes if but is not None and already and but.on_device else 0
        need = max(0, nbytes + self._coming - freed)
        if self._device_bytes() + need <= self.budgets.device:
            return
        try:
            moves = policy.room_on_device(self._items(but), need, self.budgets)
        except TierFull as error:
            raise self._over_budget(error, nbytes) from None
        for move in moves:
            self._apply(move)

    def make_host_room(self, nbytes: int) -> None:
        """Moves contents to disk until `nbytes` more fit on the host; raises `OverBudget` if they cannot."""
        if self.budgets.host is None:
            return
        try:
            moves = policy.room_on_host(self._items(), nbytes, self.budgets)
        except TierFull as error:
            raise self._over_budget(error, nbytes) from None
        for move in moves:
            self._apply(move)

    def _over_budget(self, error: TierFull, nbytes: int) -> OverBudget:
        if error.tier == "device":
            return OverBudget(self.device_handle.device, nbytes, self.budgets.device or 0)
        return OverBudget("the host", nbytes, self.budgets.host or 0)

    # -- locations

    def _items(self, but: Content | None = None) -> list[TierItem]:
        """Returns the facts of all contents for the policy; `but` is one that must stay where it is."""
        return [
            TierItem(
                content.key,
                content.nbytes,
                content.used,
                content.on_device and not content.moving,
                content.host is not None,
                content.backing is not None,
                fixed=content is but or self.is_fixed(content),
            )
            for content in self.contents.values()
        ]

    def is_fixed(self, content: Content) -> bool:
        if any(entry.pins or entry.leases or entry.is_viewed for entry in content.tensors):
            return True
        return content.moving or (content.on_device and not content.is_idle())

    def tiers_of(self, content: Content) -> list[Tier]:
        """Returns the tiers that have a copy of the content, the nearest first."""
        found: list[Tier] = []
        if content.on_device:
            found.append("device")
        if content.host is not None:
            found.append("host")
        if content.backing is not None and content.backing.kind == "disk":
            found.append("disk")
        return found

    def bytes_by_tier(self) -> dict[Tier, int]:
        """Returns the bytes of each tier; a content counts for every tier that has a copy."""
        found: dict[Tier, int] = {"device": 0, "host": 0, "disk": 0}
        for content in list(self.contents.values()):
            for tier in self.tiers_of(content):
                found[tier] += content.nbytes
        return found

    def lingering_bytes(self) -> int:
        """Returns the device bytes that left the store, and that arrays of the user's still hold."""
        self._lingering = [each for each in self._lingering if _is_there(each[0]())]
        # A content that is in the store again, or lingers for several reasons, counts once.
        buffers = {id(content.value.buffer) for content in self.contents.values()}
        again = {key for reference, key, _ in self._lingering if id(reference()) in buffers}
        return sum({key: nbytes for _, key, nbytes in self._lingering if key not in again}.values())

    def add_view(self, content: Content, view: Value) -> None:
        """Register a view of the content, which keeps its memory alive."""
        self._aliases = [each for each in self._aliases if _is_there(each[0]())]
        if view.buffer is not None and view.buffer is not content.value.buffer:
            self._aliases.append((ref(view.buffer), content.key))

    def _note_peak(self) -> None:
        self._counters.peak_device_bytes = max(self._counters.peak_device_bytes, self._device_bytes())

    def _device_bytes(self) -> int:
        """Bytes on the device, without those on their way."""
        return sum(each.nbytes for each in self.contents.values() if each.on_device and not each.moving)

    # -- copies on the host

    def values_of(self, content: Content) -> HostArray:
        """The values on the host. A copy is kept if the mode and the budget allow."""
        if content.copied or self.mode == "memory" or content.shares_host:
            values, copied = content.read()
            self._counters.copied("to_host", copied)
            return values
        try:
            self.copy_to_host(content)
        except OverBudget:
            values, copied = content.read()
            self._counters.copied("to_host", copied)
            return values
        return content.read()[0]

    def copy_to_host(self, content: Content) -> None:
        """Keeps a copy on the host, after making room; waits while the content is moving."""
        while content.moving:
            self._guard.wait()
        if content.host is None and not (content.shares_host and content.on_device):
            self.make_host_room(content.nbytes)
            self._counters.copied("to_host", content.copy_to_host())

    def set_backing(self, content: Content, source: HostBytes) -> None:
        """Rely on bytes that are owned elsewhere, and drop the store's own copies."""
        if content.backing is not None:
            content.backing.close()
        content.backing = source
        if content.host is not None:
            self._drop_host(content)
        content.remember()
        if content.shares_host and content.on_device and content.is_idle():
            content.leave_device()  # it returns as an array of that very memory

    def _drop_host(self, content: Content) -> None:
        """Drops the host's copy.

        An array on the device that had no other is restored from the device's own copies then.
        """
        host = content.host
        content.drop_host()
        tracked = content.tracked
        if tracked is None or tracked.handle is None or content.backing is not None or host is None:
            return
        if self.mode == "memory":
            content.forgo_copies(self._no_copy_reason())
        elif isinstance(self.device_handle, RecoverableDevice):
            # The copy is the device's from now on, and counts towards the recovery budget.
            self.device_handle.keep_copy(tracked, host.values)

    # -- moves

    def tidy(self) -> tuple[list[Moved], list[Dropped]]:
        """Perform the moves of `optimise()`."""
        since, self._looked = self._looked, next(_ticks)
        moved: list[Moved] = []
        dropped: list[Dropped] = []
        for move in policy.tidied(self._items(), since, self.budgets, self.mode):
            content = self.contents[move.key]
            names = tuple(entry.name for entry in content.tensors)
            before = self.tiers_of(content)
            self._apply(move)
            after = self.tiers_of(content)
            gone = [tier for tier in before if tier not in after]
            new = [tier for tier in after if tier not in before]
            for tier in gone:
                if new:
                    moved.append(Moved(names, content.nbytes, tier, new.pop()))
                else:
                    dropped.append(Dropped(names, content.nbytes, tier))
        return moved, dropped

    def _apply(self, move: TierMove) -> None:
        """Carry out one move of a plan: copy a content between tiers, or drop a copy of it."""
        content = self.contents[move.key]
        match move.step:
            case "to_host":
                self._counters.copied("to_host", content.copy_to_host())
                self._leave(content)
            case "to_disk":
                self._to_disk(content)
                self._leave(content)
            case "leave_device":
                self._leave(content)
            case "drop_host":
                self._drop_host(content)
            case "host_to_disk":
                self._to_disk(content)
                self._drop_host(content)

    def _leave(self, content: Content) -> None:
        content.remember()
        content.leave_device()
        self._counters.evictions += 1

    def _to_disk(self, content: Content) -> None:
        """Writes a content into the store's folder; raises `OverBudget` if the store has none."""
        if self._folder is None:
            raise OverBudget("the host", content.nbytes, self.budgets.host or 0)
        values, copied = content.read()
        self._counters.copied("to_host", copied)
        content.backing = self._folder.write(content.key, values, content.spec)
        self._counters.copied("to_disk", content.nbytes)
        content.remember()

    def close(self) -> None:
        if self._folder is not None:
            self._folder.close()

    def __iter__(self) -> Iterator[Content]:
        return iter(list(self.contents.values()))


def _is_there(buffer: Any) -> bool:
    return buffer is not None and (not isinstance(buffer, TrackedBuffer) or buffer.handle is not None)
