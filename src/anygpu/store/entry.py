"""One name in a store."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from anygpu.array.core.array import Array
from anygpu.array.core.expression import Value
from anygpu.base.typing import HostArray
from anygpu.device_arrays.handle import is_shared
from anygpu.store.contents import Content
from anygpu.store.keys import Key
from anygpu.store.report import CopyKind


class EntryStore(Protocol):
    """What tensors, views and leases need of their store."""

    def _value_of(self, entry: Entry) -> Value: ...

    def _on_host(self, entry: Entry) -> HostArray: ...

    def _write(self, entry: Entry, new: Value) -> None: ...

    def _holders(self, entry: Entry) -> tuple[str, ...]: ...

    def _count(self, kind: CopyKind, nbytes: int) -> None: ...

    def _add_view(self, entry: Entry, view: Value) -> None: ...

    def _later(self, note: Callable[[], None]) -> None: ...


class Entry:
    """One name in a store, with its holders and its current content. The store's lock guards it."""

    __slots__ = (
        "__weakref__",
        "content",
        "holders",
        "key",
        "last_host_values",
        "last_value",
        "leases",
        "owner",
        "pins",
        "released",
        "spec",
        "store",
        "tensor",
        "version",
    )

    def __init__(
        self, store: EntryStore, key: Key, owner: str, content: Content, tensor: Callable[[Entry], Array]
    ) -> None:
        self.store = store
        #: The namespace, and the name last.
        self.key = key
        self.owner = owner
        self.content = content
        self.spec = content.spec
        #: Holders of one reference each.
        self.holders: set[str] = {owner}
        #: Leases by holder.
        self.leases: dict[str, int] = {}
        self.pins = 0
        #: Counts writes.
        self.version = 0
        #: Whether the last reference was released.
        self.released = False
        #: After that, the value for views that are still in use.
        self.last_value: Value | None = None
        #: The same on the host, if it was not on the device.
        self.last_host_values: HostArray | None = None
        self.tensor = tensor(self)

    @property
    def name(self) -> str:
        return self.key[-1]

    @property
    def is_viewed(self) -> bool:
        """Whether views of the tensor are in use."""
        return self.tensor._shared is not None and is_shared(self.tensor, "_shared")

    @property
    def is_held(self) -> bool:
        return bool(self.holders or self.leases)

    def __repr__(self) -> str:
        return f"<entry {self.key}>"
