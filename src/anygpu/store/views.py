"""Views of tensors: which of them are free on which engine, and why the others are copies."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from anygpu.array.core.array import Array
from anygpu.array.core.device import device_for
from anygpu.array.core.expression import Value, compute
from anygpu.array.core.indexing import _parse
from anygpu.array.core.recording import apply, dtype_name
from anygpu.array.core.views import attach
from anygpu.engines.catalogue import traits_of
from anygpu.errors import CopyNeeded, InvalidOption
from anygpu.program.primitives import Flip, Primitive, Reshape, Slice, Spec, product
from anygpu.store.entry import Entry

Copying = Literal["allow", "never"]


def view_of(
    tensor: Array, entry: Entry, index: Any, *, shape: Any, dtype: Any, device: object | None, copy: Copying
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
