"""Holders of a tensor: names and objects with one reference each, and leases, each released exactly once."""

from __future__ import annotations

from collections.abc import Callable
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

    def __init__(self, tensor: Tensor, holder: str, end: Callable[[], None]) -> None:
        """`end` is for the store to call, once or twice: it ends the lease at the first time."""
        self._tensor = tensor
        self.holder = holder
        self.name = tensor.name
        #: Empty once it was released.
        self._right = [True]
        self._end = end
        #: For the store: called after it was released.
        self.unwatch: Callable[[], None] | None = None

    @property
    def tensor(self) -> Tensor:
        if not self._right:
            raise NotHeld(self.name, self.holder)
        return self._tensor

    @property
    def active(self) -> bool:
        return bool(self._right)

    def release(self) -> None:
        """Raises `NotHeld` when it was released before."""
        if not self._right:
            raise NotHeld(self.name, self.holder)
        # In this order: what was begun and interrupted can be done again.
        self._tensor._entry.store._later(self._end)
        try:
            self._right.pop()
        except IndexError:  # by another thread just now
            raise NotHeld(self.name, self.holder) from None
        if self.unwatch is not None:
            self.unwatch()
            self.unwatch = None

    def __enter__(self) -> Tensor:
        return self.tensor

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._right:
            self.release()

    def __repr__(self) -> str:
        return f"<lease of {self.name!r} by {self.holder!r}{'' if self.active else ', released'}>"
