"""Python's operators on arrays. What each does is in `Array`: here is which operator is which function."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from anygpu.array.core.overrides import call_override

if TYPE_CHECKING:
    from anygpu.array.core.array import Array
    from anygpu.program.functions import BinaryFunction, UnaryFunction


class Operators:
    """`x + y` and the like. An operand that is not ours to handle gives `NotImplemented`, as Python wants it."""

    __slots__ = ()

    if TYPE_CHECKING:

        @property
        def dtype(self) -> np.dtype[Any]: ...

        @property
        def ndim(self) -> int: ...

        def copy(self) -> Array: ...

        def _unary(self, fn: UnaryFunction) -> Array: ...

        def _binary(self, fn: BinaryFunction, other: object) -> Array:
            """`self op other`."""

        def _swapped(self, fn: BinaryFunction, other: object) -> Array:
            """`other op self`."""

        def _compare(self, fn: BinaryFunction, other: object) -> Array: ...

        def _in_place(self, fn: BinaryFunction, other: object) -> Array:
            """`self op= other`."""

        def _assign(self, result: Array) -> Array: ...

    def __add__(self, other: object) -> Array:
        return self._binary("add", other)

    def __radd__(self, other: object) -> Array:
        return self._swapped("add", other)

    def __iadd__(self, other: object) -> Array:
        return self._in_place("add", other)

    def __sub__(self, other: object) -> Array:
        return self._binary("subtract", other)

    def __rsub__(self, other: object) -> Array:
        return self._swapped("subtract", other)

    def __isub__(self, other: object) -> Array:
        return self._in_place("subtract", other)

    def __mul__(self, other: object) -> Array:
        return self._binary("multiply", other)

    def __rmul__(self, other: object) -> Array:
        return self._swapped("multiply", other)

    def __imul__(self, other: object) -> Array:
        return self._in_place("multiply", other)

    def __truediv__(self, other: object) -> Array:
        return self._binary("divide", other)

    def __rtruediv__(self, other: object) -> Array:
        return self._swapped("divide", other)

    def __itruediv__(self, other: object) -> Array:
        return self._in_place("divide", other)

    def __floordiv__(self, other: object) -> Array:
        return self._binary("floor_divide", other)

    def __rfloordiv__(self, other: object) -> Array:
        return self._swapped("floor_divide", other)

    def __ifloordiv__(self, other: object) -> Array:
        return self._in_place("floor_divide", other)

    def __mod__(self, other: object) -> Array:
        return self._binary("remainder", other)

    def __rmod__(self, other: object) -> Array:
        return self._swapped("remainder", other)

    def __imod__(self, other: object) -> Array:
        return self._in_place("remainder", other)

    def __divmod__(self, other: object) -> tuple[Array, Array]:
        return self // other, self % other

    def __rdivmod__(self, other: Any) -> tuple[Array, Array]:
        return other // self, other % self

    def __pow__(self, other: object) -> Array:
        short = self._short_power(other)
        return self._binary("power", other) if short is None else short

    def _short_power(self, exponent: object) -> Array | None:
        """The operator's own way for these exponents, as in NumPy: it is not the power at zeros and infinities."""
        if not self.ndim or self.dtype.kind not in "fc":
            return None
        if type(exponent) is int and exponent == 2:
            return self * self
        if type(exponent) is int and exponent == -1:
            return self._unary("reciprocal")
        if type(exponent) is float and exponent == 0.5:
            return self._unary("sqrt")
        return None

    def __rpow__(self, other: object) -> Array:
        return self._swapped("power", other)

    def __ipow__(self, other: object) -> Array:
        result = self**other
        return result if result is NotImplemented else self._assign(result)

    def __and__(self, other: object) -> Array:
        return self._binary("bitwise_and", other)

    def __rand__(self, other: object) -> Array:
        return self._swapped("bitwise_and", other)

    def __iand__(self, other: object) -> Array:
        return self._in_place("bitwise_and", other)

    def __or__(self, other: object) -> Array:
        return self._binary("bitwise_or", other)

    def __ror__(self, other: object) -> Array:
        return self._swapped("bitwise_or", other)

    def __ior__(self, other: object) -> Array:
        return self._in_place("bitwise_or", other)

    def __xor__(self, other: object) -> Array:
        return self._binary("bitwise_xor", other)

    def __rxor__(self, other: object) -> Array:
        return self._swapped("bitwise_xor", other)

    def __ixor__(self, other: object) -> Array:
        return self._in_place("bitwise_xor", other)

    def __lshift__(self, other: object) -> Array:
        return self._binary("left_shift", other)

    def __rlshift__(self, other: object) -> Array:
        return self._swapped("left_shift", other)

    def __ilshift__(self, other: object) -> Array:
        return self._in_place("left_shift", other)

    def __rshift__(self, other: object) -> Array:
        return self._binary("right_shift", other)

    def __rrshift__(self, other: object) -> Array:
        return self._swapped("right_shift", other)

    def __irshift__(self, other: object) -> Array:
        return self._in_place("right_shift", other)

    def __eq__(self, other: object) -> Array:  # type: ignore[override]
        return self._compare("equal", other)

    def __ne__(self, other: object) -> Array:  # type: ignore[override]
        return self._compare("not_equal", other)

    def __lt__(self, other: object) -> Array:
        return self._compare("less", other)

    def __le__(self, other: object) -> Array:
        return self._compare("less_equal", other)

    def __gt__(self, other: object) -> Array:
        return self._compare("greater", other)

    def __ge__(self, other: object) -> Array:
        return self._compare("greater_equal", other)

    def __neg__(self) -> Array:
        if self.dtype == np.bool_:
            raise TypeError("a bool has no negative; use ~x.")
        return self._unary("negative")

    def __pos__(self) -> Array:
        if self.dtype == np.bool_:
            raise TypeError("a bool has no sign; use x.copy().")
        positive: Array = call_override(np.positive, self)
        return positive

    def __abs__(self) -> Array:
        if self.dtype.kind not in "bu":
            return self._unary("abs")
        distance: Array = call_override(np.absolute, self)
        return distance

    def __invert__(self) -> Array:
        return self._unary("invert")

    def __matmul__(self, other: object) -> Array:
        return _matmul(self, other)

    def __rmatmul__(self, other: object) -> Array:
        return _matmul(other, self)

    def __imatmul__(self, other: object) -> Array:
        return self._assign(self @ other)


def _matmul(one: object, other: object) -> Array:
    product: Array = call_override(np.matmul, one, other)
    return product
