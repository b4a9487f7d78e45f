"""Reductions along axes, and running ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from anygpu.errors import InvalidProgram
from anygpu.program.dtypes import DType
from anygpu.program.functions import ReduceFunction, ScanFunction
from anygpu.program.primitive import (
    Miniature,
    PassedAxes,
    PerAxis,
    Primitive,
    Shape,
    Spec,
    all_but,
    complex_weight,
    distinct_axes,
    free_axes,
    next_axes,
    on_lines,
    require_inputs,
)

if TYPE_CHECKING:
    from anygpu.program.batching import Batched, Stack

__all__ = ["Reduce", "Scan"]


class Reduce(Primitive, frozen=True):
    """One value for each line along the axes, which are gone from the result."""

    fn: ReduceFunction
    axes: PerAxis

    family = "reduce"

    def infer(self, *inputs: Spec) -> Spec:
        require_inputs(self, inputs, 1)
        (x,) = inputs
        axes = distinct_axes(self, self.axes, x)
        if list(axes) != sorted(axes):
            raise InvalidProgram(f"{self.fn}: the axes {axes} must be in order.")
        if self.fn in ("argmax", "argmin") and len(axes) != 1:
            raise InvalidProgram(f"{self.fn}: takes one axis, not {axes}.")
        if self.fn not in ("sum", "prod", "any", "all") and any(x.shape[axis] == 0 for axis in axes):
            raise InvalidProgram(f"{self.fn}: nothing to choose from along an axis of length 0.")
        if (self.fn in ("any", "all")) != (x.dtype == "bool") and self.fn not in ("max", "min", "argmax", "argmin"):
            raise InvalidProgram(f"{self.fn}: is not defined for {x.dtype}; cast it first.")
        dtype: DType = "int64" if self.gives_positions else x.dtype
        return Spec(tuple(n for axis, n in enumerate(x.shape) if axis not in axes), dtype)

    @property
    def gives_positions(self) -> bool:
        return self.fn in ("argmax", "argmin")

    def passed_axes(self, result: Shape, inputs: Sequence[Shape]) -> PassedAxes:
        left = free_axes(inputs[0], self.axes)
        return [[left.index(axis) if axis in left else None for axis in range(len(inputs[0]))]]

    def batched(self, stack: Stack, *given: Batched) -> int:
        return stack.add(Reduce(self.fn, next_axes(self.axes)), given[0].position)

    def flops(self, inputs: Sequence[Spec], result: Spec) -> int:
        return inputs[0].size * complex_weight(inputs[0])

    def details(self, inputs: Sequence[Spec]) -> str:
        if not self.axes:
            return "over no axis"
        return f"over {'axis' if len(self.axes) == 1 else 'axes'} {', '.join(map(str, self.axes))}"

    @property
    def may_raise_flags(self) -> bool:
        return self.fn in ("sum", "prod")

    def miniature(self, inputs: Sequence[Spec]) -> Miniature | None:
        return Reduce(self.fn, (0,)), on_lines(inputs)


class Scan(Primitive, frozen=True):
    """The reduction of everything up to each element, along one axis."""

    fn: ScanFunction
    axis: int

    family = "scan"
    has_own_kernels = True
    scratch_copies = 1

    def infer(self, *inputs: Spec) -> Spec:
        require_inputs(self, inputs, 1)
        (x,) = inputs
        distinct_axes(self, (self.axis,), x)
        if x.dtype == "bool":
            raise InvalidProgram("scan: bool has no running total; cast it first.")
        return x

    @property
    def label(self) -> str:
        return f"running {self.fn}"

    @property
    def row_axis(self) -> int:
        return self.axis

    def passed_axes(self, result: Shape, inputs: Sequence[Shape]) -> PassedAxes:
        return all_but(self.axis, inputs)

    def batched(self, stack: Stack, *given: Batched) -> int:
        return stack.add(Scan(self.fn, self.axis + 1), given[0].position)

    def flops(self, inputs: Sequence[Spec], result: Spec) -> int:
        return inputs[0].size * complex_weight(inputs[0])

    def details(self, inputs: Sequence[Spec]) -> str:
        return f"along axis {self.axis}"

    @property
    def may_raise_flags(self) -> bool:
        return self.fn in ("sum", "prod")

    def miniature(self, inputs: Sequence[Spec]) -> Miniature | None:
        return Scan(self.fn, 0), on_lines(inputs)
