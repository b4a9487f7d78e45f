"""Kernels that are loops around values: maps, and rows that are reduced and mapped again."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from contextlib import nullcontext

import msgspec

from anygpu.codegen import reductions
from anygpu.codegen.dialects import printer
from anygpu.codegen.dialects.printer import Filled, only_used
from anygpu.codegen.form import (
    Apply,
    Buffer,
    Expr,
    Fold,
    Function,
    If,
    Let,
    Literal,
    Load,
    Loop,
    Name,
    Position,
    Statement,
    Store,
    StoreWord,
    Text,
    Variable,
    names_used,
)
from anygpu.codegen.grouping import Group, element_of, row_sizes
from anygpu.codegen.index import Index, clamped, constant, flat, unflat, variable
from anygpu.codegen.index import Variable as Counter
from anygpu.codegen.kernel import Kernel
from anygpu.codegen.lower import Kept, Lowering, Positions, RuleOf, Stored, Value
from anygpu.codegen.roots import own_cost
from anygpu.codegen.target import ComputeType, Target
from anygpu.codegen.turned import Turned, turned
from anygpu.codegen.types import COMPUTE, STORED, components, compute_type, is_narrow
from anygpu.program.dtypes import ITEMSIZE, DType
from anygpu.program.functions import ReduceFunction
from anygpu.program.graph import Program
from anygpu.program.primitives import Concatenate, Reduce, Unary

#: Fewer elements than this fit into a processor's nearest cache, whichever way they are read.
_WORTH_TURNING = 4096
#: More work than this in one kernel, and a driver may have to cut it into several dispatches.
LONG_WORK = 2e8


class Shape(msgspec.Struct, frozen=True):
    """The tunable numbers of a kernel that is a loop."""

    #: Invocations in a group.
    group: int = 256
    #: Of a map: elements of one invocation.
    elements: int = 1
    #: Of rows: invocations that share a row, and rows that they do one after the other, when that spares them loads.
    lanes: int = 1
    rows: int = 1
    #: Numbers that one invocation handles at once.
    vector: int = 1


class Workshop:
    """What building the kernels of one schedule has in common."""

    def __init__(
        self, program: Program, target: Target, stored: dict[int, Stored], buffers: dict[str, Buffer], rule_of: RuleOf
    ) -> None:
        self.program = program
        self.target = target
        self.stored = stored
        self.buffers = buffers
        self.rule_of = rule_of
        #: Which values somebody outside of their kernel needs.
        self.needed: frozenset[int] = frozenset(stored)
        #: Functions that a lowering may call: those of searches.
        self.searches: dict[int, str] = {}
        self.search_functions: dict[str, Callable[[], tuple[list[Function], Filled]]] = {}

    def lowering(self, without: Sequence[int] = ()) -> Lowering:
        """For a kernel that computes the nodes `without` itself."""
        stored = {node: where for node, where in self.stored.items() if node not in without}
        result = Lowering(self.program, stored, self.rule_of, taken=(*self.buffers, *_RESERVED))
        result.searches = self.searches
        return result

    def kernel(
        self,
        name: str,
        statements: Sequence[Statement],
        *,
        groups: int,
        group_size: int,
        written: Sequence[str],
        work: float,
        bytes_moved: float,
    ) -> Kernel:
        buffers = []
        loads, templates = self.searches_in(names_used(statements))
        inner = [statement for function in loads for statement in body_of(function)]
        for buffer in only_used(list(self.buffers.values()), [*statements, *inner]):
            access = "read_write" if buffer.name in written or buffer.name == "status" else "read"
            buffers.append(msgspec.structs.replace(buffer, access=access))
        return printer(self.target).kernel(
            name,
            buffers=buffers,
            body=statements,
            functions=loads,
            templates=templates,
            groups=groups,
            group_size=group_size,
            cuttable=work > LONG_WORK,
            flops=work,
            bytes_moved=bytes_moved,
        )

    def searches_in(self, called: Set[str]) -> tuple[list[Function], list[Filled]]:
        """The searches among the functions that are called, with the accessors of their lines."""
        loads: list[Function] = []
        templates: list[Filled] = []
        for search, make in self.search_functions.items():
            if search in called:
                functions, template = make()
                inner, further = self.searches_in(
                    names_used([each for function in functions for each in body_of(function)])
                )
                loads += [*inner, *functions]
                templates += [*further, template]
        return loads, templates

    def work_of(self, nodes: Sequence[int]) -> tuple[float, float]:
        """Rough operations and bytes of computing nodes from what is stored."""
        program, seen, waiting = self.program, set[int](), list(nodes)
        work = moved = 0.0
        while waiting:
            node = waiting.pop()
            if node in seen:
                continue
            seen.add(node)
            spec = program.specs[node]
            if node in self.stored and node not in nodes:
                moved += spec.nbytes
                continue
            work += spec.size
            moved += spec.nbytes if node in nodes else 0
            waiting.extend(program.nodes[node].inputs)
        return work, moved


def body_of(function: Function) -> list[Statement]:
    """Its statements, with its result as the last of them."""
    return [*function.body, *([Let("result", function.result)] if function.result is not None else [])]


_RESERVED = (
    *("group", "lane", "i", "row", "column", "part", "block", "turn", "step", "each", "chain", "strips"),
    *("status", "half", "numbers", "stop", "first"),
)


def store(lowering: Lowering, workshop: Workshop, node: int, place: Index, value: Value) -> None:
    """Into the node's own buffer, at a position in C order."""
    stored = workshop.stored[node]
    count = components(workshop.program.specs[node].dtype)
    for number, part in enumerate(value):
        lowering.add(Store(stored.buffer, place * count + number, as_stored(part, stored.dtype)))


def as_stored(value: Expr, dtype: DType) -> Expr:
    """Truth values are stored as numbers in buffers of wider elements."""
    if value.type == "bool" and dtype != "bool":
        return Apply("cast_u32", (value,), "u32")
    return value


# -- maps


def map_kernel(workshop: Workshop, members: Sequence[int], shape: Shape, name: str) -> Kernel:
    program, target = workshop.program, workshop.target
    size = program.specs[members[0]].size
    needed = [node for node in members if node in workshop.needed]
    narrow = [node for node in needed if is_narrow(workshop.stored[node].dtype, target)]
    if not narrow and shape.vector > 1 and size >= _WORTH_TURNING:
        cut = turned(
            target,
            [program.specs[node].shape for node in members],
            workshop.lowering(members),
            lambda lowering, place: _map_body(lowering, workshop, members, (), place),
        )
        if cut is not None:
            return _turned_kernel(workshop, members, cut, shape, name)
    # Elements that share a word are written by one invocation.
    elements = 4 // ITEMSIZE[workshop.stored[narrow[0]].dtype] if narrow else _elements_of(size, shape)
    blocks = -(-size // elements)
    group_size = min(shape.group, target.group_limit, max(1, _power_of_two_up(blocks)))
    groups = -(-blocks // group_size)
    statements = _map_statements(workshop, members, narrow, size, elements, blocks, group_size, shape.vector)
    work, moved = workshop.work_of(members)
    return workshop.kernel(
        name,
        statements,
        groups=groups,
        group_size=group_size,
        written=[workshop.stored[node].buffer for node in members],
        work=work,
        bytes_moved=moved,
    )


def _turned_kernel(workshop: Workshop, members: Sequence[int], cut: Turned, shape: Shape, name: str) -> Kernel:
    group_size = min(shape.group, 64, workshop.target.group_limit, max(1, _power_of_two_up(cut.blocks)))
    groups = -(-cut.blocks // group_size)
    number = variable("group", groups) * group_size + variable("lane", group_size)
    statements: list[Statement] = [Let("block", Position(number))]
    if cut.blocks % group_size:
        statements.append(leave_beyond("block", cut.blocks))
    lowering = workshop.lowering(members)
    lowering.scopes[0].variables.add("block")
    with lowering.inside("step", "turn", "part") as inner:
        _map_body(lowering, workshop, members, (), cut.place(variable("block", cut.blocks)))
    work, moved = workshop.work_of(members)
    return workshop.kernel(
        name,
        [*statements, *lowering.statements, cut.loops(inner.statements)],
        groups=groups,
        group_size=group_size,
        written=[workshop.stored[node].buffer for node in members],
        work=work,
        bytes_moved=moved,
    )


def _elements_of(size: int, shape: Shape) -> int:
    """Elements of one invocation: several vectors only where there is enough for everybody."""
    return shape.elements if size >= 256 * shape.elements else max(1, min(shape.vector, shape.elements))


def _map_statements(
    workshop: Workshop, members: Sequence[int], narrow: Sequence[int], size: int, elements: int, blocks: int,
    group_size: int, vector: int,
) -> list[Statement]:  # fmt: skip
    groups = -(-blocks // group_size)
    number = variable("group", groups) * group_size + variable("lane", group_size)
    counter = "i" if elements == 1 else "block"
    statements: list[Statement] = [Let(counter, Position(number))]
    if blocks % group_size:
        statements.append(leave_beyond(counter, blocks))
    lowering = workshop.lowering(members)
    block = variable(counter, blocks)
    lowering.scopes[0].variables.add(counter)
    if elements == 1:
        _map_body(lowering, workshop, members, (), block)
        return [*statements, *lowering.statements]
    if narrow:
        return [*statements, *_word_statements(workshop, members, narrow, size, elements)]
    whole = size // elements
    with lowering.inside("part") as inner:
        place = variable("block", max(whole, 1)) * elements + variable("part", elements)
        _map_body(lowering, workshop, members, (), place)
    hint = elements if vector > 1 else 1
    loop = Loop("part", Literal(0, "i32"), elements, 1, tuple(inner.statements), vector=hint)
    if size % elements == 0:
        return [*statements, *lowering.statements, loop]
    # The last block is not whole: it goes element by element.
    rest = workshop.lowering(members)
    with rest.inside("i") as scope:
        _map_body(rest, workshop, members, (), Index(0, [(Counter("i", 0, size - 1), 1)]))
    tail = Loop("i", Literal(whole * elements, "i32"), size, 1, tuple(scope.statements), alone=True)
    return [*statements, *_whole_or_last(whole, [*lowering.statements, loop], [*rest.statements, tail])]


def _whole_or_last(whole: int, blocks: Sequence[Statement], last: Sequence[Statement]) -> list[Statement]:
    """What is done for the blocks that are whole, and for the last one, which is not."""
    if whole == 0:
        return list(last)
    is_whole = Apply("less", (Name("block", "i32"), Literal(whole, "i32")), "bool")
    is_last = Apply("equal", (Name("block", "i32"), Literal(whole, "i32")), "bool")
    return [If(is_whole, tuple(blocks)), If(is_last, tuple(last))]


def _word_statements(
    workshop: Workshop, members: Sequence[int], narrow: Sequence[int], size: int, elements: int
) -> list[Statement]:
    """Elements that share words: a block is one word."""

    def block(place: Index, vector: int) -> list[Statement]:
        lowering = workshop.lowering(members)
        lowering.scopes[0].variables.add("block")
        for node in narrow:
            lowering.add(Text(f"var word_{workshop.stored[node].buffer} = 0u;"))
        with lowering.inside("part") as inner:
            _map_body(lowering, workshop, members, narrow, place)
        lowering.add(Loop("part", Literal(0, "i32"), elements, 1, tuple(inner.statements), vector=vector, alone=True))
        for node in narrow:
            lowering.statements.extend(_word_stores(workshop, node))
        return lowering.statements

    whole, part = size // elements, variable("part", elements)
    blocks = block(variable("block", max(whole, 1)) * elements + part, elements)
    if size % elements == 0:
        return blocks
    # Behind the last element, the last one again.
    last = block(clamped(variable("block", whole + 1) * elements + part, size), 1)
    return _whole_or_last(whole, blocks, last)


def _word_stores(workshop: Workshop, node: int) -> list[Statement]:
    """Each block owns the word, or the two words, that its elements are in."""
    from anygpu.codegen.dialects.wgsl import WGSLPrinter

    stored = workshop.stored[node]
    buffer = workshop.buffers[stored.buffer]
    text = WGSLPrinter(workshop.target)
    return [Text(line) for line in text.store_word(buffer, "block")]


def leave_beyond(name: str, count: int) -> Statement:
    return If(Apply("greater_equal", (Name(name, "i32"), Literal(count, "i32")), "bool"), (Text("return;"),))


def _map_body(
    lowering: Lowering, workshop: Workshop, members: Sequence[int], narrow: Sequence[int], place: Index
) -> None:
    for node in members:
        shape = workshop.program.specs[node].shape
        positions = unflat(place, shape)
        value = lowering.value(node, positions)
        lowering.given[node] = (place, value)
        if node not in workshop.needed:
            continue
        if node in narrow:
            (only,) = value
            lowering.add(StoreWord(workshop.stored[node].buffer, only))
        else:
            store(lowering, workshop, node, place, value)


def piece_kernels(workshop: Workshop, node: int, shape: Shape, name: str) -> list[Kernel]:
    """A concatenation: each part writes itself to where it belongs."""
    program, target = workshop.program, workshop.target
    op, inputs = program.nodes[node]
    if not isinstance(op, Concatenate):
        raise TypeError(f"{op} is no concatenation")
    result: list[Kernel] = []
    begin = 0
    whole = program.specs[node].shape
    for number, source in enumerate(inputs):
        spec = program.specs[source]
        first, begin = begin, begin + spec.shape[op.axis]
        if not spec.size:
            continue
        group_size = min(shape.group, target.group_limit, max(1, _power_of_two_up(spec.size)))
        groups = -(-spec.size // group_size)
        position = variable("group", groups) * group_size + variable("lane", group_size)
        statements: list[Statement] = [Let("i", Position(position))]
        if spec.size % group_size:
            statements.append(leave_beyond("i", spec.size))
        lowering = workshop.lowering([node])
        lowering.scopes[0].variables.add("i")
        positions = unflat(variable("i", spec.size), spec.shape)
        value = lowering.value(source, positions)
        moved = list(positions)
        moved[op.axis] = moved[op.axis] + first
        store(lowering, workshop, node, flat(moved, whole), value)
        work, bytes_moved = workshop.work_of([source])
        result.append(
            workshop.kernel(
                f"{name}_{number}",
                [*statements, *lowering.statements],
                groups=groups,
                group_size=group_size,
                written=[workshop.stored[node].buffer],
                work=work,
                bytes_moved=bytes_moved,
            )
        )
    return result


# -- rows


def rows_kernel(workshop: Workshop, group: Group, shape: Shape, name: str) -> Kernel:
    """One row for each group of lanes: its reductions in order, then what is made of them."""
    lanes = min(shape.lanes, workshop.target.group_limit)
    of_elements = any(axes is not None for axes in group.row_axes.values())
    elements = _stretch_of(group.rows, lanes, shape) if not of_elements else 1
    lowering = workshop.lowering(group.members)
    row, group_size, groups, statements = _begin_rows(group.rows, lanes, elements, shape, workshop.target)
    several = shape.rows if lanes > 1 and group.rows % shape.rows == 0 else 1
    lowering.scopes[0].variables.update(("lane", "block") if several > 1 else ("row", "lane", "block"))
    inside = "part" if elements > 1 else "row"
    with lowering.inside(inside) if elements > 1 or several > 1 else nullcontext() as stretch:
        lowering.row = row
        kept = keep_what_is_dear(lowering, workshop, group, row)
        for level in _levels(workshop.program, group):
            _reduce_rows(lowering, workshop, level, row, group.length, lanes, 1 if elements > 1 else shape.vector, kept)
        _store_rows(lowering, workshop, group, row, lanes, shape.vector, kept)
    if stretch is not None and several > 1:
        if not _loads_without(stretch.statements, "row"):
            return rows_kernel(workshop, group, msgspec.structs.replace(shape, rows=1), name)
        groups, statements = group.rows // several, []
        first = variable("group", groups) * several
        lowering.add(Loop("row", Position(first), Position(first + several), 1, tuple(stretch.statements)))
    elif stretch is not None:
        lowering.add(Loop("part", Literal(0, "i32"), elements, 1, tuple(stretch.statements), vector=elements))
    work, moved = workshop.work_of(group.members)
    return workshop.kernel(
        name,
        [*statements, *lowering.statements],
        groups=groups,
        group_size=group_size,
        written=[workshop.stored[node].buffer for node in group.members if node in workshop.needed],
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


class _Column:
    """The column that the loop being written is at."""

    def __init__(self) -> None:
        self.index: Index | None = None


def keep_what_is_dear(lowering: Lowering, workshop: Workshop, group: Group, row: Index) -> _Column:
    """Values that several loops over a row need, and that are dear, wait in the result's own memory between them."""
    column = _Column()
    program = workshop.program
    loops = [*group.reductions, *(node for node in group.members if group.row_axes[node] is not None)]
    results = [node for node in loops if group.row_axes[node] is not None and node in workshop.needed]
    for result in results[:1]:
        spec, stored = program.specs[result], workshop.stored[result]
        axes = group.row_axes[result] or ()
        if components(spec.dtype) > 1 or stored.dtype != spec.dtype:
            continue
        dear = _dear_in_several(program, loops, set(workshop.stored), spec.shape)
        if dear is None or compute_type(program.specs[dear].dtype) != COMPUTE[stored.dtype]:
            continue

        def place(result: int = result, axes: tuple[int, ...] = axes) -> Index:
            if column.index is None:
                return constant(-1)
            return flat(row_positions(program, result, axes, row, column.index), program.specs[result].shape)

        lowering.kept[dear] = Kept(stored.buffer, COMPUTE[stored.dtype], program.specs[dear].shape, place)
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


def _begin_rows(
    rows: int, lanes: int, elements: int, shape: Shape, target: Target
) -> tuple[Index, int, int, list[Statement]]:
    """The row that an invocation works on, the sizes of the grid, and the first statements."""
    if elements > 1:
        blocks = rows // elements
        _, group_size, groups, first = _begin_rows(blocks, 1, 1, shape, target)
        renamed = [_renamed(each) for each in first]
        return variable("block", blocks) * elements + variable("part", elements), group_size, groups, renamed
    if lanes > 1:
        row = variable("row", rows)
        return row, lanes, rows, [Let("row", Position(variable("group", rows)))]
    group_size = min(shape.group, target.group_limit, max(1, _power_of_two_up(rows)))
    groups = -(-rows // group_size)
    number = variable("group", groups) * group_size + variable("lane", group_size)
    statements: list[Statement] = [Let("row", Position(number))]
    if rows % group_size:
        statements.append(leave_beyond("row", rows))
    return variable("row", rows), group_size, groups, statements


def _renamed(statement: Statement) -> Statement:
    if isinstance(statement, Let):
        return Let("block", statement.value)
    return leave_beyond("block", _limit_of(statement))


def _limit_of(statement: Statement) -> int:
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
    workshop: Workshop,
    nodes: Sequence[int],
    row: Index,
    length: int,
    lanes: int,
    vector: int,
    kept: _Column,
) -> None:
    states: dict[int, tuple[Name, ...]] = {}
    for node in nodes:
        fn, dtype = reduction_of(workshop.program, node)
        states[node] = lowering.begin(node, fn, dtype, lambda at, node=node: element_of(lowering, node, row, at))  # type: ignore[misc]
    counter = lowering.unique("column")
    with lowering.inside(counter) as scope:
        column = variable(counter, length)
        kept.index = column
        for node in nodes:
            fn, dtype = reduction_of(workshop.program, node)
            value = element_of(lowering, node, row, column)
            lowering.take(node, fn, dtype, states[node], value, Position(column))
    kept.index = None
    for each in lowering.kept.values():
        each.written = each.used
    lowering.add(_lane_loop(counter, length, lanes, scope.statements, vector, _sums(workshop, nodes, states)))
    for node in nodes:
        fn, dtype = reduction_of(workshop.program, node)
        if lanes > 1:
            lowering.add(fold(lowering, node, fn, dtype, states[node], lanes))
        lowering.of_row[node] = lowering.end(node, fn, dtype, states[node])


def _sums(workshop: Workshop, nodes: Sequence[int], states: dict[int, tuple[Name, ...]]) -> tuple[tuple[str, str], ...]:
    """Accumulators that may be kept in vectors, with the function that joins them."""
    result = []
    for node in nodes:
        fn, _ = reduction_of(workshop.program, node)
        if len(states[node]) > 1 or fn not in reductions.FUNCTIONS:
            return ()
        result.append((states[node][0].name, reductions.FUNCTIONS[fn]))
    return tuple(result)


def _lane_loop(
    counter: str,
    length: int,
    lanes: int,
    body: Sequence[Statement],
    vector: int,
    sums: tuple[tuple[str, str], ...] = (),
) -> Statement:
    start: Expr = Position(variable("lane", lanes)) if lanes > 1 else Literal(0, "i32")
    return Loop(counter, start, length, lanes, tuple(body), sums=sums, vector=vector)


def fold(lowering: Lowering, node: int, fn: ReduceFunction, dtype: DType, state: tuple[Name, ...], lanes: int) -> Fold:
    others = tuple(Name(lowering.unique(f"other_{each.name}"), each.type) for each in state)
    with lowering.inside() as scope:
        values = reductions.combined(fn, dtype, state, others, lowering._namer(node))
        lowering.assign(node, state, values)
    return Fold(state, others, tuple(scope.statements), lanes, 1)


def _store_rows(
    lowering: Lowering, workshop: Workshop, group: Group, row: Index, lanes: int, vector: int, kept: _Column
) -> None:
    """Values of the row by its first lane; values of elements by all of them."""
    of_elements = [node for node in group.members if group.row_axes[node] is not None]
    for node in group.members:
        if node in of_elements:
            continue
        value = lowering.of_row.get(node)
        if value is None:
            value = lowering.value(node, unflat(row, workshop.program.specs[node].shape))
            lowering.of_row[node] = value
        if node not in workshop.needed:
            continue
        if lanes == 1:
            store(lowering, workshop, node, row, value)
            continue
        with lowering.inside() as scope:
            store(lowering, workshop, node, row, value)
        first = Apply("equal", (Name("lane", "i32"), Literal(0, "i32")), "bool")
        lowering.add(If(first, tuple(scope.statements)))
    if not of_elements:
        return
    counter = lowering.unique("column")
    with lowering.inside(counter) as scope:
        column = variable(counter, group.length)
        kept.index = column
        for node in of_elements:
            positions = row_positions(workshop.program, node, group.row_axes[node] or (), row, column)
            value = lowering.value(node, positions)
            place = flat(positions, workshop.program.specs[node].shape)
            lowering.given[node] = (place, value)
            if node in workshop.needed:
                store(lowering, workshop, node, place, value)
    lowering.add(_lane_loop(counter, group.length, lanes, scope.statements, vector))


def row_positions(program: Program, node: int, axes: Sequence[int], row: Index, column: Index) -> Positions:
    """Positions along all axes, of which some count rows and the others the columns."""
    shape = program.specs[node].shape
    lanes = [axis for axis in range(len(shape)) if axis not in axes]
    along = dict(zip(axes, unflat(row, [shape[axis] for axis in axes]), strict=True))
    along |= dict(zip(lanes, unflat(column, [shape[axis] for axis in lanes]), strict=True))
    return tuple(along[axis] for axis in range(len(shape)))


# -- reductions in two stages


def part_buffers(workshop: Workshop, group: Group, new_slot: Callable[[int], int]) -> list[Buffer]:
    """Where the partial results of a reduction go: one buffer for each component of its state."""
    (node,) = group.reductions
    fn, dtype = reduction_of(workshop.program, node)
    result = []
    for number, type in enumerate(reductions.state_types(fn, dtype)):
        element = STORED[type]
        size = group.rows * group.parts
        name = f"parts_{node}" if number == 0 else f"parts_{node}_{number}"
        buffer = Buffer(name, 0, element, size)
        result.append(msgspec.structs.replace(buffer, slot=new_slot(buffer.nbytes)))
    return result


def two_stage_kernels(
    workshop: Workshop, group: Group, shape: Shape, last: Shape, name: str, parts: Sequence[Buffer]
) -> list[Kernel]:
    """Long rows are cut into parts, each reduced on its own; a second kernel reduces the parts."""
    (node,) = group.reductions
    fn, dtype = reduction_of(workshop.program, node)
    workshop.buffers.update({buffer.name: buffer for buffer in parts})
    return [
        _part_kernel(workshop, group, node, fn, dtype, shape, f"{name}_parts", parts),
        _last_kernel(workshop, group, node, fn, dtype, last, name, parts),
    ]


def part_size(length: int, parts: int) -> int:
    """How much of a row is one part: long parts begin at whole vectors."""
    size = -(-length // parts)
    return -(-size // 64) * 64 if size >= 1024 else size


def _stretch_of(rows: int, lanes: int, shape: Shape) -> int:
    """How many neighbouring rows one invocation has at once."""
    return shape.elements if lanes == 1 and shape.elements > 1 and rows % shape.elements == 0 else 1


def _part_kernel(
    workshop: Workshop, group: Group, node: int, fn: ReduceFunction, dtype: DType, shape: Shape, name: str,
    parts: Sequence[Buffer],
) -> Kernel:  # fmt: skip
    lanes = min(shape.lanes, workshop.target.group_limit)
    elements = _stretch_of(group.rows, lanes, shape)
    _, length = row_sizes(workshop.program, node)
    size = part_size(length, group.parts)
    # Parts of one row that follow each other are next to each other in `parts`, rows are neighbours within a part.
    blocks = group.rows // elements
    job, group_size, groups, statements = _begin_rows(blocks * group.parts, lanes, 1, shape, workshop.target)
    lowering = workshop.lowering(group.members)
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
        sums = _sums(workshop, [node], {node: state})
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
    work, moved = workshop.work_of([node])
    return workshop.kernel(
        name, [*statements, *lowering.statements], groups=groups, group_size=group_size,
        written=[buffer.name for buffer in parts], work=work, bytes_moved=moved,
    )  # fmt: skip


def _last_kernel(
    workshop: Workshop, group: Group, node: int, fn: ReduceFunction, dtype: DType, shape: Shape, name: str,
    parts: Sequence[Buffer],
) -> Kernel:  # fmt: skip
    lanes = min(shape.lanes, workshop.target.group_limit)
    elements = _stretch_of(group.rows, lanes, shape)
    row, group_size, groups, statements = _begin_rows(group.rows, lanes, elements, shape, workshop.target)
    lowering = workshop.lowering(group.members)
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
        sums = _sums(workshop, [node], {node: tuple(state)})
        lowering.add(_lane_loop(counter, group.parts, lanes, scope.statements, vector, sums))
        if lanes > 1:
            lowering.add(fold(lowering, node, fn, dtype, tuple(state), lanes))
        lowering.of_row[node] = lowering.end(node, fn, dtype, tuple(state))
        _store_rows(lowering, workshop, group, row, lanes, 1, _Column())
    if stretch is not None:
        lowering.add(Loop("part", Literal(0, "i32"), elements, 1, tuple(stretch.statements), vector=elements))
    return workshop.kernel(
        name, [*statements, *lowering.statements], groups=groups, group_size=group_size,
        written=[workshop.stored[each].buffer for each in group.members if each in workshop.needed],
        work=float(group.rows * group.parts), bytes_moved=0.0,
    )  # fmt: skip


def _loaded_type(type: ComputeType) -> ComputeType:
    return "u32" if type == "bool" else type


def _power_of_two_up(number: int) -> int:
    return 1 << max(0, number - 1).bit_length()
