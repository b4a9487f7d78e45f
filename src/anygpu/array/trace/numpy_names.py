"""NumPy as a function that is being traced sees it: functions that do not dispatch, and attributes of arrays.

`attribute` answers for attributes that NumPy's arrays have and `Array` lacks. `NumpyNames` is the module `numpy` with
stand-ins (`REPLACED`) for functions that would ask an abstract array for its values.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np

from anygpu.array.core.abstract_device import AbstractDevice, ArrayInput
from anygpu.array.core.array import Array
from anygpu.array.core.call_notes import note, without_axes
from anygpu.array.core.expression import Tracer, active_tracer
from anygpu.array.core.numpy_results import Returns
from anygpu.array.core.traced_scalar import TracedScalar
from anygpu.array.core.views import follow_on_host, layout_of
from anygpu.base.typing import HostArray

# -- attributes that NumPy's arrays have and ours lack


def attribute(array: Array, name: str, recorder: Tracer) -> Any:
    """Return the attribute of the NumPy array that an abstract one stands for; ends the trace for all but `strides` and
    `flags`.

    What it returns depends on the memory layout of arguments, which guards check from then on.
    """
    if name == "strides":
        return _example(array, name, recorder).strides
    if name == "flags":
        return _Flags(_example(array, name, recorder).flags, recorder)
    recorder.stop(f"it uses the {name} of an array")


def is_c_contiguous(array: Array, recorder: Tracer) -> bool:
    """Return whether NumPy's array would lie in C order."""
    return bool(_example(array, "flags", recorder).flags.c_contiguous)


def _example(array: Array, name: str, recorder: Tracer) -> HostArray:
    """Return a NumPy array with the memory layout that this one would have; it is not to be read. Ends the trace where
    it is unknown.
    """
    view = array._view
    stored = (array if view is None else view.base)._stored
    if isinstance(stored.buffer, ArrayInput) and (view is None or view.can_be_followed):
        return follow_on_host(() if view is None else view.path, recorder.layout_of(stored.buffer.position))
    layout = layout_of(array)
    if layout is None:
        recorder.stop(f"it asks for the {name} of an array whose memory layout only NumPy knows")
    return np.empty_like(layout) if view is None else layout


class _Flags:
    """The flags of an array, read-only while a function is traced."""

    __slots__ = ("_flags", "_recorder")

    def __init__(self, flags: Any, recorder: Tracer) -> None:
        object.__setattr__(self, "_flags", flags)
        object.__setattr__(self, "_recorder", recorder)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._flags, name)

    def __getitem__(self, name: str) -> Any:
        return self._flags[name]

    def __setattr__(self, name: str, value: Any) -> None:
        self._recorder.stop(f"it sets the flag {name} of an array")

    def __setitem__(self, name: str, value: Any) -> None:
        self._recorder.stop(f"it sets the flag {name} of an array")


# -- names of NumPy
# `np.asarray(x)`, `np.array(x)` and their like look at what they are given and ask for its values. So a traced function
# finds others in their place, which leave arrays that are being traced as they are.


def _is_traced(value: Any) -> bool:
    """Return whether a value is an array or a number that is traced."""
    return isinstance(value, Array) or type(value) is TracedScalar


def _holds_traced(value: Any) -> bool:
    """Return whether a value, or an element of a list, is traced."""
    return _is_traced(value) or (isinstance(value, list | tuple) and any(map(_holds_traced, value)))


def _stop(name: str) -> NoReturn:
    """Stop tracing: this function of NumPy cannot be traced with these arguments."""
    tracer = active_tracer.get()
    assert tracer is not None
    tracer.stop(f"it calls np.{name} in a way that anygpu cannot trace")


def _is_in_c_order(array: Array) -> bool:
    """Return whether a traced array would lie in C order."""
    tracer = active_tracer.get()
    assert tracer is not None
    return is_c_contiguous(array, tracer)


def _as_array(value: Any) -> Any:
    """Return an array of a traced value as `np.array` makes one: a number gets no axes, lists of arrays are stacked."""
    if isinstance(value, Array):
        return value
    if type(value) is TracedScalar:
        return Array(value.strong)
    parts = [_as_array(each) if _holds_traced(each) else np.asarray(each) for each in value]
    stacked = np.stack(np.broadcast_arrays(*parts) if _are_scalars(parts) else parts)
    tracer = active_tracer.get()
    assert isinstance(tracer, AbstractDevice)
    return note(tracer, Returns("new", "C", "array"), np.array, (), {}, stacked)


def _are_scalars(parts: list[Any]) -> bool:
    """Return whether all parts are without axes."""
    return all(each.ndim == 0 for each in parts)


def _in_dtype(array: Any, dtype: Any, copy: bool | None, order: str) -> Any:
    """Return an array with this dtype, copied where NumPy would copy it; raises `ValueError` if a copy is forbidden."""
    wanted = array.dtype if dtype is None else np.dtype(dtype)
    if wanted != array.dtype:
        if copy is False:
            raise ValueError("Unable to avoid copy while creating an array as requested.")
        return array.astype(wanted, order)
    return array.copy(order) if copy else array


def _without_like(options: dict[str, Any]) -> bool:
    """Return whether only options are used that can be traced: no `like`, and no device but the host."""
    return set(options) <= {"dtype", "order", "copy", "device", "ndmin", "subok"} and options.get("device") in (
        None,
        "cpu",
    )


def _made(real: Callable[..., Any], always_copies: bool) -> Callable[..., Any]:
    """Return a version of `np.asarray`, `np.asanyarray` or `np.array` that leaves traced arrays abstract.

    Without traced arrays it is NumPy's function `real`. Orders other than C and K, and options that cannot be traced,
    end the trace.
    """

    def make(a: Any, dtype: Any = None, *more: Any, **options: Any) -> Any:
        if not _holds_traced(a):
            return real(a, dtype, *more, **options)
        order = more[0] if more else options.get("order", "K")
        if len(more) > 1 or not _without_like(options) or order not in (None, "K", "C", "A"):
            _stop(real.__name__)
        array = _as_array(a)
        copy = options.get("copy", True if always_copies else None)
        if order == "C" and not copy and not _is_in_c_order(array):
            copy = True
        made = _in_dtype(array, dtype, copy, order or "K")
        if made._is_number:
            made = without_axes(made)
        missing = options.get("ndmin", 0) - made.ndim
        return made.reshape((1,) * missing + made.shape) if missing > 0 else made

    make.__name__ = real.__name__
    return make


def _ascontiguousarray(a: Any, dtype: Any = None, *, like: Any = None) -> Any:
    """Return what `np.ascontiguousarray` returns, for traced arrays too."""
    if not _holds_traced(a) or like is not None:
        return np.ascontiguousarray(a, dtype) if like is None else np.ascontiguousarray(a, dtype, like=like)
    made = _asarray(a, dtype, order="C")
    return made.reshape(1) if made.ndim == 0 else made


def _asarray_chkfinite(a: Any, dtype: Any = None, order: Any = None) -> Any:
    """Return what `np.asarray_chkfinite` returns; a traced array ends the trace, because its values are needed."""
    if _holds_traced(a):
        _stop("asarray_chkfinite")
    return np.asarray_chkfinite(a, dtype, order)


def _refused(name: str) -> Callable[..., Any]:
    """Return a version of a function that stops tracing when it is given traced arrays."""

    def refuse(a: Any, *more: Any, **options: Any) -> Any:
        if _holds_traced(a):
            _stop(name)
        return getattr(np, name)(a, *more, **options)

    return refuse


def _errstate(**modes: Any) -> np.errstate:
    """Return `np.errstate`; in a trace that hears warnings, "warn" becomes "call"."""
    tracer = active_tracer.get()
    if tracer is not None:
        tracer.warns_anyway |= "warn" in modes.values()
    if isinstance(tracer, AbstractDevice) and tracer.hears_warnings and "call" not in modes:
        modes = {name: "call" if mode == "warn" else mode for name, mode in modes.items()}
    return np.errstate(**modes)


_asarray = _made(np.asarray, False)

#: By the identity of NumPy's own.
REPLACED: dict[int, Callable[..., Any]] = {
    id(np.asarray): _asarray,
    id(np.asanyarray): _made(np.asanyarray, False),
    id(np.array): _made(np.array, True),
    id(np.ascontiguousarray): _ascontiguousarray,
    id(np.asarray_chkfinite): _asarray_chkfinite,
    id(np.asfortranarray): _refused("asfortranarray"),
    id(np.require): _refused("require"),
    id(np.errstate): _errstate,
}


class NumpyNames(types.ModuleType):
    """The module `numpy` with those in their place."""

    def __init__(self, taken: Callable[[str, Any], Any]) -> None:
        super().__init__("numpy")
        self.__dict__["_taken"] = taken

    def __getattr__(self, name: str) -> Any:
        value = getattr(np, name)
        found = REPLACED.get(id(value))
        return self.__dict__["_taken"](name, value) if found is None else found

    def __setattr__(self, name: str, value: Any) -> None:
        tracer = active_tracer.get()
        if tracer is not None:
            tracer.stop(f"it sets np.{name}")
