"""Values on their way in and out of calls: which arrays are anygpu's own, and what they become where."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from anygpu.array.core.array import Array, as_array, as_value
from anygpu.array.core.device import device_for
from anygpu.array.core.structure import flatten, unflatten

#: So many values of a call are looked at. More of them are data that should be an array.
_MOST_VALUES = 10_000


def leaves_among(arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Iterator[Any]:
    """The values of a call, wherever in containers and dataclasses they are. None of the user's code is run."""
    stack: list[Any] = [*arguments, *keywords.values()] if keywords else list(arguments)
    stack.reverse()
    for _ in range(_MOST_VALUES):
        if not stack:
            return
        each = stack.pop()
        kind = type(each)  # and not isinstance: an object may say of itself that it is something else
        if issubclass(kind, tuple):
            stack += tuple.__getitem__(each, slice(None, None, -1))
        elif issubclass(kind, list):
            stack += list.__getitem__(each, slice(None, None, -1))
        elif issubclass(kind, dict):
            stack += reversed(list(dict.values(each)))
        elif hasattr(kind, "__dataclass_fields__"):
            for name in reversed(kind.__dataclass_fields__):
                with contextlib.suppress(Exception):  # a field that was never set, or a property that raises
                    stack.append(getattr(each, name))
        else:
            yield each


def anygpu_arrays_in(arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Iterator[Array]:
    """All arrays of anygpu's own among the arguments."""
    for each in leaves_among(arguments, keywords):
        if issubclass(type(each), Array):
            yield each


_WITHOUT_BYTES = frozenset((float, int, str))


def bytes_of(arguments: tuple[Any, ...], keywords: dict[str, Any]) -> int:
    """The bytes of a call's arrays, wherever in its arguments they are."""
    total = 0
    for each in arguments:
        if type(each) is np.ndarray:
            total += each.nbytes
        elif type(each) not in _WITHOUT_BYTES:
            total += _nested_bytes((each,), {})
    return total + (_nested_bytes((), keywords) if keywords else 0)


def _nested_bytes(arguments: tuple[Any, ...], keywords: dict[str, Any]) -> int:
    """Bytes of all arrays among the arguments, nested ones too."""
    found = 0
    for each in leaves_among(arguments, keywords):
        with contextlib.suppress(Exception):  # of an object that raises whatever is asked
            found += int(getattr(each, "nbytes", 0))
    return found


def majority_device(arguments: tuple[Any, ...], keywords: dict[str, Any]) -> str | None:
    """The device that has most of the bytes of anygpu's own arrays; `None` when there are none."""
    found: dict[str, int] = {}
    for array in anygpu_arrays_in(arguments, keywords):
        found[array.device] = found.get(array.device, 0) + array.nbytes
    return max(found, key=lambda device: found[device]) if found else None


def as_numpy(value: Any) -> Any:
    """A value with anygpu's own arrays as NumPy's, read-only, and without a copy where they are on the host."""
    leaves, structure = flatten(value)
    return unflatten(structure, [np.asarray(leaf) if isinstance(leaf, Array) else leaf for leaf in leaves])


def call_on_numpy(function: Callable[..., Any], arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """Call a function of anygpu's own arrays on the host: it computes with NumPy's, and returns anygpu's."""
    given: list[Any] = []
    for each in arguments:
        kind = type(each)
        if kind is Array:
            given.append(each._shown())
        elif kind in _LEAVES:
            given.append(each)
        else:  # a container, which few calls have
            given = as_numpy(list(arguments))
            break
    return to_anygpu(function(*given, **as_numpy(keywords)) if keywords else function(*given))


#: Types of arguments that are no containers.
_LEAVES = frozenset((np.ndarray, float, int, bool, str, type(None)))


def to_anygpu(value: Any) -> Any:
    """NumPy's arrays of a result as anygpu's, on the host."""
    if type(value) is np.ndarray:  # as most results are
        return Array(as_value(value, device_for("numpy")))
    leaves, structure = flatten(value)
    host = device_for("numpy")
    arrays = [
        as_array(np.asarray(leaf), host) if isinstance(leaf, np.ndarray | np.generic) else leaf for leaf in leaves
    ]
    return unflatten(structure, arrays)


_NARROW = {"float64": "float32", "int64": "int32", "uint64": "uint32", "complex128": "complex64"}


def narrowing(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with its results narrowed to 32 bits, as `precision="float32"` wants them on every device."""
    return lambda *arguments, **keywords: _narrowed(function(*arguments, **keywords))


def _narrowed(value: Any) -> Any:
    """A value with its 64-bit numbers narrowed to 32 bits."""
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
