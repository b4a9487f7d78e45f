"""What has to be true of a store after every step, found out without changing anything in it."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from weakref import WeakSet

import numpy as np

from anygpu.array.core.array import Array
from anygpu.engines.memory.pool import bucket_size
from anygpu.errors import AnyGPUError, OverBudget
from anygpu.store import Store
from anygpu.store.contents import Content
from anygpu.workers.device_arrays.lineage import TrackedBuffer
from anygpu.workers.device_arrays.registry import registry
from anygpu.workers.thread import LocalHandle
from tests.store.model import Known, Model, Values, same


class Wrong(AssertionError):
    """Something that has to be true is not."""


class Look:
    """An array beside the store that was had from a tensor, and what it should be."""

    def __init__(self, array: Array, wanted: Values, base: Known | None, *, exact: bool) -> None:
        self.array = array
        #: A view of the base's values, if NumPy makes one.
        self.wanted = wanted
        #: The tensor whose memory it may hold.
        self.base = base
        #: Whether it holds no memory but its base's.
        self.exact = exact
        #: Tensors that it was put as.
        self.others: list[Known] = []

    @property
    def is_lost(self) -> bool:
        """Whether it is of a tensor that is gone."""
        return self.base is not None and self.base.gone


class Checks:
    """Everything, after each step."""

    def __init__(self, store: Store, model: Model, *, exact: bool, may_lack: Callable[[int], bool]) -> None:
        self.store = store
        #: Whether so many bytes more may be refused.
        self.may_lack = may_lack
        self.model = model
        #: Whether all tensors take whole blocks of an engine, so that its bytes are the store's.
        self.exact = exact
        self.counting = store.device.partition(":")[0] in ("opencl", "webgpu")
        #: Of engines of this process: what was there before, and goes when it does.
        self._earlier = WeakSet(_handles)
        self._before = self.engine_bytes()
        if self._before:
            gc.collect()
            self._before = self.engine_bytes()
        self._copied_before = 0
        self._had_constants = False
        #: Then the runtime has what tensors are had again from.
        self._killed = False
        #: Contents on the device, by what was seen of them last.
        self._seen: dict[int, int] = {}

    def __call__(self, looks: Sequence[Look], *, thorough: bool) -> None:
        self.settle()
        self.names()
        self.values(thorough=thorough)
        if thorough:
            for look in looks:
                self.look(look)
        self.figures(looks)

    def settle(self) -> None:
        """Until nothing is on its way."""
        self.store._prefetcher.wait()

    # -- names and holders

    def names(self) -> None:
        store, model = self.store, self.model
        there = {(key[0] if len(key) > 1 else "", key[-1]) for key in (*store.keys(),)}
        if there != set(model.tensors):
            raise Wrong(f"the store has {sorted(there)}, and should have {sorted(model.tensors)}")
        for key, known in model.tensors.items():
            tensor = store.get(key[1], namespace=key[0])
            if tensor.holders != known.everybody:
                raise Wrong(f"{known} is held by {tensor.holders}, and should be by {known.everybody}")
            if tensor.owner != known.owner or tensor.shape != known.values.shape:
                raise Wrong(f"{known} became {tensor}")
            if (known.leases or known.pins) and tensor.tier != "device":
                raise Wrong(f"{known} is leased or pinned, and on {tensor.tier}")

    # -- values

    def values(self, *, thorough: bool) -> None:
        for key, known in self.model.tensors.items():
            entry = self.store.get(key[1], namespace=key[0])._entry
            for where, found in self.copies(entry.content, thorough=thorough):
                if not same(found, known.values):
                    raise Wrong(f"{known} on {where} is {found.ravel()[:4]}, not {known.values.ravel()[:4]}")

    def copies(self, content: Content, *, thorough: bool) -> list[tuple[str, Values]]:
        """Every copy there is of it, read behind the store's back."""
        found = []
        if content.host is not None:
            found.append(("the host", content.host.values))
        if content.backing is not None:
            found.append(("disk", content.backing.values))
        if not content.on_device:
            if not found and not (self._killed and content.tracked is not None):
                raise Wrong("a content is nowhere")
            return found
        buffer = content.value.buffer
        handle: Any = buffer.handle if isinstance(buffer, TrackedBuffer) else buffer
        # A child process takes its time to answer: what did not change is looked at now and then.
        if thorough or not self.counting or self._seen.get(content.key) != id(handle):
            found.append(("the device", np.asarray(content.device_handle.worker.download(handle))))
            self._seen[content.key] = id(handle)
        return found

    def look(self, look: Look) -> None:
        # When it has to look again, the store is not told what memory it holds then.
        look.exact = look.exact and not (look.array._view is not None and look.array._view.stale)
        try:
            found = np.asarray(look.array)
        except OverBudget as error:
            # It has to look at its base again, which is on the host and cannot come back.
            if look.base is None or not self.may_lack(look.base.values.nbytes):
                raise Wrong(f"a view of {look.base} cannot be read: {error}") from error
            return
        except AnyGPUError as error:
            raise Wrong(f"a view of {look.base} cannot be read: {type(error).__name__}: {error}") from error
        if not same(found, look.wanted):
            raise Wrong(f"a view of {look.base} is {found.ravel()[:4]}, not {look.wanted.ravel()[:4]}")

    def is_alias(self, array: Array) -> bool:
        """Whether an array that the store gave in this step has no memory of its own."""
        if not array.size:
            return False
        return self.store.statistics().copies["on_device"].bytes == self._copied_before

    # -- figures

    def figures(self, looks: Sequence[Look]) -> None:
        store, model = self.store, self.model
        now = store.statistics()
        self._copied_before = now.copies["on_device"].bytes
        contents = list(store._tiers.contents.values())
        nbytes = [known.values.nbytes for known in model.tensors.values()]
        owned: dict[str, tuple[int, int]] = {}
        for known in model.tensors.values():
            count, total = owned.get(known.owner, (0, 0))
            owned[known.owner] = count + 1, total + known.values.nbytes
        told = {owner: (each.tensors, each.bytes) for owner, each in now.by_owner.items()}
        wanted = {
            "tensors": len(nbytes),
            "bytes": sum(nbytes),
            "bytes_saved": sum(nbytes) - sum(content.nbytes for content in contents),
            "leases": sum(sum(known.leases.values()) for known in model.tensors.values()),
            "pinned": sum(bool(known.pins) for known in model.tensors.values()),
        }
        for name, value in wanted.items():
            if getattr(now, name) != value:
                raise Wrong(f"{name} is {getattr(now, name)}, and should be {value}")
        if told != owned:
            raise Wrong(f"by owner: {told}, and should be {owned}")
        if now.budget is not None and now.device_bytes > now.budget:
            raise Wrong(f"{now.device_bytes} bytes on the device are over the budget of {now.budget}")
        if now.host_budget is not None and now.host_bytes > now.host_budget:
            raise Wrong(f"{now.host_bytes} bytes on the host are over the budget of {now.host_budget}")
        on_disk = self.disk_bytes()
        if now.disk_bytes != on_disk:
            raise Wrong(f"{now.disk_bytes} bytes on disk, but files have {on_disk}")
        for content in contents:
            if not content.tensors:
                raise Wrong("a content without tensors is left")
        self.engine(now.device_bytes, now.lingering_bytes, looks)

    def engine(self, on_device: int, lingering: int, looks: Sequence[Look]) -> None:
        if not self.exact:
            blocks = [bucket_size(each.nbytes) for each in self.store._tiers if each.on_device and each.nbytes]
            on_device = sum(blocks) if self.counting else on_device
        most = on_device + lingering
        constants = self.bytes_of_constants()
        self._had_constants = self._had_constants or constants > 0
        least = most - constants - (lingering if self._had_constants else 0)
        if not self.counting:
            # NumPy and torch may have one number for all elements, and a view of those keeps no more; single constants
            # may be the same memory wherever they are used.
            least = on_device if self.exact else on_device - constants
        bounded = all(look.exact for look in looks) and (self.exact or not lingering)
        empty = 0 if self.exact else self.blocks_of_nothing()
        found = self.engine_bytes() - self._before
        if least <= found <= most + empty or (found > most and not bounded):
            return
        gc.collect()
        released = lingering - self.store.statistics().lingering_bytes
        found = self.engine_bytes() - self._before
        if found < least - released or (bounded and found > most + empty - released):
            lingering -= released
            raise Wrong(f"the engine has {found} bytes, but the store has {on_device}, and {lingering} are lingering")

    def bytes_of_constants(self) -> int:
        """At most: engines do not count as arrays what a program has made of a constant alone."""
        uniform = [each.values for each in self.model.tensors.values() if len(np.unique(each.values)) == 1]
        return sum(bucket_size(values.nbytes) for values in uniform)

    def blocks_of_nothing(self) -> int:
        """At most: what engines take for arrays without elements depends on how these were made."""
        return sum(bucket_size(0) for each in self.store._tiers if each.on_device and not each.nbytes)

    def engine_bytes(self) -> int:
        if self.counting:
            return registry.worker(self.store.device).memory().in_use or 0
        return _held_in_this_process(self.store.device, self._earlier)

    def forget_engine(self) -> None:
        """Its worker was killed."""
        self._before = 0
        self._killed = True
        self._seen.clear()

    def disk_bytes(self) -> int:
        folder = self.store._tiers._folder
        path = folder._path if folder is not None else None
        return sum(each.stat().st_size for each in os.scandir(path)) if path is not None else 0

    def nothing_is_left(self, folder: Path) -> None:
        """After the store was closed and everybody has let go."""
        if self.engine_bytes() != self._before:
            gc.collect()
            # What the main thread lets go of is let go of by another one, which no signal interrupts.
            self.store._guard.settle()
            gc.collect()
            left = self.engine_bytes() - self._before
            if left:
                raise Wrong(f"{left} bytes are left on the device")
        now = self.store.statistics()
        if (now.tensors, now.device_bytes, now.host_bytes, now.disk_bytes, now.lingering_bytes) != (0, 0, 0, 0, 0):
            raise Wrong(f"the store is closed and has {now}")
        if folder.exists() and any(folder.iterdir()):
            raise Wrong(f"files are left: {list(folder.iterdir())}")
        if any(thread.name == "anygpu-prefetch" for thread in threading.enumerate()):
            raise Wrong("a thread is left")


# -- engines of this process do not count what arrays take, so every array there is noted


_handles: WeakSet[LocalHandle] = WeakSet()
_make_handle = LocalHandle.__init__


def _noted(self: LocalHandle, *arguments: Any, **options: Any) -> None:
    _make_handle(self, *arguments, **options)
    _handles.add(self)


def note_handles() -> None:
    LocalHandle.__init__ = _noted  # type: ignore[method-assign]


def _held_in_this_process(device: str, but: WeakSet[LocalHandle]) -> int:
    """Bytes of memory that arrays on the device have, each counted once, without those of others."""
    held: dict[int, int] = {}
    for handle in list(_handles):
        if handle.worker.device.id == device and handle not in but:
            start, nbytes = _memory_of(handle.buffer)
            held[start] = max(held.get(start, 0), nbytes)
    return sum(held.values())


def _memory_of(buffer: Any) -> tuple[int, int]:
    if isinstance(buffer, np.ndarray):
        root: Any = buffer
        while isinstance(root.base, np.ndarray):
            root = root.base
        # One number may stand for many elements: they are counted as if each had its memory.
        return id(root), max(root.nbytes, buffer.nbytes) if root.base is None else buffer.nbytes
    storage = buffer.untyped_storage()
    return storage.data_ptr(), max(storage.nbytes(), buffer.nbytes)


note_handles()
