"""Products of matrices and their generalisation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from anygpu.errors import InvalidProgram
from anygpu.program.dtypes import KIND
from anygpu.program.primitive import (
    Miniature,
    PassedAxes,
    PerAxis,
    Primitive,
    Shape,
    Spec,
    checked,
    complex_weight,
    distinct_axes,
    free_axes,
    hash_of_bits,
    next_axes,
    on_squares,
    product,
    require_inputs,
    same_bits,
)

if TYPE_CHECKING:
    from anygpu.program.batching import Batched, Stack

__all__ = ["Attend", "Contract"]


class Contract(Primitive, frozen=True):
    """Products summed over pairs of axes. The result has the batch axes, then what is left of each side."""

    left: PerAxis
    right: PerAxis
    left_batch: PerAxis = ()
    right_batch: PerAxis = ()

    family = "contraction"

    def infer(self, *inputs: Spec) -> Spec:
        require_inputs(self, inputs, 2)
        x, y = inputs
        if x.dtype != y.dtype:
            raise InvalidProgram(f"contract: {x.dtype} and {y.dtype} differ; cast one of them first.")
        distinct_axes(self, (*self.left, *self.left_batch), x)
        distinct_axes(self, (*self.right, *self.right_batch), y)
        if len(self.left) != len(self.right) or len(self.left_batch) != len(self.right_batch):
            raise InvalidProgram("contract: axes come in pairs, one of each side.")
        pairs = zip((*self.left, *self.left_batch), (*self.right, *self.right_batch), strict=True)
        for one, other in pairs:
            if x.shape[one] != y.shape[other]:
                raise InvalidProgram(f"contract: axis {one} of {x} and axis {other} of {y} differ in length.")
        batch = tuple(x.shape[axis] for axis in self.left_batch)
        rows = tuple(x.shape[axis] for axis in free_axes(x.shape, self.left, self.left_batch))
        columns = tuple(y.shape[axis] for axis in free_axes(y.shape, self.right, self.right_batch))
        return checked(Spec(batch + rows + columns, x.dtype))

    def passed_axes(self, result: Shape, inputs: Sequence[Shape]) -> PassedAxes:
        x, y = inputs
        rows, columns = free_axes(x, self.left, self.left_batch), free_axes(y, self.right, self.right_batch)
        left, right = (*self.left_batch, *rows), (*self.right_batch, *columns)
        stack = len(self.left_batch)
        places = [*range(stack), *range(stack + len(rows), len(result))]
        return [
            [left.index(axis) if axis in left else None for axis in range(len(x))],
            [places[right.index(axis)] if axis in right else None for axis in range(len(y))],
        ]

    def batched(self, stack: Stack, *given: Batched) -> int:
        x, y = given
        left, left_batch = next_axes(self.left), next_axes(self.left_batch)
        right, right_batch = next_axes(self.right), next_axes(self.right_batch)
        if x.stacked and y.stacked:
            whole = Contract(left, right, (0, *left_batch), (0, *right_batch))
            return stack.add(whole, x.position, y.position)
        if x.stacked:  # the new axis is one more free axis of that side, and the first of them
            one = Contract(left, self.right, left_batch, self.right_batch)
            return stack.to_front(stack.add(one, x.position, y.position), len(self.left_batch))
        rows = len(free_axes(stack.shape(x), self.left, self.left_batch))
        other = Contract(self.left, right, self.left_batch, right_batch)
        return stack.to_front(stack.add(other, x.position, y.position), len(self.left_batch) + rows)

    def flops(self, inputs: Sequence[Spec], result: Spec) -> int:
        inner = product(tuple(inputs[0].shape[axis] for axis in self.left))
        return 2 * result.size * inner * complex_weight(result)

    def details(self, inputs: Sequence[Spec]) -> str:
        over = ", ".join(f"{left}×{right}" for left, right in zip(self.left, self.right, strict=True)) or "no axes"
        batch = ", ".join(f"{left}×{right}" for left, right in zip(self.left_batch, self.right_batch, strict=True))
        return f"over {over}" + (f", batch {batch}" if batch else "")

    @property
    def may_raise_flags(self) -> bool:
        return True

    def miniature(self, inputs: Sequence[Spec]) -> Miniature | None:
        if self.left_batch:
            return Contract((2,), (1,), (0,), (0,)), tuple(Spec((2, 2, 2), spec.dtype) for spec in inputs)
        return Contract((1,), (0,)), on_squares(inputs)


# -- attention as one primitive
#
# So that engines can compute it without ever storing the scores.


class Attend(Primitive, frozen=True):
    """softmax(q · kᵀ · scale + bias) · v over the last two axes; all axes before them go together.

    q is [..., n, d], k [..., m, d], v [..., m, e], and bias, if there is one, [..., n, m]. With `causal` the last query
    sees all keys, the one before it all but the last, and so on. A query that sees no key has NaN for its result.
    """

    scale: float
    causal: bool = False

    family = "contraction"
    has_own_kernels = True

    __eq__ = same_bits
    __hash__ = hash_of_bits

    def infer(self, *inputs: Spec) -> Spec:
        if len(inputs) not in (3, 4):
            raise InvalidProgram(f"attend: takes 3 or 4 inputs, not {len(inputs)}.")
        if not math.isfinite(self.scale):
            raise InvalidProgram(f"attend: {self.scale} is not a scale.")
        q, _, v = inputs[:3]
        if any(each.dtype != q.dtype for each in inputs) or KIND[q.dtype] != "float":
            raise InvalidProgram(
                f"attend: takes floats of one type, not {', '.join(each.dtype for each in inputs)}; cast them first."
            )
        if min(len(each.shape) for each in inputs) < 2:
            raise InvalidProgram("attend: every input has at least two axes.")
        stack = q.shape[:-2]
        (n, d), (m, e) = q.shape[-2:], v.shape[-2:]
        wanted = ((*stack, n, d), (*stack, m, d), (*stack, m, e), (*stack, n, m))
        for name, spec, shape in zip(("q", "k", "v", "bias"), inputs, wanted, strict=False):
            if spec.shape != shape:
                raise InvalidProgram(
                    f"attend: {name} must have the shape {shape} to match the others, not {spec.shape}."
                )
        return checked(Spec((*stack, n, e), q.dtype))

    def passed_axes(self, result: Shape, inputs: Sequence[Shape]) -> PassedAxes:
        """Queries are independent of one another, unless how many keys one sees depends on where it is."""
        stack = list(range(len(result) - 2))
        row = None if self.causal else len(result) - 2
        of_all = [[*stack, row, None], [*stack, None, None], [*stack, None, len(result) - 1], [*stack, row, None]]
        return of_all[: len(inputs)]

    def batched(self, stack: Stack, *given: Batched) -> int:
        return stack.add(self, *(stack.lifted(each) for each in given))

    def flops(self, inputs: Sequence[Spec], result: Spec) -> int:
        scores = inputs[0].size // max(inputs[0].shape[-1], 1) * inputs[1].shape[-2]
        return 2 * scores * (inputs[0].shape[-1] + result.shape[-1]) // (2 if self.causal else 1)

    def details(self, inputs: Sequence[Spec]) -> str:
        return f"scaled by {self.scale:g}" + (", causal" if self.causal else "")

    def miniature(self, inputs: Sequence[Spec]) -> Miniature | None:
        return self, on_squares(inputs)
