"""Lengths and shapes at which kernels go wrong: nothing, one, primes, beside a workgroup, beyond one launch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from anygpu.array.trace.tracing import record
from anygpu.base.typing import HostArray
from anygpu.program.graph import Program
from anygpu.verify.cases import Case, Check, ProgramCase, judged
from anygpu.verify.subject import Subject

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


def _cases(subject: Subject) -> Iterator[Case]:
    for number, shape in enumerate(_shapes()):
        inputs = shape.make()
        recorded = record(shape.function, *inputs)
        # The text of a program in a finding names no line of ours.
        program = Program(recorded.nodes, recorded.outputs)
        yield ProgramCase(shape.name, number, program, inputs, judged)


SIZES = Check(
    "sizes",
    "Lengths from 0 to 16 million, primes, empty and many axes are right.",
    0.09,
    lambda subject: sum(1 for _ in _shapes()),
    _cases,
)
