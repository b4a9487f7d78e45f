"""The methods and the operators of arrays: each is NumPy's function with the array in front.

Signatures are NumPy's. `NumpyMethods` calls what is registered in `overrides`; `Operators` records a primitive.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
import numpy.typing as npt

from anygpu.array.core.overrides import call_override

if TYPE_CHECKING:
    from anygpu.array.core.array import Array
    from anygpu.program.functions import BinaryFunction, UnaryFunction


# -- methods that compute something new
# Signatures are NumPy's. The functions are registered in `overrides`; the modules that define them import `Array`, so
# they are looked up there when a method is called.


Axis = int | Sequence[int] | None


def _call(theirs: Callable[..., Any], *arguments: Any, **options: Any) -> Array:
    """Our function for this one of NumPy's, called."""
    result: Array = call_override(theirs, *arguments, **options)
    return result


class NumpyMethods:
    """`x.sum()` and the like. Methods that change the array itself are in `Array`."""

    __slots__ = ()

    if TYPE_CHECKING:

        @property
        def dtype(self) -> np.dtype[Any]: ...

    # Reductions

    def all(self, axis: Axis = None, out: Array | None = None, keepdims: bool = False, *, where: Any = True) -> Array:
        """Whether all elements are true, or all along some axes."""
        return _call(np.all, self, axis, out, keepdims, where=where)

    def any(self, axis: Axis = None, out: Array | None = None, keepdims: bool = False, *, where: Any = True) -> Array:
        """Whether one element is true, or one along some axes."""
        return _call(np.any, self, axis, out, keepdims, where=where)

    def argmax(self, axis: int | None = None, out: Array | None = None, *, keepdims: bool = False) -> Array:
        """The position of the first largest element, over all or along an axis."""
        return _call(np.argmax, self, axis, out, keepdims=keepdims)

    def argmin(self, axis: int | None = None, out: Array | None = None, *, keepdims: bool = False) -> Array:
        """The position of the first smallest element, over all or along an axis."""
        return _call(np.argmin, self, axis, out, keepdims=keepdims)

    def cumprod(self, axis: int | None = None, dtype: npt.DTypeLike | None = None, out: Array | None = None) -> Array:
        """The products of all elements up to each, over all or along an axis."""
        return _call(np.cumprod, self, axis, dtype, out)

    def cumsum(self, axis: int | None = None, dtype: npt.DTypeLike | None = None, out: Array | None = None) -> Array:
        """The sums of all elements up to each, over all or along an axis."""
        return _call(np.cumsum, self, axis, dtype, out)

    def max(
        self,
        axis: Axis = None,
        out: Array | None = None,
        keepdims: bool = False,
        initial: Any = None,
        where: Any = True,
    ) -> Array:
        """The largest element, or those along some axes; NaN where one is NaN."""
        return _call(np.max, self, axis, out, keepdims, initial, where)

    def mean(
        self,
        axis: Axis = None,
        dtype: npt.DTypeLike | None = None,
        out: Array | None = None,
        keepdims: bool = False,
        *,
        where: Any = True,
    ) -> Array:
        """The arithmetic mean of all elements, or of those along some axes."""
        return _call(np.mean, self, axis, dtype, out, keepdims, where=where)

    def min(
        self,
        axis: Axis = None,
        out: Array | None = None,
        keepdims: bool = False,
        initial: Any = None,
        where: Any = True,
    ) -> Array:
        """The smallest element, or those along some axes; NaN where one is NaN."""
        return _call(np.min, self, axis, out, keepdims, initial, where)

    def prod(
        self,
        axis: Axis = None,
        dtype: npt.DTypeLike | None = None,
        out: Array | None = None,
        keepdims: bool = False,
        initial: Any = None,
        where: Any = True,
    ) -> Array:
        """The product of all elements, or of those along some axes."""
        return _call(np.prod, self, axis, dtype, out, keepdims, initial, where)

    def std(
        self,
        axis: Axis = None,
        dtype: npt.DTypeLike | None = None,
        out: Array | None = None,
        ddof: float = 0,
        keepdims: bool = False,
        *,
        where: Any = True,
        mean: Any = None,
        correction: float | None = None,
    ) -> Array:
        """The standard deviation of all elements, or of those along some axes."""
        return _call(np.std, self, axis, dtype, out, ddof, keepdims, where=where, mean=mean, correction=correction)

    def sum(
        self,
        axis: Axis = None,
        dtype: npt.DTypeLike | None = None,
        out: Array | None = None,
        keepdims: bool = False,
        initial: Any = None,
        where: Any = True,
    ) -> Array:
        """The sum of all elements, or of those along some axes."""
        return _call(np.sum, self, axis, dtype, out, keepdims, initial, where)

    def var(
        self,
        axis: Axis = None,
        dtype: npt.DTypeLike | None = None,
        out: Array | None = None,
        ddof: float = 0,
        keepdims: bool = False,
        *,
        where: Any = True,
        mean: Any = None,
        correction: float | None = None,
    ) -> Array:
        """The variance of all elements, or of those along some axes."""
        return _call(np.var, self, axis, dtype, out, ddof, keepdims, where=where, mean=mean, correction=correction)

    # Order and positions

    def argpartition(self, kth: Any, axis: int | None = -1, kind: str = "introselect", order: object = None) -> Array:
        """Positions that put the element that sorting would have at `kth` there, smaller ones before it."""
        return _call(np.argpartition, self, kth, axis, kind, order)

    def argsort(
        self,
        axis: int | None = -1,
        kind: str | None = None,
        order: object = None,
        *,
        stable: bool | None = None,
        descending: bool | None = None,
    ) -> Array:
        """The positions of the elements in sorted order."""
        return _call(np.argsort, self, axis, kind, order, stable=stable, descending=descending)

    def choose(self, choices: Any, out: Array | None = None, mode: str = "raise") -> Array:
        """Elements of several arrays; this one says from which of them each is taken."""
        return _call(np.choose, self, choices, out, mode)

    def nonzero(self) -> tuple[Array, ...]:
        """The positions of the elements that are not zero, one array for each axis."""
        positions: tuple[Array, ...] = call_override(np.nonzero, self)
        return positions

    def searchsorted(self, v: Any, side: Literal["left", "right"] = "left", sorter: Any = None) -> Array:
        """The positions at which values would have to be inserted to keep this sorted array sorted."""
        return _call(np.searchsorted, self, v, side, sorter)

    def take(self, indices: Any, axis: int | None = None, out: Array | None = None, mode: str = "raise") -> Array:
        """The elements at these positions, over all or along an axis."""
        return _call(np.take, self, indices, axis, out, mode)

    # Shape

    def diagonal(self, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Array:
        """The diagonals of two axes, as the last axis."""
        return _call(np.diagonal, self, offset, axis1, axis2)

    def ravel(self, order: str = "C") -> Array:
        """All elements in one axis, as a view where NumPy makes one."""
        return _call(np.ravel, self, order)

    def repeat(self, repeats: Any, axis: int | None = None) -> Array:
        """Each element several times, over all or along an axis."""
        return _call(np.repeat, self, repeats, axis)

    def squeeze(self, axis: int | Sequence[int] | None = None) -> Array:
        """The array without its axes of length one, or without these of them."""
        return _call(np.squeeze, self, axis)

    def swapaxes(self, axis1: int, axis2: int, /) -> Array:
        """The array with two axes exchanged."""
        return _call(np.swapaxes, self, axis1, axis2)

    def reshape(self, *shape: Any, order: str = "C", copy: bool | None = None) -> Array:
        """The same elements in another shape; `x.reshape(2, 3)` and `x.reshape((2, 3))` are the same."""
        return _call(np.reshape, self, shape[0] if len(shape) == 1 else shape, order, copy=copy)

    def transpose(self, *axes: Any) -> Array:
        """The array with its axes in this order, or reversed."""
        return _call(np.transpose, self, None if not axes else axes[0] if len(axes) == 1 else axes)

    def flatten(self, order: str = "C") -> Array:
        """All elements in one axis, as a copy."""
        flat: Array = self.ravel(order)
        return flat.copy()

    @property
    def T(self) -> Array:  # noqa: N802 - NumPy's name
        """The array with its axes reversed."""
        return self.transpose()

    @property
    def mT(self) -> Array:  # noqa: N802 - the standard's name
        """The array with its last two axes exchanged."""
        return _call(np.matrix_transpose, self)

    @property
    def flat(self) -> Iterator[Array]:
        """All elements one after the other. To assign to `x.flat[i]`, write `x[np.unravel_index(i, x.shape)] = v`."""
        return iter(self.ravel())

    # Elements

    def clip(self, min: Any = None, max: Any = None, out: Array | None = None) -> Array:
        """The elements, those below `min` as `min` and those above `max` as `max`; `None` is no limit."""
        return _call(np.clip, self, min, max, out)

    def conj(self) -> Array:
        """The complex conjugate of each element; an array of real numbers is returned itself, as NumPy does."""
        return self.conjugate()

    def conjugate(self) -> Array:
        """The same as `conj`."""
        return _call(np.conjugate, self) if self.dtype.kind == "c" else cast("Array", self)

    def round(self, decimals: int = 0, out: Array | None = None) -> Array:
        """The elements rounded to that many decimals, halves to the even neighbour."""
        return _call(np.round, self, decimals, out)

    @property
    def real(self) -> Array:
        """The real part of each element; a view of complex arrays."""
        return _call(np.real, self)

    @property
    def imag(self) -> Array:
        """The imaginary part of each element; a view of complex arrays."""
        return _call(np.imag, self)

    # Linear algebra

    def dot(self, b: Any, out: Array | None = None) -> Array:
        """The product with another array: over its last axis but one, or the last of a vector."""
        product = _call(np.dot, self, b)
        return product if out is None else out._assign(product)

    def trace(
        self,
        offset: int = 0,
        axis1: int = 0,
        axis2: int = 1,
        dtype: npt.DTypeLike | None = None,
        out: Array | None = None,
    ) -> Array:
        """The sum along the diagonals of two axes."""
        total = _call(np.trace, self, offset, axis1, axis2, dtype)
        return total if out is None else out._assign(total)


# -- Python's operators


_Method = Callable[["Operators", object], "Array"]


def _operator(name: str, fn: BinaryFunction) -> tuple[_Method, _Method, _Method]:
    """The methods of an operator: for `x op y`, for `y op x`, and for `x op= y`."""

    def forward(self: Operators, other: object) -> Array:
        return self._binary(fn, other)

    def swapped(self: Operators, other: object) -> Array:
        return self._swapped(fn, other)

    def in_place(self: Operators, other: object) -> Array:
        return self._in_place(fn, other)

    return _named(forward, name), _named(swapped, f"r{name}"), _named(in_place, f"i{name}")


def _comparison(name: str, fn: BinaryFunction) -> _Method:
    """The method of an operator that compares."""

    def compare(self: Operators, other: object) -> Array:
        return self._compare(fn, other)

    return _named(compare, name)


def _named(method: _Method, name: str) -> _Method:
    """The method with the name that Python has for it."""
    method.__name__ = f"__{name}__"
    method.__qualname__ = f"Operators.__{name}__"
    return method


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
        def _power(self, exponent: object) -> Array: ...

        @property
        def _is_number(self) -> bool: ...

        def _binary(self, fn: BinaryFunction, other: object) -> Array:
            """`self op other`."""

        def _swapped(self, fn: BinaryFunction, other: object) -> Array:
            """`other op self`."""

        def _compare(self, fn: BinaryFunction, other: object) -> Array: ...

        def _in_place(self, fn: BinaryFunction, other: object) -> Array:
            """`self op= other`."""

        def _assign(self, result: Array) -> Array: ...

    __add__, __radd__, __iadd__ = _operator("add", "add")
    __sub__, __rsub__, __isub__ = _operator("sub", "subtract")
    __mul__, __rmul__, __imul__ = _operator("mul", "multiply")
    __truediv__, __rtruediv__, __itruediv__ = _operator("truediv", "divide")
    __floordiv__, __rfloordiv__, __ifloordiv__ = _operator("floordiv", "floor_divide")
    __mod__, __rmod__, __imod__ = _operator("mod", "remainder")
    __and__, __rand__, __iand__ = _operator("and", "bitwise_and")
    __or__, __ror__, __ior__ = _operator("or", "bitwise_or")
    __xor__, __rxor__, __ixor__ = _operator("xor", "bitwise_xor")
    __lshift__, __rlshift__, __ilshift__ = _operator("lshift", "left_shift")
    __rshift__, __rrshift__, __irshift__ = _operator("rshift", "right_shift")

    __eq__ = _comparison("eq", "equal")  # type: ignore[assignment]
    __ne__ = _comparison("ne", "not_equal")  # type: ignore[assignment]
    __lt__ = _comparison("lt", "less")
    __le__ = _comparison("le", "less_equal")
    __gt__ = _comparison("gt", "greater")
    __ge__ = _comparison("ge", "greater_equal")

    def __divmod__(self, other: object) -> tuple[Array, Array]:
        return self // other, self % other

    def __rdivmod__(self, other: Any) -> tuple[Array, Array]:
        return other // self, other % self

    def __pow__(self, other: object) -> Array:
        short = self._short_power(other)
        return self._power(other) if short is None else short

    def _short_power(self, exponent: object) -> Array | None:
        """Return `x ** 2` and `x ** -1` as NumPy's operator computes them; `None` for other exponents.

        They are a product and a reciprocal, which differ from the power at zeros and infinities.
        """
        if self._is_number and self.dtype == np.bool_ and type(exponent) is int and exponent == 2:
            return self._binary("multiply", np.int64(1))  # only of an array the square is an int8
        if not self.ndim or self.dtype.kind not in "fc":
            return None
        if type(exponent) is int and exponent == 2:
            return self * self
        if type(exponent) is int and exponent == -1:
            return self._unary("reciprocal")
        return None

    def __rpow__(self, other: object) -> Array:
        return self._swapped("power", other)

    def __ipow__(self, other: object) -> Array:
        result = self**other
        return result if result is NotImplemented else self._assign(result)

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
    """The matrix product of two operands."""
    product: Array = call_override(np.matmul, one, other)
    return product
