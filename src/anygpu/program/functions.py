"""The functions that primitives are made of, by name, and one table of what is known about the elementwise ones.

A new elementwise function is a name in `UnaryFunction` or `BinaryFunction`, a row of `FUNCTIONS`, its text in
`codegen/functions`, and a rule of agreement. Whatever needs to know which functions are monotone, how NumPy calls them
or which dialect has them asks the table; see docs/how-to/add-a-primitive.md.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, get_args

from anygpu.errors import InvalidProgram
from anygpu.program.dtypes import COMPLEX_OF, KIND, REAL_PART, DType, Kind

UnaryFunction = Literal[
    "negative", "abs", "sign", "floor", "ceil", "trunc", "rint", "sqrt", "cbrt", "exp", "exp2", "expm1", "log", "log2",
    "log10", "log1p", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh",
    "erf", "reciprocal", "invert", "popcount", "isnan", "isinf", "isfinite", "signbit", "real", "imag", "conj",
    "mantissa", "exponent",
]  # fmt: skip
BinaryFunction = Literal[
    "add", "subtract", "multiply", "divide", "floor_divide", "remainder", "fmod", "power", "atan2", "hypot", "minimum",
    "maximum", "copysign", "nextafter", "ldexp", "gcd", "bitwise_and", "bitwise_or", "bitwise_xor", "left_shift",
    "right_shift", "equal", "not_equal", "less", "less_equal", "greater", "greater_equal", "complex",
]  # fmt: skip
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

_NUMBERS: tuple[Kind, ...] = ("signed", "unsigned", "float", "complex")
_REALS: tuple[Kind, ...] = ("signed", "unsigned", "float")
_INEXACT: tuple[Kind, ...] = ("float", "complex")
_FLOAT: tuple[Kind, ...] = ("float",)
_COMPLEX: tuple[Kind, ...] = ("complex",)
_INTEGERS: tuple[Kind, ...] = ("signed", "unsigned")
_WHOLE: tuple[Kind, ...] = ("bool", *_INTEGERS)
_ALL: tuple[Kind, ...] = ("bool", *_NUMBERS)

#: What may be said of a function; `FUNCTIONS` says it, and `having` finds those of which it is said.
#:
#: - slow: hardware takes many instructions for it, or one slow one.
#: - silent: it raises no flag of IEEE 754 whatever it is given.
#: - exact: of numbers of a type the result is one as well; nothing is rounded, and nothing leaves the range.
#: - monotone: of real numbers it grows everywhere or falls everywhere, so the ends of an interval tell.
#: - relative: it has no zero near which rounding errors are large beside the result.
#: - angle: trigonometric or hyperbolic, or an inverse of such a function.
#: - near: for real numbers it is not correctly rounded everywhere, so libraries differ in the last bit.
Trait = Literal["slow", "silent", "exact", "monotone", "relative", "angle", "near"]
#: The type of a result: that of the operands, the real part's, the complex type of two parts, or always the same one.
_Result = Literal["same", "real", "complex", "bool", "uint8", "int32"]
#: Operands, none of them finite, of which the result is not finite either.
_Keeps = Literal["", "nan", "nan, inf", "nan, inf of the first"]
#: Results that are not finite: NaN of operands that are none, and infinities of finite operands.
_Makes = Literal["", "nan", "inf", "nan, inf"]


class ElementwiseFunction(NamedTuple):
    """A row of `FUNCTIONS`."""

    name: UnaryFunction | BinaryFunction
    #: The kinds of numbers that it is defined for.
    kinds: tuple[Kind, ...]
    #: Several of `Trait`, with blanks between them.
    traits: str = ""
    result: _Result = "same"
    #: The name in NumPy, where it is another one.
    numpy: str = ""
    keeps: _Keeps = ""
    makes: _Makes = ""
    #: Where it is infinite, and rightly so.
    poles: tuple[float, ...] = ()
    #: The built-in function of floats in a dialect, where that has one.
    wgsl: str = ""
    opencl: str = ""
    #: How much longer than a function such as `exp` it takes on processors of all kinds, roughly.
    weight: float = 1.0
    #: Instructions for one vector, in native code.
    instructions: float = 1.0

    @property
    def numpy_name(self) -> str:
        return self.numpy or self.name


_Row = ElementwiseFunction
_ROWS = (
    # Of one number: signs and rounding.
    _Row("negative", _NUMBERS, "silent", keeps="nan, inf"),
    _Row("abs", _NUMBERS, "silent", result="real", keeps="nan, inf", wgsl="abs", opencl="fabs"),
    _Row("sign", _NUMBERS, "silent exact", keeps="nan", wgsl="sign"),
    _Row("floor", _FLOAT, "silent exact monotone", keeps="nan, inf", wgsl="floor", opencl="floor"),
    _Row("ceil", _FLOAT, "silent exact monotone", keeps="nan, inf", wgsl="ceil", opencl="ceil"),
    _Row("trunc", _FLOAT, "silent exact monotone", keeps="nan, inf", wgsl="trunc", opencl="trunc"),
    _Row("rint", _INEXACT, "silent exact monotone", keeps="nan, inf", wgsl="round", opencl="rint"),
    # Roots, exponentials and logarithms.
    _Row("sqrt", _INEXACT, "slow monotone relative", keeps="nan, inf", makes="nan", wgsl="sqrt", opencl="sqrt",
         weight=0.5, instructions=5.0),
    _Row("cbrt", _FLOAT, "slow monotone relative near", keeps="nan, inf", opencl="cbrt", instructions=24.0),
    _Row("exp", _INEXACT, "slow monotone relative near", keeps="nan", makes="inf", wgsl="exp", opencl="exp",
         instructions=18.0),
    _Row("exp2", _INEXACT, "slow monotone relative near", keeps="nan", makes="inf", wgsl="exp2", opencl="exp2",
         instructions=18.0),
    _Row("expm1", _INEXACT, "slow monotone near", keeps="nan", makes="inf", opencl="expm1", instructions=24.0),
    _Row("log", _INEXACT, "slow monotone near", keeps="nan, inf", makes="nan, inf", poles=(0.0,), wgsl="log",
         opencl="log", instructions=22.0),
    _Row("log2", _INEXACT, "slow monotone near", keeps="nan, inf", makes="nan, inf", poles=(0.0,), wgsl="log2",
         opencl="log2", instructions=22.0),
    _Row("log10", _INEXACT, "slow monotone near", keeps="nan, inf", makes="nan, inf", poles=(0.0,), opencl="log10",
         instructions=24.0),
    _Row("log1p", _INEXACT, "slow monotone near", keeps="nan, inf", makes="nan, inf", poles=(-1.0,), opencl="log1p",
         instructions=26.0),
    # Angles and hyperbolas.
    _Row("sin", _INEXACT, "slow angle near", keeps="nan, inf", makes="nan", wgsl="sin", opencl="sin", weight=1.5,
         instructions=24.0),
    _Row("cos", _INEXACT, "slow angle near", keeps="nan, inf", makes="nan", wgsl="cos", opencl="cos", weight=1.5,
         instructions=24.0),
    _Row("tan", _INEXACT, "slow angle near", keeps="nan, inf", makes="nan", wgsl="tan", opencl="tan", weight=2.0,
         instructions=32.0),
    _Row("asin", _INEXACT, "slow monotone angle near", numpy="arcsin", keeps="nan, inf", makes="nan", wgsl="asin",
         opencl="asin", instructions=28.0),
    _Row("acos", _INEXACT, "slow monotone angle near", numpy="arccos", keeps="nan, inf", makes="nan", wgsl="acos",
         opencl="acos", instructions=28.0),
    _Row("atan", _INEXACT, "slow monotone angle near", numpy="arctan", keeps="nan", wgsl="atan", opencl="atan",
         instructions=28.0),
    _Row("sinh", _INEXACT, "slow monotone angle near", keeps="nan, inf", makes="inf", wgsl="sinh", opencl="sinh",
         weight=1.5, instructions=30.0),
    _Row("cosh", _INEXACT, "slow relative angle near", keeps="nan, inf", makes="inf", wgsl="cosh", opencl="cosh",
         instructions=30.0),
    _Row("tanh", _INEXACT, "slow monotone angle near", keeps="nan", wgsl="tanh", opencl="tanh", instructions=28.0),
    _Row("asinh", _INEXACT, "slow monotone angle near", numpy="arcsinh", keeps="nan, inf", wgsl="asinh", opencl="asinh",
         instructions=36.0),
    _Row("acosh", _INEXACT, "slow monotone angle near", numpy="arccosh", keeps="nan, inf", makes="nan", wgsl="acosh",
         opencl="acosh", instructions=36.0),
    _Row("atanh", _INEXACT, "slow monotone angle near", numpy="arctanh", keeps="nan, inf", makes="nan, inf",
         poles=(-1.0, 1.0), wgsl="atanh", opencl="atanh", instructions=36.0),
    # Others of one number.
    _Row("erf", _FLOAT, "slow near", keeps="nan", opencl="erf", instructions=40.0),
    _Row("reciprocal", _NUMBERS, "relative", keeps="nan", makes="inf", poles=(0.0,), instructions=4.0),
    _Row("invert", _WHOLE),
    _Row("popcount", _INTEGERS, "exact", result="uint8", numpy="bitwise_count"),
    _Row("isnan", _INEXACT, result="bool", opencl="isnan"),
    _Row("isinf", _INEXACT, result="bool", opencl="isinf"),
    _Row("isfinite", _INEXACT, result="bool", opencl="isfinite"),
    _Row("signbit", _FLOAT, result="bool", opencl="signbit"),
    _Row("real", _COMPLEX, "silent", result="real"),
    _Row("imag", _COMPLEX, "silent", result="real"),
    _Row("conj", _COMPLEX, "silent", keeps="nan, inf"),
    _Row("mantissa", _FLOAT, "silent exact"),
    _Row("exponent", _FLOAT, result="int32"),
    # Of two numbers: arithmetic.
    _Row("add", _NUMBERS, keeps="nan, inf", makes="nan, inf"),
    _Row("subtract", _NUMBERS, keeps="nan, inf", makes="nan, inf"),
    _Row("multiply", _NUMBERS, keeps="nan, inf", makes="nan, inf"),
    _Row("divide", _INEXACT, keeps="nan, inf of the first", makes="nan, inf", instructions=4.0),
    _Row("floor_divide", _REALS, "slow", keeps="nan, inf of the first", makes="nan, inf", weight=16.0,
         instructions=12.0),
    _Row("remainder", _REALS, "slow", keeps="nan, inf of the first", makes="nan", weight=12.0, instructions=12.0),
    _Row("fmod", _REALS, "slow exact", keeps="nan, inf of the first", makes="nan", opencl="fmod", weight=12.0,
         instructions=12.0),
    _Row("power", _NUMBERS, "slow near", makes="nan, inf", wgsl="pow", opencl="pow", weight=3.0, instructions=44.0),
    _Row("atan2", _FLOAT, "slow near", numpy="arctan2", keeps="nan", wgsl="atan2", opencl="atan2", weight=2.0,
         instructions=36.0),
    _Row("hypot", _FLOAT, "slow near", keeps="nan, inf", makes="inf", opencl="hypot", weight=4.0, instructions=12.0),
    _Row("minimum", _ALL, "silent exact", keeps="nan"),
    _Row("maximum", _ALL, "silent exact", keeps="nan"),
    _Row("copysign", _FLOAT, "silent exact", opencl="copysign"),
    _Row("nextafter", _FLOAT, "exact", makes="inf", opencl="nextafter"),
    # The second operand is an int32; see `binary_dtype`.
    _Row("ldexp", (), makes="inf"),
    # Whole numbers and bits.
    _Row("gcd", _INTEGERS, "slow exact", weight=16.0, instructions=60.0),
    _Row("bitwise_and", _WHOLE, "exact"),
    _Row("bitwise_or", _WHOLE, "exact"),
    _Row("bitwise_xor", _WHOLE, "exact"),
    _Row("left_shift", _INTEGERS),
    _Row("right_shift", _INTEGERS, "exact"),
    # Comparisons, and the number of two parts.
    _Row("equal", _ALL, result="bool"),
    _Row("not_equal", _ALL, result="bool"),
    _Row("less", _ALL, result="bool"),
    _Row("less_equal", _ALL, result="bool"),
    _Row("greater", _ALL, result="bool"),
    _Row("greater_equal", _ALL, result="bool"),
    _Row("complex", _FLOAT, "silent", result="complex", keeps="nan, inf"),
)  # fmt: skip

#: The table of elementwise functions, by name, in the order of `UNARY` and then `BINARY`.
FUNCTIONS: dict[str, ElementwiseFunction] = {row.name: row for row in _ROWS}


def having(trait: Trait) -> frozenset[str]:
    """The names of the functions that have a trait."""
    return frozenset(name for name, row in FUNCTIONS.items() if trait in row.traits.split())


COMPARISONS: tuple[BinaryFunction, ...] = tuple(fn for fn in BINARY if FUNCTIONS[fn].result == "bool")
#: Functions of one floating-point number that give a truth value.
TESTS: tuple[UnaryFunction, ...] = tuple(fn for fn in UNARY if FUNCTIONS[fn].result == "bool")
TRANSCENDENTAL = having("slow")
SILENT = having("silent")
#: Functions of one complex number that are computed by a formula, and not by parts.
COMPLEX_FORMULAS = frozenset(
    fn for fn in UNARY if "complex" in FUNCTIONS[fn].kinds and (fn in TRANSCENDENTAL or fn in ("reciprocal", "sign"))
)


def is_defined(fn: UnaryFunction | BinaryFunction, dtype: DType) -> bool:
    """Whether operands of this type, all of them, are what the function takes. `ldexp` never takes one type."""
    return KIND[dtype] in FUNCTIONS[fn].kinds


def unary_dtype(fn: UnaryFunction, dtype: DType) -> DType:
    """The type of the result. Raises `InvalidProgram` where the function is not defined."""
    return _result_of(fn, dtype)


def binary_dtype(fn: BinaryFunction, one: DType, other: DType) -> DType:
    """The type of the result. Raises `InvalidProgram` where the function is not defined."""
    if fn == "ldexp":
        if KIND[one] != "float" or other != "int32":
            raise InvalidProgram(f"ldexp: takes floating point and int32, not {one} and {other}.")
        return one
    if one != other:
        raise InvalidProgram(f"{fn}: {one} and {other} differ; cast one of them first.")
    return _result_of(fn, one)


def _result_of(fn: UnaryFunction | BinaryFunction, dtype: DType) -> DType:
    """The type of a function's result by its row. Raises `InvalidProgram` where it is not defined."""
    row = FUNCTIONS[fn]
    if KIND[dtype] not in row.kinds:
        raise InvalidProgram(f"{fn}: is not defined for {dtype}; cast it first.")
    match row.result:
        case "same":
            return dtype
        case "real":
            return REAL_PART.get(dtype, dtype)
        case "complex":
            return COMPLEX_OF.get(dtype, "complex128")
    return row.result
