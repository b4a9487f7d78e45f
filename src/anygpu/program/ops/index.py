"""Elements picked, and put, by integer positions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from anygpu.errors import InvalidProgram
from anygpu.program.dtypes import is_integer
from anygpu.program.functions import ScatterFunction
from anygpu.program.primitive import (
    Miniature,
    PassedAxes,
    Primitive,
    Shape,
    Spec,
    checked,
    complex_weight,
    distinct_axes,
    on_lines,
    on_squares,
    require_inputs,
)

if TYPE_CHECKING:
    from anygpu.program.batching import Batched, Stack

__all__ = ["Gather", "Scatter"]


class Gather(Primitive, frozen=True):
    """Elements picked along an axis by integer positions; an index outside the axis is an IndexError when it runs.

    The first `batch` axes of both inputs go together; the other axes of the indices take the place of `axis`.
    """

    axis: int
    batch: int = 0

    family = "indexing"
    is_shifting = True

    def infer(self, *inputs: Spec) -> Spec:
        require_inputs(self, inputs, 2)
        x, indices = inputs
        _check_indices(self, x, indices)
        return checked(Spec((*x.shape[: self.axis], *indices.shape[self.batch :], *x.shape[self.axis + 1 :]), x.dtype))

    def passed_axes(self, result: Shape, inputs: Sequence[Shape]) -> PassedAxes:
        x, indices = inputs
        axis, grown = self.axis, len(indices) - self.batch - 1
        of_x = [*range(axis), None, *range(axis + 1 + grown, len(x) + grown)]
        return [of_x, [*range(self.batch), *range(axis, axis + grown + 1)]]

    def batched(self, stack: Stack, *given: Batched) -> int:
        x, indices = given
        if self.batch or (x.stacked and indices.stacked):
            return stack.add(Gather(self.axis + 1, self.batch + 1), stack.lifted(x), stack.lifted(indices))
        if x.stacked:
            return stack.add(Gather(self.axis + 1), x.position, indices.position)
        return stack.to_front(stack.add(self, x.position, indices.position), self.axis)

    def flops(self, inputs: Sequence[Spec], result: Spec) -> int:
        return 0

    def most_read(self, result: int, inputs: Sequence[int]) -> int:
        return result + inputs[1]

    def details(self, inputs: Sequence[Spec]) -> str:
        return f"along axis {self.axis}" + (f", batch axes {self.batch}" if self.batch else "")

    def miniature(self, inputs: Sequence[Spec]) -> Miniature | None:
        return (Gather(1, 1), on_squares(inputs)) if self.batch else (Gather(0), on_lines(inputs))


class Scatter(Primitive, frozen=True):
    """The first input with the third put into it at the positions of the second: the inverse of `Gather`.

    With "set", of several updates of one element the last counts.
    """

    fn: ScatterFunction
    axis: int
    batch: int = 0

    family = "indexing"
    has_own_kernels = True
    scratch_copies = 3

    def infer(self, *inputs: Spec) -> Spec:
        require_inputs(self, inputs, 3)
        x, indices, updates = inputs
        _check_indices(self, x, indices)
        shape = (*x.shape[: self.axis], *indices.shape[self.batch :], *x.shape[self.axis + 1 :])
        if updates.shape != shape or updates.dtype != x.dtype:
            raise InvalidProgram(f"scatter: the updates must be {Spec(shape, x.dtype)}, not {updates}.")
        return x

    @property
    def label(self) -> str:
        return f"scatter {self.fn}"

    def passed_axes(self, result: Shape, inputs: Sequence[Shape]) -> PassedAxes:
        x, indices, _updates = inputs
        grown = len(indices) - self.batch - 1
        kept = [axis if axis != self.axis else None for axis in range(len(x))]
        added = [None] * (grown + 1)
        return [kept, [*range(self.batch), *added], [*range(self.axis), *added, *range(self.axis + 1, len(x))]]

    def batched(self, stack: Stack, *given: Batched) -> int:
        x, indices, updates = given
        if self.batch or indices.stacked:
            all_of_them = (stack.lifted(each) for each in given)
            return stack.add(Scatter(self.fn, self.axis + 1, self.batch + 1), *all_of_them)
        return stack.add(Scatter(self.fn, self.axis + 1), stack.lifted(x), indices.position, stack.lifted(updates))

    def flops(self, inputs: Sequence[Spec], result: Spec) -> int:
        return inputs[2].size * complex_weight(inputs[2]) if self.fn != "set" else 0

    def details(self, inputs: Sequence[Spec]) -> str:
        return f"along axis {self.axis}" + (f", batch axes {self.batch}" if self.batch else "")

    @property
    def may_raise_flags(self) -> bool:
        return self.fn in ("add", "multiply")

    def miniature(self, inputs: Sequence[Spec]) -> Miniature | None:
        if self.batch:
            return Scatter(self.fn, 1, 1), on_squares(inputs)
        return Scatter(self.fn, 0), on_lines(inputs)


def _check_indices(op: Gather | Scatter, x: Spec, indices: Spec) -> None:
    distinct_axes(op, (op.axis,), x)
    if not is_integer(indices.dtype):
        raise InvalidProgram(f"{op.name}: positions are integers, not {indices.dtype}.")
    if not 0 <= op.batch <= min(op.axis, len(indices.shape)) or x.shape[: op.batch] != indices.shape[: op.batch]:
        raise InvalidProgram(f"{op.name}: the first {op.batch} axes of {x} and {indices} do not go together.")
