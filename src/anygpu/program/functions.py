"""The functions that primitives are made of, by name, and the types that each is defined for."""

from __future__ import annotations

from typing import Literal, get_args

from anygpu.errors import InvalidProgram
from anygpu.program.dtypes import COMPLEX_OF, KIND, REAL_PART, DType, Kind

UnaryFunction = Literal[
    "negative",
    "abs",
    "sign",
    "floor",
    "ceil",
    "trunc",
    "rint",
    "sqrt",
    "cbrt",
    "exp",
    "exp2",
    "expm1",
    "log",
    "log2",
    "log10",
    "log1p",
    "sin",
    "cos",
    "tan",
    "asin",
    "acos",
    "atan",
    "sinh",
    "cosh",
    "tanh",
    "asinh",
    "acosh",
    "atanh",
    "erf",
    "reciprocal",
    "invert",
    "popcount",
    "isnan",
    "isinf",
    "isfinite",
    "signbit",
    "real",
    "imag",
    "conj",
    "mantissa",
    "exponent",
]
BinaryFunction = Literal[
    "add",
    "subtract",
    "multiply",
    "divide",
    "floor_divide",
    "remainder",
    "fmod",
    "power",
    "atan2",
    "hypot",
    "minimum",
    "maximum",
    "copysign",
    "nextafter",
    "ldexp",
    "gcd",
    "bitwise_and",
    "bitwise_or",
    "bitwise_xor",
    "left_shift",
    "right_shift",
    "equal",
    "not_equal",
    "less",
    "less_equal",
    "greater",
    "greater_equal",
    "complex",
]
ReduceFunction = Literal["sum", "prod", "max", "min", "any", "all", "argmax", "argmin"]
ScanFunction = Literal["sum", "prod", "max", "min"]
#: How a scatter combines an update with the element that is there.
ScatterFunction = Literal["set", "add", "multiply", "maximum", "minimum"]
FourierFunction = Literal["fft", "ifft", "rfft", "irfft"]
LinearFunction = Literal[
    "cholesky", "inv", "solve", "det", "slogdet", "qr", "svd", "svdvals", "eigh", "eigvalsh", "eig"
]

UNARY: tuple[UnaryFunction, ...] = get_args(UnaryFunction)
BINARY: tuple[BinaryFunction, ...] = get_args(BinaryFunction)
COMPARISONS: tuple[BinaryFunction, ...] = ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal")

#: Functions that take hardware many instructions, or one slow one.
TRANSCENDENTAL: frozenset[UnaryFunction | BinaryFunction] = frozenset(
    {
        "sqrt",
        "cbrt",
        "exp",
        "exp2",
        "expm1",
        "log",
        "log2",
        "log10",
        "log1p",
        "sin",
        "cos",
        "tan",
        "asin",
        "acos",
        "atan",
        "sinh",
        "cosh",
        "tanh",
        "asinh",
        "acosh",
        "atanh",
        "erf",
        "power",
        "atan2",
        "hypot",
        "floor_divide",
        "remainder",
        "fmod",
        "gcd",
    }
)
#: Functions that raise no flag of IEEE 754 whatever they are given.
SILENT_UNARY: frozenset[UnaryFunction] = frozenset(
    ("negative", "abs", "sign", "floor", "ceil", "trunc", "rint", "real", "imag", "conj", "mantissa")
)
SILENT_BINARY: frozenset[BinaryFunction] = frozenset(("minimum", "maximum", "copysign", "complex"))

_NUMBERS: tuple[Kind, ...] = ("signed", "unsigned", "float", "complex")
_REALS: tuple[Kind, ...] = ("signed", "unsigned", "float")
_INEXACT: tuple[Kind, ...] = ("float", "complex")
_WHOLE: tuple[Kind, ...] = ("bool", "signed", "unsigned")

#: The kinds of numbers that each function is defined for; what is not listed takes floats and complex numbers.
_UNARY_KINDS: dict[UnaryFunction, tuple[Kind, ...]] = {
    "negative": _NUMBERS,
    "abs": _NUMBERS,
    "sign": _NUMBERS,
    "reciprocal": _NUMBERS,
    "floor": ("float",),
    "ceil": ("float",),
    "trunc": ("float",),
    "rint": _INEXACT,
    "cbrt": ("float",),
    "erf": ("float",),
    "invert": _WHOLE,
    "popcount": ("signed", "unsigned"),
    "signbit": ("float",),
    "real": ("complex",),
    "imag": ("complex",),
    "conj": ("complex",),
    "mantissa": ("float",),
    "exponent": ("float",),
}
_BINARY_KINDS: dict[BinaryFunction, tuple[Kind, ...]] = {
    "add": _NUMBERS,
    "subtract": _NUMBERS,
    "multiply": _NUMBERS,
    "divide": _INEXACT,
    "floor_divide": _REALS,
    "remainder": _REALS,
    "fmod": _REALS,
    "power": _NUMBERS,
    "atan2": ("float",),
    "hypot": ("float",),
    "minimum": ("bool", *_NUMBERS),
    "maximum": ("bool", *_NUMBERS),
    "copysign": ("float",),
    "nextafter": ("float",),
    "gcd": ("signed", "unsigned"),
    "bitwise_and": _WHOLE,
    "bitwise_or": _WHOLE,
    "bitwise_xor": _WHOLE,
    "left_shift": ("signed", "unsigned"),
    "right_shift": ("signed", "unsigned"),
    "complex": ("float",),
    **dict.fromkeys(COMPARISONS, ("bool", *_NUMBERS)),
}


#: The same for all functions together, by name.
_KINDS: dict[str, tuple[Kind, ...]] = {fn: _UNARY_KINDS.get(fn, _INEXACT) for fn in UNARY}
_KINDS.update({str(fn): kinds for fn, kinds in _BINARY_KINDS.items()})


def is_defined(fn: UnaryFunction | BinaryFunction, dtype: DType) -> bool:
    """Whether operands of this type, all of them, are what the function takes. `ldexp` never takes one type."""
    return KIND[dtype] in _KINDS.get(fn, ())


def unary_dtype(fn: UnaryFunction, dtype: DType) -> DType:
    if KIND[dtype] not in _UNARY_KINDS.get(fn, _INEXACT):
        raise InvalidProgram(f"{fn}: is not defined for {dtype}; cast it first.")
    if fn in ("isnan", "isinf", "isfinite", "signbit"):
        return "bool"
    if fn in ("abs", "real", "imag"):
        return REAL_PART.get(dtype, dtype)
    return "uint8" if fn == "popcount" else "int32" if fn == "exponent" else dtype


def binary_dtype(fn: BinaryFunction, one: DType, other: DType) -> DType:
    if fn == "ldexp":
        if KIND[one] != "float" or other != "int32":
            raise InvalidProgram(f"ldexp: takes floating point and int32, not {one} and {other}.")
        return one
    if one != other:
        raise InvalidProgram(f"{fn}: {one} and {other} differ; cast one of them first.")
    if KIND[one] not in _BINARY_KINDS[fn]:
        raise InvalidProgram(f"{fn}: is not defined for {one}; cast it first.")
    if fn in COMPARISONS:
        return "bool"
    return COMPLEX_OF.get(one, "complex128") if fn == "complex" else one
