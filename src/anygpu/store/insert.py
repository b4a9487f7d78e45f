"""Insertion into a store: find equal content, bring the values to the device, and enter them under a name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from anygpu.array.core.array import Array
from anygpu.array.core.recording import dtype_name
from anygpu.base.typing import HostArray
from anygpu.device_arrays.handle import DeviceHandle
from anygpu.program.primitives import Spec
from anygpu.store.contents import Content, HostBytes, resident_value, values_of
from anygpu.store.deduplication import Deduplication
from anygpu.store.deferred_lock import DeferredLock
from anygpu.store.entry import Entry, Key
from anygpu.store.names import Names
from anygpu.store.report import Counters
from anygpu.store.tiers import Tiers
from anygpu.tensor_files.tensor_metadata import content_hash


class Insertion:
    """Enters arrays and host values into a store."""

    def __init__(
        self,
        new_entry: Callable[[Key, str, Content], Entry],
        device: DeviceHandle,
        names: Names,
        tiers: Tiers,
        equals: Deduplication,
        guard: DeferredLock,
        counters: Counters,
    ) -> None:
        self._new_entry = new_entry
        self._device = device
        self._names = names
        self._tiers = tiers
        self._deduplication = equals
        self._guard = guard
        self._counters = counters

    def put(self, key: Key, array: Any, owner: str, *, hashing: bool) -> Entry:
        """Enter an array or anything that NumPy takes."""
        self._check_name(key, owner)
        if isinstance(array, Array) and array._device is self._device:
            return self._put_resident(key, owner, array, hashing)
        return self._put_values(key, owner, *values_of(array), hashing)

    def put_again(self, key: Key, known: Entry, owner: str) -> Entry:
        """Enter the content of another entry of the same store under a second name."""
        with self._guard:
            self._names.check_owner(key, owner)
            return self._enter(key, owner, self._names.known(known).content)

    def put_host(self, key: Key, source: HostBytes, owner: str, *, claimed_hash: str | None, hashing: bool) -> Entry:
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

    def _check_name(self, key: Key, owner: str) -> None:
        """Check the name before anything is computed or copied."""
        with self._guard:
            self._names.check_owner(key, owner)

    def _put_resident(self, key: Key, owner: str, array: Array, hashing: bool) -> Entry:
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

    def _put_values(self, key: Key, owner: str, values: HostArray, from_device: int, hashing: bool) -> Entry:
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

    def _enter(self, key: Key, owner: str, content: Content) -> Entry:
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

    def _bring_instead(self, entry: Entry, content: Content) -> None:
        """Bring a new content of a pinned or leased entry to the device before it replaces the old one."""
        self._tiers.link(content, entry)
        try:
            self._tiers.bring(content)
            self._names.known(entry)
        except BaseException:
            self._tiers.unlink(content, entry)
            raise
