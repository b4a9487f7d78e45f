"""Traces a function of whole arrays into a program that can be split along one axis, without the arrays' values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from anygpu.array.core.device import to_numpy_dtype
from anygpu.array.trace.traced import NotTraceable, Traced
from anygpu.array.trace.tracing import trace
from anygpu.base.typing import HostArray
from anygpu.errors import InvalidOption
from anygpu.placement.executing import Executing
from anygpu.placement.options import Options
from anygpu.program.graph import Program
from anygpu.program.independence import Cut, cut, independent_cuts
from anygpu.program.primitives import Spec
from anygpu.streams.sources import span_of


class Returned(NamedTuple):
    """An array that the function returns."""

    #: The index among the results of the program.
    number: int
    spec: Spec
    #: The axis that is split; `None` if the array is the same in every chunk.
    axis: int | None


class Stream(NamedTuple):
    """A traced function of whole arrays, and how it is split."""

    task: str
    function: Callable[..., Any]
    options: Options
    traced: Traced
    #: `None` if there is nothing to split: the axis has length 0 or 1.
    way: Cut | None
    length: int
    #: For each source, its input of the program; `None` if it is not used.
    inputs: tuple[int | None, ...]
    #: The inputs of the program; for sources, a placeholder of the same shape.
    values: list[Any]

    @property
    def program(self) -> Program:
        return self.traced.program

    @property
    def axes(self) -> tuple[int | None, ...]:
        """For each result, the axis that is split; `None` if it is the same in every chunk."""
        return self.way.outputs if self.way is not None else (None,) * len(self.program.outputs)

    def piece(self, start: int, stop: int) -> Program:
        return self.program if self.way is None else cut(self.program, self.way, start, stop)

    def given(self, chunks: Sequence[HostArray], start: int, stop: int) -> list[Any]:
        """The inputs of the program of a piece. Inputs that every piece takes whole are the same objects each time."""
        given = list(self.values)
        for position, axis in enumerate(self.way.inputs if self.way is not None else ()):
            if axis is not None:
                given[position] = given[position][span_of(axis, start, stop)]
        for chunk, number in zip(chunks, self.inputs, strict=True):
            if number is not None:
                given[number] = chunk
        return [np.asarray(each, to_numpy_dtype(s.dtype)) for each, s in zip(given, self.program.inputs, strict=True)]

    @property
    def returned(self) -> list[Returned]:
        """The arrays that the function returns, in order; two of them may be the same result."""
        results = [number for number in returned_by(self.traced) if number is not None]
        return [Returned(number, self.program.results[number], self.axes[number]) for number in results]

    @property
    def whole(self) -> list[int]:
        """Inputs that every piece takes whole."""
        if self.way is None:
            return []
        used = {position for position in self.inputs if position is not None}
        return [n for n, axis in enumerate(self.way.inputs) if axis is None and n not in used]


def stand_in(shape: tuple[int, ...], dtype: np.dtype[Any]) -> HostArray:
    """An array of any size without any memory."""
    return np.broadcast_to(np.zeros((), dtype), shape)


def recorded(
    task: str, function: Callable[..., Any], shapes: Sequence[HostArray], axis: int, length: int, options: Options
) -> Stream:
    """The function for whole arrays of these shapes; raises unless every span of the axis can be computed alone."""
    with Executing():
        traced = trace(function, tuple(shapes), {}, precision=options.precision, views=False)
    if isinstance(traced, NotTraceable) and traced.error is not None:
        raise traced.error
    if isinstance(traced, NotTraceable):
        raise InvalidOption(
            f"{task} cannot be streamed, because it cannot be traced: {traced.reason.rstrip('.')}. If "
            "every chunk can be computed without the others, say so with per_chunk=True: then it is called with each."
        )
    values = traced.inputs(function, tuple(shapes), {})
    assert values is not None
    inputs = tuple(next((n for n, value in enumerate(values) if value is shape), None) for shape in shapes)
    if length < 2:
        return Stream(task, function, options, traced, None, length, inputs, values)
    used = [position for position in inputs if position is not None]
    ways = [
        way
        for way in independent_cuts(traced.program)
        if way.length == length and all(way.inputs[position] == axis for position in used)
    ]
    if not ways:
        raise InvalidOption(
            f"{task} cannot be cut along axis {axis}: its results along that axis depend on more than the same stretch "
            "of its arguments, as with a sum, a sort or a shift along it. Stream along another axis, let the function "
            "return what each stretch can tell alone, or promise with per_chunk=True that it may be called with each "
            "chunk as if there were no others."
        )
    way = min(ways, key=lambda each: sum(output is None for output in each.outputs))
    return Stream(task, function, options, traced, way, length, inputs, values)


def returned_by(traced: Traced) -> list[int | None]:
    """For each leaf of the return value, its index among the program's results; `None` if it is not a result."""
    return traced.results_returned
