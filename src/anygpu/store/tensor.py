"""`Tensor`: an array that a store keeps by name, and that is brought to its device when it is used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from anygpu._typing import HostArray
from anygpu.array.core.array import Array
from anygpu.array.core.device import ArrayDevice, to_numpy_dtype
from anygpu.array.core.expression import Value
from anygpu.program.primitives import Spec
from anygpu.residency.references import is_shared
from anygpu.store.report import Tier

if TYPE_CHECKING:
    from anygpu.store.contents import Content
    from anygpu.store.store import Store

Copying = Literal["allow", "never"]


class Entry:
    """One name in a store: who holds it, and what its content is now. Its store's lock guards it."""

    __slots__ = (
        "__weakref__",
        "content",
        "gone",
        "holders",
        "key",
        "last",
        "leases",
        "left",
        "owner",
        "pins",
        "spec",
        "store",
        "tensor",
        "version",
    )

    def __init__(self, store: Store, key: tuple[str, ...], owner: str, content: Content) -> None:
        self.store = store
        #: The namespace, and the name last.
        self.key = key
        self.owner = owner
        self.content = content
        self.spec = content.spec
        #: Each has one reference.
        self.holders: set[str] = {owner}
        #: By holder, how many.
        self.leases: dict[str, int] = {}
        self.pins = 0
        #: Counts writes.
        self.version = 0
        #: Whether the name was released by all who had it.
        self.gone = False
        #: After that, for views that are left: what they look at.
        self.last: Value | None = None
        #: The same on the host, if it was not on the device then.
        self.left: HostArray | None = None
        self.tensor = Tensor(self)

    @property
    def name(self) -> str:
        return self.key[-1]

    @property
    def is_viewed(self) -> bool:
        """Whether there are views of the tensor, which have its memory."""
        return self.tensor._shared is not None and is_shared(self.tensor, "_shared")

    @property
    def is_held(self) -> bool:
        return bool(self.holders or self.leases)

    def __repr__(self) -> str:
        return f"<entry {self.key}>"


class Tensor(Array):
    """An array of a store: usable wherever an array is.

    What is asked about it (shape, type, owner, tier) moves nothing. To compute with it brings it to the device, and to
    write to it makes a new version, which everybody who shares the tensor sees.
    """

    __slots__ = ("_entry",)

    def __init__(self, entry: Entry) -> None:
        self._entry = entry
        self._view = None
        self._shared = None

    @property
    def _stored(self) -> Value:
        return self._entry.store._value_of(self._entry)

    @_stored.setter
    def _stored(self, new: Value) -> None:
        self._entry.store._write(self._entry, new)

    @property
    def _value(self) -> Value:
        return self._stored

    # -- facts, for which nothing has to be anywhere

    @property
    def _spec(self) -> Spec:
        return self._entry.spec

    @property
    def shape(self) -> tuple[int, ...]:
        return self._spec.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return to_numpy_dtype(self._spec.dtype)

    @property
    def ndim(self) -> int:
        return len(self._spec.shape)

    @property
    def size(self) -> int:
        return self._spec.size

    @property
    def nbytes(self) -> int:
        return self._spec.nbytes

    @property
    def _place(self) -> ArrayDevice:
        return self._entry.content.place

    @property
    def name(self) -> str:
        return self._entry.name

    @property
    def namespace(self) -> tuple[str, ...]:
        return self._entry.key[:-1]

    @property
    def store(self) -> Store:
        return self._entry.store

    @property
    def owner(self) -> str:
        return self._entry.owner

    @property
    def holders(self) -> tuple[str, ...]:
        """Everybody who has a reference or a lease, in alphabetical order."""
        return self._entry.store._holders(self._entry)

    @property
    def tier(self) -> Tier:
        """The nearest place that has it now."""
        return self._entry.content.tier

    @property
    def dirty(self) -> bool:
        """Whether the device alone has what was written last: `synchronise(name, "host")` changes that."""
        content = self._entry.content
        return not content.copied and not content.shares_host

    @property
    def version(self) -> int:
        """How often it was written to."""
        return self._entry.version

    # -- values

    def host(self) -> HostArray:
        """The values on the host, not to be written to. Nothing is copied if the store has them there."""
        return self._entry.store._on_host(self._entry)

    def _host(self) -> HostArray:
        return self.host()

    def view(
        self,
        index: Any = None,
        *,
        shape: int | tuple[int, ...] | None = None,
        dtype: npt.DTypeLike | None = None,
        device: object | None = None,
        copy: Copying = "allow",
    ) -> Array:
        """A part of it, in another shape: what is written into one is seen in the other.

        With `copy="never"` no byte is copied, or `CopyNeeded` says why one would have to be.
        """
        from anygpu.store.views import view_of

        return view_of(self, index, shape=shape, dtype=dtype, device=device, copy=copy)

    if TYPE_CHECKING:
        # In place an array stays itself.
        def __iadd__(self, other: object) -> Tensor: ...
        def __isub__(self, other: object) -> Tensor: ...
        def __imul__(self, other: object) -> Tensor: ...
        def __itruediv__(self, other: object) -> Tensor: ...
        def __imatmul__(self, other: object) -> Tensor: ...

    def __repr__(self) -> str:
        namespace = f" in {'/'.join(map(repr, self.namespace))}" if self.namespace else ""
        about = f"shape={self.shape}, dtype={self.dtype.name}, device={self.device}, on {self.tier}"
        return f"Tensor({self.name!r}{namespace}, {about})"
