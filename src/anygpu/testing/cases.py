"""Small programs that together use every primitive, function and type, with inputs: what an engine must get right.

A sheet is one program with many results, so that an engine which compiles whole programs compiles few of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from anygpu.errors import InvalidProgram
from anygpu.program.dtypes import COMPLEX, ITEMSIZE, KIND, DType, is_inexact
from anygpu.program.functions import (
    BINARY,
    UNARY,
    BinaryFunction,
    LinearFunction,
    ReduceFunction,
    ScanFunction,
    ScatterFunction,
    UnaryFunction,
)
from anygpu.program.ops.attention import Attend
from anygpu.program.primitives import (
    LINEAR_PARTS,
    Argsort,
    Binary,
    Broadcast,
    Cast,
    Concatenate,
    Contract,
    Flip,
    Fourier,
    Gather,
    Iota,
    Linear,
    Pad,
    Permute,
    Primitive,
    Reduce,
    Reshape,
    Scan,
    Scatter,
    Search,
    Select,
    Slice,
    Sort,
    Spec,
    Unary,
    Update,
    Windows,
)
from anygpu.testing.conformance_program import REFERENCE_DTYPES, ConformanceProgram, ResultClass, tame, values

#: Functions of which there is only one right answer.
_EXACT_UNARY: tuple[UnaryFunction, ...] = (
    "negative", "abs", "sign", "floor", "ceil", "trunc", "rint", "invert", "popcount", "isnan", "isinf", "isfinite",
    "signbit", "real", "imag", "conj", "mantissa", "exponent",
)  # fmt: skip
_INEXACT_BINARY: tuple[BinaryFunction, ...] = (
    "add", "subtract", "multiply", "divide", "floor_divide", "remainder", "fmod", "power", "atan2", "hypot",
)  # fmt: skip


#: For functions, whose arithmetic depends on the type, and for what only moves elements about.
_DIFFERENT_ARITHMETIC: tuple[DType, ...] = ("bool", "int64", "uint32", "float16", "float32", "float64", "complex64")
_DIFFERENT_ELEMENTS: tuple[DType, ...] = ("bool", "uint32", "float32", "complex64")


def conformance_programs(*, deep: bool = False) -> Iterator[ConformanceProgram]:
    """All of them, always the same. With `deep`, every type in everything."""
    for dtype in REFERENCE_DTYPES:
        makers = list(_FOR_EVERY_TYPE)
        if deep or dtype in _DIFFERENT_ARITHMETIC:
            makers += _FOR_EVERY_ARITHMETIC
        if deep or dtype in _DIFFERENT_ELEMENTS:
            makers += _FOR_EVERY_ELEMENT
        for make in makers:
            sheet = make(dtype)
            if sheet.results:
                yield sheet
    for dtype in ("float32", "float64", *COMPLEX) if deep else ("float64", "complex64"):
        yield _linear(dtype)
    yield from (_transforms(dtype) for dtype in ("float16", "float32", "float64", *COMPLEX))
    yield from (_attention(dtype) for dtype in (("float16", "float32", "float64") if deep else ("float32",)))
    yield _index_types()
    yield _signs_of_zero()
    yield _infinite_complex_numbers()
    yield _without_inputs()


def _valid(op: Primitive, *specs: Spec) -> bool:
    try:
        op.infer(*specs)
    except InvalidProgram:
        return False
    return True


def _unary(dtype: DType) -> ConformanceProgram:
    x, more = values(dtype, 41), values(dtype, 41, seed=2)
    near_zero = (more / 4).astype(dtype) if is_inexact(dtype) else more
    sheet = ConformanceProgram(f"unary functions of {dtype}", np.concatenate([x, near_zero]))
    for fn in UNARY:
        op = Unary(fn)
        if _valid(op, sheet.spec(0)):
            exact = fn in _EXACT_UNARY and not (KIND[dtype] == "complex" and fn in ("abs", "sign"))
            sheet.expect_of(op, 0, kind="exact" if exact else "function")
    return sheet


def _binary(dtype: DType) -> ConformanceProgram:
    x, y, shifts = values(dtype, 61), values(dtype, 61, seed=3), np.arange(61).astype(np.int32) - 30
    powers = np.arange(61) % 6
    sheet = ConformanceProgram(f"binary functions of {dtype}", x, y, tame(dtype, 61), shifts, powers.astype(dtype))
    one, other, small, exponents, power = sheet.given
    for fn in BINARY:
        op = Binary(fn)
        kind: ResultClass = "function" if fn in _INEXACT_BINARY else "exact"
        if fn == "ldexp":
            if KIND[dtype] == "float":
                scaled = sheet.add(op, small, exponents)
                # What is smaller than the least normal number may be 0 on a device.
                sheet.expect(scaled, str(op), "arithmetic" if dtype == "float16" else "exact")
        elif not _valid(op, Spec((61,), dtype), Spec((61,), dtype)):
            continue
        elif fn == "power":
            sheet.expect_of(op, small if is_inexact(dtype) else one, power, kind=kind)
            if KIND[dtype] == "float":
                sheet.expect_of(op, one, other, kind=kind)
            _expect_constant_powers(sheet, small, dtype)
        elif fn == "nextafter" and dtype != "float16":
            sheet.expect_of(op, small, other)  # next to 0 there are only subnormal numbers
        elif fn == "divide" and KIND[dtype] == "complex":
            sheet.expect_of(op, one, small, kind=kind)
        else:
            sheet.expect_of(op, one, other, kind=kind)
            if fn in ("left_shift", "right_shift"):
                bits = sheet.add(Cast(dtype), sheet.add(Iota(61, "int64")))
                sheet.expect_of(op, one, bits)
            if fn in ("floor_divide", "remainder", "fmod"):
                divisor = sheet.add(Broadcast((61,)), sheet.constant(np.array(3, dtype)))
                sheet.expect_of(op, one, divisor, kind=kind)
    return sheet


def _expect_constant_powers(sheet: ConformanceProgram, source: int, dtype: DType) -> None:
    for exponent in (0, 1, 2, 3) if not is_inexact(dtype) else (0, 1, 2, 3, 0.5, -1, -2):
        constant = sheet.add(Broadcast(sheet.spec(source).shape), sheet.constant(np.array(exponent, dtype)))
        sheet.expect_of(Binary("power"), source, constant, kind="function")


def _choice_and_casts(dtype: DType) -> ConformanceProgram:
    x = tame(dtype, 5, 7)
    whole = values(dtype, 5, 7) if not is_inexact(dtype) else x
    sheet = ConformanceProgram(
        f"select and casts of {dtype}", x, tame(dtype, 5, 7, seed=5), values("bool", 5, 7), whole, np.abs(x)
    )
    one, other, condition, extremes, positive = sheet.given
    sheet.expect_of(Select(), condition, one, other)
    for target in REFERENCE_DTYPES:
        # A negative fraction in an unsigned type is undefined in C, and so in NumPy.
        risky = is_inexact(dtype) and KIND[target] == "unsigned"
        source = positive if risky else extremes if KIND[target] in ("signed", "unsigned", "bool") else one
        if risky and KIND[dtype] == "complex":
            source = sheet.add(Unary("abs"), positive)
        narrow = is_inexact(target) and ITEMSIZE[target] < ITEMSIZE[dtype]
        sheet.expect(sheet.add(Cast(target), source), f"cast to {target}", "arithmetic" if narrow else "exact")
    return sheet


_REDUCES: tuple[ReduceFunction, ...] = ("sum", "prod", "max", "min", "any", "all", "argmax", "argmin")
_SCANS: tuple[ScanFunction, ...] = ("sum", "prod", "max", "min")


def _reductions(dtype: DType) -> ConformanceProgram:
    sheet = ConformanceProgram(f"reductions of {dtype}", tame(dtype, 3, 4, 5), values(dtype, 6, 7))
    small, extremes = sheet.given
    for fn in _REDUCES:
        for axes in ((1,), (0, 2), (0, 1, 2), ()):
            if _valid(Reduce(fn, axes), sheet.spec(small)):
                sheet.expect_of(Reduce(fn, axes), small, kind="sum" if fn in ("sum", "prod") else "exact", terms=60)
        for axis in (0, 1):
            if fn not in ("sum", "prod") and _valid(Reduce(fn, (axis,)), sheet.spec(extremes)):
                sheet.expect_of(Reduce(fn, (axis,)), extremes)
    for scan in _SCANS:
        for axis in (0, 2):
            if _valid(Scan(scan, axis), sheet.spec(small)):
                sheet.expect_of(Scan(scan, axis), small, kind="sum" if scan in ("sum", "prod") else "exact", terms=5)
        if scan in ("max", "min") and dtype != "bool":
            sheet.expect_of(Scan(scan, 1), extremes)
    return sheet


def _movement(dtype: DType) -> ConformanceProgram:
    sheet = ConformanceProgram(
        f"movement of {dtype}", values(dtype, 4, 5, 3), values(dtype, 2, 2, 3, seed=1), values(dtype, 1, seed=2)
    )
    x, patch, single = sheet.given
    scalar = sheet.add(Reshape(()), single)
    for op in (
        Reshape((5, 12)),
        Permute((2, 0, 1)),
        Slice((1, 0, 2), (4, 5, 3), (2, 3, 1)),
        Slice((2, 2, 0), (2, 5, 3), (1, 1, 1)),
        Flip((0, 2)),
        Flip(()),
        Windows(1, 3, 2),
        Windows(0, 4, 1),
        Broadcast((2, 4, 5, 3)),
    ):
        sheet.expect_of(op, x)
    turned = sheet.add(Permute((2, 0, 1)), x)
    sheet.expect_of(Reshape((60,)), turned)
    sheet.expect_of(Broadcast((3, 4)), scalar)
    wide = sheet.add(Broadcast((4, 5)), single)
    row = sheet.add(Reshape((1, 5)), sheet.add(Slice((0, 0, 0), (1, 5, 1), (1, 1, 1)), x))
    sheet.expect_of(Update((1, 0), (1, 1)), wide, row)
    sheet.expect_of(Update((0, 1, 0), (3, 2, 1)), x, patch)
    sheet.expect_of(Update((2, 3, 0), (1, 1, 1)), x, patch)
    sheet.expect_of(Update((2, 3, 0), (1, 1, 1)), x, sheet.add(Slice((0, 0, 0), (0, 2, 3), (1, 1, 1)), patch))
    sheet.expect_of(Update((), ()), scalar, sheet.add(Reshape(()), single))
    sheet.expect_of(Pad((1, 0, 2), (0, 3, 1)), x, scalar)
    sheet.expect_of(Concatenate(1), x, sheet.add(Slice((0, 1, 0), (4, 3, 3), (1, 1, 1)), x), x)
    sheet.expect_of(Concatenate(0), x, sheet.add(Slice((0, 0, 0), (0, 5, 3), (1, 1, 1)), x))
    long = sheet.add(Concatenate(0), *[sheet.add(Reshape((60,)), x)] * 2)
    sheet.expect_of(Windows(0, 50, 7), long)
    return sheet


def _order(dtype: DType) -> ConformanceProgram:
    x, line = values(dtype, 6, 7), np.sort(values(dtype, 23, seed=1))
    sheet = ConformanceProgram(f"order of {dtype}", x, line, np.sort(tame(dtype, 9)))
    for axis in (0, 1):
        sheet.expect_of(Sort(axis), sheet.given[0])
        sheet.expect_of(Argsort(axis), sheet.given[0])
    for given in sheet.given[1:]:
        sheet.expect_of(Search("left"), given, sheet.given[0])
        sheet.expect_of(Search("right"), given, sheet.given[0])
    return sheet


def _contractions(dtype: DType) -> ConformanceProgram:
    sheet = ConformanceProgram(
        f"contractions of {dtype}",
        tame(dtype, 4, 5),
        tame(dtype, 5, 3),
        tame(dtype, 2, 3, 4, 5),
        tame(dtype, 5, 2, 4, 3),
    )
    matrix, other, cube, more = sheet.given
    vector = sheet.add(Reshape((5,)), sheet.add(Slice((0, 0), (1, 5), (1, 1)), matrix))
    nothing = sheet.add(Slice((0, 0), (4, 0), (1, 1)), matrix), sheet.add(Slice((0, 0), (0, 3), (1, 1)), other)
    for op, x, y in (
        (Contract((1,), (0,)), matrix, other),
        (Contract((0,), (1,)), other, matrix),
        (Contract((1,), (0,)), matrix, vector),
        (Contract((0,), (1,)), vector, matrix),
        (Contract((0,), (0,)), vector, vector),
        (Contract((), ()), vector, vector),
        (Contract((3,), (0,)), cube, other),
        (Contract((3,), (0,), (0,), (1,)), cube, more),
        (Contract((3,), (0,), (0, 2), (1, 2)), cube, more),
        (Contract((1, 3), (3, 0)), cube, more),
        (Contract((), (), (0, 1, 2, 3), (1, 3, 2, 0)), cube, more),
        (Contract((0, 1, 2, 3), (1, 3, 2, 0)), cube, more),
        (Contract((1,), (0,)), *nothing),
    ):
        sheet.expect_of(op, x, y, kind="sum", terms=120)
    return sheet


def _attention(dtype: DType) -> ConformanceProgram:
    """With as many queries as keys and with fewer, and keys that nobody sees."""
    hidden = np.zeros((2, 5, 7), dtype)
    hidden[:, :, 2] = -np.inf
    arrays = tame(dtype, 2, 5, 4), tame(dtype, 2, 7, 4, seed=1), tame(dtype, 2, 7, 3, seed=2)
    sheet = ConformanceProgram(f"attention in {dtype}", *arrays, hidden)
    q, k, v, bias = sheet.given
    few = [sheet.add(Slice((0, 0, 0), (2, 5, sheet.spec(each).shape[2]), (1, 1, 1)), each) for each in (k, v)]
    for causal in (False, True):
        sheet.expect_of(Attend(0.25, causal), q, k, v, kind="function", terms=8)
        sheet.expect_of(Attend(0.25, causal), q, k, v, bias, kind="function", terms=8)
        sheet.expect_of(Attend(0.25, causal), q, *few, kind="function", terms=8)
    return sheet


_SCATTERS: tuple[ScatterFunction, ...] = ("set", "add", "multiply", "maximum", "minimum")


def _picking(dtype: DType) -> ConformanceProgram:
    positions = np.array([[2, 0, 2, 1], [1, 1, 0, 2]])
    arrays = tame(dtype, 2, 3, 4), tame(dtype, 2, 2, 4, 4, seed=1), tame(dtype, 2, 4, 4, seed=2)
    sheet = ConformanceProgram(f"gather and scatter of {dtype}", *arrays, positions)
    x, updates, batch_updates, index = sheet.given
    known = sheet.constant(np.array([2, 0, 2]))
    for which in (index, sheet.add(Reshape(()), sheet.add(Slice((0, 0), (1, 1), (1, 1)), index)), known):
        sheet.expect_of(Gather(1), x, which)
    sheet.expect_of(Gather(1, 1), x, index)
    sheet.expect_of(Gather(2, 1), x, index)
    sheet.expect_of(Gather(1, 1), x, sheet.add(Slice((0, 0), (2, 0), (1, 1)), index))
    for fn in _SCATTERS:
        kind: ResultClass = "sum" if fn in ("add", "multiply") else "exact"
        sheet.expect_of(Scatter(fn, 1), x, index, updates, kind=kind, terms=8)
        sheet.expect_of(Scatter(fn, 1, 1), x, index, batch_updates, kind=kind, terms=8)
    some = sheet.add(Slice((0, 0, 0, 0), (2, 1, 3, 4), (1, 1, 1, 1)), updates)
    sheet.expect_of(Scatter("set", 1), x, known, sheet.add(Reshape((2, 3, 4)), some))
    return sheet


def _index_types() -> ConformanceProgram:
    types = [dtype for dtype in REFERENCE_DTYPES if KIND[dtype] in ("signed", "unsigned")]
    positions = np.array([2, 0, 2, 1])
    sheet = ConformanceProgram(
        "types of indices", tame("float32", 3), tame("float32", 4), *(positions.astype(each) for each in types)
    )
    x, updates, *indices = sheet.given
    for index in indices:
        sheet.expect_of(Gather(0), x, index)
        sheet.expect_of(Scatter("add", 0), x, index, updates, kind="sum", terms=4)
    return sheet


def _no_elements(dtype: DType) -> ConformanceProgram:
    """Arrays of length 0, and arrays without axes."""
    sheet = ConformanceProgram(f"nothing and one of {dtype}", values(dtype, 0, 3), values(dtype, 1).reshape(()))
    nothing, one = sheet.given
    sheet.expect_of(Sort(0), nothing)
    sheet.expect_of(Argsort(1), nothing)
    sheet.expect_of(Reshape((3, 0, 2)), nothing)
    sheet.expect_of(Pad((1, 0), (0, 1)), nothing, one)
    sheet.expect_of(Select(), sheet.add(Binary("equal"), nothing, nothing), nothing, nothing)
    sheet.expect_of(Cast("float32"), nothing)
    sheet.expect_of(Binary("equal"), one, one)
    sheet.expect_of(Broadcast((0, 4)), sheet.add(Reshape((1, 1)), one))
    if dtype == "bool":
        sheet.expect_of(Reduce("all", (0,)), nothing)
        sheet.expect_of(Reduce("any", (0, 1)), nothing)
        sheet.expect_of(Reduce("all", ()), one)
    else:
        sheet.expect_of(Reduce("sum", (0,)), nothing)
        sheet.expect_of(Reduce("prod", (0, 1)), nothing)
        sheet.expect_of(Reduce("sum", ()), one)
        sheet.expect_of(Scan("sum", 0), nothing)
        sheet.expect_of(Scan("max", 1), nothing)
        sheet.expect_of(Unary("negative"), one)
        sheet.expect_of(Unary("negative"), nothing)
    return sheet


def _counting(dtype: DType) -> ConformanceProgram:
    sheet = ConformanceProgram(f"iota and constants of {dtype}", values(dtype, 3))
    if dtype != "bool":
        sheet.expect_of(Iota(7, dtype))
        sheet.expect_of(Iota(0, dtype))
    sheet.expect(sheet.constant(values(dtype, 3, 4)), "constant")
    sheet.expect(sheet.constant(values(dtype, 0, 4)), "empty constant")
    sheet.expect(sheet.given[0], "the input itself")
    sheet.expect(sheet.given[0], "and once more")
    return sheet


_FOR_EVERY_TYPE: tuple[Callable[[DType], ConformanceProgram], ...] = (_choice_and_casts, _counting)
_FOR_EVERY_ARITHMETIC: tuple[Callable[[DType], ConformanceProgram], ...] = (_unary, _binary)
_FOR_EVERY_ELEMENT: tuple[Callable[[DType], ConformanceProgram], ...] = (
    _reductions,
    _movement,
    _order,
    _contractions,
    _picking,
    _no_elements,
)


def _transforms(dtype: DType) -> ConformanceProgram:
    sheet = ConformanceProgram(f"transforms of {dtype}", tame(dtype, 5, 8), tame(dtype, 0, 8))
    x, nothing = sheet.given
    if KIND[dtype] == "float":
        sheet.expect_of(Fourier("rfft", 0, 5), x, kind="fourier", terms=8)
        sheet.expect_of(Fourier("rfft", 1, 8), x, kind="fourier", terms=8)
        sheet.expect_of(Fourier("rfft", 1, 8), nothing)
        return sheet
    for fn in ("fft", "ifft"):
        for axis, length in ((0, 5), (1, 8)):
            sheet.expect_of(Fourier(fn, axis, length), x, kind="fourier", terms=8)
    for axis, length in ((0, 8), (0, 9), (1, 14), (1, 15)):
        sheet.expect_of(Fourier("irfft", axis, length), x, kind="fourier", terms=8)
    sheet.expect_of(Fourier("fft", 1, 8), nothing)
    return sheet


def _linear(dtype: DType) -> ConformanceProgram:
    """Factors are right up to signs and order, so they are put together again; values come in order."""
    stack = tame(dtype, 2, 4, 4) + 4 * np.eye(4, dtype=dtype)
    both = (stack @ np.conj(np.swapaxes(stack, -1, -2))).astype(dtype)
    sheet = ConformanceProgram(
        f"linear algebra of {dtype}", stack.astype(dtype), both, tame(dtype, 2, 4, 3), tame(dtype, 0, 0)
    )
    a, positive, right, empty = sheet.given

    def part(fn: LinearFunction, source: int, which: int, *, full: bool = False) -> int:
        return sheet.add(Linear(fn, which, full), source)

    def multiply(x: int, y: int) -> int:
        return sheet.add(Contract((2,), (1,), (0,), (0,)), x, y)

    def scaled(matrix: int, line: int) -> int:
        """Every column by its number."""
        shape = sheet.spec(matrix).shape
        line = sheet.add(Cast(sheet.spec(matrix).dtype), line)
        wide = sheet.add(Broadcast(shape), sheet.add(Reshape((shape[0], 1, shape[2])), line))
        return sheet.add(Binary("multiply"), matrix, wide)

    def adjoint(matrix: int) -> int:
        turned = sheet.add(Permute((0, 2, 1)), matrix)
        return sheet.add(Unary("conj"), turned) if KIND[dtype] == "complex" else turned

    for fn, source in (("inv", a), ("det", a), ("cholesky", positive), ("svdvals", right), ("eigvalsh", positive)):
        sheet.expect_of(Linear(fn), source, kind="linear", terms=16)  # type: ignore[arg-type]
    sheet.expect_of(Linear("solve"), a, right, kind="linear", terms=16)
    sheet.expect_of(Linear("det"), empty)
    for which in range(LINEAR_PARTS["slogdet"]):
        sheet.expect_of(Linear("slogdet", which), a, kind="linear", terms=16)
    for full in (False, True):
        q, r = (part("qr", right, which, full=full) for which in range(2))
        sheet.expect(multiply(q, r), f"q r, full={full}", "linear", 16)
        sheet.expect(multiply(adjoint(q), q), f"qᴴ q, full={full}", "linear", 16)
        sheet.expect(part("svd", right, 1, full=full), "singular values", "linear", 16)
    left, sizes, turned = (part("svd", right, which) for which in range(3))
    sheet.expect(multiply(scaled(left, sizes), turned), "u s vᴴ", "linear", 16)
    sheet.expect(multiply(turned, adjoint(turned)), "vᴴ v", "linear", 16)
    energies, states = (part("eigh", positive, which) for which in range(2))
    sheet.expect(energies, "eigenvalues", "linear", 16)
    sheet.expect(multiply(scaled(states, energies), adjoint(states)), "v w vᴴ", "linear", 16)
    poles, modes = (part("eig", a, which) for which in range(2))
    complex_a = sheet.add(Cast(sheet.spec(modes).dtype), a)
    rest = sheet.add(Binary("subtract"), multiply(complex_a, modes), scaled(modes, poles))
    sheet.expect(rest, "a v - v w", "linear", 64)
    sheet.expect(sheet.add(Reduce("sum", (1,)), poles), "the sum of the eigenvalues", "linear", 16)
    return sheet


def _signs_of_zero() -> ConformanceProgram:
    """Where NumPy has a rule for the sign of 0, made visible by what comes after."""
    zeros = np.array([0.0, -0.0, 4.0, -4.0, 6.0, -6.0])
    divisors = np.array([2.0, -2.0, 2.0, -2.0, -2.0, 2.0])
    sheet = ConformanceProgram("signs of zero", zeros, divisors)
    x, y = sheet.given
    for position in (
        sheet.add(Binary("remainder"), x, y),
        sheet.add(Binary("fmod"), x, y),
        sheet.add(Unary("sign"), x),
        sheet.add(Unary("rint"), x),
        sheet.add(Unary("sqrt"), sheet.add(Unary("abs"), x)),
        sheet.add(Unary("cbrt"), x),
        sheet.add(Binary("floor_divide"), x, y),
        sheet.add(Binary("multiply"), x, y),
    ):
        sheet.expect_of(Unary("signbit"), position)
    return sheet


def _infinite_complex_numbers() -> ConformanceProgram:
    parts = np.array([0, 1, -2.5, np.inf, -np.inf, np.nan], np.float32)
    line = np.empty(36, np.complex64)
    line.real, line.imag = np.repeat(parts, 6), np.tile(parts, 6)
    sheet = ConformanceProgram("infinite complex numbers", line, np.roll(line, 7))
    x, y = sheet.given
    for fn in ("negative", "conj", "real", "imag", "isnan", "isinf", "isfinite", "abs", "sign"):
        sheet.expect_of(Unary(fn), x, kind="function")
    pairs: tuple[BinaryFunction, ...] = (
        "add",
        "subtract",
        "equal",
        "not_equal",
        "less",
        "less_equal",
        "maximum",
        "minimum",
    )
    for function in pairs:
        sheet.expect_of(Binary(function), x, y, kind="function")
    return sheet


def _without_inputs() -> ConformanceProgram:
    sheet = ConformanceProgram("a program without inputs")
    line = sheet.add(Iota(12, "float64"))
    sheet.expect_of(Reshape((3, 4)), line)
    sheet.expect_of(Unary("sqrt"), line, kind="function")
    return sheet
