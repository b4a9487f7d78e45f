"""Functions that work element by element: those of the Array API standard, and NumPy's other ones.

Which type a function computes in is asked of NumPy itself, by the ufunc of that meaning; what is recorded in that type
is one primitive, or an expression from `elementwise_composed`. So most functions are a line of the table below.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np

from anygpu.array.core import recording
from anygpu.array.core.arguments import to_array, view
from anygpu.array.core.array import Array, device_of
from anygpu.array.core.call_notes import note_new
from anygpu.array.core.device import ArrayDevice, to_numpy_dtype
from anygpu.array.core.expression import Value
from anygpu.array.core.overrides import Function, implements
from anygpu.array.core.recording import Operand, _fitted, binary, broadcast_shapes, cast, compare, dtype_name, unary
from anygpu.array.core.traced_scalar import TracedScalar
from anygpu.array.core.views import attach
from anygpu.array.functions import elementwise_composed as composed
from anygpu.array.functions.elementwise_composed import UfuncBody
from anygpu.program.dtypes import KIND, DType
from anygpu.program.functions import BinaryFunction, UnaryFunction
from anygpu.program.primitives import Reshape, Shape, Unary

#: The functions of the Array API standard among them, which `anygpu.array.namespace` passes on.
__all__ = [
    "abs", "acos", "acosh", "add", "asin", "asinh", "atan", "atan2", "atanh", "bitwise_and", "bitwise_invert",
    "bitwise_left_shift", "bitwise_or", "bitwise_right_shift", "bitwise_xor", "ceil", "conj", "copysign", "cos", "cosh",
    "divide", "equal", "exp", "expm1", "floor", "floor_divide", "greater", "greater_equal", "hypot", "imag", "isfinite",
    "isinf", "isnan", "less", "less_equal", "log", "log1p", "log2", "log10", "logaddexp", "logical_and", "logical_not",
    "logical_or", "logical_xor", "maximum", "minimum", "multiply", "negative", "nextafter", "not_equal", "positive",
    "pow", "real", "reciprocal", "remainder", "round", "sign", "signbit", "sin", "sinh", "sqrt", "square", "subtract",
    "tan", "tanh", "trunc",
]  # fmt: skip

#: The type of an operand: its dtype, or the Python type of a number that adapts to the others.
OperandType = DType | type[int] | type[float] | type[complex]


class UfuncRule(NamedTuple):
    """How one of NumPy's ufuncs is recorded."""

    body: UfuncBody
    #: Whether the body takes the operands as they come, because it brings them together in a way of its own.
    raw: bool = False


#: One rule for each elementwise ufunc; the table below fills it.
RULES: dict[np.ufunc, UfuncRule] = {}


@cache
def resolve(
    ufunc: np.ufunc,
    kinds: tuple[OperandType, ...],
    results: tuple[DType | None, ...] | None = None,
    signature: Any = None,
    casting: Any = "same_kind",
) -> tuple[DType, ...]:
    """The types that NumPy computes in and gives, for operands of these types and into arrays of those."""
    asked: list[Any] = [to_numpy_dtype(kind) if isinstance(kind, str) else kind for kind in kinds]
    asked += [None if name is None else to_numpy_dtype(name) for name in results or (None,) * ufunc.nout]
    fixed = {} if signature is None else {"signature": signature}
    try:
        found = ufunc.resolve_dtypes(tuple(asked), casting=casting, **fixed)
    except TypeError as error:
        types = ", ".join(kind if isinstance(kind, str) else f"Python's {kind.__name__}" for kind in kinds)
        raise TypeError(
            f"{ufunc.__name__} of {types} is not possible; convert with astype first. NumPy says: {error}"
        ) from None
    return tuple(dtype_name(dtype) for dtype in found)


def operands_of(inputs: Sequence[Any], device: ArrayDevice | None = None) -> list[Operand]:
    """What a user passes, as values; Python numbers stay as they are when there is an array beside them."""
    quick: list[Operand] = []
    for x in inputs:
        if type(x) is Array:
            quick.append(x._value)
        elif quick and type(x) in _NUMBERS:
            quick.append(x)
        else:
            break
    else:
        return quick
    device = device or device_of(*inputs)
    operands = [operand_of(x, device) for x in inputs]
    if any(isinstance(each, Value) for each in operands):
        return operands
    return [to_array(each, device)._value for each in operands]


_NUMBERS = frozenset({bool, int, float, complex, TracedScalar})


def operand_of(x: Any, device: ArrayDevice) -> Operand:
    """The value of an argument of a ufunc: arrays are put on the device, numbers of Python stay as they are.

    Numbers of Python have no type of their own in NumPy's promotion. Raises `TypeError` for masked arrays.
    """
    if isinstance(x, Array):
        return x._value
    if isinstance(x, bool | int | float | complex) and not isinstance(x, np.generic):
        return x
    if isinstance(x, np.ma.MaskedArray):
        raise TypeError("anygpu has no masked arrays: pass x.filled(value), or use np.where with the mask.")
    return to_array(x, device)._value


def kind_of(operand: Operand) -> OperandType:
    """The type of an operand for NumPy's promotion: a dtype, or Python's own type for numbers of Python."""
    if isinstance(operand, Value):
        return operand.spec.dtype
    if isinstance(operand, bool):
        return "bool"
    return int if isinstance(operand, int) else float if isinstance(operand, float) else complex


def record(
    ufunc: np.ufunc,
    operands: Sequence[Operand],
    results: tuple[DType | None, ...] | None = None,
    signature: Any = None,
    casting: Any = "same_kind",
) -> tuple[Value, ...]:
    """The results of a ufunc, of which there may be two."""
    body, raw = RULES[ufunc]
    loop = resolve(ufunc, tuple([kind_of(each) for each in operands]), results, signature, casting)
    if raw:
        given = body(*operands)
    else:
        shape = _common_shape(operands)
        given = body(*[_fitted(each, dtype, shape) for each, dtype in zip(operands, loop, strict=False)])
    if not isinstance(given, tuple):
        return (cast(given, loop[-1]),)
    return tuple([cast(value, dtype) for value, dtype in zip(given, loop[ufunc.nin :], strict=True)])


def _common_shape(operands: Sequence[Operand]) -> Shape:
    shapes = [each.spec.shape for each in operands if isinstance(each, Value)]
    return shapes[0] if shapes.count(shapes[0]) == len(shapes) else broadcast_shapes(*shapes)


def array_of(value: Value, operands: Sequence[Operand] = ()) -> Array:
    """The value in an array of its own, also where it is one of the operands unchanged."""
    for each in operands:
        if value is each:
            return Array(recording.apply(Reshape(value.spec.shape), value, spec=value.spec))
    return Array(value)


OfOne = Callable[[Any], Array]
OfTwo = Callable[[Any, Any], Array]


def _one(name: str, ufunc: np.ufunc, body: UnaryFunction | UfuncBody, text: str, *, raw: bool = False) -> OfOne:
    """Define a function of one array by its ufunc, and note in `RULES` how the ufunc is recorded.

    `body` is a primitive's function or what composes several. With `raw` it sees the operands before they are promoted.
    """
    RULES[ufunc] = UfuncRule(partial(unary, body) if isinstance(body, str) else body, raw)

    def function(x: Any, /) -> Array:
        operands = operands_of((x,))
        return array_of(record(ufunc, operands)[0], operands)

    return _named(ufunc, function, name, text)


def _two(name: str, ufunc: np.ufunc, body: BinaryFunction | UfuncBody, text: str, *, raw: bool = False) -> OfTwo:
    """Define a function of two arrays by its ufunc, and note in `RULES` how the ufunc is recorded; see `_one`."""
    RULES[ufunc] = UfuncRule(partial(binary, body) if isinstance(body, str) else body, raw)

    def function(x1: Any, x2: Any, /) -> Array:
        operands = operands_of((x1, x2))
        return array_of(record(ufunc, operands)[0], operands)

    return _named(ufunc, function, name, text)


def _comparison(fn: BinaryFunction, ufunc: np.ufunc, text: str) -> OfTwo:
    return _two(fn, ufunc, partial(compare, fn), text, raw=True)


def _named(ufunc: np.ufunc, function: Function, name: str, text: str) -> Function:
    """Give a function its name and docstring, and register it in the ufunc's place."""
    function.__name__ = function.__qualname__ = name
    function.__doc__ = text
    return implements(ufunc)(function)


def _pair(ufunc: np.ufunc, *inputs: Any) -> tuple[Array, Array]:
    """Both results of a ufunc that has two."""
    operands = operands_of(inputs)
    first, second = record(ufunc, operands)
    return array_of(first, operands), array_of(second, operands)


# Signs and parts

positive = _one("positive", np.positive, composed.same, "The numbers themselves, in a new array.")
negative = _one("negative", np.negative, "negative", "Each number with the other sign.")
abs = _one("abs", np.absolute, composed.absolute, "The distance from zero; real for complex numbers.")
fabs = _one("fabs", np.fabs, "abs", "The distance from zero, as floating point.")
sign = _one("sign", np.sign, "sign", "-1, 0 or 1; for complex numbers x / abs(x).")
signbit = _one("signbit", np.signbit, "signbit", "Whether the sign is a minus, also that of -0.0 and of NaN.")
copysign = _two("copysign", np.copysign, "copysign", "The first number with the sign of the second.")
conj = _one("conj", np.conjugate, composed.conjugate, "The complex conjugate.")
heaviside = _two("heaviside", np.heaviside, composed.heaviside, "0 below zero, 1 above, and the second number at zero.")

# Arithmetic

add = _two("add", np.add, "add", "The sum; of truth values, whether one holds.")
subtract = _two("subtract", np.subtract, "subtract", "The first number minus the second.")
multiply = _two("multiply", np.multiply, "multiply", "The product; of truth values, whether both hold.")
divide = _two("divide", np.divide, "divide", "The quotient, as floating point.")
floor_divide = _two("floor_divide", np.floor_divide, "floor_divide", "The quotient, rounded down.")
remainder = _two("remainder", np.remainder, "remainder", "What floor_divide leaves; its sign is that of the divisor.")
fmod = _two(
    "fmod", np.fmod, "fmod", "What a division that rounds towards zero leaves; its sign is that of the dividend."
)
pow = _two("pow", np.power, recording.power, "The first number to the power of the second.")
float_power = _two(
    "float_power", np.float_power, composed.float_power, "As pow, in float64 or complex128 whatever goes in."
)
square = _one("square", np.square, composed.square, "Each number times itself.")
reciprocal = _one("reciprocal", np.reciprocal, "reciprocal", "One divided by each number.")
gcd = _two("gcd", np.gcd, "gcd", "The greatest common divisor.")
lcm = _two("lcm", np.lcm, composed.lcm, "The least common multiple.")
maximum = _two("maximum", np.maximum, "maximum", "The larger number; NaN where one of them is NaN.")
minimum = _two("minimum", np.minimum, "minimum", "The smaller number; NaN where one of them is NaN.")
fmax = _two("fmax", np.fmax, composed.without_nan("maximum"), "The larger number; NaN only where both are NaN.")
fmin = _two("fmin", np.fmin, composed.without_nan("minimum"), "The smaller number; NaN only where both are NaN.")

# Rounding

floor = _one("floor", np.floor, composed.for_inexact("floor"), "The next whole number below.")
ceil = _one("ceil", np.ceil, composed.for_inexact("ceil"), "The next whole number above.")
trunc = _one("trunc", np.trunc, composed.for_inexact("trunc"), "The next whole number towards zero.")
rint = _one("rint", np.rint, "rint", "The nearest whole number as floating point; the even one of two.")

# Roots, powers and logarithms

sqrt = _one("sqrt", np.sqrt, "sqrt", "The square root; NaN for negative real numbers.")
cbrt = _one("cbrt", np.cbrt, "cbrt", "The cube root.")
hypot = _two("hypot", np.hypot, "hypot", "The length of the hypotenuse over two legs.")
exp = _one("exp", np.exp, "exp", "e to the power of each number.")
exp2 = _one("exp2", np.exp2, "exp2", "2 to the power of each number.")
expm1 = _one("expm1", np.expm1, "expm1", "exp(x) - 1, also exact near zero.")
log = _one("log", np.log, "log", "The natural logarithm.")
log2 = _one("log2", np.log2, "log2", "The logarithm to base 2.")
log10 = _one("log10", np.log10, "log10", "The logarithm to base 10.")
log1p = _one("log1p", np.log1p, "log1p", "log(1 + x), also exact near zero.")
logaddexp = _two("logaddexp", np.logaddexp, composed.logaddexp, "log(exp(x1) + exp(x2)), without overflow.")
logaddexp2 = _two("logaddexp2", np.logaddexp2, composed.logaddexp2, "log2(2**x1 + 2**x2), without overflow.")

# Angles

sin = _one("sin", np.sin, "sin", "The sine of angles in radians.")
cos = _one("cos", np.cos, "cos", "The cosine of angles in radians.")
tan = _one("tan", np.tan, "tan", "The tangent of angles in radians.")
asin = _one("asin", np.arcsin, "asin", "The angle of a sine, in radians.")
acos = _one("acos", np.arccos, "acos", "The angle of a cosine, in radians.")
atan = _one("atan", np.arctan, "atan", "The angle of a tangent, in radians.")
atan2 = _two("atan2", np.arctan2, "atan2", "The angle of the point (x2, x1), in radians and in all four quadrants.")
sinh = _one("sinh", np.sinh, "sinh", "The hyperbolic sine.")
cosh = _one("cosh", np.cosh, "cosh", "The hyperbolic cosine.")
tanh = _one("tanh", np.tanh, "tanh", "The hyperbolic tangent.")
asinh = _one("asinh", np.arcsinh, "asinh", "The inverse of the hyperbolic sine.")
acosh = _one("acosh", np.arccosh, "acosh", "The inverse of the hyperbolic cosine.")
atanh = _one("atanh", np.arctanh, "atanh", "The inverse of the hyperbolic tangent.")
deg2rad = _one("deg2rad", np.deg2rad, composed.scaled(math.pi, 180), "Degrees as radians.")
radians = _one("radians", np.radians, composed.scaled(math.pi, 180), "Degrees as radians.")
rad2deg = _one("rad2deg", np.rad2deg, composed.scaled(180, math.pi), "Radians as degrees.")
degrees = _one("degrees", np.degrees, composed.scaled(180, math.pi), "Radians as degrees.")

# How floating point is made

isnan = _one("isnan", np.isnan, composed.question_of_inexact("isnan", False), "Whether it is not a number.")
isinf = _one("isinf", np.isinf, composed.question_of_inexact("isinf", False), "Whether it is infinite.")
isfinite = _one(
    "isfinite", np.isfinite, composed.question_of_inexact("isfinite", True), "Whether it is a finite number."
)
nextafter = _two("nextafter", np.nextafter, "nextafter", "The number that comes after the first, towards the second.")
spacing = _one("spacing", np.spacing, composed.spacing, "The distance to the nearest other number of the type.")
ldexp = _two("ldexp", np.ldexp, composed.ldexp, "x1 * 2**x2.")

# Bits

bitwise_and = _two("bitwise_and", np.bitwise_and, "bitwise_and", "The bits that both have.")
bitwise_or = _two("bitwise_or", np.bitwise_or, "bitwise_or", "The bits that one of them has.")
bitwise_xor = _two("bitwise_xor", np.bitwise_xor, "bitwise_xor", "The bits that exactly one of them has.")
bitwise_invert = _one("bitwise_invert", np.invert, "invert", "Bitwise NOT; logical NOT for booleans.")
bitwise_left_shift = _two("bitwise_left_shift", np.left_shift, "left_shift", "The bits moved up by x2 places.")
bitwise_right_shift = _two("bitwise_right_shift", np.right_shift, "right_shift", "The bits moved down by x2 places.")
bitwise_count = _one("bitwise_count", np.bitwise_count, "popcount", "How many bits of the absolute value are set.")

# Comparison and logic

equal = _comparison("equal", np.equal, "Whether both are equal.")
not_equal = _comparison("not_equal", np.not_equal, "Whether they differ.")
less = _comparison("less", np.less, "Whether the first is smaller.")
less_equal = _comparison("less_equal", np.less_equal, "Whether the first is not larger.")
greater = _comparison("greater", np.greater, "Whether the first is larger.")
greater_equal = _comparison("greater_equal", np.greater_equal, "Whether the first is not smaller.")
logical_and = _two("logical_and", np.logical_and, composed.logical("bitwise_and"), "Whether both hold.", raw=True)
logical_or = _two("logical_or", np.logical_or, composed.logical("bitwise_or"), "Whether one holds.", raw=True)
logical_xor = _two("logical_xor", np.logical_xor, composed.logical("bitwise_xor"), "Whether one holds alone.", raw=True)
logical_not = _one("logical_not", np.logical_not, composed.logical_not, "Whether it does not hold.", raw=True)

# NumPy's other names

absolute = abs
arcsin, arccos, arctan, arctan2 = asin, acos, atan, atan2
arcsinh, arccosh, arctanh = asinh, acosh, atanh
bitwise_not = invert = bitwise_invert
left_shift, right_shift = bitwise_left_shift, bitwise_right_shift
conjugate = conj
mod = remainder
power = pow
true_divide = divide

# More than one result, or options

RULES.update(
    {np.divmod: UfuncRule(composed.divmod), np.frexp: UfuncRule(composed.frexp), np.modf: UfuncRule(composed.modf)}
)


@implements(np.divmod)
def divmod(x1: Any, x2: Any, /) -> tuple[Array, Array]:
    """`floor_divide` and `remainder`."""
    return _pair(np.divmod, x1, x2)


@implements(np.frexp)
def frexp(x: Any, /) -> tuple[Array, Array]:
    """Mantissas from 0.5 to 1 and exponents of 2, whose product each number is."""
    return _pair(np.frexp, x)


@implements(np.modf)
def modf(x: Any, /) -> tuple[Array, Array]:
    """The parts after and before the point, both with the sign of the number."""
    return _pair(np.modf, x)


@implements(np.round, np.around)
def round(x: Any, /, decimals: int = 0, out: Array | None = None) -> Array:
    """To the nearest number of that many decimals, the even one of two; negative: tens, hundreds, …"""
    array = to_array(x, device_of(x))
    if array.dtype == np.bool_:
        if decimals:
            raise TypeError("truth values have no decimals; convert them with astype first.")
        return _into(out, rint(array))
    value = array._value
    return _into(out, array_of(composed.rounded(value, decimals.__index__()), (value,)))


around = round


@implements(np.clip)
def clip(
    x: Any, /, a_min: Any = None, a_max: Any = None, out: Array | None = None, *, min: Any = None, max: Any = None
) -> Array:
    """Numbers below `min` become `min`, and those above `max` become `max`; `None` is no limit."""
    if (a_min is not None or a_max is not None) and (min is not None or max is not None):
        raise ValueError("clip takes its limits either by position or as min= and max=, not both.")
    lower, upper = a_min if min is None else min, a_max if max is None else max
    device = device_of(x, lower, upper)
    array = to_array(x, device)
    if array.dtype.kind in "iu":
        # A Python integer that the type cannot reach is no limit.
        least, most = np.iinfo(array.dtype).min, np.iinfo(array.dtype).max
        lower = None if type(lower) is int and lower <= least else lower
        upper = None if type(upper) is int and upper >= most else upper
    limits = [operand_of(each, device) for each in (lower, upper) if each is not None]
    if not limits:
        return _into(out, positive(array))
    # When both are equal, the second is taken. A zero keeps its sign where the limits are the same along the last
    # axis; otherwise it gets that of the limit: NumPy has two loops.
    takes_limit = len(limits) == 2 and any(isinstance(each, Value) and each.spec.shape[-1:] > (1,) for each in limits)
    value, *bounds = recording.common(array._value, *limits)
    if KIND[value.spec.dtype] == "complex" and len(bounds) == 2:
        beyond = _limited(_limited(value, bounds[0], "greater"), bounds[1], "less")
        return _into(out, Array(beyond))
    if lower is not None:
        value = binary("maximum", *((value, bounds[0]) if takes_limit else (bounds[0], value)))
    if upper is not None:
        value = binary("minimum", *((value, bounds[-1]) if takes_limit else (bounds[-1], value)))
    return _into(out, Array(value))


def _limited(value: Value, limit: Value, order: BinaryFunction) -> Value:
    """Return `value` where it is NaN or stands in this order to `limit`, else `limit`.

    Complex numbers are ordered by their real parts first, so a NaN in the limit may not count.
    """
    (a, b), (c, d) = ((unary("real", each), unary("imag", each)) for each in (value, limit))
    by_part = recording.where(binary("equal", a, c), binary(order, b, d), binary(order, a, c))
    is_nan = binary("bitwise_or", unary("isnan", a), unary("isnan", b))
    return recording.where(binary("bitwise_or", is_nan, by_part), value, limit)


@implements(np.real)
def real(x: Any, /) -> Array:
    """The real part. Real arrays are returned themselves, as NumPy does."""
    array = to_array(x, device_of(x))
    if array.dtype.kind != "c":
        return array
    return attach(
        Array(unary("real", array._value)), array, (Unary("real"),), "write x = new + 1j * x.imag to set the real part."
    )


@implements(np.imag)
def imag(x: Any, /) -> Array:
    """The imaginary part; zeros for real arrays."""
    array = to_array(x, device_of(x))
    if array.dtype.kind != "c":
        if array._is_number:
            return Array(composed.imag(array._value))
        zeros = Array(
            composed.imag(array._value) if array.ndim else recording.reshape(composed.imag(array._value), (1,))
        )
        note_new(zeros, "contiguous", np.imag, array)
        return view(zeros, Reshape(array.shape), refusal="NumPy's imaginary part of real numbers is read-only.")
    return attach(
        Array(unary("imag", array._value)),
        array,
        (Unary("imag"),),
        "write x = x.real + 1j * new to set the imaginary part.",
    )


def _into(out: Array | None, result: Array) -> Array:
    """The result, or `out` after the result has been assigned to it.

    Raises `TypeError` for an `out` that is no `Array`.
    """
    if out is None:
        return result
    if not isinstance(out, Array):
        raise TypeError("out= must be an anygpu Array; to fill a NumPy array, write out[...] = np.asarray(result).")
    return out._assign(result)
