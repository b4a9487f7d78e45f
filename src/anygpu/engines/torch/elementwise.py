"""Element by element in torch: unary and binary functions, select, and casts, each with NumPy's meaning.

`Site` is what a rule knows of its place in a program, and `LOWER` has the rule of each primitive: it chooses the torch
call before anything runs. Where torch differs from NumPy the formula stands here; types that torch lacks are held as
stand-ins.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch

from anygpu.base.interrupts import float_errors_ignored
from anygpu.engines.codegen.value_analysis import whole_exponent
from anygpu.program.dtypes import DTYPES, ITEMSIZE, KIND, REAL_PART, DType
from anygpu.program.functions import UNARY, BinaryFunction
from anygpu.program.primitive import RuleTable
from anygpu.program.primitives import Binary, Cast, Select, Spec, Unary

# -- the place of a primitive in a program


#: The torch call of a primitive: tensors in, one tensor out.
Step: TypeAlias = Callable[..., Any]


class Site(NamedTuple):
    """A primitive's inputs, result and device, and what is known of its operands before it runs."""

    inputs: tuple[Spec, ...]
    result: Spec
    place: torch.device
    #: For each input the number that it is everywhere, where that is a part of the program.
    scalars: tuple[Any, ...] = ()
    #: Indices that no run can get wrong, and that name nothing twice.
    in_range: bool = False
    distinct: bool = False

    @property
    def dtype(self) -> DType:
        """The type that the primitive works on."""
        return self.inputs[0].dtype if self.inputs else self.result.dtype

    def scalar(self, which: int) -> Any:
        return self.scalars[which] if self.scalars else None


#: The step of each primitive at its site.
LOWER: RuleTable[Callable[[Any, Site], Step]] = RuleTable()


# -- how values of each type are held while a program runs
#
# torch has few operations on unsigned integers wider than 8 bits. Inside a program they are held as the signed type of
# the same width: the same bits, so that moving, adding and multiplying need nothing; only what depends on the sign must
# know, and asks for `ordered` or `widened`.


TORCH: dict[DType, torch.dtype] = {name: getattr(torch, name) for name in DTYPES}


#: Unsigned types that torch can hold and hardly compute with, and their stand-ins.
STAND_IN: dict[DType, torch.dtype] = {"uint16": torch.int16, "uint32": torch.int32, "uint64": torch.int64}


HELD: dict[DType, torch.dtype] = {**TORCH, **STAND_IN}


_WIDER: dict[DType, tuple[torch.dtype, int]] = {"uint16": (torch.int32, 0xFFFF), "uint32": (torch.int64, 0xFFFFFFFF)}


_TOP_BIT: dict[DType, int] = {"uint16": -(1 << 15), "uint32": -(1 << 31), "uint64": -(1 << 63)}


def has_stand_in(dtype: DType) -> bool:
    return dtype in STAND_IN


def ordered(x: torch.Tensor, dtype: DType) -> torch.Tensor:
    """Signed numbers in the same order. Its own inverse."""
    return x ^ _TOP_BIT[dtype] if dtype in STAND_IN else x


def widened(x: torch.Tensor, dtype: DType) -> torch.Tensor:
    """The same numbers in a signed type that holds them all; not for uint64, for which there is none."""
    if dtype not in _WIDER:
        return x
    wider, mask = _WIDER[dtype]
    return x.to(wider).bitwise_and_(mask)


def narrowed(x: torch.Tensor, dtype: DType) -> torch.Tensor:
    """Back from `widened`, modulo the type's range."""
    return x.to(HELD[dtype])


# -- functions of complex numbers that torch has otherwise than NumPy for zeros, infinities and NaN: part by part


def _complex_negative(x: torch.Tensor) -> torch.Tensor:
    """Negate both parts; torch subtracts from 0, and gives 0 for 0."""
    return torch.view_as_complex(-torch.view_as_real(x))


def _complex_reciprocal(x: torch.Tensor) -> torch.Tensor:
    """By the larger part first, as NumPy does, so that no square overflows."""
    real, imaginary = x.real, x.imag
    wide = imaginary.abs() <= real.abs()
    ratio = torch.where(wide, imaginary / real, real / imaginary)
    below = torch.where(wide, real + imaginary * ratio, real * ratio + imaginary)
    return torch.complex(torch.where(wide, 1.0, ratio) / below, torch.where(wide, -ratio, -1.0) / below)


def _complex_acos(x: torch.Tensor) -> torch.Tensor:
    """The imaginary part has the other sign, also when it is 0."""
    found = torch.acos(x)
    return torch.complex(found.real, torch.copysign(found.imag, -x.imag))


def _complex_log1p(x: torch.Tensor) -> torch.Tensor:
    above = x.real + 1
    return torch.complex(torch.log(torch.hypot(above, x.imag)), torch.atan2(x.imag, above))


_COMPLEX_UNARY: dict[str, Step] = {
    "negative": _complex_negative,
    "reciprocal": _complex_reciprocal,
    "acos": _complex_acos,
    "log1p": _complex_log1p,
}


def _complex_power(x: torch.Tensor, exponent: int) -> torch.Tensor:
    """Multiplied out by squares, as NumPy does for whole exponents; torch would go by way of the logarithm."""
    if exponent in (1, 2, 3):
        product = x if exponent == 1 else x * x if exponent == 2 else x * (x * x)
        return torch.where(x == 0, 0, product)
    result, square, rest = torch.ones_like(x), x, abs(exponent)
    while rest:
        if rest & 1:
            result = result * square
        rest >>= 1
        square = square * square if rest else square
    if exponent < 0:
        # Nothing can be told of 1 / 0 in the plane.
        return torch.where(x == 0, complex(torch.nan, torch.nan), torch.ones_like(x) / result)
    return torch.where(x == 0, 0, result) if exponent else result


#: Functions that mean in torch what they mean in NumPy, for every type that they are defined for.
_SAME_UNARY: dict[str, Step] = {
    **{
        name: getattr(torch, name)
        for name in UNARY
        if name not in ("negative", "sign", "rint", "cbrt", "reciprocal", "invert", "popcount", "mantissa", "exponent")
    },
    "negative": torch.neg,
    "invert": torch.bitwise_not,
    # torch marks a tensor as conjugate and does not touch it, which views of another type cannot follow.
    "conj": torch.conj_physical,
}


@LOWER.rule(Unary)
def unary(op: Unary, site: Site) -> Step:
    """The torch call of a function of one operand, at its site."""
    dtype = site.dtype
    match op.fn:
        case "abs" if KIND[dtype] == "unsigned":
            return lambda x: x
        case "negative" | "reciprocal" | "acos" | "log1p" if KIND[dtype] == "complex":
            return _COMPLEX_UNARY[op.fn]
        case "sign":
            return _sign(dtype)
        case "rint":
            return _round_parts if KIND[dtype] == "complex" else torch.round
        case "reciprocal":
            return torch.reciprocal if KIND[dtype] in ("float", "complex") else _whole_reciprocal(dtype)
        case "cbrt":
            return _cube_root if dtype == "float64" else _through_float64(_cube_root)
        case "popcount":
            return functools.partial(_count_bits, dtype=dtype)
        case "mantissa":
            return lambda x: torch.frexp(x).mantissa
        case "exponent":
            return lambda x: torch.frexp(x).exponent
    return _SAME_UNARY[op.fn]


def _sign(dtype: DType) -> Step:
    """The sign as NumPy has it: NaN stays NaN."""
    plain: Step = torch.sgn
    if KIND[dtype] == "complex":
        return _complex_sign
    if KIND[dtype] == "float":
        # torch says 0 for NaN.
        return lambda x: torch.where(torch.isnan(x), x, torch.sign(x))
    return (lambda x: (x != 0).to(HELD[dtype])) if has_stand_in(dtype) else plain


def _complex_sign(x: torch.Tensor) -> torch.Tensor:
    """The number of magnitude 1 in the same direction; torch loses the direction of what is infinite on one side."""
    one_side = torch.isinf(x.real) ^ torch.isinf(x.imag)
    both = torch.view_as_real(x)
    direction = torch.view_as_complex(torch.where(torch.isinf(both), torch.sign(both), 0))
    # By parts, because torch loses the sign of one that is 0.
    unit = torch.view_as_complex(both / torch.abs(x).unsqueeze(-1))
    return torch.where(one_side, direction, torch.where(x == 0, 0, unit))


def _round_parts(x: torch.Tensor) -> torch.Tensor:
    return torch.view_as_complex(torch.round(torch.view_as_real(x)))


@float_errors_ignored
def _reciprocal_of_zero(dtype: DType) -> Any:
    return np.reciprocal(np.zeros((), dtype))


def _whole_reciprocal(dtype: DType) -> Step:
    """1 and -1 are their own; what C makes of 1 / 0 is asked of NumPy."""
    of_zero = int(_reciprocal_of_zero(dtype))

    def reciprocal(x: torch.Tensor) -> torch.Tensor:
        is_unit = x == 1 if KIND[dtype] == "unsigned" else (x == 1) | (x == -1)
        return torch.where(is_unit, x, torch.where(x == 0, of_zero, 0).to(HELD[dtype]))

    return reciprocal


def _through_float64(function: Step) -> Step:
    return lambda x: function(x.to(torch.float64)).to(x.dtype)


def _cube_root(x: torch.Tensor) -> torch.Tensor:
    """A power that is nearly 1/3, and one of Newton's steps for the rest."""
    size = x.abs()
    root = size.pow(1 / 3)
    better = root - (root * root * root - size) / (3 * root * root)
    return torch.copysign(torch.where((size == 0) | torch.isinf(size), size, better), x)


def _count_bits(x: torch.Tensor, *, dtype: DType) -> torch.Tensor:
    """As many ones as the magnitude has, added up in pairs, fours and eights."""
    bits = 64 if ITEMSIZE[dtype] == 8 else 32
    wide = torch.int64 if bits == 64 else torch.int32
    if KIND[dtype] == "signed":
        x = x.to(wide).abs()
    elif ITEMSIZE[dtype] < 4:
        x = widened(x, dtype).to(wide)

    def repeated(byte: int) -> int:
        return int.from_bytes(bytes([byte]) * (bits // 8), "little", signed=True)

    x = x - ((x >> 1) & repeated(0x55))
    x = (x & repeated(0x33)) + ((x >> 2) & repeated(0x33))
    x = (x + (x >> 4)) & repeated(0x0F)
    return ((x * repeated(0x01)) >> bits - 8).to(torch.uint8)


_SAME_BINARY: dict[str, Step] = {
    "add": torch.add,
    "subtract": torch.sub,
    "multiply": torch.mul,
    "divide": torch.div,
    "atan2": torch.atan2,
    "hypot": torch.hypot,
    "copysign": torch.copysign,
    "nextafter": torch.nextafter,
    "bitwise_and": torch.bitwise_and,
    "bitwise_or": torch.bitwise_or,
    "bitwise_xor": torch.bitwise_xor,
    "left_shift": torch.bitwise_left_shift,
    "equal": torch.eq,
    "not_equal": torch.ne,
}
#: Functions that ask which of two numbers is larger.
_ORDERING: dict[str, Step] = {
    "less": torch.lt,
    "less_equal": torch.le,
    "greater": torch.gt,
    "greater_equal": torch.ge,
    "minimum": torch.minimum,
    "maximum": torch.maximum,
}


@LOWER.rule(Binary)
def binary(op: Binary, site: Site) -> Step:
    """The torch call of a function of two operands, at its site."""
    dtype = site.dtype
    if KIND[dtype] == "complex" and op.fn in ("add", "subtract"):
        return functools.partial(_by_parts, _SAME_BINARY[op.fn])
    if op.fn in _ORDERING:
        return _ordering(op.fn, dtype)
    match op.fn:
        case "floor_divide" | "remainder" | "fmod":
            return _division(op.fn, site)
        case "power":
            return _power(site)
        case "right_shift":
            return _right_shift(dtype)
        case "gcd":
            return _gcd(dtype)
        case "ldexp":
            return functools.partial(_scale, dtype=dtype)
        case "nextafter" if dtype == "float16":
            return lambda x, y: torch.where(x == y, x, torch.nextafter(x, y))
        case "complex":
            return _complex if dtype in ("float32", "float64") else lambda x, y: _complex(x.float(), y.float())
    return _SAME_BINARY[op.fn]


def _by_parts(function: Step, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """torch multiplies what it adds by a complex 1, which makes NaN of everything infinite."""
    parts = function(torch.view_as_real(x), torch.view_as_real(y))
    return torch.view_as_complex(parts if parts.stride(-1) == 1 else parts.contiguous())


def _complex(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.complex(x, y)


def _ordering(fn: BinaryFunction, dtype: DType) -> Step:
    """The torch call of a comparison or extreme; unsigned stand-ins are compared in their own order."""
    compare = _ORDERING[fn]
    if KIND[dtype] == "complex":
        return functools.partial(_complex_ordering, fn)
    if not has_stand_in(dtype):
        return compare
    if fn in ("minimum", "maximum"):
        return lambda x, y: ordered(compare(ordered(x, dtype), ordered(y, dtype)), dtype)
    return lambda x, y: compare(ordered(x, dtype), ordered(y, dtype))


def _complex_ordering(fn: BinaryFunction, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """First by the real parts, then by the imaginary ones; what is not a number spreads as NumPy lets it."""
    if fn in ("minimum", "maximum"):
        before = _complex_ordering("less_equal" if fn == "minimum" else "greater_equal", x, y)
        return torch.where(before | torch.isnan(x), x, y)
    strict: Step = torch.lt if fn.startswith("less") else torch.gt
    numbers = ~(torch.isnan(x.imag) | torch.isnan(y.imag))
    return (strict(x.real, y.real) & numbers) | ((x.real == y.real) & _ORDERING[fn](x.imag, y.imag))


#: torch's functions of the same rounding.
_DIVISIONS: dict[str, Callable[..., torch.Tensor]] = {
    "floor_divide": functools.partial(torch.div, rounding_mode="floor"),
    "remainder": torch.remainder,
    "fmod": torch.fmod,
}


def _division(fn: BinaryFunction, site: Site) -> Step:
    """The torch call of a division with rest. Dividing by 0 and by -1 is handled unless the divisor is known."""
    dtype = site.dtype
    divide = _DIVISIONS[fn]
    if dtype in ("float16", "bfloat16"):
        # Rounded once: torch rounds the steps between, too, and may end at the next whole number.
        wide = _divide_floats(fn, "float32")
        return lambda x, y: wide(x.float(), y.float()).to(x.dtype)
    if KIND[dtype] == "float":
        return _divide_floats(fn, dtype)
    if dtype == "uint64":
        return functools.partial(_divide_unsigned, want_quotient=fn == "floor_divide")
    if site.scalar(1) not in (None, 0, -1):
        return lambda x, y: narrowed(divide(widened(x, dtype), widened(y, dtype)), dtype)
    return lambda x, y: narrowed(_divide_whole(fn, widened(x, dtype), widened(y, dtype)), dtype)


def _divide_floats(fn: BinaryFunction, dtype: DType) -> Step:
    """The torch call of a division of floats with rest."""
    if fn == "floor_divide":
        return _DIVISIONS[fn]
    if fn == "fmod":
        return functools.partial(_rest, dtype=dtype)

    def remainder(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """The remainder with the sign of the divisor, as in NumPy even when it is 0."""
        rest = _rest(x, y, dtype=dtype)
        return torch.copysign(torch.where((rest != 0) & ((rest < 0) != (y < 0)), rest + y, rest), y)

    return remainder


def _rest(x: torch.Tensor, y: torch.Tensor, *, dtype: DType) -> torch.Tensor:
    """The remainder of a division towards 0. torch gives NaN where the quotient is too large for a float."""
    rest = torch.fmod(x, y)
    beyond = torch.isnan(rest) & torch.isfinite(x) & (y != 0) & ~torch.isnan(y)
    if not beyond.any():
        return rest
    # Divided by multiples of the divisor first, of which the quotients are numbers of the type, and the rests exact.
    step = 2.0 ** (700 if dtype == "float64" else 90)
    by_multiples = torch.fmod(torch.fmod(torch.fmod(x, y * step * step), y * step), y)
    return torch.where(beyond, by_multiples, rest)


def _divide_whole(fn: BinaryFunction, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """By 0 is 0, as in NumPy. The least number by -1 overflows, which the processor would answer with a signal."""
    by_zero = y == 0
    if y.dtype == torch.uint8:
        return _DIVISIONS[fn](x, y.masked_fill(by_zero, 1)).masked_fill_(by_zero, 0)
    by_minus_one = y == -1
    result = _DIVISIONS[fn](x, y.masked_fill(by_zero | by_minus_one, 1)).masked_fill_(by_zero, 0)
    return torch.where(by_minus_one, -x, result) if fn == "floor_divide" else result


def _divide_unsigned(x: torch.Tensor, y: torch.Tensor, *, want_quotient: bool) -> torch.Tensor:
    """64 bits as in long division: twice the quotient of one half, and a correction by one."""
    small = y > 0
    doubled = torch.div((x >> 1) & ((1 << 63) - 1), torch.where(small, y, 1), rounding_mode="floor") << 1
    quotient = torch.where(small, doubled, 0)
    quotient = quotient + (ordered(x - quotient * y, "uint64") >= ordered(y, "uint64"))
    return (quotient if want_quotient else x - quotient * y).masked_fill(y == 0, 0)


def _power(site: Site) -> Step:
    """The torch call of a power. Raises `NotImplementedError` for complex powers that differ from NumPy's."""
    dtype, exponent = site.dtype, site.scalar(1)
    if KIND[dtype] in ("float", "complex"):
        if KIND[dtype] == "complex":
            whole = whole_exponent(exponent)
            if whole is None:
                raise NotImplementedError
            return lambda x, y: _complex_power(x, whole)
        if exponent is not None and exponent != -0.5:
            # torch knows short ways for 2, 3, 0.5 and their like when the exponent is a number; the one for -0.5 is not
            # the power of -0 and of -inf.
            return lambda x, y: torch.pow(x, exponent)
        plain: Step = torch.pow
        return plain
    if dtype == "uint64":
        return _power_unsigned
    if KIND[dtype] == "unsigned" or (exponent is not None and exponent >= 0):
        return lambda x, y: narrowed(torch.pow(widened(x, dtype), widened(y, dtype)), dtype)
    return _power_signed


def _power_signed(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """A power of signed integers. Raises `ValueError` for negative exponents, as NumPy does."""
    if (y < 0).any():
        raise ValueError("integers to negative integer powers are not allowed; convert the base to float first.")
    return torch.pow(x, y)


def _power_unsigned(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """By squares, as far as the exponents have bits."""
    result = torch.ones_like(x)
    for bit in range(64):
        rest = y >> bit
        if bit and not (rest & ((1 << 64 - bit) - 1)).any():
            break
        result = torch.where((rest & 1).bool(), result * x, result)
        x = x * x
    return result


def _right_shift(dtype: DType) -> Step:
    """The torch call of a shift to the right; unsigned numbers shift in zeros."""
    if dtype == "uint64":
        return _shift_unsigned
    if has_stand_in(dtype):
        return lambda x, y: narrowed(torch.bitwise_right_shift(widened(x, dtype), widened(y, dtype)), dtype)
    plain: Step = torch.bitwise_right_shift
    return plain


def _shift_unsigned(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """torch brings copies of the sign in from above; they are masked away."""
    mask = torch.bitwise_left_shift(torch.ones_like(x), 64 - y) - 1
    return torch.bitwise_right_shift(x, y).bitwise_and_(mask).masked_fill_((y < 0) | (y > 63), 0)


def _gcd(dtype: DType) -> Step:
    """The torch call of the greatest common divisor, never negative. uint64 has none."""
    if dtype == "uint64":
        raise NotImplementedError
    if dtype == "int64":
        return lambda x, y: torch.gcd(x, y).abs_()
    # In a wider type, because the magnitude of the least number does not fit into its own.
    return lambda x, y: narrowed(torch.gcd(widened(x, dtype).long(), widened(y, dtype).long()), dtype)


def _scale(x: torch.Tensor, exponent: torch.Tensor, *, dtype: DType) -> torch.Tensor:
    """x · 2ⁿ, rounded once: the factor is applied in two halves that are powers of two themselves, the larger first."""
    if dtype in ("float16", "bfloat16"):
        return _scale(x.float(), exponent, dtype="float32").to(x.dtype)
    most = 900 if dtype == "float64" else 100
    mantissa, own = torch.frexp(x)
    total = own + exponent.clamp(-4 * most, 4 * most)
    first = total.clamp(-most, most)
    second = (total - first).clamp(-most, most)
    return mantissa * _two_to_the(first, dtype) * _two_to_the(second, dtype)


def _two_to_the(exponent: torch.Tensor, dtype: DType) -> torch.Tensor:
    """Exactly, by writing the exponent into the bits of a float."""
    if dtype == "float64":
        return ((exponent.long() + 1023) << 52).view(torch.float64)
    return ((exponent + 127) << 23).view(torch.float32)


@LOWER.rule(Select)
def select(op: Select, site: Site) -> Step:
    choose: Step = torch.where
    return choose


@LOWER.rule(Cast)
def cast(op: Cast, site: Site) -> Step:
    return _cast(site.dtype, op.dtype)


def _cast(source: DType, target: DType) -> Step:
    """The torch call that converts a type, through stand-ins where torch has no such type."""
    if source == target:
        return lambda x: x
    if KIND[source] == "complex" and KIND[target] not in ("complex", "bool"):
        of_real_part = _cast(REAL_PART[source], target)
        return lambda x: of_real_part(x.real)
    if source in STAND_IN and KIND[target] in ("signed", "unsigned") and ITEMSIZE[target] <= ITEMSIZE[source]:
        return lambda x: x.to(HELD[target])
    if target in STAND_IN and KIND[source] in ("signed", "unsigned", "bool"):
        return lambda x: widened(x, source).to(STAND_IN[target])
    if source in STAND_IN:
        return lambda x: x.view(TORCH[source]).to(HELD[target])
    if target in STAND_IN:
        return lambda x: x.to(TORCH[target]).view(STAND_IN[target])
    return lambda x: x.to(TORCH[target])
