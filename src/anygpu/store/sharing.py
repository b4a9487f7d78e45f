"""A store's connection to the store that processes of this host share."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import numpy as np

from anygpu.base.typing import HostArray
from anygpu.errors import UnknownTensor
from anygpu.store.contents import HostBytes
from anygpu.store.segments import Key
from anygpu.store.shared_store import Found, open_shared


class SharedNames:
    """Tracks which tensors this store has published, and which it has found."""

    def __init__(self, name: str) -> None:
        self._shared = open_shared(name)
        #: By name, the version that this store has published or found.
        self._versions: dict[Key, int] = {}
        #: By name, the version that was published here last, until it is withdrawn.
        self._published: dict[Key, int] = {}

    def publish(self, key: Key, values: HostArray, *, owner: str, hash: str) -> HostBytes:
        """Publish the values in shared memory. Copies them once, unless they are there already."""
        shared = self._shared.publish(key, values, owner=owner, hash=hash)
        found = self._shared.find(key)
        # Another process may have published under the name in between, which `news` will report.
        if found is not None and np.may_share_memory(found.values, shared):
            self._versions[key] = self._published[key] = found.version
        return HostBytes(shared, "shared")

    def news(self, key: Key, *, here: bool) -> Found | None:
        """The tensor that others have published under the name since the last `seen`; `None` if there is none.

        Everything is new to a store that has no tensor of that name, or none any more.
        """
        found = self._shared.find(key)
        if found is None or (here and found.version == self._versions.get(key)):
            return None
        return found

    def seen(self, key: Key, found: Found) -> None:
        """The store has taken that tensor."""
        self._versions[key] = found.version

    def keys(self) -> Sequence[Key]:
        return self._shared.names()

    def has(self, key: Key) -> bool:
        return key in self._versions

    def withdraw(self, key: Key) -> None:
        """Withdraw a publication of this store; processes that have mapped it keep it."""
        self._versions.pop(key, None)
        version = self._published.pop(key, None)
        found = self._shared.find(key) if version is not None else None
        if found is not None and found.version == version:
            with contextlib.suppress(UnknownTensor):
                self._shared.remove(key)

    def close(self) -> None:
        self._shared.close()
