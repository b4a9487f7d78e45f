"""Attention as one primitive, so that engines can compute it without ever storing the scores."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from anygpu.errors import InvalidProgram
from anygpu.program.dtypes import KIND
from anygpu.program.primitive import (
    Miniature,
    PassedAxes,
    Primitive,
    Shape,
    Spec,
    checked,
    hash_of_bits,
    on_squares,
    same_bits,
)

if TYPE_CHECKING:
    from anygpu.program.batching import Batched, Stack

__all__ = ["Attend"]


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
