"""Discrete Fourier transforms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from anygpu.errors import InvalidProgram
from anygpu.program.dtypes import COMPLEX_OF, KIND, REAL_PART, is_inexact
from anygpu.program.functions import FourierFunction
from anygpu.program.primitive import (
    Miniature,
    PassedAxes,
    Primitive,
    Shape,
    Spec,
    all_but,
    ceil_log2,
    checked,
    distinct_axes,
    on_lines,
    require_inputs,
    with_length,
)

if TYPE_CHECKING:
    from anygpu.program.batching import Batched, Stack

__all__ = ["Fourier"]


class Fourier(Primitive, frozen=True):
    """The discrete Fourier transform along an axis. Forward is unscaled, inverse is divided by the length.

    `length` is that of the result for "irfft", where the input does not tell, and of the input otherwise.
    """

    fn: FourierFunction
    axis: int
    length: int

    family = "fourier"
    has_own_kernels = True
    scratch_copies = 2

    def infer(self, *inputs: Spec) -> Spec:
        require_inputs(self, inputs, 1)
        (x,) = inputs
        distinct_axes(self, (self.axis,), x)
        given = x.shape[self.axis]
        wanted = self.length // 2 + 1 if self.fn == "irfft" else self.length
        if self.length < 1 or given != wanted:
            raise InvalidProgram(f"{self.fn}: a transform of length {self.length} does not fit {x}.")
        if (KIND[x.dtype] == "complex") == (self.fn == "rfft") or not is_inexact(x.dtype):
            raise InvalidProgram(f"{self.fn}: is not defined for {x.dtype}; cast it first.")
        length = self.length // 2 + 1 if self.fn == "rfft" else self.length
        dtype = x.dtype
        if self.fn == "rfft":
            dtype = COMPLEX_OF.get(x.dtype, "complex128")
        elif self.fn == "irfft":
            dtype = REAL_PART[x.dtype]
        return checked(Spec(with_length(x.shape, self.axis, length), dtype))

    @property
    def row_axis(self) -> int:
        return self.axis

    def passed_axes(self, result: Shape, inputs: Sequence[Shape]) -> PassedAxes:
        return all_but(self.axis, inputs)

    def batched(self, stack: Stack, *given: Batched) -> int:
        return stack.add(Fourier(self.fn, self.axis + 1, self.length), given[0].position)

    def flops(self, inputs: Sequence[Spec], result: Spec) -> int:
        half = 2 if self.fn in ("rfft", "irfft") else 1
        whole = max(inputs[0], result, key=lambda spec: spec.shape[self.axis]).size
        return 5 * whole * ceil_log2(self.length) // half

    def details(self, inputs: Sequence[Spec]) -> str:
        return f"of length {self.length} along axis {self.axis}"

    @property
    def may_raise_flags(self) -> bool:
        return True

    def miniature(self, inputs: Sequence[Spec]) -> Miniature | None:
        return Fourier(self.fn, 0, 2), on_lines(inputs)
