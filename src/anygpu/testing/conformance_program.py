"""One program with many results, its inputs, and what is expected of it."""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np

from anygpu.agreement.tolerances import OperationClass
from anygpu.base.typing import HostArray
from anygpu.program.dtypes import DTYPES, KIND, DType, is_inexact
from anygpu.program.graph import Program, Recorder
from anygpu.program.primitives import Constant, Primitive, Spec

ResultClass = Literal["exact"] | OperationClass

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
        self.results.append(ConformanceResult(label, kind if is_inexact(self.spec(position).dtype) else "exact", terms))
        self._outputs.append(position)

    def expect_of(self, op: Primitive, *sources: int, kind: ResultClass = "exact", terms: int = 1) -> None:
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


def _name(array: HostArray) -> DType:
    return array.dtype.name  # type: ignore[return-value]
