"""Functions of numbers, element by element.

They take inputs of equal shape; broadcasting and casting are primitives of their own. That keeps every rule here, in
transforms and in engines short, and engines fuse both away again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from anygpu.errors import InvalidProgram
from anygpu.program.dtypes import KIND, NARROWER, DType, holds_every_value
from anygpu.program.functions import (
    FUNCTIONS,
    SILENT,
    TRANSCENDENTAL,
    BinaryFunction,
    UnaryFunction,
    binary_dtype,
    unary_dtype,
)
from anygpu.program.primitive import (
    Made,
    Miniature,
    OperationClass,
    PassedAxes,
    Primitive,
    Shape,
    Simpler,
    Spec,
    complex_weight,
    on_lines,
    require_inputs,
)

if TYPE_CHECKING:
    from anygpu.program.graph import Recorder
    from anygpu.program.transforms import Batched, Stack

__all__ = ["Binary", "Cast", "Select", "Unary"]

#: The most that a function of integers weighs.
_MOST_OF_INTEGERS = 3.0


class Elementwise(Primitive, frozen=True):
    """The rules that all elementwise primitives share."""

    family = "elementwise"
    is_elementwise = True

    def passed_axes(self, result: Shape, inputs: Sequence[Shape]) -> PassedAxes:
        return [range(len(each)) for each in inputs]

    def batched(self, stack: Stack, *given: Batched) -> int:
        return stack.add(self, *(stack.lifted(each) for each in given))

    def flops(self, inputs: Sequence[Spec], result: Spec) -> int:
        return result.size * complex_weight(inputs[-1])

    def details(self, inputs: Sequence[Spec]) -> str:
        return ""

    def miniature(self, inputs: Sequence[Spec]) -> Miniature | None:
        return self, on_lines(inputs)


#: The source of a function's last bits: the engine's own function, NumPy's loop for the dtype, the known steps of that
#: loop, or none that can be called, because NumPy computes the surrounding expression in another way.
LastBits = Literal["engine", "numpy", "steps", "none"]


class _Function(Elementwise, frozen=True):
    """The rules that follow from the row of a function in `FUNCTIONS`."""

    fn: UnaryFunction | BinaryFunction

    @property
    def last_bits(self) -> LastBits:
        return "engine"

    @property
    def operation_class(self) -> OperationClass:
        return "transcendental" if self.fn in TRANSCENDENTAL else "elementwise"

    @property
    def may_raise_flags(self) -> bool:
        return self.fn not in SILENT

    def weight(self, dtype: DType) -> float:
        weight = FUNCTIONS[self.fn].weight
        return weight if KIND[dtype] in ("float", "complex") else min(weight, _MOST_OF_INTEGERS)


class Unary(_Function, frozen=True):
    """A function of one value, element by element."""

    fn: UnaryFunction

    def infer(self, *inputs: Spec) -> Spec:
        require_inputs(self, inputs, 1)
        (x,) = inputs
        return Spec(x.shape, unary_dtype(self.fn, x.dtype))

    def simpler(self, inputs: Sequence[int], recorder: Recorder, made: Made) -> Simpler:
        """Functions that undo themselves; changing the sign twice rounds nothing."""
        before, first = made.get(inputs[0], (None, ()))
        if self.fn in ("negative", "invert", "conj") and before == self:
            return first[0]
        if self.fn == "abs" and KIND[recorder.spec(inputs[0]).dtype] == "unsigned":
            return inputs[0]
        return None


class Binary(_Function, frozen=True):
    """A function of two values of one shape and type, element by element."""

    fn: BinaryFunction

    def infer(self, *inputs: Spec) -> Spec:
        require_inputs(self, inputs, 2)
        x, y = inputs
        if x.shape != y.shape:
            raise InvalidProgram(f"{self.fn}: the shapes {x.shape} and {y.shape} differ; broadcast one of them first.")
        return Spec(x.shape, binary_dtype(self.fn, x.dtype, y.dtype))


class BitwiseUnary(Unary, frozen=True):
    """A function whose every bit matters; all rules treat it as the plain function."""

    loop: Literal["numpy", "none"] = "numpy"

    @property
    def last_bits(self) -> LastBits:
        return self.loop


class BitwiseBinary(Binary, frozen=True):
    """A function of two values whose every bit matters; all rules treat it as the plain function."""

    loop: Literal["numpy", "steps", "none"] = "numpy"

    @property
    def last_bits(self) -> LastBits:
        return self.loop


class Select(Elementwise, frozen=True):
    """`a` where the condition holds, `b` elsewhere."""

    def infer(self, *inputs: Spec) -> Spec:
        """The spec of both values. Raises `InvalidProgram` where they differ, or where the condition is not bool."""
        require_inputs(self, inputs, 3)
        condition, a, b = inputs
        if condition.dtype != "bool" or a.dtype != b.dtype:
            raise InvalidProgram(f"select: needs bool and two equal types, not {condition}, {a}, {b}.")
        if not condition.shape == a.shape == b.shape:
            raise InvalidProgram(f"select: the shapes of {condition}, {a}, {b} differ; broadcast them first.")
        return a

    def simpler(self, inputs: Sequence[int], recorder: Recorder, made: Made) -> Simpler:
        return inputs[1] if inputs[1] == inputs[2] else None


class Cast(Elementwise, frozen=True):
    """The same numbers in another type, as NumPy's `astype`."""

    dtype: DType

    def infer(self, *inputs: Spec) -> Spec:
        require_inputs(self, inputs, 1)
        return Spec(inputs[0].shape, self.dtype)

    def details(self, inputs: Sequence[Spec]) -> str:
        return f"to {self.dtype}"

    @property
    def may_raise_flags(self) -> bool:
        return True

    def in_single_precision(self) -> Primitive:
        return Cast(NARROWER.get(self.dtype, self.dtype))

    def simpler(self, inputs: Sequence[int], recorder: Recorder, made: Made) -> Simpler:
        """The input itself where nothing changes, also after a cast to a wider type and back."""
        (x,) = inputs
        if recorder.spec(x).dtype == self.dtype:
            return x
        before, first = made.get(x, (None, ()))
        if isinstance(before, Cast):
            original = recorder.spec(first[0]).dtype
            if original == self.dtype and holds_every_value(before.dtype, original):
                return first[0]
        return None
