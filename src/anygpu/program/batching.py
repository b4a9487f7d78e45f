"""Many calls of one program as one: the program with a new leading axis, for its inputs and its results.

Each primitive has one rule, `Primitive.batched`. A rule sees which inputs carry the new axis, always in front, and
gives a result that has it in front; what does not depend on the new axis stays as it is until something needs it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from anygpu.errors import InvalidOption
from anygpu.program import primitives as p
from anygpu.program.dtypes import DType
from anygpu.program.functions import BinaryFunction, UnaryFunction
from anygpu.program.graph import Line, Program, Recorder
from anygpu.program.ops.custom import with_references
from anygpu.program.primitive import Primitive, Shape, Spec


def vmap(program: Program, batched: Sequence[bool], size: int) -> Program:
    """The program for `size` calls at once.

    Inputs marked True have a new leading axis of length `size`, the others are the same for all calls. Every result
    has the new axis, also one that is the same for all.
    """
    if len(batched) != program.input_count:
        raise InvalidOption(f"vmap: {len(batched)} marks for a program of {program.input_count} inputs.")
    if size < 0:
        raise InvalidOption(f"vmap: {size} is not a number of calls.")
    # What a user's kernel does with one more axis is known only of its reference.
    program = with_references(program, None)
    stack = Stack(size)
    values: list[Batched] = []
    for position, (op, inputs) in enumerate(program.nodes):
        if isinstance(op, p.Input):
            shape = (size, *op.shape) if batched[position] else op.shape
            values.append(Batched(stack.recorder.input(Spec(shape, op.dtype)), bool(batched[position])))
            continue
        stack.line = program.lines[position]
        given = [values[each] for each in inputs]
        if any(each.stacked for each in given):
            values.append(Batched(op.batched(stack, *given), True))
        else:
            values.append(Batched(stack.add(op, *(each.position for each in given)), False))
    return stack.recorder.program([stack.lifted(values[output]) for output in program.outputs])


class Batched(NamedTuple):
    """A value of the new program."""

    position: int
    #: Whether it has the new axis.
    stacked: bool


class Stack:
    """Records the new program, with what rules need again and again."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.recorder = Recorder()
        self.line: Line | None = None

    def add(self, op: Primitive, *inputs: int) -> int:
        return self.recorder.add(op, *inputs, line=self.line)

    def same_for_all(self, op: Primitive) -> Batched:
        """A value without inputs, which no call changes."""
        return Batched(self.add(op), False)

    def shape(self, value: Batched) -> Shape:
        """The shape without the new axis."""
        shape = self.recorder.spec(value.position).shape
        return shape[1:] if value.stacked else shape

    def dtype(self, value: Batched) -> DType:
        return self.recorder.spec(value.position).dtype

    def lifted(self, value: Batched) -> int:
        """With the new axis, repeated along it if need be."""
        if value.stacked:
            return value.position
        return self.add(p.Broadcast((self.size, *self.shape(value))), value.position)

    def unary(self, fn: UnaryFunction, x: int) -> int:
        return self.add(p.Unary(fn), x)

    def binary(self, fn: BinaryFunction, x: int, y: int) -> int:
        return self.add(p.Binary(fn), x, y)

    def full(self, shape: Shape, dtype: DType, data: bytes) -> int:
        """One number, repeated to a shape."""
        number = self.add(p.Constant((), dtype, data))
        return self.add(p.Broadcast(shape), number) if shape else number

    def to_front(self, position: int, axis: int) -> int:
        if axis == 0:
            return position
        others = [each for each in range(len(self.recorder.spec(position).shape)) if each != axis]
        return self.add(p.Permute((axis, *others)), position)
