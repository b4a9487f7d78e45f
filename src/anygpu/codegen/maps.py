"""Kernels that compute every element by itself: maps, and the parts of a concatenation."""

from __future__ import annotations

from collections.abc import Sequence

from anygpu.codegen.index import Index, clamped, flat, unflat, variable
from anygpu.codegen.index import Variable as Counter
from anygpu.codegen.kernel import Kernel
from anygpu.codegen.kernel_builder import KernelBuilder, Shape, leave_beyond, power_of_two_up, store
from anygpu.codegen.kernel_ir import (
    Apply,
    If,
    Let,
    Literal,
    Loop,
    Name,
    Position,
    Statement,
    StoreWord,
    Text,
)
from anygpu.codegen.lower import Lowering
from anygpu.codegen.transpose import Turned, turned
from anygpu.codegen.types import is_narrow
from anygpu.program.dtypes import ITEMSIZE
from anygpu.program.primitives import Concatenate

#: Fewer elements than this fit into a processor's nearest cache, whichever way they are read.
_WORTH_TURNING = 4096


def map_kernel(builder: KernelBuilder, members: Sequence[int], shape: Shape, name: str) -> Kernel:
    program, target = builder.program, builder.target
    size = program.specs[members[0]].size
    needed = [node for node in members if node in builder.needed]
    narrow = [node for node in needed if is_narrow(builder.stored[node].dtype, target)]
    if not narrow and shape.vector > 1 and size >= _WORTH_TURNING:
        cut = turned(
            target,
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


def _turned_kernel(builder: KernelBuilder, members: Sequence[int], cut: Turned, shape: Shape, name: str) -> Kernel:
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


def _elements_of(size: int, shape: Shape) -> int:
    """Elements of one invocation: several vectors only where enough invocations are left."""
    return shape.elements if size >= 256 * shape.elements else max(1, min(shape.vector, shape.elements))


def _map_statements(
    builder: KernelBuilder, members: Sequence[int], narrow: Sequence[int], size: int, elements: int, blocks: int,
    group_size: int, vector: int,
) -> list[Statement]:  # fmt: skip
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
    from anygpu.codegen.dialects.wgsl import WGSLPrinter

    stored = builder.stored[node]
    buffer = builder.buffers[stored.buffer]
    text = WGSLPrinter(builder.target)
    return [Text(line) for line in text.store_word(buffer, "block")]


def _map_body(
    lowering: Lowering, builder: KernelBuilder, members: Sequence[int], narrow: Sequence[int], place: Index
) -> None:
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


def piece_kernels(builder: KernelBuilder, node: int, shape: Shape, name: str) -> list[Kernel]:
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
