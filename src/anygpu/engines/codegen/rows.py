"""Kernels of rows: each row is reduced, and what is made of the totals may be mapped over it again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext

import msgspec

from anygpu.engines.codegen import reductions
from anygpu.engines.codegen.grouping import Group, element_of, row_sizes
from anygpu.engines.codegen.index import Index, constant, flat, unflat, variable
from anygpu.engines.codegen.index import IndexVariable as Counter
from anygpu.engines.codegen.kernel import Kernel
from anygpu.engines.codegen.kernel_builder import (
    GroupShape,
    KernelBuilder,
    as_stored,
    leave_beyond,
    power_of_two_up,
    store,
)
from anygpu.engines.codegen.kernel_ir import (
    Apply,
    Buffer,
    Expr,
    Fold,
    If,
    Let,
    Literal,
    Load,
    Loop,
    Name,
    Position,
    Statement,
    Store,
    Variable,
)
from anygpu.engines.codegen.lower import Lowering, Positions, RowCache
from anygpu.engines.codegen.materialise import own_cost
from anygpu.engines.codegen.target import COMPUTE, STORED, ComputeType, Target, components, compute_type
from anygpu.program.dtypes import DType
from anygpu.program.functions import ReduceFunction
from anygpu.program.graph import Program
from anygpu.program.primitives import Reduce, Unary


def rows_kernel(builder: KernelBuilder, group: Group, shape: GroupShape, name: str) -> Kernel:
    """One row for each group of lanes: its reductions in order, then what is made of them."""
    lanes = min(shape.lanes, builder.target.group_limit)
    of_elements = any(axes is not None for axes in group.row_axes.values())
    elements = stretch_of(group.rows, lanes, shape) if not of_elements else 1
    lowering = builder.lowering(group.members)
    row, group_size, groups, statements = begin_rows(group.rows, lanes, elements, shape, builder.target)
    several = shape.rows if lanes > 1 and group.rows % shape.rows == 0 else 1
    lowering.scopes[0].variables.update(("lane", "block") if several > 1 else ("row", "lane", "block"))
    inside = "part" if elements > 1 else "row"
    with lowering.inside(inside) if elements > 1 or several > 1 else nullcontext() as stretch:
        lowering.row = row
        kept = keep_what_is_dear(lowering, builder, group, row)
        for level in _levels(builder.program, group):
            _reduce_rows(lowering, builder, level, row, group.length, lanes, 1 if elements > 1 else shape.vector, kept)
        store_rows(lowering, builder, group, row, lanes, shape.vector, kept)
    if stretch is not None and several > 1:
        if not _loads_without(stretch.statements, "row"):
            return rows_kernel(builder, group, msgspec.structs.replace(shape, rows=1), name)
        groups, statements = group.rows // several, []
        first = variable("group", groups) * several
        lowering.add(Loop("row", Position(first), Position(first + several), 1, tuple(stretch.statements)))
    elif stretch is not None:
        lowering.add(Loop("part", Literal(0, "i32"), elements, 1, tuple(stretch.statements), vector=elements))
    work, moved = builder.work_of(group.members)
    return builder.kernel(
        name,
        [*statements, *lowering.statements],
        groups=groups,
        group_size=group_size,
        written=[builder.stored[node].buffer for node in group.members if node in builder.needed],
        work=work,
        bytes_moved=moved,
    )


def _loads_without(statements: Sequence[Statement], name: str) -> bool:
    """Whether a loop loads what does not depend on a variable, and so is the same each time."""
    return any(
        isinstance(each, Let) and isinstance(each.value, Load) and not each.value.index.depends_on(name)
        for loop in statements
        if isinstance(loop, Loop)
        for each in loop.body
    )


class RowColumn:
    """The column that the loop being written is at."""

    def __init__(self) -> None:
        self.index: Index | None = None


def keep_what_is_dear(lowering: Lowering, builder: KernelBuilder, group: Group, row: Index) -> RowColumn:
    """Values that several loops over a row need, and that are dear, wait in the result's own memory between them."""
    column = RowColumn()
    program = builder.program
    loops = [*group.reductions, *(node for node in group.members if group.row_axes[node] is not None)]
    results = [node for node in loops if group.row_axes[node] is not None and node in builder.needed]
    for result in results[:1]:
        spec, stored = program.specs[result], builder.stored[result]
        axes = group.row_axes[result] or ()
        if components(spec.dtype) > 1 or stored.dtype != spec.dtype:
            continue
        dear = _dear_in_several(program, loops, set(builder.stored), spec.shape)
        if dear is None or compute_type(program.specs[dear].dtype) != COMPUTE[stored.dtype]:
            continue

        def place(result: int = result, axes: tuple[int, ...] = axes) -> Index:
            if column.index is None:
                return constant(-1)
            return flat(row_positions(program, result, axes, row, column.index), program.specs[result].shape)

        lowering.kept[dear] = RowCache(stored.buffer, COMPUTE[stored.dtype], program.specs[dear].shape, place)
    return column


def _dear_in_several(program: Program, loops: Sequence[int], stored: set[int], shape: tuple[int, ...]) -> int | None:
    """The last function value of the shape that more than one of the loops needs."""
    wanted: dict[int, int] = {}
    for loop in loops:
        waiting, seen = list(program.nodes[loop].inputs), set[int]()
        while waiting:
            node = waiting.pop()
            if node in seen or node in stored:
                continue
            seen.add(node)
            waiting.extend(program.nodes[node].inputs)
        for node in seen:
            wanted[node] = wanted.get(node, 0) + 1
    dear = [
        node
        for node, times in wanted.items()
        if times > 1 and program.specs[node].shape == shape and _has_function_below(program, node, stored)
    ]
    return max(dear, default=None)


def _has_function_below(program: Program, node: int, stored: set[int]) -> bool:
    """Whether a function such as `exp` is computed on the way to a value, from what is stored."""
    waiting, seen = [node], set[int]()
    while waiting:
        current = waiting.pop()
        if current in seen or current in stored:
            continue
        seen.add(current)
        op = program.nodes[current].op
        if isinstance(op, Unary) and own_cost(op) >= 20:
            return True
        waiting.extend(program.nodes[current].inputs)
    return False


def begin_rows(
    rows: int, lanes: int, elements: int, shape: GroupShape, target: Target
) -> tuple[Index, int, int, list[Statement]]:
    """The row that an invocation works on, the sizes of the grid, and the first statements."""
    if elements > 1:
        blocks = rows // elements
        _, group_size, groups, first = begin_rows(blocks, 1, 1, shape, target)
        renamed = [_renamed(each) for each in first]
        return variable("block", blocks) * elements + variable("part", elements), group_size, groups, renamed
    if lanes > 1:
        row = variable("row", rows)
        return row, lanes, rows, [Let("row", Position(variable("group", rows)))]
    group_size = min(shape.group, target.group_limit, max(1, power_of_two_up(rows)))
    groups = -(-rows // group_size)
    number = variable("group", groups) * group_size + variable("lane", group_size)
    statements: list[Statement] = [Let("row", Position(number))]
    if rows % group_size:
        statements.append(leave_beyond("row", rows))
    return variable("row", rows), group_size, groups, statements


def stretch_of(rows: int, lanes: int, shape: GroupShape) -> int:
    """The number of neighbouring rows that one invocation has at once."""
    return shape.elements if lanes == 1 and shape.elements > 1 and rows % shape.elements == 0 else 1


def _renamed(statement: Statement) -> Statement:
    """The statement with `block` in place of its name."""
    if isinstance(statement, Let):
        return Let("block", statement.value)
    return leave_beyond("block", _limit_of(statement))


def _limit_of(statement: Statement) -> int:
    """The number beyond which a statement leaves the kernel."""
    if isinstance(statement, If) and isinstance(statement.condition, Apply):
        limit = statement.condition.args[1]
        if isinstance(limit, Literal):
            return int(limit.value)
    raise TypeError(f"{statement} does not leave beyond a number")


def _levels(program: Program, group: Group) -> list[list[int]]:
    """Reductions that need nothing of each other share a loop."""
    depth: dict[int, int] = {}
    below: dict[int, int] = {}

    def deepest(node: int) -> int:
        if node in depth:
            return depth[node] + 1
        if node not in below:
            below[node] = max((deepest(source) for source in program.nodes[node].inputs), default=0)
        return below[node]

    for node in sorted(group.reductions):
        depth[node] = max(deepest(source) for source in program.nodes[node].inputs)
    levels: dict[int, list[int]] = {}
    for node, number in depth.items():
        levels.setdefault(number, []).append(node)
    return [levels[number] for number in sorted(levels)]


def reduction_of(program: Program, node: int) -> tuple[ReduceFunction, DType]:
    """The function and the type of what is combined."""
    op, inputs = program.nodes[node]
    if isinstance(op, Reduce):
        return op.fn, program.specs[inputs[0]].dtype
    dtype = program.specs[node].dtype
    return ("any" if dtype == "bool" else "sum"), dtype


def _reduce_rows(
    lowering: Lowering,
    builder: KernelBuilder,
    nodes: Sequence[int],
    row: Index,
    length: int,
    lanes: int,
    vector: int,
    kept: RowColumn,
) -> None:
    """One pass over a row that computes several reductions, which are values of the row afterwards.

    Each of `lanes` invocations takes every n-th column; their states are combined at the end. Values that a later pass
    needs again are kept in the group's memory while it lasts.
    """
    states: dict[int, tuple[Name, ...]] = {}
    for node in nodes:
        fn, dtype = reduction_of(builder.program, node)
        states[node] = lowering.begin(node, fn, dtype, lambda at, node=node: element_of(lowering, node, row, at))  # type: ignore[misc]
    counter = lowering.unique("column")
    with lowering.inside(counter) as scope:
        column = variable(counter, length)
        kept.index = column
        for node in nodes:
            fn, dtype = reduction_of(builder.program, node)
            value = element_of(lowering, node, row, column)
            lowering.take(node, fn, dtype, states[node], value, Position(column))
    kept.index = None
    for each in lowering.kept.values():
        each.written = each.used
    lowering.add(lane_loop(counter, length, lanes, scope.statements, vector, sums_of(builder, nodes, states)))
    for node in nodes:
        fn, dtype = reduction_of(builder.program, node)
        if lanes > 1:
            lowering.add(fold(lowering, node, fn, dtype, states[node], lanes))
        lowering.of_row[node] = lowering.end(node, fn, dtype, states[node])


def sums_of(
    builder: KernelBuilder, nodes: Sequence[int], states: dict[int, tuple[Name, ...]]
) -> tuple[tuple[str, str], ...]:
    """Accumulators that may be kept in vectors, with the function that joins them."""
    result = []
    for node in nodes:
        fn, _ = reduction_of(builder.program, node)
        if len(states[node]) > 1 or fn not in reductions.FUNCTIONS:
            return ()
        result.append((states[node][0].name, reductions.FUNCTIONS[fn]))
    return tuple(result)


def lane_loop(
    counter: str,
    length: int,
    lanes: int,
    body: Sequence[Statement],
    vector: int,
    sums: tuple[tuple[str, str], ...] = (),
) -> Statement:
    """The loop over a row, of which each lane does every n-th element."""
    start: Expr = Position(variable("lane", lanes)) if lanes > 1 else Literal(0, "i32")
    return Loop(counter, start, length, lanes, tuple(body), sums=sums, vector=vector)


def fold(lowering: Lowering, node: int, fn: ReduceFunction, dtype: DType, state: tuple[Name, ...], lanes: int) -> Fold:
    """The statement that combines the states of all lanes into one."""
    others = tuple(Name(lowering.unique(f"other_{each.name}"), each.type) for each in state)
    with lowering.inside() as scope:
        values = reductions.combined(fn, dtype, state, others, lowering._namer(node))
        lowering.assign(node, state, values)
    return Fold(state, others, tuple(scope.statements), lanes, 1)


def store_rows(
    lowering: Lowering, builder: KernelBuilder, group: Group, row: Index, lanes: int, vector: int, kept: RowColumn
) -> None:
    """Values of the row by its first lane; values of elements by all of them."""
    of_elements = [node for node in group.members if group.row_axes[node] is not None]
    for node in group.members:
        if node in of_elements:
            continue
        value = lowering.of_row.get(node)
        if value is None:
            value = lowering.value(node, unflat(row, builder.program.specs[node].shape))
            lowering.of_row[node] = value
        if node not in builder.needed:
            continue
        if lanes == 1:
            store(lowering, builder, node, row, value)
            continue
        with lowering.inside() as scope:
            store(lowering, builder, node, row, value)
        first = Apply("equal", (Name("lane", "i32"), Literal(0, "i32")), "bool")
        lowering.add(If(first, tuple(scope.statements)))
    if not of_elements:
        return
    counter = lowering.unique("column")
    with lowering.inside(counter) as scope:
        column = variable(counter, group.length)
        kept.index = column
        for node in of_elements:
            positions = row_positions(builder.program, node, group.row_axes[node] or (), row, column)
            value = lowering.value(node, positions)
            place = flat(positions, builder.program.specs[node].shape)
            lowering.given[node] = (place, value)
            if node in builder.needed:
                store(lowering, builder, node, place, value)
    lowering.add(lane_loop(counter, group.length, lanes, scope.statements, vector))


def row_positions(program: Program, node: int, axes: Sequence[int], row: Index, column: Index) -> Positions:
    """Positions along all axes: some count rows, the others columns."""
    shape = program.specs[node].shape
    lanes = [axis for axis in range(len(shape)) if axis not in axes]
    along = dict(zip(axes, unflat(row, [shape[axis] for axis in axes]), strict=True))
    along |= dict(zip(lanes, unflat(column, [shape[axis] for axis in lanes]), strict=True))
    return tuple(along[axis] for axis in range(len(shape)))


# -- long rows in two stages
#
# Parts of them are reduced, and a second kernel reduces the parts.


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
    builder: KernelBuilder, group: Group, shape: GroupShape, last: GroupShape, name: str, parts: Sequence[Buffer]
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
    builder: KernelBuilder, group: Group, node: int, fn: ReduceFunction, dtype: DType, shape: GroupShape, name: str,
    parts: Sequence[Buffer],
) -> Kernel:  # fmt: skip
    """The first of two kernels for long rows: each group reduces one part of a row and stores its state."""
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
    builder: KernelBuilder, group: Group, node: int, fn: ReduceFunction, dtype: DType, shape: GroupShape, name: str,
    parts: Sequence[Buffer],
) -> Kernel:  # fmt: skip
    """The second of two kernels for long rows: the states of a row's parts are combined, and the results stored.

    What follows elementwise in the same group is computed here, too.
    """
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
        store_rows(lowering, builder, group, row, lanes, 1, RowColumn())
    if stretch is not None:
        lowering.add(Loop("part", Literal(0, "i32"), elements, 1, tuple(stretch.statements), vector=elements))
    return builder.kernel(
        name, [*statements, *lowering.statements], groups=groups, group_size=group_size,
        written=[builder.stored[each].buffer for each in group.members if each in builder.needed],
        work=float(group.rows * group.parts), bytes_moved=0.0,
    )  # fmt: skip


def _loaded_type(type: ComputeType) -> ComputeType:
    return "u32" if type == "bool" else type
