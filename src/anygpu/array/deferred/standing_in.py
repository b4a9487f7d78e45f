"""`StandIn`: an array, or one of NumPy's numbers, that stands for NumPy's own in a function that runs deferred.

It says of itself what NumPy's would: its class, shape, type and strides. Calls of NumPy on it are recorded (see
`recorder`); whatever needs its values gets NumPy's own array.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Iterator
from typing import Any
from weakref import ref

import numpy as np

from anygpu.array.deferred import calls, indices, operators, recorder
from anygpu.array.deferred.buffers import give_buffers
from anygpu.array.deferred.layouts import Fact, Layout, Selection, layout_of
from anygpu.array.deferred.recorder import Recorder
from anygpu.base.typing import HostArray

#: Attributes through which memory can be written to without holding the array.
_POINTERS = frozenset(("__array_interface__", "__array_struct__", "ctypes", "data"))


class StandIn:
    """Stands for one of NumPy's arrays or numbers while a function runs deferred."""

    __slots__ = (
        "__weakref__",
        "_entry",
        "_fact",
        "_is_argument",
        "_is_exposed",
        "_layout",
        "_parent",
        "_recorder",
        "_segment",
        "_selected",
        "_source",
        "_value",
        "_views",
    )

    #: Before NumPy's own arrays, and subclasses of them, in mixed operations.
    __array_priority__ = 1000

    def __init__(
        self, recorder: Recorder, layout: Layout, value: Any, entry: int, parent: StandIn | None, fact: Fact | None
    ) -> None:
        self._recorder = recorder
        self._layout = layout
        #: NumPy's own array or number; `None` as long as it waits.
        self._value = value
        #: Its entry in the script of that segment.
        self._entry, self._segment = entry, None if value is not None else recorder.segment
        #: What it is a view of, and how.
        self._parent, self._fact = parent, fact
        #: For elements that a mask has selected, as long as they wait: what the mask is known by; and what they were
        #: selected of, with the mask.
        self._selected: Any = None
        self._source: tuple[StandIn, StandIn] | None = None
        #: Views of it, if it is none itself.
        self._views: tuple[ref[StandIn], ...] = ()
        #: Whether its memory is an argument's, and whether somebody may have a way to it that keeps no reference.
        self._is_argument = self._is_exposed = False

    def _computed(self, why: str, depth: int = 2) -> Any:
        """NumPy's own array or number."""
        if self._value is None:
            self._recorder.compute(why, depth + 1)
        return self._value

    def _handed_out(self, why: str) -> Any:
        """NumPy's own array, for code that is not ours."""
        value = self._value
        if value is None:
            self._recorder.compute(why, 3)
            value = self._value
        elif self._recorder.waits and not self._layout.is_number:
            self._recorder.compute(why, 3)  # what waits may read the memory
        root = self
        while root._parent is not None:
            root = root._parent
        if root._is_argument:
            root._is_exposed = True
        return value

    def _here(self, function: Any, *arguments: Any, depth: int = 2) -> Any:
        """Call NumPy on the user's own line, which its warnings then have."""
        return self._recorder.call_here(function, arguments, depth + 1)

    @property
    def __class__(self) -> type[Any]:
        return self._layout.kind

    @__class__.setter
    def __class__(self, kind: object) -> None:
        raise TypeError("the class of an array cannot be set.")

    # -- facts

    def _known_layout(self) -> Layout:
        """Its layout, for which the values are needed where a mask has selected them."""
        if type(self._layout) is Selection and self._value is None:
            self._recorder.compute("its shape is needed", 3)
        return self._layout

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._layout.dtype

    @dtype.setter
    def dtype(self, dtype: Any) -> None:
        self._set("dtype", dtype)

    @property
    def shape(self) -> tuple[int, ...]:
        return self._known_layout().shape

    @shape.setter
    def shape(self, shape: Any) -> None:
        self._set("shape", shape)

    @property
    def strides(self) -> tuple[int, ...]:
        return self._known_layout().strides

    @strides.setter
    def strides(self, strides: Any) -> None:
        self._set("strides", strides)

    def _set(self, name: str, value: Any) -> None:
        array = self._handed_out(f"its {name} is set")
        self._here(setattr, array, name, calls.plain(value, f"a {name} is needed"), depth=3)
        # It is an array of its own from now on, of the same memory.
        self._is_exposed, self._layout = True, layout_of(array)

    @property
    def ndim(self) -> int:
        return len(self._layout.shape)

    @property
    def size(self) -> int:
        return self._known_layout().size

    @property
    def itemsize(self) -> int:
        return self._layout.dtype.itemsize

    @property
    def nbytes(self) -> int:
        return self._known_layout().size * self._layout.dtype.itemsize

    @property
    def device(self) -> str:
        return "cpu"

    def __len__(self) -> int:
        shape = self._known_layout().shape
        return shape[0] if shape else len(self._handed_out("len"))

    # -- NumPy's protocols

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> HostArray:
        value = self._handed_out("a NumPy array is needed")
        if dtype is None and not copy and type(value) is np.ndarray:
            return value
        if copy is None:
            return np.asarray(value, dtype)
        return np.array(value, dtype, copy=copy)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        return calls.call_ufunc(self._recorder, ufunc, method, inputs, options)

    def __array_function__(self, function: Any, types: Any, arguments: Any, options: Any) -> Any:
        return calls.call_function(self._recorder, function, arguments, options)

    def __getattr__(self, name: str) -> Any:
        if name == "__array_namespace__" and hasattr(np.ndarray, name) and self._may_be_written():
            return _namespace
        if name.startswith("_") and name not in _POINTERS and name != "__array_wrap__":
            # What an array has not, such as `__cuda_array_interface__`; slots that are not set yet.
            raise AttributeError(f"'numpy.ndarray' object has no attribute {name!r}", name=name, obj=self)
        kind = self._layout.kind
        if not hasattr(kind, name):
            raise AttributeError(f"{_named(kind)} object has no attribute {name!r}", name=name, obj=self)
        found = getattr(self._handed_out(f"its {name} is needed"), name)
        if name in _POINTERS:
            root = self
            while root._parent is not None:
                root = root._parent
            root._is_exposed = True
        return found

    def _may_be_written(self) -> bool:
        """Whether its elements can be assigned to: libraries ask that of arrays which have a namespace."""
        return self._value is None or (not self._layout.is_number and bool(self._value.flags.writeable))

    def __dir__(self) -> list[str]:
        return dir(self._layout.kind)

    # -- elements

    def __getitem__(self, index: Any) -> Any:
        masked = indices.masked(self, index)
        if masked is not None:
            return self._recorder.select(*masked)
        op = indices.index_op(index, self._layout)
        if op is None:
            value, index = self._handed_out("it is indexed by values"), calls.plain(index, "it is an index", 3)
            return self._recorder.stand_in(self._here(operator.getitem, value, index))
        return self._recorder.record(op, (self,))

    def __setitem__(self, index: Any, value: Any) -> None:
        if type(value) is StandIn and type(value._layout) is Selection:
            masked = indices.masked(self, index)
            if masked is not None and self._recorder.assign_selected(*masked, value):
                return
        op, operands = indices.assignment_op(self, index, value) if calls.is_operand(value) else (None, ())
        if op is None:
            index, value = calls.plain(index, "it is an index", 3), calls.plain(value, "it is assigned", 3)
            self._here(operator.setitem, self._handed_out("it is written to"), index, value)
        else:
            self._recorder.record(op, operands)

    def __iter__(self) -> Iterator[Any]:
        if not self._layout.shape:
            return iter(self._handed_out("it is iterated over"))
        if len(self._layout.shape) < 2:
            return self._elements()
        return map(self.__getitem__, range(self._layout.shape[0]))

    def _elements(self) -> Iterator[Any]:
        """Its elements, which are read when the first one is asked for: some ask only whether there are any."""
        yield from self._handed_out("it is iterated over")

    @property
    def T(self) -> Any:  # noqa: N802 - NumPy's name
        return self._recorder.record(operators.TRANSPOSED, (self,))

    @property
    def mT(self) -> Any:  # noqa: N802 - NumPy's name
        return self._recorder.record(operators.MATRIX_TRANSPOSED, (self,))

    @property
    def real(self) -> Any:
        return self._recorder.record(operators.REAL, (self,))

    @real.setter
    def real(self, value: Any) -> None:
        array, value = self._handed_out("its real part is set"), calls.plain(value, "it is assigned")
        self._here(setattr, array, "real", value)

    @property
    def imag(self) -> Any:
        return self._recorder.record(operators.IMAG, (self,))

    @imag.setter
    def imag(self, value: Any) -> None:
        array, value = self._handed_out("its imaginary part is set"), calls.plain(value, "it is assigned")
        self._here(setattr, array, "imag", value)

    @property
    def base(self) -> Any:
        found = self._handed_out("its base is needed").base
        array = self._parent
        while array is not None and array._value is not found:
            array = array._parent
        return found if array is None else array

    @property
    def flat(self) -> Any:
        return self._handed_out("its flat is needed").flat

    @flat.setter
    def flat(self, value: Any) -> None:
        array, value = self._handed_out("its elements are set"), calls.plain(value, "it is assigned")
        self._here(setattr, array, "flat", value)

    def __copy__(self) -> Any:
        return self._recorder.record(operators.COPIED, (self,))

    def __deepcopy__(self, memo: Any) -> Any:
        return self._recorder.record(operators.COPIED, (self,))

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self._handed_out("it is pickled").__reduce_ex__(protocol)

    # -- values

    def __bool__(self) -> bool:
        value = self._handed_out("its truth is needed")
        return bool(value) if self._layout.is_number else self._here(bool, value)

    def __int__(self) -> int:
        value = self._handed_out("an int is needed")
        return int(value) if self._layout.is_number else self._here(int, value)

    def __float__(self) -> float:
        value = self._handed_out("a float is needed")
        return float(value) if self._layout.is_number else self._here(float, value)

    def __complex__(self) -> complex:
        value = self._handed_out("a complex number is needed")
        return complex(value) if self._layout.is_number else self._here(complex, value)

    def __index__(self) -> int:
        return operator.index(self._handed_out("an index is needed"))

    def __round__(self, *digits: Any) -> Any:
        return round(self._handed_out("it is rounded"), *digits)

    def __trunc__(self) -> Any:
        return self._handed_out("an int is needed").__trunc__()

    def __hash__(self) -> int:
        return hash(self._handed_out("its hash is needed"))

    def __contains__(self, value: Any) -> bool:
        return calls.plain(value, "it is looked for", 3) in self._handed_out("it is searched")

    def __repr__(self) -> str:
        return repr(self._handed_out("it is written as text"))

    def __str__(self) -> str:
        return str(self._handed_out("it is written as text"))

    def __format__(self, how: str) -> str:
        return format(self._handed_out("it is written as text"), how)

    def __buffer__(self, flags: int) -> memoryview:
        return memoryview(self._handed_out("its buffer is needed"))

    def __dlpack__(self, **options: Any) -> Any:
        return self._handed_out("its memory is needed").__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return (1, 0)


def _namespace(**_: Any) -> Any:
    """NumPy; for a library that has it in a form of its own, that, as it takes for NumPy's arrays."""
    name = str(sys._getframe(1).f_globals.get("__name__"))
    before, found, _after = name.partition("array_api_compat.")
    return sys.modules.get(f"{before}{found}numpy", np) if found else np


def _named(kind: type[Any]) -> str:
    return f"'numpy.{kind.__name__}'"


def _binary(name: str, op: Any) -> None:
    def forwards(self: StandIn, other: Any) -> Any:
        recorder = self._recorder
        segment = recorder.segment
        if self._segment is segment:
            kind = type(other)
            if kind is StandIn:
                if other._segment is segment:
                    made = recorder.again((op, self._entry, other._entry), self)
                    if made is not None:
                        return made
            elif kind is float:
                made = recorder.again((op, self._entry, float), self)
                if made is not None:
                    recorder.values.append(other)
                    return made
        return recorder.record(op, (self, other))

    def backwards(self: StandIn, other: Any) -> Any:
        return self._recorder.record(op, (other, self))

    setattr(StandIn, f"__{name}__", forwards)
    if name not in ("lt", "le", "gt", "ge", "eq", "ne"):
        setattr(StandIn, f"__r{name}__", backwards)


def _in_place(name: str, op: Any) -> None:
    plain = getattr(operator, {"and": "and_", "or": "or_"}.get(name, name))

    def in_place(self: StandIn, other: Any) -> Any:
        if self._layout.is_number:
            return plain(self, other)
        return self._recorder.record(op, (self, other))

    setattr(StandIn, f"__i{name}__", in_place)


def _unary(name: str, op: Any) -> None:
    def call(self: StandIn) -> Any:
        return self._recorder.record(op, (self,))

    setattr(StandIn, f"__{name}__", call)


for _name, _op in operators.BINARY.items():
    _binary(_name, _op)
for _name, _op in operators.IN_PLACE.items():
    _in_place(_name, _op)
for _name, _op in operators.UNARY.items():
    _unary(_name, _op)


def _power(self: StandIn, exponent: Any) -> Any:
    op = operators.power_op(exponent)
    if op is not None:
        return self._recorder.record(op, (self,))
    if operators.may_raise_power(self, exponent):
        value, other = self._handed_out("a power may be negative"), calls.plain(exponent, "a power may be negative")
        return self._recorder.stand_in(self._here(operator.pow, value, other))
    return self._recorder.record(operators.POWER, (self, exponent))


def _power_of(self: StandIn, base: Any) -> Any:
    if operators.may_raise_power(base, self):
        value, exponent = calls.plain(base, "a power may be negative"), self._handed_out("a power may be negative")
        return self._recorder.stand_in(self._here(operator.pow, value, exponent))
    return self._recorder.record(operators.POWER, (base, self))


def _matmul_in_place(self: Any, other: Any) -> Any:
    if self._layout.is_number:
        return self @ other
    value = self._handed_out("it is multiplied in place")
    self._here(operator.imatmul, value, calls.plain(other, "it is a factor"))
    return self


def _power_in_place(self: Any, exponent: Any) -> Any:
    if self._layout.is_number:
        return self**exponent
    op = operators.in_place_power_op(exponent) if self._layout.dtype.kind == "f" else None
    if op is not None:
        return self._recorder.record(op, (self,))
    value = self._handed_out("it is raised in place")
    self._here(operator.ipow, value, calls.plain(exponent, "it is an exponent"))
    return self


def _method(name: str) -> None:
    def method(self: StandIn, *arguments: Any, **options: Any) -> Any:
        return calls.call_method(self, name, arguments, options)

    method.__name__ = name
    setattr(StandIn, name, method)


for _name in calls.METHODS:
    _method(_name)


def _divmod(self: Any, other: Any) -> Any:
    return self // other, self % other


for _name, _function in (
    ("pow", _power),
    ("rpow", _power_of),
    ("ipow", _power_in_place),
    ("imatmul", _matmul_in_place),
    ("divmod", _divmod),
):
    setattr(StandIn, f"__{_name}__", _function)
recorder.StandIn_ = calls.StandIn_ = indices.StandIn_ = StandIn
give_buffers(StandIn)
