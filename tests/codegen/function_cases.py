"""What every function of the kernel dialects must give: NumPy's own values, at special points and at random ones."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from anygpu.base.typing import HostArray
from anygpu.engines.codegen.target import ComputeType
from tests.codegen.functions_on_devices import STORED

FLOATS: tuple[ComputeType, ...] = ("f32", "f64")
INTEGERS: tuple[ComputeType, ...] = ("i32", "u32", "i64", "u64")
SIGNED: tuple[ComputeType, ...] = ("i32", "i64")

Reference = Callable[..., Any]


class Case(NamedTuple):
    """One function: what it takes and gives, its value by NumPy, and whether it has to be exactly that."""

    fn: str
    type: ComputeType
    arguments: tuple[ComputeType, ...]
    result: ComputeType
    reference: Reference
    exact: bool = True
    #: Which points it is asked at, besides the special ones; None is the general choice for its types.
    points: str | None = None
    #: Whether float64 knows the value of a float32 function better.
    wide: bool = False


def _erf(x: HostArray) -> HostArray:
    return np.asarray(np.vectorize(math.erf, otypes=[np.float64])(x), x.dtype)


_NUMPY_NAME = {"asin": "arcsin", "acos": "arccos", "atan": "arctan", "asinh": "arcsinh", "acosh": "arccosh"}
_NUMPY_NAME |= {"atanh": "arctanh", "atan2": "arctan2", "popcount": "bitwise_count"}

ROUNDED = (
    *("sqrt", "cbrt", "reciprocal", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "erf"),
    *("sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh"),
)
EXACT = ("abs", "sign", "floor", "ceil", "trunc", "rint", "mantissa")


def numpy_function(fn: str) -> Reference:
    if fn == "mantissa":
        return lambda x: np.frexp(x)[0]
    if fn == "exponent":
        return lambda x: np.frexp(x)[1]
    if fn == "erf":
        return _erf
    found: Reference = getattr(np, _NUMPY_NAME.get(fn, fn))
    return found


def _float_cases(type: ComputeType) -> list[Case]:
    one, two = (type,), (type, type)
    cases = [Case(fn, type, one, type, numpy_function(fn)) for fn in EXACT]
    cases += [Case(fn, type, one, type, numpy_function(fn), exact=False, wide=True) for fn in ROUNDED]
    cases += [Case(fn, type, one, "bool", numpy_function(fn)) for fn in ("isnan", "isinf", "isfinite", "signbit")]
    cases += [Case("exponent", type, one, "i32", numpy_function("exponent"))]
    cases += [Case(fn, type, two, type, numpy_function(fn)) for fn in ("fmod", "copysign", "nextafter")]
    # Which of two zeros is the smaller is not for anyone to say.
    cases += [Case(fn, type, two, type, numpy_function(fn), exact=False) for fn in ("minimum", "maximum")]
    cases += [Case(fn, type, two, type, numpy_function(fn), exact=False) for fn in ("floor_divide", "remainder")]
    cases += [Case(fn, type, two, type, numpy_function(fn), exact=False, wide=True) for fn in ("atan2", "hypot")]
    cases += [Case("power", type, two, type, np.power, exact=False, wide=True, points="powers")]
    cases += [Case("ldexp", type, (type, "i32"), type, np.ldexp)]
    return cases


def _integer_cases(type: ComputeType) -> list[Case]:
    one, two = (type,), (type, type)
    cases = [Case(fn, type, one, type, numpy_function(fn)) for fn in ("abs", "sign", "reciprocal", "popcount")]
    cases += [
        Case(fn, type, two, type, numpy_function(fn))
        for fn in ("floor_divide", "remainder", "fmod", "minimum", "maximum", "gcd")
    ]
    cases += [Case(fn, type, two, type, numpy_function(fn), points="shift") for fn in ("left_shift", "right_shift")]
    cases += [Case("power", type, two, type, np.power, points="power")]
    return cases


def _cast_cases() -> list[Case]:
    types: tuple[ComputeType, ...] = ("bool", *INTEGERS, *FLOATS)
    found = []
    for source in types:
        for wanted in types:
            # Beyond its range NumPy's own result depends on how many numbers there are.
            chosen = "unsigned" if source in FLOATS and wanted == "u32" else None
            found.append(Case(f"cast_{wanted}", source, (source,), wanted, _cast_to(wanted), points=chosen))
    return found


def _cast_to(wanted: ComputeType) -> Reference:
    return lambda x: x.astype(numpy_type(wanted))


def numpy_type(type: ComputeType) -> type[np.generic]:
    return np.bool_ if type == "bool" else STORED[type]


def _order_key(x: HostArray) -> HostArray:
    """Any unsigned numbers in the same order: the places among all different values."""
    x = np.where(np.isnan(x), np.nan, np.where(x == 0, 0, x)) if x.dtype.kind == "f" else x
    return np.unique(x, return_inverse=True)[1]


def _half_bits(x: HostArray) -> HostArray:
    return x.astype(np.float16).view(np.uint16)


def _brain_bits(x: HostArray) -> HostArray:
    """The nearest of the two neighbours, by exact distance in float64, ties to the even one."""
    bits = np.ascontiguousarray(x).view(np.uint32)
    low = bits >> np.uint32(16)
    rest = bits & np.uint32(0xFFFF)
    up = (rest > 0x8000) | ((rest == 0x8000) & ((low & 1) == 1))
    return np.where(np.isnan(x), np.uint32(0x7FC0), low + up).astype(np.uint16)


def brain(bits: HostArray) -> HostArray:
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def _next_brain(x: HostArray, y: HostArray) -> HostArray:
    x, y = brain(_brain_bits(x)), brain(_brain_bits(y))
    steps = np.arange(0x7F81, dtype=np.uint16)
    line = np.concatenate([-brain(steps)[:0:-1], brain(steps)])
    place = np.searchsorted(line, np.where(np.isnan(x), 0, x))
    moved = line[np.clip(place + np.sign(np.where(np.isnan(y), 0, y) - line[place]).astype(int), 0, len(line) - 1)]
    moved = np.where(moved == 0, np.copysign(0, x), moved)
    return np.where(np.isnan(x) | np.isnan(y), np.nan, np.where(x == y, y, moved)).astype(np.float32)


def _narrow_cases() -> list[Case]:
    f: tuple[ComputeType, ...] = ("f32",)
    u: tuple[ComputeType, ...] = ("u32",)
    return [
        Case("round_f16", "f32", f, "f32", lambda x: x.astype(np.float16).astype(np.float32), points="half"),
        Case("round_bf16", "f32", f, "f32", lambda x: brain(_brain_bits(x)), points="half"),
        Case("f16_to_bits", "f32", f, "u32", _half_bits, points="half numbers"),
        Case("bf16_to_bits", "f32", f, "u32", _brain_bits, points="half numbers"),
        Case(
            "f16_from_bits",
            "u32",
            u,
            "f32",
            lambda x: x.astype(np.uint16).view(np.float16).astype(np.float32),
            points="bits",
        ),
        Case("bf16_from_bits", "u32", u, "f32", brain, points="bits"),
        Case("nextafter_f16", "f32", ("f32", "f32"), "f32", _next_half, points="half"),
        Case("nextafter_bf16", "f32", ("f32", "f32"), "f32", _next_brain, points="half"),
        Case("wrap_i8", "i32", ("i32",), "i32", lambda x: x.astype(np.int8)),
        Case("wrap_i16", "i32", ("i32",), "i32", lambda x: x.astype(np.int16)),
        Case("wrap_u8", "u32", u, "u32", lambda x: x.astype(np.uint8)),
        Case("wrap_u16", "u32", u, "u32", lambda x: x.astype(np.uint16)),
    ]


def _next_half(x: HostArray, y: HostArray) -> HostArray:
    return np.nextafter(x.astype(np.float16), y.astype(np.float16)).astype(np.float32)


def order_cases() -> list[Case]:
    keys: dict[ComputeType, ComputeType] = {"f32": "u32", "f64": "u64", "i32": "u32", "i64": "u64"}
    keys |= {"u32": "u32", "u64": "u64"}
    return [Case("order_key", type, (type,), key, _order_key) for type, key in keys.items()]


@cache
def cases() -> tuple[Case, ...]:
    found = [case for type in FLOATS for case in _float_cases(type)]
    found += [case for type in INTEGERS for case in _integer_cases(type)]
    found += [Case(fn, "bool", ("bool", "bool"), "bool", numpy_function(fn)) for fn in ("minimum", "maximum")]
    return (*found, *_cast_cases(), *_narrow_cases())


_SPECIAL = [
    0.0,
    1.0,
    0.5,
    1.5,
    2.5,
    2.0,
    3.0,
    0.75,
    10.0,
    100.0,
    1e-3,
    1e-8,
    1e-30,
    1e30,
    1e-45,
    1e-40,
    1.1754944e-38,
    3.4028235e38,
]
_SPECIAL += [
    np.inf,
    88.7,
    88.8,
    104.5,
    127.5,
    128.0,
    149.0,
    150.0,
    1e5,
    1e10,
    8388607.5,
    16777216.0,
    255.0,
    1.0000001,
    0.9999999,
]
_SPECIAL += [np.pi, np.pi / 2, 1e15, 1e20, 65504.0, 65520.0, 6e-8, 2.9802322e-8, 2.0**31, 2.0**32, 2.0**63, 2.0**64]
_SPECIAL += [709.7, 745.0, 1e300, 1e-310, 5e-324]


@cache
def special_floats(type: ComputeType) -> HostArray:
    with np.errstate(all="ignore"):
        values = np.array([*_SPECIAL, *(-each for each in _SPECIAL), np.nan], STORED[type])
    return values


def random_floats(type: ComputeType, count: int, seed: int) -> HostArray:
    """Of ordinary size, near one, near multiples of a right angle, and any bits at all, a quarter each."""
    draw = np.random.default_rng(seed)
    quarter = count // 4
    ordinary = draw.standard_normal(quarter) * np.exp2(draw.uniform(-4, 7, quarter))
    near_one = (1 + draw.standard_normal(quarter) * np.exp2(draw.uniform(-20, 0, quarter))) * draw.choice(
        [-1, 1], quarter
    )
    angles = np.rint(np.exp2(draw.uniform(0, 20, quarter))) * (np.pi / 2) * draw.choice([-1, 1], quarter)
    bits = draw.integers(0, 256, (count - 3 * quarter) * np.dtype(STORED[type]).itemsize, dtype=np.uint8)
    return np.concatenate(
        [*(each.astype(STORED[type]) for each in (ordinary, near_one, angles)), bits.view(STORED[type])]
    )


def random_power(type: ComputeType, count: int) -> tuple[HostArray, HostArray]:
    """Bases of every size, the nearer to one the more, with exponents that bring the power anywhere in its range."""
    draw = np.random.default_rng(5)
    base = np.exp2(draw.standard_normal(count) * np.exp2(draw.uniform(-20, 5, count))).astype(STORED[type])
    logarithm = np.log2(base.astype(np.float64))
    most = 126.0 if type == "f32" else 1022.0
    return base, (draw.uniform(-most, most, count) / np.where(logarithm == 0, 1.0, logarithm)).astype(STORED[type])


def integers(type: ComputeType, count: int, seed: int) -> HostArray:
    """All sizes of numbers, and the ends of the range."""
    draw, info = np.random.default_rng(seed), np.iinfo(np.dtype(STORED[type]))
    width = info.bits
    any_bits = draw.integers(0, 256, count * width // 8, dtype=np.uint8).view(STORED[type])
    special = [0, 1, 2, 3, 7, 127, 128, 255, 256, 65535, info.max, info.max - 1, info.min, info.min + 1]
    special += [-1, -2, -3, -128, -129] if info.min < 0 else []
    values = any_bits >> draw.integers(0, width, count).astype(STORED[type])
    return np.concatenate([np.array(special, STORED[type]), values])


def points(case: Case, count: int) -> list[HostArray]:
    """For two operands, every special one meets every other, and then random ones meet."""
    lines = [_line(case, number, count) for number in range(len(case.arguments))]
    if len(lines) == 1:
        values = np.concatenate(lines[0])
        match case.points:
            case "unsigned":
                values = values[(values > -(2.0**31)) & (values < 2.0**32)]
            case "half numbers":
                values = values[~np.isnan(values)]
        return [values]
    (special, random), (other_special, other_random) = lines
    first, second = np.meshgrid(special, other_special, indexing="ij")
    most = min(random.size, other_random.size)
    return [
        np.concatenate([first.ravel(), random[:most]]),
        np.concatenate([second.ravel(), other_random[:most]]),
    ]


def _line(case: Case, number: int, count: int) -> tuple[HostArray, HostArray]:
    """Special points and random points of one operand."""
    type, seed = case.arguments[number], 7 + number
    if type == "bool":
        return np.array([0, 1], np.uint32), np.array([1, 0, 1], np.uint32)
    if case.fn == "ldexp" and number == 1:
        draw = np.random.default_rng(seed)
        return np.array([0, 1, -1, 24, -24, 200, -200, 1100, -1100, 2**31 - 1, -(2**31)], np.int32), draw.integers(
            -300, 300, count, dtype=np.int32
        )
    if case.points == "powers":
        return special_floats(type), random_power(type, count)[number]
    if case.points == "bits":
        return np.arange(65536, dtype=np.uint32), np.zeros(1, np.uint32)
    if case.points in ("half", "half numbers"):
        halves = np.arange(65536, dtype=np.uint16).view(np.float16)
        halves = halves[np.isfinite(halves) & (np.abs(halves) < 65504)].astype(np.float32)
        step = np.abs(np.nextafter(halves.astype(np.float16), np.float16(np.inf)).astype(np.float32) - halves)
        ties = halves + step / 2
        draw = np.random.default_rng(seed)
        some = draw.permutation(np.concatenate([halves, ties, random_floats("f32", 3 * 4096, seed)]))
        return special_floats("f32"), some[: max(count, 20001)] if len(case.arguments) == 2 else some
    if type in FLOATS:
        return special_floats(type), random_floats(type, count, seed)
    if case.points == "shift" and number == 1:
        signed = type in SIGNED
        counts = np.array([0, 1, 7, 31, 32, 33, 63, 64, 65, 1000, *((-1, -64) if signed else ())], STORED[type])
        return counts, np.resize(np.arange(70).astype(STORED[type]), count)
    if case.points == "power" and number == 1:
        return np.array([0, 1, 2, 3, 63, 64, 1000], STORED[type]), np.resize(np.arange(70).astype(STORED[type]), count)
    values = integers(type, count, seed)
    return values[:19], values[19:]
