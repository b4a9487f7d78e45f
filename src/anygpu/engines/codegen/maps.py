"""Kernels that compute every element by itself: maps, and the parts of a concatenation.

`map_kernel` gives each invocation several neighbours, and whole words where elements are narrower than one.
`piece_kernels` does a concatenation piece by piece. `turned` finds maps that read along one axis and write along
another, which are done in square blocks that are turned in registers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from anygpu.engines.codegen.index import Index, clamped, flat, unflat, variable
from anygpu.engines.codegen.index import IndexVariable as Counter
from anygpu.engines.codegen.kernel import Kernel
from anygpu.engines.codegen.kernel_builder import GroupShape, KernelBuilder, leave_beyond, power_of_two_up, store
from anygpu.engines.codegen.kernel_ir import (
    Apply,
    If,
    Let,
    Literal,
    Load,
    Loop,
    Name,
    Position,
    Statement,
    StoreWord,
    Text,
)
from anygpu.engines.codegen.lower import Lowering
from anygpu.engines.codegen.target import is_narrow
from anygpu.program.dtypes import ITEMSIZE
from anygpu.program.primitives import Concatenate

#: Fewer elements than this fit into a processor's nearest cache, whichever way they are read.
_WORTH_TURNING = 4096


def map_kernel(builder: KernelBuilder, members: Sequence[int], shape: GroupShape, name: str) -> Kernel:
    """A kernel that computes members of equal size, element by element.

    Each invocation does several neighbours where that pays. Values that are read across are done in blocks that are
    turned in registers. Types narrower than a word are written as whole words.
    """
    program, target = builder.program, builder.target
    size = program.specs[members[0]].size
    needed = [node for node in members if node in builder.needed]
    narrow = [node for node in needed if is_narrow(builder.stored[node].dtype, target)]
    if not narrow and shape.vector > 1 and size >= _WORTH_TURNING:
        cut = turned(
            [program.specs[node].shape for node in members],
            builder.lowering(members),
            lambda lowering, place: _map_body(lowering, builder, members, (), place),
        )
        if cut is not None:
            return _turned_kernel(builder, members, cut, shape, name)
    # Elements that share a word are written by one invocation.
    elements = 4 // ITEMSIZE[builder.stored[narrow[0]].dtype] if narrow else _elements_of(size, shape)
    blocks = -(-size // elements)
    group_size = min(shape.group, target.group_limit, max(1, power_of_two_up(blocks)))
    groups = -(-blocks // group_size)
    statements = _map_statements(builder, members, narrow, size, elements, blocks, group_size, shape.vector)
    work, moved = builder.work_of(members)
    return builder.kernel(
        name,
        statements,
        groups=groups,
        group_size=group_size,
        written=[builder.stored[node].buffer for node in members],
        work=work,
        bytes_moved=moved,
    )


def _turned_kernel(builder: KernelBuilder, members: Sequence[int], cut: Turned, shape: GroupShape, name: str) -> Kernel:
    """A kernel in square blocks: rows of one array and columns of the other are both read side by side."""
    group_size = min(shape.group, 64, builder.target.group_limit, max(1, power_of_two_up(cut.blocks)))
    groups = -(-cut.blocks // group_size)
    number = variable("group", groups) * group_size + variable("lane", group_size)
    statements: list[Statement] = [Let("block", Position(number))]
    if cut.blocks % group_size:
        statements.append(leave_beyond("block", cut.blocks))
    lowering = builder.lowering(members)
    lowering.scopes[0].variables.add("block")
    with lowering.inside("step", "turn", "part") as inner:
        _map_body(lowering, builder, members, (), cut.place(variable("block", cut.blocks)))
    work, moved = builder.work_of(members)
    return builder.kernel(
        name,
        [*statements, *lowering.statements, cut.loops(inner.statements)],
        groups=groups,
        group_size=group_size,
        written=[builder.stored[node].buffer for node in members],
        work=work,
        bytes_moved=moved,
    )


def _elements_of(size: int, shape: GroupShape) -> int:
    """Elements of one invocation: several vectors only where enough invocations are left."""
    return shape.elements if size >= 256 * shape.elements else max(1, min(shape.vector, shape.elements))


def _map_statements(
    builder: KernelBuilder, members: Sequence[int], narrow: Sequence[int], size: int, elements: int, blocks: int,
    group_size: int, vector: int,
) -> list[Statement]:  # fmt: skip
    """The statements of one invocation: one element, a word of narrow ones, or several neighbours in a loop.

    A last block that is not whole has a loop of its own.
    """
    groups = -(-blocks // group_size)
    number = variable("group", groups) * group_size + variable("lane", group_size)
    counter = "i" if elements == 1 else "block"
    statements: list[Statement] = [Let(counter, Position(number))]
    if blocks % group_size:
        statements.append(leave_beyond(counter, blocks))
    lowering = builder.lowering(members)
    block = variable(counter, blocks)
    lowering.scopes[0].variables.add(counter)
    if elements == 1:
        _map_body(lowering, builder, members, (), block)
        return [*statements, *lowering.statements]
    if narrow:
        return [*statements, *_word_statements(builder, members, narrow, size, elements)]
    whole = size // elements
    with lowering.inside("part") as inner:
        place = variable("block", max(whole, 1)) * elements + variable("part", elements)
        _map_body(lowering, builder, members, (), place)
    hint = elements if vector > 1 else 1
    loop = Loop("part", Literal(0, "i32"), elements, 1, tuple(inner.statements), vector=hint)
    if size % elements == 0:
        return [*statements, *lowering.statements, loop]
    # The last block is not whole: it goes element by element.
    rest = builder.lowering(members)
    with rest.inside("i") as scope:
        _map_body(rest, builder, members, (), Index(0, [(Counter("i", 0, size - 1), 1)]))
    tail = Loop("i", Literal(whole * elements, "i32"), size, 1, tuple(scope.statements), alone=True)
    return [*statements, *_whole_or_last(whole, [*lowering.statements, loop], [*rest.statements, tail])]


def _whole_or_last(whole: int, blocks: Sequence[Statement], last: Sequence[Statement]) -> list[Statement]:
    """Branches for the whole blocks, and for the last one, which is not whole."""
    if whole == 0:
        return list(last)
    is_whole = Apply("less", (Name("block", "i32"), Literal(whole, "i32")), "bool")
    is_last = Apply("equal", (Name("block", "i32"), Literal(whole, "i32")), "bool")
    return [If(is_whole, tuple(blocks)), If(is_last, tuple(last))]


def _word_statements(
    builder: KernelBuilder, members: Sequence[int], narrow: Sequence[int], size: int, elements: int
) -> list[Statement]:
    """Elements that share words: a block is one word."""

    def block(place: Index, vector: int) -> list[Statement]:
        lowering = builder.lowering(members)
        lowering.scopes[0].variables.add("block")
        for node in narrow:
            lowering.add(Text(f"var word_{builder.stored[node].buffer} = 0u;"))
        with lowering.inside("part") as inner:
            _map_body(lowering, builder, members, narrow, place)
        lowering.add(Loop("part", Literal(0, "i32"), elements, 1, tuple(inner.statements), vector=vector, alone=True))
        for node in narrow:
            lowering.statements.extend(_word_stores(builder, node))
        return lowering.statements

    whole, part = size // elements, variable("part", elements)
    blocks = block(variable("block", max(whole, 1)) * elements + part, elements)
    if size % elements == 0:
        return blocks
    # Behind the last element, the last one again.
    last = block(clamped(variable("block", whole + 1) * elements + part, size), 1)
    return _whole_or_last(whole, blocks, last)


def _word_stores(builder: KernelBuilder, node: int) -> list[Statement]:
    """Each block owns the word, or the two words, that its elements are in."""
    from anygpu.engines.codegen.dialects.wgsl import WGSLPrinter

    stored = builder.stored[node]
    buffer = builder.buffers[stored.buffer]
    text = WGSLPrinter(builder.target)
    return [Text(line) for line in text.store_word(buffer, "block")]


def _map_body(
    lowering: Lowering, builder: KernelBuilder, members: Sequence[int], narrow: Sequence[int], place: Index
) -> None:
    """Compute all members at a place, in order, and store those that are needed later.

    A member that reads another one at the same place uses its value and not memory.
    """
    for node in members:
        shape = builder.program.specs[node].shape
        positions = unflat(place, shape)
        value = lowering.value(node, positions)
        lowering.given[node] = (place, value)
        if node not in builder.needed:
            continue
        if node in narrow:
            (only,) = value
            lowering.add(StoreWord(builder.stored[node].buffer, only))
        else:
            store(lowering, builder, node, place, value)


def piece_kernels(builder: KernelBuilder, node: int, shape: GroupShape, name: str) -> list[Kernel]:
    """A concatenation: each part writes itself to where it belongs."""
    program, target = builder.program, builder.target
    op, inputs = program.nodes[node]
    if not isinstance(op, Concatenate):
        raise TypeError(f"{op} is not a concatenation")
    result: list[Kernel] = []
    begin = 0
    whole = program.specs[node].shape
    for number, source in enumerate(inputs):
        spec = program.specs[source]
        first, begin = begin, begin + spec.shape[op.axis]
        if not spec.size:
            continue
        group_size = min(shape.group, target.group_limit, max(1, power_of_two_up(spec.size)))
        groups = -(-spec.size // group_size)
        position = variable("group", groups) * group_size + variable("lane", group_size)
        statements: list[Statement] = [Let("i", Position(position))]
        if spec.size % group_size:
            statements.append(leave_beyond("i", spec.size))
        lowering = builder.lowering([node])
        lowering.scopes[0].variables.add("i")
        positions = unflat(variable("i", spec.size), spec.shape)
        value = lowering.value(source, positions)
        moved = list(positions)
        moved[op.axis] = moved[op.axis] + first
        store(lowering, builder, node, flat(moved, whole), value)
        work, bytes_moved = builder.work_of([source])
        result.append(
            builder.kernel(
                f"{name}_{number}",
                [*statements, *lowering.statements],
                groups=groups,
                group_size=group_size,
                written=[builder.stored[node].buffer],
                work=work,
                bytes_moved=bytes_moved,
            )
        )
    return result


# -- maps that read along another axis than they write
#
# As a transposed copy does: in blocks.
#
# One invocation writes a block of the result, a few elements along its last axis and a few along the axis that
# neighbours in memory are read along. So what comes with one load is used up while it is near, whichever way memory
# is organised.


#: Elements along each side of a block.
_SIDE = 4
#: Writes what a map does at a place, in C order.
MapBody = Callable[[Lowering, Index], None]


class Turned(NamedTuple):
    """The blocks that a result is cut into."""

    shape: tuple[int, ...]
    #: The axis that is read along.
    axis: int
    #: How often an invocation goes on along that axis.
    steps: int

    @property
    def blocks(self) -> int:
        """The number of blocks in all."""
        size = 1
        for length in self.shape:
            size *= length
        return size // (_SIDE * _SIDE * self.steps)

    def place(self, block: Index) -> Index:
        """The index of an element: `part` counts along the last axis, `turn` and `step` along the other one."""
        last = len(self.shape) - 1
        along, across = self.shape[self.axis] // (_SIDE * self.steps), self.shape[last] // _SIDE
        # Neighbouring blocks follow each other along the axis that is written.
        first, second, rest = block // across % along, block % across, block // (along * across)
        others = [axis for axis in range(last) if axis != self.axis]
        positions = dict(zip(others, unflat(rest, [self.shape[axis] for axis in others]), strict=True))
        inner = (first * self.steps + variable("step", self.steps)) * _SIDE
        positions[self.axis] = inner + variable("turn", _SIDE)
        positions[last] = second * _SIDE + variable("part", _SIDE)
        return flat([positions[axis] for axis in range(last + 1)], self.shape)

    def loops(self, body: Sequence[Statement]) -> Loop:
        """The loops over a block: steps, rows and columns."""
        zero = Literal(0, "i32")
        part = Loop("part", zero, _SIDE, 1, tuple(body), vector=_SIDE)
        turn = Loop("turn", zero, _SIDE, 1, (part,), vector=_SIDE)
        return Loop("step", zero, self.steps, 1, (turn,)) if self.steps > 1 else turn


def turned(shapes: Sequence[tuple[int, ...]], lowering: Lowering, body: MapBody) -> Turned | None:
    """The blocks of a map that should be done in blocks; `lowering` is only used to look."""
    shape = shapes[0]
    if any(each != shape for each in shapes) or len(shape) < 2:
        return None
    axis = _axis_read_along(shape, lowering, body)
    if axis is None or shape[axis] % _SIDE or shape[-1] % _SIDE:
        return None
    # Lanes write side by side, and so each of them goes on along the line of memory that it has begun to read.
    steps = next(each for each in (8, 4, 2, 1) if shape[axis] % (_SIDE * each) == 0)
    return Turned(shape, axis, steps)


def _axis_read_along(shape: tuple[int, ...], lowering: Lowering, body: MapBody) -> int | None:
    """The axis along which some load has its neighbours, other than the last one.

    `None` where all loads have their neighbours along the last axis, or nowhere.
    """
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
