"""Long rows in two stages: parts of them are reduced, and a second kernel reduces the parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext

import msgspec

from anygpu.codegen import reductions
from anygpu.codegen.grouping import Group, element_of, row_sizes
from anygpu.codegen.index import Index, constant, variable
from anygpu.codegen.index import Variable as Counter
from anygpu.codegen.kernel import Kernel
from anygpu.codegen.kernel_builder import KernelBuilder, Shape, as_stored
from anygpu.codegen.kernel_ir import (
    Apply,
    Buffer,
    Expr,
    If,
    Literal,
    Load,
    Loop,
    Name,
    Position,
    Store,
    Variable,
)
from anygpu.codegen.rows import Column, begin_rows, fold, lane_loop, reduction_of, store_rows, stretch_of, sums_of
from anygpu.codegen.target import STORED, ComputeType
from anygpu.program.dtypes import DType
from anygpu.program.functions import ReduceFunction


def part_buffers(builder: KernelBuilder, group: Group, new_slot: Callable[[int], int]) -> list[Buffer]:
    """The buffers for partial results of a reduction: one for each component of its state."""
    (node,) = group.reductions
    fn, dtype = reduction_of(builder.program, node)
    result = []
    for number, type in enumerate(reductions.state_types(fn, dtype)):
        element = STORED[type]
        size = group.rows * group.parts
        name = f"parts_{node}" if number == 0 else f"parts_{node}_{number}"
        buffer = Buffer(name, 0, element, size)
        result.append(msgspec.structs.replace(buffer, slot=new_slot(buffer.nbytes)))
    return result


def two_stage_kernels(
    builder: KernelBuilder, group: Group, shape: Shape, last: Shape, name: str, parts: Sequence[Buffer]
) -> list[Kernel]:
    """Long rows are cut into parts, each reduced on its own; a second kernel reduces the parts."""
    (node,) = group.reductions
    fn, dtype = reduction_of(builder.program, node)
    builder.buffers.update({buffer.name: buffer for buffer in parts})
    return [
        _part_kernel(builder, group, node, fn, dtype, shape, f"{name}_parts", parts),
        _last_kernel(builder, group, node, fn, dtype, last, name, parts),
    ]


def part_size(length: int, parts: int) -> int:
    """The length of one part of a row: long parts begin at whole vectors."""
    size = -(-length // parts)
    return -(-size // 64) * 64 if size >= 1024 else size


def _part_kernel(
    builder: KernelBuilder, group: Group, node: int, fn: ReduceFunction, dtype: DType, shape: Shape, name: str,
    parts: Sequence[Buffer],
) -> Kernel:  # fmt: skip
    lanes = min(shape.lanes, builder.target.group_limit)
    elements = stretch_of(group.rows, lanes, shape)
    _, length = row_sizes(builder.program, node)
    size = part_size(length, group.parts)
    # Parts of one row that follow each other are next to each other in `parts`, rows are neighbours within a part.
    blocks = group.rows // elements
    job, group_size, groups, statements = begin_rows(blocks * group.parts, lanes, 1, shape, builder.target)
    lowering = builder.lowering(group.members)
    lowering.scopes[0].variables.update(("row", "lane"))
    number = job // blocks
    start: Expr = Position(number * size + (variable("lane", lanes) if lanes > 1 else 0))
    stop: Expr = Position(number * size + size)
    if group.parts * size != length:
        stop = lowering.named("stop", Apply("minimum", (stop, Literal(length, "i32")), "i32"))
    with lowering.inside("part") if elements > 1 else nullcontext() as stretch:
        row = job % blocks * elements + variable("part", elements)
        state = lowering.begin(node, fn, dtype, lambda at: element_of(lowering, node, row, at))
        counter = lowering.unique("column")
        column = Index(0, [(Counter(counter, 0, length - 1), 1)])
        with lowering.inside(counter) as scope:
            lowering.take(node, fn, dtype, state, element_of(lowering, node, row, column), Position(column))
        sums = sums_of(builder, [node], {node: state})
        vector = shape.vector if elements == 1 else 1
        lowering.add(Loop(counter, start, stop, lanes, tuple(scope.statements), sums=sums, vector=vector))
        if lanes > 1:
            lowering.add(fold(lowering, node, fn, dtype, state, lanes))
        place = job * elements + variable("part", elements)
        stores = tuple(
            Store(buffer.name, place, as_stored(each, buffer.dtype)) for buffer, each in zip(parts, state, strict=True)
        )
        if lanes > 1:
            lowering.add(If(Apply("equal", (Name("lane", "i32"), Literal(0, "i32")), "bool"), stores))
        else:
            for each in stores:
                lowering.add(each)
    if stretch is not None:
        lowering.add(Loop("part", Literal(0, "i32"), elements, 1, tuple(stretch.statements), vector=elements))
    work, moved = builder.work_of([node])
    return builder.kernel(
        name, [*statements, *lowering.statements], groups=groups, group_size=group_size,
        written=[buffer.name for buffer in parts], work=work, bytes_moved=moved,
    )  # fmt: skip


def _last_kernel(
    builder: KernelBuilder, group: Group, node: int, fn: ReduceFunction, dtype: DType, shape: Shape, name: str,
    parts: Sequence[Buffer],
) -> Kernel:  # fmt: skip
    lanes = min(shape.lanes, builder.target.group_limit)
    elements = stretch_of(group.rows, lanes, shape)
    row, group_size, groups, statements = begin_rows(group.rows, lanes, elements, shape, builder.target)
    lowering = builder.lowering(group.members)
    lowering.scopes[0].variables.update(("row", "lane", "block"))
    lowering.row = row
    types = reductions.state_types(fn, dtype)

    def partial(number: Index) -> tuple[Expr, ...]:
        place = number * group.rows + row
        values = []
        for buffer, type in zip(parts, types, strict=True):
            value: Expr = lowering.named(f"{buffer.name}_value", Load(buffer.name, place, _loaded_type(type)))
            if type == "bool":
                value = Apply("not_equal", (value, Literal(0, "u32")), "bool")
            values.append(value)
        return tuple(values)

    with lowering.inside("part") if elements > 1 else nullcontext() as stretch:
        state = []
        # Where nothing is neutral, the first value is: it may be taken twice without harm.
        for number, value in enumerate(reductions.identity(fn, dtype) or partial(constant(0))):
            variable_name = lowering.unique(f"{fn}_{node}" if number == 0 else f"{fn}_{node}_{number}")
            lowering.add(Variable(variable_name, value))
            state.append(Name(variable_name, value.type))
        counter = lowering.unique("column")
        with lowering.inside(counter) as scope:
            others = partial(variable(counter, group.parts))
            values = reductions.combined(fn, dtype, tuple(state), others, lowering._namer(node))
            lowering.assign(node, state, values)
        vector = shape.vector if elements == 1 else 1
        sums = sums_of(builder, [node], {node: tuple(state)})
        lowering.add(lane_loop(counter, group.parts, lanes, scope.statements, vector, sums))
        if lanes > 1:
            lowering.add(fold(lowering, node, fn, dtype, tuple(state), lanes))
        lowering.of_row[node] = lowering.end(node, fn, dtype, tuple(state))
        store_rows(lowering, builder, group, row, lanes, 1, Column())
    if stretch is not None:
        lowering.add(Loop("part", Literal(0, "i32"), elements, 1, tuple(stretch.statements), vector=elements))
    return builder.kernel(
        name, [*statements, *lowering.statements], groups=groups, group_size=group_size,
        written=[builder.stored[each].buffer for each in group.members if each in builder.needed],
        work=float(group.rows * group.parts), bytes_moved=0.0,
    )  # fmt: skip


def _loaded_type(type: ComputeType) -> ComputeType:
    return "u32" if type == "bool" else type
