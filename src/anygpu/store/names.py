"""The names of a store and their holders. The caller must hold the store's lock."""

from __future__ import annotations

import difflib
import weakref

from anygpu.errors import NameTaken, StoreClosed, UnknownTensor
from anygpu.store.contents import Content
from anygpu.store.entry import Entry, Key
from anygpu.store.tiers import Tiers


class Names:
    """Entries by name. An entry is removed with its last reference or lease."""

    def __init__(self, store: str, tiers: Tiers) -> None:
        self.store = store
        self.entries: dict[Key, Entry] = {}
        self.closed = False
        self._tiers = tiers
        #: Released tensors that still have views.
        self._orphans: list[weakref.ref[Entry]] = []

    def check_open(self) -> None:
        if self.closed:
            raise StoreClosed(self.store)

    def find(self, key: Key) -> Entry:
        self.check_open()
        entry = self.entries.get(key)
        if entry is None:
            raise self._unknown(key)
        return entry

    def known(self, entry: Entry) -> Entry:
        """The entry; raises `UnknownTensor` if it was released."""
        self.check_open()
        if entry.released:
            raise self._unknown(entry.key)
        return entry

    def _unknown(self, key: Key) -> UnknownTensor:
        others = [each[-1] for each in self.entries if each[:-1] == key[:-1]]
        alike = difflib.get_close_matches(key[-1], others, 3)
        where = f"{self.store}, namespace {'/'.join(key[:-1])}," if key[:-1] else self.store
        return UnknownTensor(key[-1], where, alike)

    # -- contents under names

    def check_owner(self, key: Key, owner: str) -> Entry | None:
        """The current entry of the name. Raises `NameTaken` if it has another owner."""
        self.check_open()
        entry = self.entries.get(key)
        if entry is not None and (entry.owner != owner or owner not in entry.holders):
            others = sorted({*entry.holders, *entry.leases})
            raise NameTaken(key[-1], entry.owner if entry.owner in entry.holders else others[0])
        return entry

    def replaced(self, key: Key, owner: str) -> Content | None:
        """The content that is freed when another is put under the name."""
        entry = self.check_owner(key, owner)
        return entry.content if entry is not None and len(entry.content.tensors) == 1 else None

    def replace(self, entry: Entry, content: Content) -> None:
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

    def remove_for(self, entry: Entry, owner: str) -> None:
        """Remove an entry for a tensor of another shape or type; raises `NameTaken` if the entry has other holders."""
        others = sorted({*entry.holders, *entry.leases} - {owner}) or sorted(entry.leases)
        if others:
            raise NameTaken(entry.name, others[0])
        entry.holders.clear()
        self.free_if_unheld(entry)

    # -- references

    def end_lease(self, entry: Entry, holder: str, right: list[bool]) -> None:
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

    def holder_is_gone(self, entry: Entry, holder: str) -> None:
        if holder in entry.holders:
            entry.holders.remove(holder)
            self.free_if_unheld(entry)

    def free_if_unheld(self, entry: Entry) -> None:
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
        left: list[weakref.ref[Entry]] = []
        for each in self._orphans:
            entry = each()
            if entry is not None and entry.is_viewed:
                left.append(each)
            elif entry is not None:
                entry.last_value = entry.last_host_values = None
        self._orphans = left

    def close(self) -> None:
        self.closed = True
        for entry in list(self.entries.values()):
            entry.holders.clear()
            entry.leases.clear()
            self.free_if_unheld(entry)
