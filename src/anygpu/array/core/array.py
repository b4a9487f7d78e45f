"""`Array`: an n-dimensional array that is computed when its values are needed.

It follows the Python Array API standard and takes part in NumPy's own protocols, so `np.exp(x @ w).mean(axis=0)` works
unchanged. Operators record; `np.asarray(x)`, `bool(x)`, `x.item()` and the like compute.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import MethodType
from typing import Any
from weakref import ref

import numpy as np
import numpy.typing as npt

from anygpu.array.core import recording
from anygpu.array.core.abstract_device import AbstractDevice, ArrayInput
from anygpu.array.core.device import ArrayDevice, device_for, to_numpy_dtype, with_event
from anygpu.array.core.expression import Value, active_tracer, compute, linearise, note_error
from anygpu.array.core.methods import NumpyMethods, Operators
from anygpu.array.core.overrides import (
    call_function,
    call_plain_ufunc,
    call_ufunc,
    get_item,
    imitate_attribute,
    note_result,
    override,
    set_item,
)
from anygpu.array.core.recording import Operand, binary, dtype_name, is_array_dtype
from anygpu.array.core.traced_scalar import TracedScalar
from anygpu.array.core.views import SharedState, View, write
from anygpu.base import events
from anygpu.base.events import drawn
from anygpu.base.typing import HostArray
from anygpu.errors import InvalidOption
from anygpu.program.dtypes import DType
from anygpu.program.functions import BinaryFunction, UnaryFunction
from anygpu.program.graph import Program
from anygpu.program.primitives import Reshape, Spec

API_VERSION = "2024.12"


#: What `np.asarray` looks for before it calls `__array__`: that an array has none is said without delay.
_ASKED_BY_NUMPY = {
    name: f"'Array' object has no attribute {name!r}" for name in ("__array_struct__", "__array_interface__")
}


class _OursOnly:
    """A method that NumPy's arrays do not have: a function that is being traced gets an `AttributeError`, as from
    NumPy.
    """

    def __init__(self, function: Any) -> None:
        self.__wrapped__ = function
        self.__doc__ = function.__doc__

    def __set_name__(self, owner: type[Any], name: str) -> None:
        self._name = name

    def __get__(self, array: Any, owner: type[Any] | None = None) -> Any:
        if array is None:
            return self.__wrapped__
        _ours_only(self._name)
        return MethodType(self.__wrapped__, array)


class Array(NumpyMethods, Operators):
    """A lazy array. Made by `asarray`, `zeros` and the other creation functions, and by operations on arrays.

    Operations record a `Value`, and values are computed when they are asked for. An array may be a view of another
    (`views`): `_stored` is its value at some version of its base, and `_value` brings it up to date. Arrays are not
    locked: a thread that writes to one must be the only one to use it.
    """

    __slots__ = ("__weakref__", "_shared", "_stored", "_view")

    #: Before any subclass of ndarray in mixed operations.
    __array_priority__ = 1000

    _stored: Value
    _view: View | None
    #: Shared with the views of this array, once there are any.
    _shared: SharedState | None

    def __init__(self, value: Value) -> None:
        try:
            holder = value.holder
        except AttributeError:
            raise TypeError("an Array is not made directly: use anygpu.asarray(...)") from None
        if holder is not None:  # the value already belongs to another array
            value = _fresh(value)
        self._stored = value
        self._view = None
        self._shared = None
        value.holder = ref(self)
        tracer = active_tracer.get()
        if tracer is not None:
            tracer.shown.append(value)

    @property
    def _value(self) -> Value:
        """The value of this array as it is now. A view whose base was written to since follows its path again."""
        view = self._view
        if view is not None and view.stale:
            self._stored = view.look()
            self._stored.holder = ref(self)
        return self._stored

    @property
    def __class__(self) -> type[Any]:
        """While a function is traced, its arrays are what they stand for: NumPy's arrays, and NumPy's numbers."""
        if active_tracer.get() is None:
            return type(self)
        return self._imitated

    @__class__.setter
    def __class__(self, kind: object) -> None:
        raise TypeError("the class of an Array cannot be set.")

    @property
    def _imitated(self) -> type[Any]:
        """The class that the array stands in for: NumPy's array, or its scalar where NumPy has a number."""
        stored = self._stored
        is_number = not stored.spec.shape and self._view is None and not isinstance(stored.buffer, ArrayInput)
        kind: type[Any] = self.dtype.type if is_number else np.ndarray
        return kind

    def __getattr__(self, name: str) -> Any:
        tracer = active_tracer.get()
        if tracer is None and name in _ASKED_BY_NUMPY:
            raise AttributeError(_ASKED_BY_NUMPY[name])
        if tracer is None or name.startswith("_") or not hasattr(self._imitated, name):
            shown = type(self).__name__ if tracer is None else f"numpy.{self._imitated.__name__}"
            raise AttributeError(f"{shown!r} object has no attribute {name!r}", name=name, obj=self)
        return imitate_attribute.call(self, name, tracer)

    # Facts

    @property
    def shape(self) -> tuple[int, ...]:
        """The length of each axis."""
        return self._stored.spec.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the elements."""
        return to_numpy_dtype(self._stored.spec.dtype)

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self._stored.spec.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return self._stored.spec.size

    @property
    def nbytes(self) -> int:
        """The bytes of all elements."""
        return self._stored.spec.nbytes

    @property
    def itemsize(self) -> int:
        """The bytes of one element."""
        return self.dtype.itemsize

    @property
    def device(self) -> str:
        """The name of the device that has the array; "cpu" while a function is traced, as for NumPy's arrays."""
        return self._device.device if active_tracer.get() is None else "cpu"

    def _facts(self) -> tuple[str, tuple[int, ...], DType]:
        """The device's name, the shape and the name of the dtype, in one call: every offloaded call asks for them."""
        value = self._stored
        device = value.device or device_for(None)
        shape, dtype = value.spec
        return device.device if active_tracer.get() is None else "cpu", shape, dtype

    @property
    def _device(self) -> ArrayDevice:
        """The device that has the array."""
        return self._stored.device or device_for(None)

    @property
    def base(self) -> Array | None:
        """The array that this one is a view of, as NumPy has it."""
        _ask_for(self, "it asks for the base of an array")
        return None if self._view is None else self._view.base

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError(self._unsized("len() of unsized object", "object of type {} has no len()"))
        return self.shape[0]

    def __repr__(self) -> str:
        _ask_for(self, "it writes an array as text")
        about = f"shape={self.shape}, dtype={self.dtype.name}, device={self.device}"
        if not self._value.computed:
            return f"Array({about}, not computed yet)"
        if self.size > 1000:
            return f"Array({about})"
        values = np.array2string(np.asarray(self), prefix="Array(", separator=", ")
        return f"Array({values}, dtype={self.dtype.name}, device={self.device})"

    @_OursOnly
    def _repr_html_(self) -> str | None:
        return drawn(self)

    # Values

    @_OursOnly
    def compute(self) -> Array:
        """Compute now, and leave the result on the device. Returns the array itself."""
        compute([self._value], self._device)
        return self

    @_OursOnly
    def numpy(self) -> HostArray:
        """The values as a NumPy array of their own, which may be written to."""
        return np.array(self)

    @property
    def program(self) -> Program:
        """The program that is still to be computed for this array."""
        _ours_only("program")
        return linearise([self._value])[0]

    def _host(self) -> HostArray:
        """The values on the host, computed if they are not yet. They may be the device's own memory: not to be written
        to.
        """
        # As in `_binary`: the property only where there is a view.
        value = self._stored if self._view is None else self._value
        device = value.device or device_for(None)
        if value.op is not None:
            compute([value], device)
        if events.array_work:
            return with_event("download", device, value.buffer)  # type: ignore[no-any-return]
        return device.download(value.buffer)

    def _shown(self) -> HostArray:
        """The values as a read-only NumPy array: it may be the device's own memory, which other arrays share."""
        value = self._stored if self._view is None else self._value
        device = value.device
        if value.op is None and device is not None and not events.array_work:
            values = device.download(value.buffer)
        else:
            values = self._host()
        shown = values.view()
        shown.setflags(False)  # type: ignore[call-arg] # by position, in half of the time
        return shown

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> HostArray:
        if dtype is None and not copy:
            return self._shown()
        values = self._host()
        if dtype is not None and values.dtype != dtype:
            if copy is False:
                raise ValueError(f"a change of type from {values.dtype} to {np.dtype(dtype)} needs a copy.")
            return values.astype(dtype)
        if copy:
            return values.copy()
        shown = values.view()
        shown.flags.writeable = False  # it may be the device's own memory, which other arrays share
        return shown

    def item(self, *position: int) -> Any:
        """One element, as a number of Python's."""
        return self._host().item(*position)

    def tolist(self) -> Any:
        """The elements as nested lists of numbers."""
        return self._host().tolist()

    def tobytes(self) -> bytes:
        """The elements as bytes, in C order."""
        return self._host().tobytes()

    def _only(self, what: str) -> Any:
        """The only element as a number of Python's, computed if need be; raises `ValueError` if there are more, or
        none.
        """
        if self.size != 1:
            error = ValueError(f"only an array with one element can become {what}; this one has {self.size}.")
            note_error(error)
            raise error
        return self._host().reshape(()).item()

    def __bool__(self) -> bool:
        if self.size != 1:
            raise ValueError(
                "The truth value of an array with more than one element is ambiguous. Use a.any() or a.all()"
                if self.size
                else "The truth value of an empty array is ambiguous. Use `array.size > 0` to check that an array is "
                "not empty."
            )
        return bool(self._only("a bool"))

    def __int__(self) -> int:
        value = self._only("an int")
        if isinstance(value, complex):
            raise TypeError("a complex number cannot become an int: take x.real first.")
        return int(value)

    def __float__(self) -> float:
        value = self._only("a float")
        if isinstance(value, complex):
            raise TypeError("a complex number cannot become a float: take x.real first.")
        return float(value)

    def __complex__(self) -> complex:
        return complex(self._only("a complex number"))

    def __index__(self) -> int:
        if self.dtype.kind not in "iu" or self.shape:
            raise TypeError("only an array of integers without axes can be an index.")
        return int(self._only("an index"))

    def __round__(self, digits: int | None = None) -> Any:
        if self.shape or self._imitated is np.ndarray:
            raise TypeError("type numpy.ndarray doesn't define __round__ method")
        if digits is None:
            return round(self._only("an int"))
        return override(np.round)(self, digits)

    def __iter__(self) -> Iterator[Array]:
        if not self.shape:
            raise TypeError(self._unsized("iteration over a 0-d array", "{} object is not iterable"))
        return (self[position] for position in range(self.shape[0]))

    def _unsized(self, of_array: str, of_number: str) -> str:
        """NumPy's own message where there are no axes, for an array or a scalar: functions catch it to ask whether
        there are any.
        """
        return of_number.format(f"'numpy.{self.dtype.name}'") if self._is_number else of_array

    def __contains__(self, item: object) -> bool:
        return bool(np.any(np.asarray(self) == item))

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickle, (np.asarray(self), self.device)

    def __copy__(self) -> Array:
        return self.copy()

    def __deepcopy__(self, memory: object) -> Array:
        return self.copy()

    def __format__(self, how: str) -> str:
        return format(self.item(), how) if not self.shape else format(str(self), how)

    def __hash__(self) -> int:
        if active_tracer.get() is not None:
            _ask_for(self, "it hashes a number", unless=np.ndarray)
            raise TypeError("unhashable type: 'numpy.ndarray'")
        raise TypeError("an Array cannot be hashed: it can change. Use x.tobytes() or id(x) as the key.")

    # Devices and other libraries

    def to_device(self, device: object, /, *, stream: object = None) -> Array:
        """The array on another device; itself if it is there already."""
        if stream is not None:
            raise InvalidOption("anygpu orders its transfers itself: omit stream.")
        target = device_for(device)
        if target is self._device:
            return self
        return Array(Value.on(target, _uploaded(target, self._host()), self._value.spec))

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._native().__dlpack_device__()  # type: ignore[no-any-return]

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        wishes = {"stream": stream, "max_version": max_version, "dl_device": dl_device, "copy": copy}
        # Libraries differ in which of these they know, so only what is asked for is passed on.
        return self._native().__dlpack__(**{name: wish for name, wish in wishes.items() if wish is not None})

    def _native(self) -> Any:
        """The array as an object of the engine's own library."""
        compute([self._value], self._device)
        return self._device.native(self._value.buffer)

    def __array_namespace__(self, *, api_version: str | None = None) -> Any:
        if api_version not in (None, "2021.12", "2022.12", "2023.12", API_VERSION):
            raise ValueError(f"anygpu follows the Array API standard {API_VERSION}, not {api_version}.")
        return sys.modules["anygpu"] if active_tracer.get() is None else np

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        if not options and method == "__call__":
            result = call_plain_ufunc.call(ufunc, inputs)
            if result is not None:
                return result
        return call_ufunc.call(ufunc, method, inputs, options)

    def __array_function__(self, function: Any, types: Any, arguments: Any, options: Any) -> Any:
        return call_function.call(function, arguments, options)

    # Indexing

    def __getitem__(self, key: Any) -> Array:
        try:
            return get_item.call(self, key)
        except Exception as error:
            note_error(error)
            raise

    def __setitem__(self, key: Any, value: Any) -> None:
        try:
            set_item.call(self, key, value)
        except Exception as error:
            note_error(error)
            raise

    # Operators

    def _binary(self, fn: BinaryFunction, other: object) -> Array:
        """The result of `self fn other`; `NotImplemented` for an operand that is no number or array."""
        # This is on the way of every operation, so the property `_value` is only asked where there is a view.
        operand: Operand | None
        if type(other) is Array:
            operand = other._stored if other._view is None else other._value
        else:
            operand = _operand(other, self)
        if operand is None:
            return NotImplemented  # type: ignore[no-any-return]
        try:
            return Array(binary(fn, self._stored if self._view is None else self._value, operand))
        except Exception as error:
            note_error(error)
            raise

    def _swapped(self, fn: BinaryFunction, other: object) -> Array:
        """The result of an operator whose left operand is not an `Array`"""
        operand = _operand(other, self)
        if operand is None:
            return NotImplemented  # type: ignore[no-any-return]
        try:
            return Array(binary(fn, operand, self._value))
        except Exception as error:
            note_error(error)
            raise

    def _compare(self, fn: BinaryFunction, other: object) -> Array:
        """The result of a comparison."""
        try:
            if type(other) is Array:
                one = self._stored if self._view is None else self._value
                two = other._stored if other._view is None else other._value
                return Array(binary(fn, one, two) if one.spec == two.spec else recording.compare(fn, one, two))
            operand = _operand(other, self)
            if operand is None:
                return NotImplemented  # type: ignore[no-any-return]
            return Array(recording.compare(fn, self._value, operand))
        except Exception as error:
            note_error(error)
            raise

    def _in_place(self, fn: BinaryFunction, other: object) -> Array:
        """Write the result of `self fn other` into this array, as `+=` does, and return the array; a new one for a
        scalar.
        """
        result = self._binary(fn, other)
        if result is NotImplemented or self._is_number:
            return result
        try:
            return self._assign(result)
        except Exception as error:
            note_error(error)
            raise

    @property
    def _is_number(self) -> bool:
        """Whether it stands for a NumPy scalar, which is immutable: `+=` gives a new one."""
        return not self._stored.spec.shape and active_tracer.get() is not None and self._imitated is not np.ndarray

    def _assign(self, result: Array) -> Array:
        """Write a result into this array, which keeps its shape and dtype, and return the array.

        Raises `ValueError` for another shape, and `TypeError` for a dtype that "same_kind" casting does not allow.
        """
        value = result._value
        if value.spec.shape != self.shape:
            raise ValueError(f"a result of shape {value.spec.shape} does not fit into an array of shape {self.shape}.")
        wanted = self._stored.spec.dtype
        if not np.can_cast(value.spec.dtype, wanted, "same_kind"):
            raise TypeError(
                f"a result of {value.spec.dtype} does not fit into an array of {wanted}. "
                "Write x = x + y instead of x += y, or convert one of them with astype first."
            )
        write(self, recording.cast(value, wanted))
        return self

    def _unary(self, fn: UnaryFunction) -> Array:
        """The result of an elementwise function."""
        try:
            return Array(recording.unary(fn, self._value))
        except Exception as error:
            note_error(error)
            raise

    def _power(self, exponent: object) -> Array:
        """The power; `NotImplemented` for an exponent that is no number or array."""
        operand = _operand(exponent, self)
        if operand is None:
            return NotImplemented  # type: ignore[no-any-return]
        try:
            is_number = not isinstance(exponent, np.ndarray | list | tuple) or getattr(exponent, "_is_number", False)
            if self._is_number and is_number:  # NumPy has another power for its scalars
                return Array(binary("power", self._value, operand))
            return Array(recording.power(self._value, operand, by_operator=True))
        except Exception as error:
            note_error(error)
            raise

    # Changes in place that have no operator

    def fill(self, value: Any) -> None:
        """Set all elements to a value."""
        self[...] = value

    def sort(self, axis: int = -1, kind: str | None = None, order: None = None, *, stable: bool | None = None) -> None:
        """Sort along an axis, in place."""
        self._assign(override(np.sort)(self, axis=axis))

    def copy(self, order: str = "C") -> Array:
        """The same values in an array of its own. Nothing is computed or copied before it must be."""
        return self._noted(np.ndarray.copy, Array(_fresh(self._value)), order)

    def astype(self, dtype: npt.DTypeLike, order: str = "K", *, copy: bool = True) -> Array:
        """The array with another type of elements; itself if it has that and no copy is asked for."""
        name = dtype_name(dtype)
        if name == self._stored.spec.dtype and not copy:
            return self
        return self._noted(np.ndarray.astype, Array(_fresh(recording.cast(self._value, name))), order)

    def _noted(self, method: Any, made: Array, order: str) -> Array:
        """The array that a method made, with its memory order noted while a function is traced."""
        if active_tracer.get() is None:
            return made
        noted: Array = note_result.call(method, (self,), {"order": order}, made)
        return noted


def _fresh(value: Value) -> Value:
    """A second value for the same elements, which another array may hold: a reshape to the same shape, free on every
    engine.
    """
    return recording.apply(Reshape(value.spec.shape), value, spec=value.spec)


def _ours_only(name: str) -> None:
    """Raise `AttributeError` while a function is traced: NumPy's arrays have no such attribute."""
    if active_tracer.get() is not None:
        raise AttributeError(f"'numpy.ndarray' object has no attribute {name!r}", name=name)


def _ask_for(array: Array, what: str, unless: type[Any] | None = None) -> None:
    """End the trace, if there is one: only NumPy's own array knows."""
    tracer = active_tracer.get()
    if tracer is not None and array._imitated is not unless:
        tracer.stop(what)


_PYTHON_NUMBERS = frozenset((bool, int, float, complex, TracedScalar))


def _operand(other: object, array: Array) -> Operand | None:
    """The other operand of an operator as a value or Python number; `None` when its type is not ours to handle."""
    if type(other) in _PYTHON_NUMBERS:
        return other  # type: ignore[return-value]
    if isinstance(other, Array):
        return other._value
    if isinstance(other, np.generic | np.ndarray | list | tuple):
        return as_value(np.asarray(other), array._device)
    return None


def is_numpys(value: Any) -> bool:
    """Whether it is a NumPy array, and not an `Array` that looks like one because a function is traced."""
    return isinstance(value, np.ndarray) and not isinstance(value, Array)


def _uploaded(device: ArrayDevice, values: HostArray) -> Any:
    """Values on a device, told to those who observe transfers."""
    return with_event("upload", device, values) if events.array_work else device.upload(values)


def as_value(values: HostArray, device: ArrayDevice) -> Value:
    """A NumPy array as a value: without axes a constant of the program, otherwise uploaded, in native byte order.

    On an abstract device it becomes a constant or an input of the trace.
    """
    if type(device) is AbstractDevice:
        return device.met(values)
    dtype = values.dtype
    if not dtype.isnative:
        values = values.astype(dtype.newbyteorder("="))
    if not values.ndim:
        return recording.literal(values)
    buffer = _uploaded(device, values)
    # Most buffers know what they look like.
    spec: Spec | None = getattr(buffer, "spec", None)
    if spec is None or not is_array_dtype(spec.dtype):
        spec = Spec(values.shape, dtype_name(values.dtype))
    return Value(None, (), spec, device, None, buffer, None, True)


def as_array(x: Any, device: ArrayDevice | None = None) -> Array:
    """An `Array` itself; anything else that NumPy makes an array of, uploaded to the device."""
    if isinstance(x, Array):
        return x
    if type(x) is TracedScalar:
        return Array(x.strong)
    return Array(as_value(np.asarray(x), device or device_for(None)))


def device_of(*arguments: Any) -> ArrayDevice:
    """The device of the first array among the arguments; the default device when there is none."""
    found = (each._device for each in arguments if isinstance(each, Array) or type(each) is TracedScalar)
    return next(found, None) or device_for(None)


def _unpickle(values: HostArray, device: str) -> Array:
    """An array with these values, on the device that it was pickled from."""
    return as_array(values, device_for(device))
