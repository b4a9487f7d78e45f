"""Values without operands: inputs, constants and counters."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING

from anygpu.errors import InvalidProgram
from anygpu.program.dtypes import FORMATS, NARROWER, REAL_PART, DType
from anygpu.program.primitive import (
    FROM_WHOLE,
    NEW,
    PassedAxes,
    Primitive,
    Shape,
    Spec,
    checked,
    product,
    require_inputs,
    with_length,
)

if TYPE_CHECKING:
    from anygpu.program.graph import Recorder
    from anygpu.program.transforms import Batched, Stack

__all__ = ["Constant", "Input", "Iota"]


class Source(Primitive, frozen=True):
    """The rules of what has no inputs: nothing of it can depend on the axis of a batch, and it costs nothing."""

    is_source = True

    def passed_axes(self, result: Shape, inputs: Sequence[Shape]) -> PassedAxes:
        return []

    def batched(self, stack: Stack, *given: Batched) -> int:
        return stack.lifted(stack.same_for_all(self))

    def flops(self, inputs: Sequence[Spec], result: Spec) -> int:
        return 0

    def details(self, inputs: Sequence[Spec]) -> str:
        return ""


class Input(Source, frozen=True):
    """A value that the caller brings."""

    shape: Shape
    dtype: DType

    family = "input"
    other_axes = NEW

    def infer(self, *inputs: Spec) -> Spec:
        require_inputs(self, inputs, 0)
        return checked(Spec(self.shape, self.dtype))

    def in_single_precision(self) -> Primitive:
        return Input(self.shape, NARROWER.get(self.dtype, self.dtype))


class Constant(Source, frozen=True):
    """A value that is a part of the program: its bytes in C order, little-endian."""

    shape: Shape
    dtype: DType
    data: bytes

    family = "creation"
    other_axes = FROM_WHOLE

    def infer(self, *inputs: Spec) -> Spec:
        """The spec, checked.

        Raises `InvalidProgram` where the bytes do not fill it, or where a byte of bool is neither 0 nor 1.
        """
        require_inputs(self, inputs, 0)
        spec = checked(Spec(self.shape, self.dtype))
        if spec.nbytes != len(self.data):
            raise InvalidProgram(f"constant: {spec} has {spec.nbytes} bytes, and {len(self.data)} are given.")
        if self.dtype == "bool" and self.data.translate(None, b"\x00\x01"):
            raise InvalidProgram("constant: a byte of bool is 0 or 1.")
        return spec

    def in_single_precision(self) -> Primitive:
        narrow = NARROWER.get(self.dtype)
        return self if narrow is None else Constant(self.shape, narrow, converted(self.data, self.dtype, narrow))

    def stretch(
        self, recorder: Recorder, inputs: Sequence[int], axis: int, start: int, stop: int, length: int
    ) -> int | None:
        """A constant with the elements from `start` to `stop` along an axis, cut from the bytes."""
        row = len(self.data) // product(self.shape[: axis + 1]) if self.data else 0
        block = row * self.shape[axis]
        blocks = range(0, len(self.data), block or 1)
        data = b"".join(self.data[begin + start * row : begin + stop * row] for begin in blocks)
        return recorder.add(Constant(with_length(self.shape, axis, stop - start), self.dtype, data))


class Iota(Source, frozen=True):
    """0, 1, 2, … as a vector."""

    length: int
    dtype: DType

    family = "creation"
    other_axes = FROM_WHOLE

    def infer(self, *inputs: Spec) -> Spec:
        """A vector of `length` numbers. Raises `InvalidProgram` for bool, which cannot count."""
        require_inputs(self, inputs, 0)
        if self.dtype == "bool":
            raise InvalidProgram("iota counts, and bool cannot.")
        return checked(Spec((self.length,), self.dtype))

    def details(self, inputs: Sequence[Spec]) -> str:
        return f"to {self.length}"

    def in_single_precision(self) -> Primitive:
        return Iota(self.length, NARROWER.get(self.dtype, self.dtype))


def converted(data: bytes, source: DType, target: DType) -> bytes:
    """The numbers in another type: floats rounded or widened, whole numbers kept inside its limits."""
    given, wanted = (FORMATS[REAL_PART.get(dtype, dtype)] for dtype in (source, target))
    count = len(data) // struct.calcsize(given)
    numbers = struct.unpack(f"<{count}{given}", data)
    if wanted == "f":
        return struct.pack(f"<{count}f", *(_single(number) for number in numbers))
    if wanted == "d":
        return struct.pack(f"<{count}d", *numbers)
    low, high = (-(1 << 31), (1 << 31) - 1) if wanted == "i" else (0, (1 << 32) - 1)
    # A limit such as the largest int64 stays a limit.
    return struct.pack(f"<{count}{wanted}", *(min(max(number, low), high) for number in numbers))


def _single(number: float) -> float:
    """The nearest number that a float32 holds; infinite where that overflows."""
    try:
        return float(struct.unpack("<f", struct.pack("<f", number))[0])
    except OverflowError:
        return float("inf") if number > 0 else float("-inf")
