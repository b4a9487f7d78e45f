"""Operators of arrays that wait, their attributes that are views or copies, and conversions to a type, as calls."""

from __future__ import annotations

import functools
import math
import operator
from typing import Any

import numpy as np

from anygpu.array.deferred.layouts import MOST_FORMS, Op
from anygpu.array.deferred.masks import ELEMENTWISE_TOO

#: What operators call, for those of elements.
_ELEMENTWISE: dict[str, np.ufunc] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "truediv": np.true_divide, "floordiv": np.floor_divide,
    "mod": np.remainder, "and_": np.bitwise_and, "or_": np.bitwise_or, "xor": np.bitwise_xor,
}  # fmt: skip
BINARY = {
    name: Op(getattr(operator, function), f"({{0}} {sign} {{1}})", ufunc=_ELEMENTWISE.get(function))
    for name, function, sign in (
        ("add", "add", "+"), ("sub", "sub", "-"), ("mul", "mul", "*"), ("truediv", "truediv", "/"),
        ("floordiv", "floordiv", "//"), ("mod", "mod", "%"), ("matmul", "matmul", "@"),
        ("and", "and_", "&"), ("or", "or_", "|"), ("xor", "xor", "^"), ("lshift", "lshift", "<<"),
        ("rshift", "rshift", ">>"), ("lt", "lt", "<"), ("le", "le", "<="), ("gt", "gt", ">"), ("ge", "ge", ">="),
        ("eq", "eq", "=="), ("ne", "ne", "!="),
    )
}  # fmt: skip
IN_PLACE = {
    name: Op(getattr(operator, "i" + function), f"{{0}} {sign}= {{1}}", writes=True)
    for name, function, sign in (
        ("add", "add", "+"), ("sub", "sub", "-"), ("mul", "mul", "*"), ("truediv", "truediv", "/"),
        ("floordiv", "floordiv", "//"), ("mod", "mod", "%"), ("and", "and", "&"), ("or", "or", "|"),
        ("xor", "xor", "^"), ("lshift", "lshift", "<<"), ("rshift", "rshift", ">>"),
    )
}  # fmt: skip
UNARY = {
    "neg": Op(operator.neg, "(-{0})", ufunc=np.negative),
    "pos": Op(operator.pos, "(+{0})"),
    "abs": Op(operator.abs, "abs({0})", ufunc=np.absolute),
    "invert": Op(operator.invert, "(~{0})", ufunc=np.invert),
}
POWER = Op(operator.pow, "({0} ** {1})")
ELEMENTWISE_TOO.update((POWER, *IN_PLACE.values()))
ELEMENTWISE_TOO.update(BINARY[each] for each in ("lt", "le", "gt", "ge", "eq", "ne"))
TRANSPOSED = Op(operator.attrgetter("T"), "{0}.T", only_view=True)
MATRIX_TRANSPOSED = Op(operator.attrgetter("mT"), "{0}.mT", only_view=True)
REAL = Op(operator.attrgetter("real"), "{0}.real")
IMAG = Op(operator.attrgetter("imag"), "{0}.imag")
COPIED = Op(operator.methodcaller("copy"), "{0}.copy()")
COPIED_AS_IT_LIES = Op(operator.methodcaller("copy", "K"), "{0}.copy('K')")

#: Types that a conversion to them is recorded for.
PLAIN_TYPES = frozenset(
    (float, int, bool, complex, np.float32, np.float64, np.int32, np.int64, np.uint8, "float32", "float64",
     np.dtype("float32"), np.dtype("float64"), np.dtype("int64"), np.dtype("int32"), np.dtype("uint8"))
)  # fmt: skip


@functools.cache
def astype_op(dtype: np.dtype[Any]) -> Op:
    """A conversion to a type."""
    return Op(operator.methodcaller("astype", dtype), f"{{0}}.astype(np.{dtype.name})")


_powers: dict[int, Op] = {}
_in_place_powers: dict[tuple[type, str], Op] = {}


def _squared(array: Any, exponent: int, out: Any) -> Any:
    """What NumPy calls for a power of two."""
    return np.square(array, out)


def power_op(exponent: Any) -> Op | None:
    """For a whole number, whose value decides what NumPy does; `None` for other exponents."""
    if type(exponent) is not int:
        return None
    found = _powers.get(exponent)
    if found is None:
        if len(_powers) > MOST_FORMS:
            _powers.clear()
        text = f"({{0}} ** {exponent})"
        ufunc = _squared if exponent == 2 else None
        found = _powers[exponent] = Op(operator.pow, text, arranged=lambda x: (x, exponent), ufunc=ufunc)
        ELEMENTWISE_TOO.add(found)
    return found


def in_place_power_op(exponent: Any) -> Op | None:
    """For a number of Python's, whose value decides what NumPy does; `None` for other exponents."""
    if type(exponent) is not int and not (type(exponent) is float and math.isfinite(exponent)):
        return None
    key = (type(exponent), repr(exponent))
    found = _in_place_powers.get(key)
    if found is None:
        if len(_in_place_powers) > MOST_FORMS:
            _in_place_powers.clear()
        op = Op(operator.ipow, f"{{0}} **= {exponent!r}", writes=True, arranged=lambda x: (x, exponent))
        found = _in_place_powers[key] = op
        ELEMENTWISE_TOO.add(op)
    return found


def may_raise_power(one: Any, other: Any) -> bool:
    """Whether the values decide if NumPy raises an error: a negative power of whole numbers."""
    return all(type(each) is int or getattr(each, "dtype", np.dtype(float)).kind in "iu" for each in (one, other))
