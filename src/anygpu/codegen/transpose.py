"""Maps that read along another axis than they write, as a transposed copy does: in blocks.

One invocation writes a block of the result, a few elements along its last axis and a few along the axis that neighbours
in memory are read along. So what comes with one load is used up while it is near, whichever way memory is organised.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from anygpu.codegen.index import Index, flat, unflat, variable
from anygpu.codegen.kernel_ir import Let, Literal, Load, Loop, Statement
from anygpu.codegen.lower import Lowering
from anygpu.codegen.target import Target

#: Writes what a map does at a place, in C order.
Body = Callable[[Lowering, Index], None]


class Turned(NamedTuple):
    """The blocks that a result is cut into."""

    shape: tuple[int, ...]
    #: The axis that is read along.
    axis: int
    #: Elements along the last axis, and along the other one at once, and how often an invocation goes on along that.
    width: int
    steps: int
    #: Whether neighbouring blocks follow each other along the axis that is read, or along the one that is written.
    reads_along: bool

    @property
    def blocks(self) -> int:
        size = 1
        for length in self.shape:
            size *= length
        return size // (self.width * self.width * self.steps)

    def place(self, block: Index) -> Index:
        """The index of an element: `part` counts along the last axis, `turn` and `step` along the other one."""
        last = len(self.shape) - 1
        along, across = self.shape[self.axis] // (self.width * self.steps), self.shape[last] // self.width
        if self.reads_along:
            first, second, rest = block % along, block // along % across, block // (along * across)
        else:
            first, second, rest = block // across % along, block % across, block // (along * across)
        others = [axis for axis in range(last) if axis != self.axis]
        positions = dict(zip(others, unflat(rest, [self.shape[axis] for axis in others]), strict=True))
        inner = (first * self.steps + variable("step", self.steps)) * self.width
        positions[self.axis] = inner + variable("turn", self.width)
        positions[last] = second * self.width + variable("part", self.width)
        return flat([positions[axis] for axis in range(last + 1)], self.shape)

    def loops(self, body: Sequence[Statement]) -> Loop:
        zero = Literal(0, "i32")
        part = Loop("part", zero, self.width, 1, tuple(body), vector=self.width)
        turn = Loop("turn", zero, self.width, 1, (part,), vector=self.width)
        return Loop("step", zero, self.steps, 1, (turn,)) if self.steps > 1 else turn


def turned(target: Target, shapes: Sequence[tuple[int, ...]], lowering: Lowering, body: Body) -> Turned | None:
    """The blocks of a map that should be done in blocks; `lowering` is only used to look."""
    shape = shapes[0]
    if any(each != shape for each in shapes) or len(shape) < 2:
        return None
    width = target.vector_width if target.scalar_invocations else 4
    axis = _axis_read_along(shape, lowering, body)
    if axis is None or width < 2 or shape[axis] % width or shape[-1] % width:
        return None
    # Lanes write side by side, and so each of them goes on along the line of memory that it has begun to read.
    steps = 1 if target.scalar_invocations else next(each for each in (8, 4, 2, 1) if shape[axis] % (width * each) == 0)
    return Turned(shape, axis, width, steps, reads_along=target.scalar_invocations)


def _axis_read_along(shape: tuple[int, ...], lowering: Lowering, body: Body) -> int | None:
    names = [f"axis_{axis}" for axis in range(len(shape))]
    lowering.scopes[0].variables.update(names)
    body(lowering, flat([variable(name, length) for name, length in zip(names, shape, strict=True)], shape))
    for statement in lowering.scopes[0].statements:
        if not isinstance(statement, Let) or not isinstance(statement.value, Load):
            continue
        index = statement.value.index
        if index.steps_with(names[-1]) in (0, 1, None):
            continue
        for axis, name in enumerate(names[:-1]):
            if index.steps_with(name) == 1:
                return axis
    return None
