"""Python numbers in a function that is being traced: their values come with each call, and they stay Python's.

A number that is an argument must not become a part of the program, or each new value would need a new program. So the
function gets a `TracedScalar` in its place. Arithmetic on it with Python's numbers is kept as an expression that Python
itself evaluates at each call; where it meets an array it becomes an input without axes, in the type of that array, as
NumPy 2 has it (NEP 50). Code that asks for its value is told that there is none yet.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn, Protocol

import numpy as np

from anygpu.array.core.expression import Value
from anygpu.array.core.overrides import call_function, call_ufunc
from anygpu.base.interrupts import float_errors
from anygpu.base.typing import HostArray
from anygpu.program.dtypes import DType

#: Beyond this an expression is not worth it: a loop has made it.
MAX_TEXT = 1500

_NUMBERS: tuple[type[Any], ...] = (bool, int, float, complex)
_STRONG: dict[type[Any], DType] = {int: "int64", float: "float64", complex: "complex128", bool: "bool"}


class ScalarTracer(Protocol):
    """The part of the abstract device that a `TracedScalar` uses."""

    def number(self, text: str, dtype: DType) -> Value:
        """The result of the expression as an input."""

    def refuse(self, *, number: bool = False) -> NoReturn:
        """There are no values yet."""


#: The type of a result from those of both operands; `None` where it depends on their values.
_ResultKind = Callable[[type, type], type | None]


def _arithmetic(one: type, other: type) -> type | None:
    """The type of a sum or product."""
    if complex in (one, other):
        return complex
    return float if float in (one, other) else int


def _division(one: type, other: type) -> type | None:
    """The type of a quotient."""
    return complex if complex in (one, other) else float


def _real(one: type, other: type) -> type | None:
    """The type of a result that complex numbers do not have; `None` for those."""
    return None if complex in (one, other) else _arithmetic(one, other)


def _unknown(one: type, other: type) -> None:
    """No type: the result has to be computed to know it."""
    return None


def _truth(one: type, other: type) -> type | None:
    """The type of a comparison for equality."""
    return bool


def _order(one: type, other: type) -> type | None:
    """The type of a comparison of order; `None` for complex numbers."""
    return None if complex in (one, other) else bool


def _logic(one: type, other: type) -> type | None:
    """The type of a bitwise operation; `None` for numbers without one."""
    if one is other is bool:
        return bool
    return int if {one, other} <= {bool, int} else None


def _operator(sign: str, ufunc: np.ufunc, kind: _ResultKind) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """The methods of an operator: for `t op other` and for `other op t`."""

    def forward(self: TracedScalar, other: Any) -> Any:
        return self._two(sign, ufunc, other, False, kind)

    def swapped(self: TracedScalar, other: Any) -> Any:
        return self._two(sign, ufunc, other, True, kind)

    return forward, swapped


def _comparison(sign: str, ufunc: np.ufunc, kind: _ResultKind) -> Callable[..., Any]:
    """The method of an operator that compares, of which Python swaps the operands itself."""
    return _operator(sign, ufunc, kind)[0]


class TracedScalar:
    """A Python number of which only the type is known yet. Operations on it with Python's numbers give another one.

    `_text` is the expression that computes it at a call, over the captures `a`. Whatever needs its value ends the
    trace.
    """

    __slots__ = ("_device", "_kind", "_text")

    #: The abstract device.
    _device: Any

    #: Before NumPy's arrays in mixed operations, as our arrays are.
    __array_priority__ = 1000

    def __init__(self, text: str, device: ScalarTracer, kind: type[Any] = float) -> None:
        #: How Python computes it; `a` are the leaves of the arguments.
        self._text = text
        self._device = device
        self._kind = kind

    @property
    def __class__(self) -> type[Any]:
        """For `isinstance(t, float)` it is what it stands for."""
        return self._kind

    @__class__.setter
    def __class__(self, kind: object) -> None:
        """The class of the number that it stands for, so that `isinstance(t, float)` holds."""
        raise TypeError("the class of a number cannot be set.")

    def value(self, dtype: DType) -> Value:
        """This number as an input of the program, in the dtype of the array that it meets."""
        value: Value = self._device.number(self._text, dtype)
        return value

    @property
    def sample(self) -> Any:
        """A number of the same type, for NumPy's rules of promotion."""
        return self._kind(1)

    @property
    def strong(self) -> Value:
        """This number as a NumPy scalar of its kind, which does not adapt to the arrays beside it."""
        return self.value(_STRONG[self._kind])

    @property
    def is_whole(self) -> bool:
        """Whether it is an integer."""
        return self._kind is int

    def needs_value(self) -> NoReturn:
        """End the trace: something depends on the value of the number."""
        self._refuse()

    def _refuse(self) -> NoReturn:
        """Stop tracing: the function needs the number itself."""
        tracer: ScalarTracer = self._device
        tracer.refuse(number=True)

    # Arithmetic

    def _two(self, sign: str, ufunc: np.ufunc, other: Any, swapped: bool, kind: _ResultKind) -> Any:
        """The result of an operator with another operand: an expression, or NumPy's ufunc where the other is NumPy's.

        `kind` gives the type of the result from those of both; where that depends on their values, the trace ends.
        Expressions that Python may raise for are noted, so that calls raise too.
        """
        if isinstance(other, np.generic | np.ndarray):
            return ufunc(other, self) if swapped else ufunc(self, other)
        if type(other) is TracedScalar:
            text, theirs = other._text, other._kind
        elif isinstance(other, _NUMBERS):
            theirs = next(each for each in _NUMBERS if isinstance(other, each))
            text = _written(theirs(other))  # a subclass of int or float is its number
        else:
            return NotImplemented
        result = kind(self._kind, theirs)
        if result is None:
            self._refuse()
        whole = f"({text} {sign} {self._text})" if swapped else f"({self._text} {sign} {text})"
        if sign in _MAY_RAISE:
            self._device.risky[whole] = None
        return self._new(whole, result)

    def _new(self, text: str, kind: type[Any]) -> TracedScalar:
        """A number that is computed by this expression; a very long one stops tracing."""
        if len(text) > MAX_TEXT:
            self._refuse()
        return TracedScalar(text, self._device, kind)

    __add__, __radd__ = _operator("+", np.add, _arithmetic)
    __sub__, __rsub__ = _operator("-", np.subtract, _arithmetic)
    __mul__, __rmul__ = _operator("*", np.multiply, _arithmetic)
    __truediv__, __rtruediv__ = _operator("/", np.divide, _division)
    __floordiv__, __rfloordiv__ = _operator("//", np.floor_divide, _real)
    __mod__, __rmod__ = _operator("%", np.remainder, _real)
    __and__, __rand__ = _operator("&", np.bitwise_and, _logic)
    __or__, __ror__ = _operator("|", np.bitwise_or, _logic)
    __xor__, __rxor__ = _operator("^", np.bitwise_xor, _logic)

    __eq__ = _comparison("==", np.equal, _truth)
    __ne__ = _comparison("!=", np.not_equal, _truth)
    __lt__ = _comparison("<", np.less, _order)
    __le__ = _comparison("<=", np.less_equal, _order)
    __gt__ = _comparison(">", np.greater, _order)
    __ge__ = _comparison(">=", np.greater_equal, _order)

    def __divmod__(self, other: Any) -> Any:
        return self // other, self % other

    def __rdivmod__(self, other: Any) -> Any:
        return other // self, other % self

    def __pow__(self, other: Any, modulus: Any = None) -> Any:
        if isinstance(other, np.ndarray | np.generic) or self._kind is int:
            whole = type(other) is int and other >= 0
        else:
            # Only a whole exponent surely gives a real number: (-8.0) ** 0.5 is complex.
            whole = type(other) is int or (type(other) is float and other.is_integer())
        return self._two("**", np.power, other, False, _arithmetic if whole and modulus is None else _unknown)

    def __rpow__(self, other: Any) -> Any:
        positive = (type(other) is float and other > 0) or (type(other) is int and other > 0 and self._kind is float)
        return self._two("**", np.power, other, True, _division if positive else _unknown)

    def __neg__(self) -> TracedScalar:
        return self._signed("-")

    def __pos__(self) -> TracedScalar:
        return self._signed("+")

    def __abs__(self) -> TracedScalar:
        if self._kind is bool:
            self._refuse()
        return self._new(f"abs({self._text})", int if self._kind is int else float)

    def _signed(self, sign: str) -> TracedScalar:
        """The number with a sign in front of it."""
        if self._kind is bool:
            self._refuse()
        return self._new(f"({sign}{self._text})", self._kind)

    # Parts

    @property
    def real(self) -> TracedScalar:
        """The real part."""
        return self if self._kind in (float, int) else self._new(f"{self._text}.real", float)

    @property
    def imag(self) -> TracedScalar:
        """The imaginary part."""
        return self._new(f"{self._text}.imag", int if self._kind is int else float)

    def conjugate(self) -> TracedScalar:
        """The complex conjugate."""
        return self._new(f"{self._text}.conjugate()", self._kind)

    def __copy__(self) -> TracedScalar:
        return self

    def __deepcopy__(self, memory: object) -> TracedScalar:
        return self

    # NumPy

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        return call_ufunc.call(ufunc, method, inputs, options)

    def __array_function__(self, function: Any, types: Any, arguments: Any, options: Any) -> Any:
        return call_function.call(function, arguments, options)

    # Everything that needs the value

    def __array__(self, *arguments: Any, **options: Any) -> NoReturn:
        self._refuse()

    __bool__ = __int__ = __float__ = __complex__ = __trunc__ = __floor__ = __ceil__ = _refuse
    __hash__ = __repr__ = __str__ = __reduce__ = _refuse

    def __index__(self) -> int:
        if self._kind not in (int, bool):
            raise TypeError(f"'{self._kind.__name__}' object cannot be interpreted as an integer")
        self._refuse()

    def __round__(self, digits: object = None) -> NoReturn:
        self._refuse()

    def __format__(self, how: str) -> str:
        self._refuse()

    def __getattr__(self, name: str) -> Any:
        if hasattr(self._kind, name):
            self._refuse()
        raise AttributeError(f"{self._kind.__name__!r} object has no attribute {name!r}", name=name, obj=self)


def _written(number: Any) -> str:
    """A number as Python reads it, also infinity and NaN; the namespace of expressions has names for these."""
    if type(number) is complex:
        return f"complex({number.real!r}, {number.imag!r})"
    return f"({number!r})"


def evaluator(texts: Sequence[str]) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
    """Compile expressions to one function of the captures' values, which returns a tuple, by Python's own rules and
    errors.

    The expressions are written by `TracedScalar` alone, and see no builtins.
    """
    source = f"lambda a: ({''.join(f'{text}, ' for text in texts)})"
    made: Callable[[Sequence[Any]], tuple[Any, ...]] = eval(source, dict(_NAMES))
    return made


#: For some numbers Python raises an error here, even when the result is not used.
_MAY_RAISE = frozenset(("/", "//", "%", "**"))

_NAMES = {"__builtins__": {}, "abs": abs, "complex": complex, "inf": float("inf"), "nan": float("nan")}


@float_errors(over="ignore")
def _array_without_warning(number: Any, dtype: np.dtype[Any]) -> HostArray:
    """The number as an array of a type."""
    return np.array(number, dtype)


def in_type(number: Any, dtype: np.dtype[Any]) -> HostArray:
    """The number as an array without axes. A number too large for the dtype becomes infinite without a warning."""
    if dtype.itemsize in (8, 16) or dtype.kind == "b":
        return np.array(number, dtype)
    return _array_without_warning(number, dtype)
