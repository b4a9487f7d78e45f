"""Small programs that together use every primitive, function and type, with inputs: what an engine must get right.

A `ConformanceProgram` is one program with many results, so that an engine which compiles whole programs compiles few.
There is a maker for each group of primitives; `conformance_programs` calls them for the types that differ in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple

import numpy as np

from anygpu.agreement.elementwise import ErrorClass
from anygpu.base.typing import HostArray
from anygpu.errors import InvalidProgram
from anygpu.program.dtypes import COMPLEX, DTYPES, ITEMSIZE, KIND, DType, is_inexact
from anygpu.program.functions import (
    BINARY,
    TRANSCENDENTAL,
    UNARY,
    BinaryFunction,
    LinearFunction,
    ReduceFunction,
    ScanFunction,
    ScatterFunction,
)
from anygpu.program.graph import Node, Program, Recorder
from anygpu.program.ops.linear import Attend
from anygpu.program.primitives import (
    LINEAR_PARTS,
    Argsort,
    Binary,
    Broadcast,
    Cast,
    Concatenate,
    Constant,
    Contract,
    Flip,
    Fourier,
    Gather,
    Input,
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

ResultClass = Literal["exact"] | ErrorClass


#: NumPy is the reference, and has all types but this one.
REFERENCE_DTYPES: tuple[DType, ...] = tuple(dtype for dtype in DTYPES if dtype != "bfloat16")


class ConformanceResult(NamedTuple):
    """One output of a `ConformanceProgram`, and how near it must come."""

    label: str
    kind: ResultClass
    #: How many numbers went into each, which is what errors grow with.
    terms: int


class ConformanceProgram:
    """A program in the making, with its inputs and a description of each output."""

    def __init__(self, name: str, *inputs: HostArray) -> None:
        self.name = name
        self.inputs = inputs
        self.results: list[ConformanceResult] = []
        self._outputs: list[int] = []
        self._recorder = Recorder()
        self.given = [self._recorder.input(Spec(each.shape, _name(each))) for each in inputs]

    def add(self, op: Primitive, *sources: int) -> int:
        return self._recorder.add(op, *sources)

    def spec(self, position: int) -> Spec:
        return self._recorder.spec(position)

    def constant(self, values: HostArray) -> int:
        return self.add(Constant(values.shape, _name(values), np.ascontiguousarray(values).tobytes()))

    def expect(self, position: int, label: str, kind: ResultClass = "exact", terms: int = 1) -> None:
        """Makes a value an output, with its label and how near it must come; whole numbers are exact in any case."""
        self.results.append(ConformanceResult(label, kind if is_inexact(self.spec(position).dtype) else "exact", terms))
        self._outputs.append(position)

    def expect_of(self, op: Primitive, *sources: int, kind: ResultClass = "exact", terms: int = 1) -> None:
        """Adds a node and makes it an output."""
        self.expect(self.add(op, *sources), str(op), kind, terms)

    @property
    def program(self) -> Program:
        return self._recorder.program(self._outputs)


def values(dtype: DType, *shape: int, seed: int = 0) -> HostArray:
    """Numbers of both signs, some of them equal; of floats and integers also the extremes."""
    rng = np.random.default_rng((seed, *map(ord, dtype), *shape))
    size = int(np.prod(shape))
    match KIND[dtype]:
        case "bool":
            return np.asarray(rng.random(shape) < 0.5)
        case "signed" | "unsigned":
            least, most = np.iinfo(dtype).min, np.iinfo(dtype).max
            line = rng.integers(max(least, -9), 10, size).astype(dtype)
            extremes = np.array([least, most, 0, 1, most - 1], dtype)
        case "float":
            line = (rng.integers(-24, 24, size) / 8 + rng.integers(0, 2, size) * rng.random(size)).astype(dtype)
            extremes = np.array([np.inf, -np.inf, np.nan, 0.0, -0.0, 1, -1], dtype)
        case _:
            line = rng.integers(-4, 4, size) + 1j * (rng.integers(-4, 4, size) + 0.5) + 0.25
            return line.astype(dtype).reshape(shape)
    places = line[:: max(2, size // len(extremes))][: len(extremes)]
    places[:] = extremes[: len(places)]
    return line.reshape(shape)


def tame(dtype: DType, *shape: int, seed: int = 0) -> HostArray:
    """Small numbers away from 0, whose sums and products stay small."""
    rng = np.random.default_rng((seed, 1, *map(ord, dtype), *shape))
    if dtype == "bool":
        return np.asarray(rng.random(shape) < 0.5)
    whole = rng.integers(1, 4, shape)
    if KIND[dtype] == "unsigned":
        return np.asarray(whole, dtype)
    signed = whole * rng.choice([-1, 1], shape)
    if KIND[dtype] == "signed":
        return np.asarray(signed, dtype)
    fractions = signed / 2 + rng.random(shape) / 8
    return np.asarray(fractions + 1j * rng.random(shape) if KIND[dtype] == "complex" else fractions, dtype)


def transported(dtype: DType) -> tuple[HostArray, ...]:
    """Arrays that have to travel to a device and back unchanged: with elements, without, without axes, and turned."""
    return values(dtype, 4, 5), values(dtype, 0, 3), values(dtype, 1).reshape(()), values(dtype, 6, 4)[::-2].T


def one_primitive(op: Primitive, *inputs: HostArray) -> Program:
    """A program of one primitive on these inputs."""
    nodes = [Node(Input(each.shape, _name(each))) for each in inputs]
    return Program([*nodes, Node(op, tuple(range(len(inputs))))], [len(inputs)])


def _name(array: HostArray) -> DType:
    return array.dtype.name  # type: ignore[return-value]


#: Functions of which there is only one right answer.
_EXACT_UNARY = tuple(fn for fn in UNARY if fn not in TRANSCENDENTAL and fn != "reciprocal")
_INEXACT_BINARY: tuple[BinaryFunction, ...] = (
    "add", "subtract", "multiply", "divide", "floor_divide", "remainder", "fmod", "power", "atan2", "hypot",
)  # fmt: skip


#: For functions, whose arithmetic depends on the type, and for what only moves elements about.
_DIFFERENT_ARITHMETIC: tuple[DType, ...] = ("bool", "int64", "uint32", "float16", "float32", "float64", "complex64")
_DIFFERENT_ELEMENTS: tuple[DType, ...] = ("bool", "uint32", "float32", "complex64")


def conformance_programs(*, deep: bool = False) -> Iterator[ConformanceProgram]:
    """All programs, always the same. With `deep`, every type in everything.

    Otherwise functions are tried for types whose arithmetic differs, and movement for one type of each kind.
    """
    for dtype in REFERENCE_DTYPES:
        makers = list(_FOR_EVERY_TYPE)
        if deep or dtype in _DIFFERENT_ARITHMETIC:
            makers += _FOR_EVERY_ARITHMETIC
        if deep or dtype in _DIFFERENT_ELEMENTS:
            makers += _FOR_EVERY_ELEMENT
        for make in makers:
            suite = make(dtype)
            if suite.results:
                yield suite
    for dtype in ("float32", "float64", *COMPLEX) if deep else ("float64", "complex64"):
        yield _linear(dtype)
    yield from (_transforms(dtype) for dtype in ("float16", "float32", "float64", *COMPLEX))
    yield from (_attention(dtype) for dtype in (("float16", "float32", "float64") if deep else ("float32",)))
    yield _index_types()
    yield _signs_of_zero()
    yield _infinite_complex_numbers()
    yield _without_inputs()


def _valid(op: Primitive, *specs: Spec) -> bool:
    """Whether a primitive takes operands of these specs."""
    try:
        op.infer(*specs)
    except InvalidProgram:
        return False
    return True


def _unary(dtype: DType) -> ConformanceProgram:
    """Every function of one operand, on extremes and on numbers near 0."""
    x, more = values(dtype, 41), values(dtype, 41, seed=2)
    near_zero = (more / 4).astype(dtype) if is_inexact(dtype) else more
    suite = ConformanceProgram(f"unary functions of {dtype}", np.concatenate([x, near_zero]))
    for fn in UNARY:
        op = Unary(fn)
        if _valid(op, suite.spec(0)):
            exact = fn in _EXACT_UNARY and not (KIND[dtype] == "complex" and fn in ("abs", "sign"))
            suite.expect_of(op, 0, kind="exact" if exact else "function")
    return suite


def _binary(dtype: DType) -> ConformanceProgram:
    """Every function of two operands that the type has, with operands for which the result is defined."""
    x, y, shifts = values(dtype, 61), values(dtype, 61, seed=3), np.arange(61).astype(np.int32) - 30
    powers = np.arange(61) % 6
    suite = ConformanceProgram(f"binary functions of {dtype}", x, y, tame(dtype, 61), shifts, powers.astype(dtype))
    one, other, small, exponents, power = suite.given
    for fn in BINARY:
        op = Binary(fn)
        kind: ResultClass = "function" if fn in _INEXACT_BINARY else "exact"
        if fn == "ldexp":
            if KIND[dtype] == "float":
                scaled = suite.add(op, small, exponents)
                # What is smaller than the least normal number may be 0 on a device.
                suite.expect(scaled, str(op), "arithmetic" if dtype == "float16" else "exact")
        elif not _valid(op, Spec((61,), dtype), Spec((61,), dtype)):
            continue
        elif fn == "power":
            suite.expect_of(op, small if is_inexact(dtype) else one, power, kind=kind)
            if KIND[dtype] == "float":
                suite.expect_of(op, one, other, kind=kind)
            _expect_constant_powers(suite, small, dtype)
        elif fn == "nextafter" and dtype != "float16":
            suite.expect_of(op, small, other)  # next to 0 there are only subnormal numbers
        elif fn == "divide" and KIND[dtype] == "complex":
            suite.expect_of(op, one, small, kind=kind)
        else:
            suite.expect_of(op, one, other, kind=kind)
            if fn in ("left_shift", "right_shift"):
                bits = suite.add(Cast(dtype), suite.add(Iota(61, "int64")))
                suite.expect_of(op, one, bits)
            if fn in ("floor_divide", "remainder", "fmod"):
                divisor = suite.add(Broadcast((61,)), suite.constant(np.array(3, dtype)))
                suite.expect_of(op, one, divisor, kind=kind)
    return suite


def _expect_constant_powers(suite: ConformanceProgram, source: int, dtype: DType) -> None:
    """Powers with a constant exponent, for which engines have kernels of their own."""
    for exponent in (0, 1, 2, 3) if not is_inexact(dtype) else (0, 1, 2, 3, 0.5, -1, -2):
        constant = suite.add(Broadcast(suite.spec(source).shape), suite.constant(np.array(exponent, dtype)))
        suite.expect_of(Binary("power"), source, constant, kind="function")


def _choice_and_casts(dtype: DType) -> ConformanceProgram:
    """A selection, and casts to every type of numbers that it holds."""
    x = tame(dtype, 5, 7)
    whole = values(dtype, 5, 7) if not is_inexact(dtype) else x
    suite = ConformanceProgram(
        f"select and casts of {dtype}", x, tame(dtype, 5, 7, seed=5), values("bool", 5, 7), whole, np.abs(x)
    )
    one, other, condition, extremes, positive = suite.given
    suite.expect_of(Select(), condition, one, other)
    for target in REFERENCE_DTYPES:
        # A negative fraction in an unsigned type is undefined in C, and so in NumPy.
        risky = is_inexact(dtype) and KIND[target] == "unsigned"
        source = positive if risky else extremes if KIND[target] in ("signed", "unsigned", "bool") else one
        if risky and KIND[dtype] == "complex":
            source = suite.add(Unary("abs"), positive)
        narrow = is_inexact(target) and ITEMSIZE[target] < ITEMSIZE[dtype]
        suite.expect(suite.add(Cast(target), source), f"cast to {target}", "arithmetic" if narrow else "exact")
    return suite


_REDUCES: tuple[ReduceFunction, ...] = ("sum", "prod", "max", "min", "any", "all", "argmax", "argmin")
_SCANS: tuple[ScanFunction, ...] = ("sum", "prod", "max", "min")


def _reductions(dtype: DType) -> ConformanceProgram:
    """Reductions and scans along each axis, several, all and none; extremes where the order of sums is no matter."""
    suite = ConformanceProgram(f"reductions of {dtype}", tame(dtype, 3, 4, 5), values(dtype, 6, 7))
    small, extremes = suite.given
    for fn in _REDUCES:
        for axes in ((1,), (0, 2), (0, 1, 2), ()):
            if _valid(Reduce(fn, axes), suite.spec(small)):
                suite.expect_of(Reduce(fn, axes), small, kind="sum" if fn in ("sum", "prod") else "exact", terms=60)
        for axis in (0, 1):
            if fn not in ("sum", "prod") and _valid(Reduce(fn, (axis,)), suite.spec(extremes)):
                suite.expect_of(Reduce(fn, (axis,)), extremes)
    for scan in _SCANS:
        for axis in (0, 2):
            if _valid(Scan(scan, axis), suite.spec(small)):
                suite.expect_of(Scan(scan, axis), small, kind="sum" if scan in ("sum", "prod") else "exact", terms=5)
        if scan in ("max", "min") and dtype != "bool":
            suite.expect_of(Scan(scan, 1), extremes)
    return suite


def _movement(dtype: DType) -> ConformanceProgram:
    """Everything that only moves elements: shapes, slices, updates, pads, windows."""
    suite = ConformanceProgram(
        f"movement of {dtype}", values(dtype, 4, 5, 3), values(dtype, 2, 2, 3, seed=1), values(dtype, 1, seed=2)
    )
    x, patch, single = suite.given
    scalar = suite.add(Reshape(()), single)
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
        suite.expect_of(op, x)
    turned = suite.add(Permute((2, 0, 1)), x)
    suite.expect_of(Reshape((60,)), turned)
    suite.expect_of(Broadcast((3, 4)), scalar)
    wide = suite.add(Broadcast((4, 5)), single)
    row = suite.add(Reshape((1, 5)), suite.add(Slice((0, 0, 0), (1, 5, 1), (1, 1, 1)), x))
    suite.expect_of(Update((1, 0), (1, 1)), wide, row)
    suite.expect_of(Update((0, 1, 0), (3, 2, 1)), x, patch)
    suite.expect_of(Update((2, 3, 0), (1, 1, 1)), x, patch)
    suite.expect_of(Update((2, 3, 0), (1, 1, 1)), x, suite.add(Slice((0, 0, 0), (0, 2, 3), (1, 1, 1)), patch))
    suite.expect_of(Update((), ()), scalar, suite.add(Reshape(()), single))
    suite.expect_of(Pad((1, 0, 2), (0, 3, 1)), x, scalar)
    suite.expect_of(Concatenate(1), x, suite.add(Slice((0, 1, 0), (4, 3, 3), (1, 1, 1)), x), x)
    suite.expect_of(Concatenate(0), x, suite.add(Slice((0, 0, 0), (0, 5, 3), (1, 1, 1)), x))
    long = suite.add(Concatenate(0), *[suite.add(Reshape((60,)), x)] * 2)
    suite.expect_of(Windows(0, 50, 7), long)
    return suite


def _order(dtype: DType) -> ConformanceProgram:
    """Sorting with equal elements, positions, and searches."""
    x, line = values(dtype, 6, 7), np.sort(values(dtype, 23, seed=1))
    suite = ConformanceProgram(f"order of {dtype}", x, line, np.sort(tame(dtype, 9)))
    for axis in (0, 1):
        suite.expect_of(Sort(axis), suite.given[0])
        suite.expect_of(Argsort(axis), suite.given[0])
    for given in suite.given[1:]:
        suite.expect_of(Search("left"), given, suite.given[0])
        suite.expect_of(Search("right"), given, suite.given[0])
    return suite


def _contractions(dtype: DType) -> ConformanceProgram:
    """Products of matrices, vectors and stacks in all arrangements of axes, and of nothing."""
    suite = ConformanceProgram(
        f"contractions of {dtype}",
        tame(dtype, 4, 5),
        tame(dtype, 5, 3),
        tame(dtype, 2, 3, 4, 5),
        tame(dtype, 5, 2, 4, 3),
    )
    matrix, other, cube, more = suite.given
    vector = suite.add(Reshape((5,)), suite.add(Slice((0, 0), (1, 5), (1, 1)), matrix))
    nothing = suite.add(Slice((0, 0), (4, 0), (1, 1)), matrix), suite.add(Slice((0, 0), (0, 3), (1, 1)), other)
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
        suite.expect_of(op, x, y, kind="sum", terms=120)
    return suite


def _attention(dtype: DType) -> ConformanceProgram:
    """Attention with as many queries as keys and with fewer, and keys that no query sees."""
    hidden = np.zeros((2, 5, 7), dtype)
    hidden[:, :, 2] = -np.inf
    arrays = tame(dtype, 2, 5, 4), tame(dtype, 2, 7, 4, seed=1), tame(dtype, 2, 7, 3, seed=2)
    suite = ConformanceProgram(f"attention in {dtype}", *arrays, hidden)
    q, k, v, bias = suite.given
    few = [suite.add(Slice((0, 0, 0), (2, 5, suite.spec(each).shape[2]), (1, 1, 1)), each) for each in (k, v)]
    for causal in (False, True):
        suite.expect_of(Attend(0.25, causal), q, k, v, kind="function", terms=8)
        suite.expect_of(Attend(0.25, causal), q, k, v, bias, kind="function", terms=8)
        suite.expect_of(Attend(0.25, causal), q, *few, kind="function", terms=8)
    return suite


_SCATTERS: tuple[ScatterFunction, ...] = ("set", "add", "multiply", "maximum", "minimum")


def _picking(dtype: DType) -> ConformanceProgram:
    """Gathers and scatters with indices that repeat, in batches, and with constant ones."""
    positions = np.array([[2, 0, 2, 1], [1, 1, 0, 2]])
    arrays = tame(dtype, 2, 3, 4), tame(dtype, 2, 2, 4, 4, seed=1), tame(dtype, 2, 4, 4, seed=2)
    suite = ConformanceProgram(f"gather and scatter of {dtype}", *arrays, positions)
    x, updates, batch_updates, index = suite.given
    known = suite.constant(np.array([2, 0, 2]))
    for which in (index, suite.add(Reshape(()), suite.add(Slice((0, 0), (1, 1), (1, 1)), index)), known):
        suite.expect_of(Gather(1), x, which)
    suite.expect_of(Gather(1, 1), x, index)
    suite.expect_of(Gather(2, 1), x, index)
    suite.expect_of(Gather(1, 1), x, suite.add(Slice((0, 0), (2, 0), (1, 1)), index))
    for fn in _SCATTERS:
        kind: ResultClass = "sum" if fn in ("add", "multiply") else "exact"
        suite.expect_of(Scatter(fn, 1), x, index, updates, kind=kind, terms=8)
        suite.expect_of(Scatter(fn, 1, 1), x, index, batch_updates, kind=kind, terms=8)
    some = suite.add(Slice((0, 0, 0, 0), (2, 1, 3, 4), (1, 1, 1, 1)), updates)
    suite.expect_of(Scatter("set", 1), x, known, suite.add(Reshape((2, 3, 4)), some))
    return suite


def _index_types() -> ConformanceProgram:
    types = [dtype for dtype in REFERENCE_DTYPES if KIND[dtype] in ("signed", "unsigned")]
    positions = np.array([2, 0, 2, 1])
    suite = ConformanceProgram(
        "types of indices", tame("float32", 3), tame("float32", 4), *(positions.astype(each) for each in types)
    )
    x, updates, *indices = suite.given
    for index in indices:
        suite.expect_of(Gather(0), x, index)
        suite.expect_of(Scatter("add", 0), x, index, updates, kind="sum", terms=4)
    return suite


def _no_elements(dtype: DType) -> ConformanceProgram:
    """Arrays of length 0, and arrays without axes."""
    suite = ConformanceProgram(f"nothing and one of {dtype}", values(dtype, 0, 3), values(dtype, 1).reshape(()))
    nothing, one = suite.given
    suite.expect_of(Sort(0), nothing)
    suite.expect_of(Argsort(1), nothing)
    suite.expect_of(Reshape((3, 0, 2)), nothing)
    suite.expect_of(Pad((1, 0), (0, 1)), nothing, one)
    suite.expect_of(Select(), suite.add(Binary("equal"), nothing, nothing), nothing, nothing)
    suite.expect_of(Cast("float32"), nothing)
    suite.expect_of(Binary("equal"), one, one)
    suite.expect_of(Broadcast((0, 4)), suite.add(Reshape((1, 1)), one))
    if dtype == "bool":
        suite.expect_of(Reduce("all", (0,)), nothing)
        suite.expect_of(Reduce("any", (0, 1)), nothing)
        suite.expect_of(Reduce("all", ()), one)
    else:
        suite.expect_of(Reduce("sum", (0,)), nothing)
        suite.expect_of(Reduce("prod", (0, 1)), nothing)
        suite.expect_of(Reduce("sum", ()), one)
        suite.expect_of(Scan("sum", 0), nothing)
        suite.expect_of(Scan("max", 1), nothing)
        suite.expect_of(Unary("negative"), one)
        suite.expect_of(Unary("negative"), nothing)
    return suite


def _counting(dtype: DType) -> ConformanceProgram:
    """Counting and constants, and an input that is returned twice."""
    suite = ConformanceProgram(f"iota and constants of {dtype}", values(dtype, 3))
    if dtype != "bool":
        suite.expect_of(Iota(7, dtype))
        suite.expect_of(Iota(0, dtype))
    suite.expect(suite.constant(values(dtype, 3, 4)), "constant")
    suite.expect(suite.constant(values(dtype, 0, 4)), "empty constant")
    suite.expect(suite.given[0], "the input itself")
    suite.expect(suite.given[0], "and once more")
    return suite


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
    suite = ConformanceProgram(f"transforms of {dtype}", tame(dtype, 5, 8), tame(dtype, 0, 8))
    x, nothing = suite.given
    if KIND[dtype] == "float":
        suite.expect_of(Fourier("rfft", 0, 5), x, kind="fourier", terms=8)
        suite.expect_of(Fourier("rfft", 1, 8), x, kind="fourier", terms=8)
        suite.expect_of(Fourier("rfft", 1, 8), nothing)
        return suite
    for fn in ("fft", "ifft"):
        for axis, length in ((0, 5), (1, 8)):
            suite.expect_of(Fourier(fn, axis, length), x, kind="fourier", terms=8)
    for axis, length in ((0, 8), (0, 9), (1, 14), (1, 15)):
        suite.expect_of(Fourier("irfft", axis, length), x, kind="fourier", terms=8)
    suite.expect_of(Fourier("fft", 1, 8), nothing)
    return suite


def _linear(dtype: DType) -> ConformanceProgram:
    """Linear algebra, whose factors are right up to signs and order: they are put together again.

    Values come in order.
    """
    stack = tame(dtype, 2, 4, 4) + 4 * np.eye(4, dtype=dtype)
    both = (stack @ np.conj(np.swapaxes(stack, -1, -2))).astype(dtype)
    suite = ConformanceProgram(
        f"linear algebra of {dtype}", stack.astype(dtype), both, tame(dtype, 2, 4, 3), tame(dtype, 0, 0)
    )
    a, positive, right, empty = suite.given

    def part(fn: LinearFunction, source: int, which: int, *, full: bool = False) -> int:
        return suite.add(Linear(fn, which, full), source)

    def multiply(x: int, y: int) -> int:
        return suite.add(Contract((2,), (1,), (0,), (0,)), x, y)

    def scaled(matrix: int, line: int) -> int:
        """Every column by its number."""
        shape = suite.spec(matrix).shape
        line = suite.add(Cast(suite.spec(matrix).dtype), line)
        wide = suite.add(Broadcast(shape), suite.add(Reshape((shape[0], 1, shape[2])), line))
        return suite.add(Binary("multiply"), matrix, wide)

    def adjoint(matrix: int) -> int:
        turned = suite.add(Permute((0, 2, 1)), matrix)
        return suite.add(Unary("conj"), turned) if KIND[dtype] == "complex" else turned

    for fn, source in (("inv", a), ("det", a), ("cholesky", positive), ("svdvals", right), ("eigvalsh", positive)):
        suite.expect_of(Linear(fn), source, kind="linear", terms=16)  # type: ignore[arg-type]
    suite.expect_of(Linear("solve"), a, right, kind="linear", terms=16)
    suite.expect_of(Linear("det"), empty)
    for which in range(LINEAR_PARTS["slogdet"]):
        suite.expect_of(Linear("slogdet", which), a, kind="linear", terms=16)
    for full in (False, True):
        q, r = (part("qr", right, which, full=full) for which in range(2))
        suite.expect(multiply(q, r), f"q r, full={full}", "linear", 16)
        suite.expect(multiply(adjoint(q), q), f"qᴴ q, full={full}", "linear", 16)
        suite.expect(part("svd", right, 1, full=full), "singular values", "linear", 16)
    left, sizes, turned = (part("svd", right, which) for which in range(3))
    suite.expect(multiply(scaled(left, sizes), turned), "u s vᴴ", "linear", 16)
    suite.expect(multiply(turned, adjoint(turned)), "vᴴ v", "linear", 16)
    energies, states = (part("eigh", positive, which) for which in range(2))
    suite.expect(energies, "eigenvalues", "linear", 16)
    suite.expect(multiply(scaled(states, energies), adjoint(states)), "v w vᴴ", "linear", 16)
    poles, modes = (part("eig", a, which) for which in range(2))
    complex_a = suite.add(Cast(suite.spec(modes).dtype), a)
    rest = suite.add(Binary("subtract"), multiply(complex_a, modes), scaled(modes, poles))
    suite.expect(rest, "a v - v w", "linear", 64)
    suite.expect(suite.add(Reduce("sum", (1,)), poles), "the sum of the eigenvalues", "linear", 16)
    return suite


def _signs_of_zero() -> ConformanceProgram:
    """Results for which NumPy has a rule for the sign of 0, made visible by `signbit`."""
    zeros = np.array([0.0, -0.0, 4.0, -4.0, 6.0, -6.0])
    divisors = np.array([2.0, -2.0, 2.0, -2.0, -2.0, 2.0])
    suite = ConformanceProgram("signs of zero", zeros, divisors)
    x, y = suite.given
    for position in (
        suite.add(Binary("remainder"), x, y),
        suite.add(Binary("fmod"), x, y),
        suite.add(Unary("sign"), x),
        suite.add(Unary("rint"), x),
        suite.add(Unary("sqrt"), suite.add(Unary("abs"), x)),
        suite.add(Unary("cbrt"), x),
        suite.add(Binary("floor_divide"), x, y),
        suite.add(Binary("multiply"), x, y),
    ):
        suite.expect_of(Unary("signbit"), position)
    return suite


def _infinite_complex_numbers() -> ConformanceProgram:
    parts = np.array([0, 1, -2.5, np.inf, -np.inf, np.nan], np.float32)
    line = np.empty(36, np.complex64)
    line.real, line.imag = np.repeat(parts, 6), np.tile(parts, 6)
    suite = ConformanceProgram("infinite complex numbers", line, np.roll(line, 7))
    x, y = suite.given
    for fn in ("negative", "conj", "real", "imag", "isnan", "isinf", "isfinite", "abs", "sign"):
        suite.expect_of(Unary(fn), x, kind="function")
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
        suite.expect_of(Binary(function), x, y, kind="function")
    return suite


def _without_inputs() -> ConformanceProgram:
    suite = ConformanceProgram("a program without inputs")
    line = suite.add(Iota(12, "float64"))
    suite.expect_of(Reshape((3, 4)), line)
    suite.expect_of(Unary("sqrt"), line, kind="function")
    return suite
