"""Holders of a tensor: names and objects with one reference each, and leases, each released exactly once."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from anygpu.errors import NotHeld

if TYPE_CHECKING:
    from types import TracebackType

    from anygpu.store.tensor import Tensor

#: A name, or an object whose reference is released when it is collected.
Holder = Any


def label_of(holder: Holder) -> str:
    """The name of a holder in messages and statistics, unique among living objects."""
    return holder if isinstance(holder, str) else f"{type(holder).__name__} at {id(holder):#x}"


class Lease:
    """Keeps a tensor on the device until it is released: by `with`, by `release()`, or when it is collected."""

    def __init__(self, tensor: Tensor, holder: str) -> None:
        self._tensor = tensor
        self.holder = holder
        self.name = tensor.name
        entry = tensor._entry
        #: Runs at most once. The finalizer may run on any thread, so it only leaves a note.
        self._end = weakref.finalize(self, entry.store._lease_is_over, entry, holder)
        self._end.atexit = False

    @property
    def tensor(self) -> Tensor:
        if not self._end.alive:
            raise NotHeld(self.name, self.holder)
        return self._tensor

    @property
    def active(self) -> bool:
        return self._end.alive

    def release(self) -> None:
        """Raises `NotHeld` when it was released before."""
        if self._end.detach() is None:
            raise NotHeld(self.name, self.holder)
        entry = self._tensor._entry
        entry.store._lease_is_over(entry, self.holder)

    def __enter__(self) -> Tensor:
        return self.tensor

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._end.alive:
            self.release()

    def __repr__(self) -> str:
        return f"<lease of {self.name!r} by {self.holder!r}{'' if self.active else ', released'}>"
