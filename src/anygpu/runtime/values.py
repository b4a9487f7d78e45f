"""Values on their way in and out of calls: which arrays are anygpu's own, and what they become where."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from anygpu.array.array import Array, as_array
from anygpu.array.expression import compute
from anygpu.array.place import place_for, to_numpy_dtype
from anygpu.array.structure import flatten, unflatten
from anygpu.program.graph import Program
from anygpu.runtime.recovery import Kept
from anygpu.workers.worker import Argument


def ours_among(arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Iterator[Array]:
    for each in (*arguments, *keywords.values()):
        if isinstance(each, Array):
            yield each
        elif isinstance(each, dict | tuple | list) or hasattr(type(each), "__dataclass_fields__"):
            yield from (leaf for leaf in flatten(each)[0] if isinstance(leaf, Array))


def home_of_ours(arguments: tuple[Any, ...], keywords: dict[str, Any]) -> str | None:
    """The device that has most of the bytes of anygpu's own arrays; `None` when there are none."""
    found: dict[str, int] = {}
    for array in ours_among(arguments, keywords):
        found[array.device] = found.get(array.device, 0) + array.nbytes
    return max(found, key=lambda device: found[device]) if found else None


def as_arguments(values: Sequence[Any], program: Program, resident: str | None) -> list[Argument]:
    """What a worker takes: arrays that are on the device `resident` stay there, everything else goes as NumPy's."""
    given: list[Argument] = []
    for value, spec in zip(values, program.inputs, strict=True):
        if isinstance(value, Array):
            if value.device == resident and value.dtype.name == spec.dtype:
                compute([value._value], value._place)
                buffer: Any = value._value.buffer
                given.append(buffer.live() if isinstance(buffer, Kept) else buffer)
                continue
            value = np.asarray(value)
        given.append(np.asarray(value, to_numpy_dtype(spec.dtype)))
    return given


def as_numpy(value: Any) -> Any:
    """anygpu's own arrays of arguments as NumPy's, without a copy where they are on the host."""
    leaves, structure = flatten(value)
    return unflatten(structure, [np.asarray(leaf) if isinstance(leaf, Array) else leaf for leaf in leaves])


def on_numpy(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function for anygpu's own arrays on the host: it computes with NumPy's, and returns anygpu's."""

    def called(*arguments: Any, **keywords: Any) -> Any:
        return as_ours(function(*as_numpy(arguments), **as_numpy(keywords)))

    return called


def as_ours(value: Any) -> Any:
    """NumPy's arrays of a result as anygpu's, on the host."""
    leaves, structure = flatten(value)
    host = place_for("numpy")
    arrays = [
        as_array(np.asarray(leaf), host) if isinstance(leaf, np.ndarray | np.generic) else leaf for leaf in leaves
    ]
    return unflatten(structure, arrays)


_NARROW = {"float64": "float32", "int64": "int32", "uint64": "uint32", "complex128": "complex64"}


def narrowing(function: Callable[..., Any]) -> Callable[..., Any]:
    """With `precision="float32"` results have the same types wherever they were computed."""
    return lambda *arguments, **keywords: _narrowed(function(*arguments, **keywords))


def _narrowed(value: Any) -> Any:
    leaves, structure = flatten(value)
    return unflatten(
        structure,
        [
            leaf.astype(_NARROW[leaf.dtype.name])
            if isinstance(leaf, np.ndarray | np.generic) and leaf.dtype.name in _NARROW
            else leaf
            for leaf in leaves
        ],
    )
