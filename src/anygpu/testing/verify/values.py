"""Checks of values: every dtype, length, special value and primitive, and random programs, compared with NumPy.

Each section has the functions or programs that are tried and ends with its `VerifyCheck`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np

from anygpu.array.trace.tracing import record
from anygpu.base.typing import HostArray
from anygpu.engines.numpy import lowering
from anygpu.program.dtypes import DType
from anygpu.program.graph import Program
from anygpu.testing.cases import REFERENCE_DTYPES, ConformanceProgram, conformance_programs, tame, transported
from anygpu.testing.conformance import conformance_difference, same_bits
from anygpu.testing.verify import (
    ActCase,
    Comparison,
    ProgramCase,
    Subject,
    Tried,
    VerifyCase,
    VerifyCheck,
    judged,
)
from anygpu.testing.verify.seeded_programs import seeded_program
from anygpu.testing.verify.special_values import SpecialProgram, special_programs

# -- every type travels to the device and back unchanged, and calls return what NumPy's would: values, dtype, shape


def _travel(dtype: DType, subject: Subject) -> Tried:
    """Sends arrays of a dtype to the device and back: contiguous, empty, without axes, and a strided view."""
    handle = subject.handle
    for array in transported(dtype):
        if not same_bits(handle.download(handle.upload(array)), array):
            return Tried(f"{dtype}{list(array.shape)} changed on its way to the device and back.")
    return Tried()


def _function(x: Any, y: Any) -> Any:
    return np.where(x == y, x, y), x[::-1], x.max(), np.sort(y)


def _arithmetic(x: Any, y: Any) -> Any:
    return x + y, x * y, x.sum(), np.cumsum(y)


def _called(dtype: DType, subject: Subject) -> Tried:
    """Calls functions with arrays of a dtype, and compares what they return."""
    x, y = tame(dtype, 77), tame(dtype, 77, seed=1)
    skipped = ""
    for function in (_function, _arithmetic) if np.dtype(dtype).kind != "c" else (_arithmetic,):
        value = subject.call(function, x, y).value
        found = judged(record(function, x, y), (x, y), [np.asarray(each) for each in value], set())
        if found.wrong:
            return Tried(f"{function.__name__[1:]} of {dtype}: {found.wrong}")
        skipped = skipped or found.skipped
    return Tried(skipped=skipped)


def _dtype_cases(subject: Subject) -> Iterator[VerifyCase]:
    for number, dtype in enumerate(REFERENCE_DTYPES):
        yield ActCase(f"{dtype}, round trip", number, partial(_travel, dtype))
    for number, dtype in enumerate(REFERENCE_DTYPES, len(REFERENCE_DTYPES)):
        yield ActCase(f"calls with {dtype}", number, partial(_called, dtype))


DTYPES = VerifyCheck(
    "dtypes",
    "Every dtype travels unchanged, and calls return what NumPy's would.",
    0.04,
    lambda subject: 2 * len(REFERENCE_DTYPES),
    _dtype_cases,
)


# -- lengths and shapes at which kernels go wrong: nothing, one, primes, beside a workgroup, beyond one launch


#: Beside the sizes of workgroups, primes, and where one dimension of a launch ends: 65,535 groups of 64.
LENGTHS = (0, 1, 2, 63, 64, 65, 255, 256, 257, 1021, 65_535, 65_536, 65_537, 1_000_003, 64 * 65_535 + 1)
#: More than 65,535 groups of 256.
LONGEST = 256 * 65_536 + 1
_MATRICES = ((1, 65_537), (65_537, 1), (3, 4099), (4099, 3), (64, 64), (63, 65), (257, 255), (0, 5), (5, 0))
_PRODUCTS = ((1, 1, 1), (63, 65, 64), (17, 1, 129), (1, 1021, 1), (5, 0, 7), (128, 257, 33), (65, 64, 0))
_AXES = ((2,) * 12, (1,) * 16, (3, 1, 2, 5, 1, 7, 2), (2, 3, 5, 7, 11))


def _line(whole: Any, real: Any) -> Any:
    # Multiplied by a power of two, so that there is one right answer whether or not a device fuses the sum.
    results = [real * 0.5 + real, np.concatenate([whole, whole[::-1]]) * 2 + 1, whole.sum(), np.cumsum(whole)]
    if whole.size:
        results += [np.argmax(whole), np.take(whole, whole % whole.size)]
    return results


def _long_line(whole: Any) -> Any:
    return whole * 3 - 1, whole.sum()


def _matrix(x: Any) -> Any:
    results = [x.sum(axis=0), x.sum(axis=1), x.T + 1]
    if x.size:
        results += [x - x.max(axis=1, keepdims=True), np.cumsum(x, axis=0)]
    return results


def _product(x: Any, y: Any) -> Any:
    return x @ y


def _axes(x: Any) -> Any:
    last = x.ndim - 1
    return x.transpose() * 2, np.flip(x), x.sum(axis=tuple(range(0, x.ndim, 2))), np.moveaxis(x, last, 0) + x.min()


class _Shape(NamedTuple):
    name: str
    function: Callable[..., Any]
    make: Callable[[], tuple[HostArray, ...]]


def _whole(*shape: int) -> HostArray:
    return np.random.default_rng((7, *shape)).integers(0, 9, shape, np.int32)


def _real(*shape: int) -> HostArray:
    return np.random.default_rng((8, *shape)).standard_normal(shape, np.float32)


def _shapes() -> Iterator[_Shape]:
    """All shapes with a function for each; their arrays are made when they are tried."""
    for length in LENGTHS:
        yield _Shape(f"{length:,} elements", _line, partial(_lines, length))
    for shape in _MATRICES:
        yield _Shape(f"a matrix of {_written(shape)}", _matrix, partial(_one, _whole, shape))
    for rows, inner, columns in _PRODUCTS:
        yield _Shape(
            f"a product of {_written((rows, inner))} and {_written((inner, columns))}",
            _product,
            partial(_two, (rows, inner), (inner, columns)),
        )
    for lengths in _AXES:
        yield _Shape(f"{len(lengths)} axes: {_written(lengths)}", _axes, partial(_one, _whole, lengths))
    yield _Shape(f"{LONGEST:,} elements", _long_line, partial(_one, _whole, (LONGEST,)))


def _lines(length: int) -> tuple[HostArray, ...]:
    return _whole(length), _real(length)


def _one(make: Callable[..., HostArray], shape: tuple[int, ...]) -> tuple[HostArray, ...]:
    return (make(*shape),)


def _two(first: tuple[int, ...], second: tuple[int, ...]) -> tuple[HostArray, ...]:
    return _real(*first), _real(*second)


def _written(shape: tuple[int, ...]) -> str:
    return "×".join(map(str, shape))


def _size_cases(subject: Subject) -> Iterator[VerifyCase]:
    for number, shape in enumerate(_shapes()):
        inputs = shape.make()
        recorded = record(shape.function, *inputs)
        # The text of a program in a finding names no line of ours.
        program = Program(recorded.nodes, recorded.outputs)
        yield ProgramCase(shape.name, number, program, inputs, judged)


SIZES = VerifyCheck(
    "sizes",
    "Lengths from 0 to 16 million, primes, empty and many axes are right.",
    0.09,
    lambda subject: sum(1 for _ in _shapes()),
    _size_cases,
)


# -- zeros of both signs, infinities, NaN, limits, ties and overflow, through every elementwise operation


@cache
def _special() -> tuple[SpecialProgram, ...]:
    return tuple(special_programs())


def _special_cases(subject: Subject) -> Iterator[VerifyCase]:
    """In an order in which every part of the time sees every type."""
    order = list(range(len(_special())))
    random.Random(0).shuffle(order)
    for number in order:
        name, program, inputs = _special()[number]
        yield ProgramCase(name, number, program, inputs, judged)


SPECIAL_VALUES = VerifyCheck(
    "special-values",
    "Infinities, NaN, limits and overflow are as in NumPy.",
    0.16,
    lambda subject: len(_special()),
    _special_cases,
)


# -- every primitive, function and type, as `anygpu.testing.check_engine_programs` has them


@cache
def _suites() -> tuple[ConformanceProgram, ...]:
    return tuple(conformance_programs())


def _conformance_case(number: int, suite: ConformanceProgram) -> ProgramCase:
    """A program of the conformance suite as a case; the first of its wrong results is told."""

    def compare(
        program: Program, inputs: Sequence[HostArray], results: Sequence[HostArray], lacking: set[int]
    ) -> Comparison:
        expected = lowering.run(program, list(inputs))
        wrong = []
        for position, (result, wanted, got) in enumerate(zip(suite.results, expected, results, strict=True)):
            sentence = conformance_difference(wanted, got, result)
            if sentence is not None:
                wrong.append((position, f"{program.nodes[program.outputs[position]].op.name}: {sentence}"))
        if not wrong:
            return Comparison()
        more = f" {len(wrong) - 1} more results of this program are wrong." if len(wrong) > 1 else ""
        return Comparison(f"{wrong[0][1]}.{more}", output=wrong[0][0])

    return ProgramCase(suite.name, number, suite.program, tuple(suite.inputs), compare)


def _conformance_cases(subject: Subject) -> Iterator[VerifyCase]:
    """In an order in which every part of the time sees every type."""
    order = list(range(len(_suites())))
    random.Random(0).shuffle(order)
    yield from (_conformance_case(number, _suites()[number]) for number in order)


CONFORMANCE = VerifyCheck(
    "conformance", "Every operation works in every type.", 0.2, lambda subject: len(_suites()), _conformance_cases
)


# -- random programs: the same seed makes the same program on every machine


#: How many programs are tried, with the seeds from 0 on.
PROGRAMS = 500


def program_of(seed: int) -> ProgramCase:
    """The program of a seed, with its inputs."""
    program, inputs = seeded_program(seed)
    return ProgramCase(f"program {seed}", seed, program, inputs, judged)


def programs(count: int = PROGRAMS, *, first: int = 0) -> VerifyCheck:
    """The check of `count` random programs, with the seeds from `first` on."""

    def cases(subject: Subject) -> Iterator[VerifyCase]:
        yield from (program_of(seed) for seed in range(first, first + count))

    return VerifyCheck("programs", "Random programs give what NumPy gives.", 0.38, lambda subject: count, cases)
