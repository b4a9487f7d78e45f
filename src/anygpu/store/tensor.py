"""`Tensor`: an array that a store keeps by name, and that is brought to its device when it is used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt

from anygpu.array.core.array import Array
from anygpu.array.core.device import ArrayDevice, to_numpy_dtype
from anygpu.array.core.expression import Value
from anygpu.base.typing import HostArray
from anygpu.program.primitives import Spec
from anygpu.store.entry import Entry
from anygpu.store.report import Tier
from anygpu.store.views import Copying, view_of

if TYPE_CHECKING:
    from anygpu.store.store import Store


def tensor_of(entry: Entry) -> Tensor:
    """The tensor that was created with the entry."""
    tensor = entry.tensor
    assert isinstance(tensor, Tensor)
    return tensor


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
    def _device(self) -> ArrayDevice:
        return self._entry.content.device_handle

    @property
    def name(self) -> str:
        return self._entry.name

    @property
    def namespace(self) -> tuple[str, ...]:
        return self._entry.key[:-1]

    @property
    def store(self) -> Store:
        return cast("Store", self._entry.store)

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
        return view_of(self, self._entry, index, shape=shape, dtype=dtype, device=device, copy=copy)

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
