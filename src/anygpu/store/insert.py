"""How something gets a name in a store: compared with what is there, brought to the device, and entered."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from anygpu._typing import HostArray
from anygpu.array.core.array import Array
from anygpu.array.core.recording import dtype_name
from anygpu.program.primitives import Spec
from anygpu.residency.handle import DeviceHandle
from anygpu.store import values
from anygpu.store.contents import Content, HostBytes
from anygpu.store.deduplication import Deduplication
from anygpu.store.deferred_lock import DeferredLock
from anygpu.store.names import Key, Names
from anygpu.store.report import Counters
from anygpu.store.tensor import Entry, Tensor
from anygpu.store.tiers import Tiers
from anygpu.tensor_files.tensor_metadata import content_hash

if TYPE_CHECKING:
    from anygpu.store.store import Store


class Putting:
    """The way into a store."""

    def __init__(
        self,
        store: Store,
        place: DeviceHandle,
        names: Names,
        tiers: Tiers,
        equals: Deduplication,
        guard: DeferredLock,
        counters: Counters,
    ) -> None:
        self._store = store
        self._place = place
        self._names = names
        self._tiers = tiers
        self._equals = equals
        self._guard = guard
        self._counters = counters

    def put(self, key: Key, array: Any, owner: str, *, hashing: bool) -> Tensor:
        self._check_name(key, owner)
        if isinstance(array, Tensor) and array._entry.store is self._store:
            with self._guard:
                return self._enter(key, owner, self._names.known(array._entry).content)
        if isinstance(array, Array) and array._place is self._place:
            return self._put_resident(key, owner, array, hashing)
        return self._put_values(key, owner, *values.values_of(array), hashing)

    def put_host(self, key: Key, source: HostBytes, owner: str, *, told: str | None, hashing: bool) -> Tensor:
        """Keep what a file or shared memory has. It is brought to the device when it is first used.

        `told` is the hash that somebody says it has, as `anygpu.tensor_files` makes them. It is not believed: where it
        is that of another tensor, the bytes decide whether they become one.
        """
        self._check_name(key, owner)
        spec = Spec(source.values.shape, dtype_name(source.values.dtype))
        known = self._equals.as_told(source.values, spec, told) if hashing and told is not None else None
        with self._guard:
            if known is not None and known.tensors:
                source.close()
                return self._enter(key, owner, known)
            content = Content(self._place, spec)
            content.told = told
            if source.kind == "memory":
                self._tiers.make_host_room(spec.nbytes)
                content.host = source
            else:
                content.backing = source
            content.remember()
            return self._enter(key, owner, content)

    def _check_name(self, key: Key, owner: str) -> None:
        """Before anything is computed or copied for it."""
        with self._guard:
            self._names.may_put(key, owner)

    def _put_resident(self, key: Key, owner: str, array: Array, hashing: bool) -> Tensor:
        value, copied = values.resident_value(array, self._place)
        known, fingerprint = self._equals.with_buffer_of(value), None
        if known is None and hashing:
            known, fingerprint = self._equals.on_device(value)
        with self._guard:
            self._counters.copied("on_device", copied)
            if known is not None and known.tensors:
                return self._enter(key, owner, known)
            self._tiers.make_room(value.spec.nbytes, but=self._names.replaced(key, owner))
            content = self._tiers.resident(value)
            content.fingerprint = fingerprint
            return self._enter(key, owner, content)

    def _put_values(self, key: Key, owner: str, values: HostArray, from_device: int, hashing: bool) -> Tensor:
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
            # Another thread may have put an equal one meanwhile.
            known = self._tiers.by_digest.get(digest) if digest is not None else None
            return self._enter(key, owner, content if known is None else known)

    # -- with the lock held

    def _enter(self, key: Key, owner: str, content: Content) -> Tensor:
        """Give the content a name, or the name a content."""
        entry = self._names.may_put(key, owner)
        if entry is not None and entry.spec != content.spec:
            self._names.make_way(entry, owner)
            entry = None
        if entry is None:
            entry = self._names.entries[key] = Entry(self._store, key, owner, content)
            self._tiers.link(content, entry)
            return entry.tensor
        if (entry.pins or entry.leases) and not content.on_device:
            self._bring_instead(entry, content)
            self._names.may_put(key, owner)
        self._names.replace(entry, content)
        return entry.tensor

    def _bring_instead(self, entry: Entry, content: Content) -> None:
        """What is to be on the device is there also with another content, which nobody lets go of meanwhile."""
        self._tiers.link(content, entry)
        try:
            self._tiers.bring(content)
            self._names.known(entry)
        except BaseException:
            self._tiers.unlink(content, entry)
            raise
