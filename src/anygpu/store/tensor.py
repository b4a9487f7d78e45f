"""`Tensor`: an array that a store keeps by name and brings to its device when it is used; and views of tensors.

The first part decides whether a view of a tensor can share its memory on an engine, and says why not where it cannot.
`Tensor` itself is an `Array` whose buffer is found anew at each use, as the store may have moved it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
import numpy.typing as npt

from anygpu.array.core.array import Array
from anygpu.array.core.device import ArrayDevice, device_for, to_numpy_dtype
from anygpu.array.core.expression import Value, compute
from anygpu.array.core.indexing import _parse
from anygpu.array.core.recording import apply, dtype_name
from anygpu.array.core.views import attach
from anygpu.base.typing import HostArray
from anygpu.engines.catalogue import traits_of
from anygpu.errors import CopyNeeded, InvalidOption
from anygpu.program.primitives import Flip, Primitive, Reshape, Slice, Spec, product
from anygpu.store.entry import NamedEntry
from anygpu.store.report import Tier

if TYPE_CHECKING:
    from anygpu.store.store import Store


# -- views: which are free on which engine, and why the others are copies


Copying = Literal["allow", "never"]


def view_of(
    tensor: Array, entry: NamedEntry, index: Any, *, shape: Any, dtype: Any, device: object | None, copy: Copying
) -> Array:
    """`Tensor.view`."""
    if copy not in ("allow", "never"):
        raise InvalidOption(f'copy is "allow" or "never"; got {copy!r}.')
    store, name = entry.store, entry.name
    wanted_place = tensor._device if device is None else device_for(device)
    wanted_dtype = entry.spec.dtype if dtype is None else dtype_name(dtype)
    path, picks = _path_of(entry.spec, index, shape)
    spec = _spec_after(entry.spec, path)
    engine = tensor.device.partition(":")[0]
    why = _why_not(tensor.device, entry.spec, path, picks, wanted_place is not tensor._device, wanted_dtype)
    if copy == "never":
        if why is not None:
            raise CopyNeeded(name, why, spec.nbytes)
        if entry.content.tier != "device" and not entry.content.shares_host:
            where = "the host" if entry.content.tier == "host" else "disk"
            raise CopyNeeded(name, f"it is on {where} now", entry.spec.nbytes)
    result: Array = tensor
    if picks:
        result = tensor[index]
        if shape is not None:
            result = result.reshape(shape)
    else:
        value = tensor._stored
        if _changes_nothing(entry.spec, path):
            value = Value.on(tensor._device, value.buffer, value.spec)
        else:
            for op in path:
                value = apply(op, value)
        result = attach(Array(value), tensor, path)
    if why is None:
        value = result._value
        compute([value], tensor._device)  # nothing but an offset and a shape
        store._add_view(entry, value)
        return result
    compute([result._value], tensor._device)
    if picks or why_copied(engine, entry.spec, path) is not None:
        store._count("on_device", result.nbytes)
    if wanted_dtype != entry.spec.dtype:
        result = result.astype(wanted_dtype).compute()
        store._count("on_device", result.nbytes)
    if wanted_place is not tensor._device:
        result = result.to_device(wanted_place)
        store._count("to_host", result.nbytes)
        store._count("to_device", result.nbytes)
    return result


def _path_of(spec: Spec, index: Any, shape: Any) -> tuple[tuple[Primitive, ...], bool]:
    """The steps to the view, and whether positions are picked one by one, which no view can."""
    path: tuple[Primitive, ...] = ()
    if index is not None:
        basic = _parse(_Shaped(spec.shape), index)  # type: ignore[arg-type]
        if basic.picks:
            return (), True
        path = basic.path
    if shape is not None:
        now = _spec_after(spec, path).shape
        path = (*path, Reshape(_full(now, shape)))
    if not path:
        path = (Reshape(spec.shape),)
    return path, False


class _Shaped:
    """The shape that an index is checked against."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape
        self.ndim = len(shape)


def _full(now: tuple[int, ...], shape: Any) -> tuple[int, ...]:
    """The shape with -1 replaced."""
    wanted = (shape,) if isinstance(shape, int) else tuple(shape)
    known = product(tuple(each for each in wanted if each != -1))
    full = tuple(product(now) // known if each == -1 and known else each for each in wanted)
    if product(full) != product(now) or wanted.count(-1) > 1:
        raise ValueError(f"an array of shape {now} does not fit into the shape {wanted}.")
    return full


def _spec_after(spec: Spec, path: tuple[Primitive, ...]) -> Spec:
    """Returns shape and dtype after these operations."""
    for op in path:
        spec = op.infer(spec)
    return spec


def _why_not(device: str, spec: Spec, path: tuple[Primitive, ...], picks: bool, moves: bool, dtype: str) -> str | None:
    """Why a copy is needed; `None` if it is not."""
    if picks:
        return "integer-array indexing gathers elements"
    if dtype != spec.dtype:
        return f"its elements are {spec.dtype}, and {dtype} was asked for"
    if moves:
        return f"it is on {device}, and another device was asked for"
    return why_copied(device.partition(":")[0], spec, path)


def why_copied(engine: str, spec: Spec, path: tuple[Primitive, ...]) -> str | None:
    """Why an engine copies the elements of the path; `None` if it returns a view."""
    if not _spec_after(spec, path).nbytes:
        return None
    match traits_of(engine).views:
        case "strided":
            return _why_not_strided(spec, path)
        case "forward":
            if any(isinstance(op, Flip) for op in path):
                return f"{engine} has no negative strides"
            return _why_not_strided(spec, path)
        case "contiguous":
            return _why_no_run(engine, spec, path)
        case "none":
            return None if _changes_nothing(spec, path) else f"{engine} has no arrays that share memory"


def _changes_nothing(spec: Spec, path: tuple[Primitive, ...]) -> bool:
    return all(isinstance(op, Reshape) and op.shape == spec.shape for op in path)


def _why_not_strided(spec: Spec, path: tuple[Primitive, ...]) -> str | None:
    """Ask NumPy itself, with an array that has the strides and no memory."""
    strides: list[int] = []
    step = 1
    for length in reversed(spec.shape):
        strides.insert(0, step)
        step *= max(length, 1)
    dummy = np.lib.stride_tricks.as_strided(np.empty(1, np.int8), spec.shape, strides, writeable=False)
    for op in path:
        if isinstance(op, Slice):
            dummy = dummy[tuple(slice(*each) for each in zip(op.starts, op.stops, op.steps, strict=True))]
        elif isinstance(op, Flip):
            dummy = np.flip(dummy, op.axes)
        elif isinstance(op, Reshape):
            try:
                dummy = np.reshape(dummy, op.shape, copy=False)
            except ValueError:
                return f"its strides do not allow the shape {op.shape}"
    return None


def _why_no_run(engine: str, spec: Spec, path: tuple[Primitive, ...]) -> str | None:
    """Arrays there are elements one after the other from an offset on."""
    for op in path:
        if isinstance(op, Flip):
            return f"its strides are negative, and arrays on {engine} are contiguous"
        if isinstance(op, Slice):
            taken = op.infer(spec).shape
            several = [axis for axis in range(len(taken)) if taken[axis] > 1]
            if several and (op.steps[several[0]] != 1 or taken[several[0] + 1 :] != spec.shape[several[0] + 1 :]):
                return f"its elements are not contiguous, as arrays on {engine} have them"
        spec = op.infer(spec)
    return None


# -- tensors


def tensor_of(entry: NamedEntry) -> Tensor:
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

    def __init__(self, entry: NamedEntry) -> None:
        self._entry = entry
        self._view = None
        self._shared = None

    @property
    def _stored(self) -> Value:
        """The value on the device, which is brought there if it was evicted. Setting it makes the next version."""
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
        """The name in its store, without the namespace."""
        return self._entry.name

    @property
    def namespace(self) -> tuple[str, ...]:
        """The namespace that the name is in; empty outside of all."""
        return self._entry.key[:-1]

    @property
    def store(self) -> Store:
        """The store that keeps it."""
        return cast("Store", self._entry.store)

    @property
    def owner(self) -> str:
        """The holder that may put another array in its place."""
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

    def _shown(self) -> HostArray:
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
