"""The kernels that an engine makes which fuses: what is stored is chosen as code generation does, and then grouped.

Which values are stored is decided by code generation's own rules, for a device like most; groups and their order are
those of `anygpu.engines.codegen.grouping`. Whether a value fits into a group is decided here, without looking at
positions: those take far longer, and predictions are made before anything is compiled.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple

from anygpu.engines.codegen.grouping import Groups, StoredTogether, row_sizes
from anygpu.engines.codegen.index import last_long_axis
from anygpu.engines.codegen.materialise import (
    MOST_NODES,
    chosen,
    inner_length,
    is_heavy,
    is_row_reduction,
    is_short,
    summed_axes,
)
from anygpu.engines.codegen.target import Target
from anygpu.engines.codegen.templates.fourier import factors_of, smooth_length
from anygpu.placement.plan.calibration import amount_of
from anygpu.placement.plan.predicting import Kernel, is_wide, weight_of
from anygpu.program import primitives as p
from anygpu.program.graph import Cost, OperationClass, Program, node_costs


def convolution_factor(op: p.Primitive) -> float:
    """How much longer a transform takes whose length has a large prime factor: two longer ones make it."""
    if not isinstance(op, p.Fourier) or op.length < 2 or factors_of(op.length) is not None:
        return 1.0
    length = smooth_length(2 * op.length - 1)
    # They are complex, also where half of a transform of real numbers would do.
    halves = 2 if op.fn in ("rfft", "irfft") else 1
    return halves * 2 * length * math.log2(length) / (op.length * math.log2(op.length))


#: A device like most.
_TYPICAL = Target(dialect="opencl", features=("f64", "i64"), bindings=16)


#: A reduction of fewer rows than this, each longer than that, is cut into parts, so that all of a device is busy.
_FEW_ROWS, _LONG_ROW = 256, 8192


#: The same where rows are columns in memory.
_FEW_COLUMNS, _LONG_COLUMN = 262_144, 256


_GroupKind = Literal["map", "rows", "product", "pieces", "other"]


def fused_kernels(program: Program) -> tuple[Kernel, ...]:
    """In an order in which they can run."""
    return _Fused(program).kernels()


class _Expression(NamedTuple):
    """What a kernel computes on the way to one stored value."""

    #: Nodes that are not stored, and how often one element of each is computed; the same for what is read.
    inside: dict[int, float]
    reads: dict[int, float]
    #: Of what is read, the values that are not read at the position of the result.
    moved: set[int]


class _Group(StoredTogether):
    """Stored values that one kernel computes."""

    __slots__ = ("axes", "kind", "nodes", "parts", "shape")

    def __init__(self, kind: _GroupKind, first: int, shape: tuple[int, ...] = (), axes: tuple[int, ...] = ()) -> None:
        """A group of one root. `shape` and `axes` are those that a row reduction runs over; other kinds have none."""
        super().__init__(first)
        self.kind = kind
        #: For `rows`: of what, along which axes, and into how many parts each is cut.
        self.shape = shape
        self.axes = axes
        self.parts = 1
        self.nodes = 0


class _Fused(Groups[_Group]):
    """The kernels of one program, found by placing each stored value in a group."""

    def __init__(self, program: Program) -> None:
        """Choose the values that are stored, and note which node uses which.

        Code generation's own rules choose, for a typical device. Views of outputs are left out: the value behind an
        output is what a kernel writes.
        """
        super().__init__()
        self.outputs = program.outputs
        self.base = {output: _base_of(program, output) for output in program.outputs}
        bases = tuple(dict.fromkeys(self.base.values()))
        self.program = program = Program.trusted(program.nodes, bases, program.specs, program.lines)
        self.costs = node_costs(program)
        self.roots = [
            root
            for root in chosen(program, _TYPICAL, lambda root: _parts(program, root))
            if not isinstance(program.nodes[root].op, p.Constant)
        ]
        self.stored = frozenset(self.roots).union(
            position
            for position, (op, _) in enumerate(program.nodes)
            if isinstance(op, p.Input) or (isinstance(op, p.Constant) and program.specs[position].size > 1)
        )
        self.uses: list[list[int]] = [[] for _ in program.nodes]
        for position, node in enumerate(program.nodes):
            for source in dict.fromkeys(node.inputs):
                self.uses[source].append(position)
        self.expressions: dict[int, _Expression] = {}
        #: Values that have to be in memory: results, and what another kernel reads.
        self.needed: frozenset[int] = frozenset()

    def kernels(self) -> tuple[Kernel, ...]:
        """Place every root, and return one `Kernel` or several for each group, in an order in which they can run."""
        for root in self.roots:
            self._place(root)
        groups = self.in_order()
        read = (group.reads.difference(group.members) for group in groups)
        self.needed = frozenset(self.base.values()).union(*read)
        claimed: set[int] = set(self.stored)
        found: list[Kernel] = []
        for group in groups:
            found += self._kernels_of(group, claimed)
        return tuple(found)

    # -- which kernel a value is made by

    def _place(self, root: int) -> None:
        """Put a stored value into a group of its kind.

        The kinds are rows, matrix products, pieces of a concatenation, maps, and others, which stay alone. How many
        elements of each input are asked for decides what is computed several times inside of the kernel.
        """
        program, (op, inputs) = self.program, self.program.nodes[root]
        asked = {source: program.specs[source].size for source in inputs}
        if is_row_reduction(program, root):
            group = _Group("rows", root, program.specs[inputs[0]].shape, summed_axes(op))
            group.parts = _parts(program, root)
        elif isinstance(op, p.Contract) and not is_short(program, root):
            group = _Group("product", root)
        elif is_heavy(program, root):
            group = _Group("other", root)
        elif isinstance(op, p.Concatenate):
            group = _Group("pieces", root)
        else:
            group = _Group("map", root)
            size = program.specs[root].size * (
                inner_length(program, root) if isinstance(op, p.Reduce | p.Contract) else 1
            )
            asked = dict.fromkeys(inputs, size)
        self.expressions[root] = expression = self._expression(root, asked)
        others = self.of(expression.reads)
        for other in others if group.kind in ("rows", "map") else ():
            if self._joins(root, expression, group, other) and self.may_join(other, others):
                self.join(other, root, expression.reads.keys())
                other.nodes += len(expression.inside) + 1
                return
        group.nodes = len(expression.inside) + 1
        self.start(group, root, expression.reads.keys())

    def _expression(self, root: int, asked: Mapping[int, int]) -> _Expression:
        """What is below a stored value, whose inputs are `asked` for so many elements."""
        nodes, uses = self.program.nodes, self.uses
        shifts = _is_shifting(nodes[root].op)
        #: For what is inside, whether all of it is computed at the position of the result.
        waiting = [(source, shifts) for source in asked]
        seen: set[tuple[int, bool]] = set()
        inside: set[int] = set()
        moved: set[int] = set()
        while waiting:
            each = waiting.pop()
            if each in seen:
                continue
            seen.add(each)
            node, is_moved = each
            inside.add(node)
            if is_moved:
                moved.add(node)
            if node not in self.stored:
                below = is_moved or _is_shifting(nodes[node].op)
                waiting += [(source, below) for source in nodes[node].inputs]
        times: dict[int, float] = {}
        for node in sorted(inside, reverse=True):
            count = float(asked.get(node, 0))
            for use in uses[node]:
                if use not in times or use in self.stored:
                    continue
                op, often = nodes[use].op, times[use]
                if isinstance(op, p.Reduce | p.Contract):
                    often *= inner_length(self.program, use)
                count = count + often if op.is_shifting else max(count, often)
            times[node] = count
        return _Expression(
            {node: count for node, count in times.items() if node not in self.stored},
            {node: count for node, count in times.items() if node in self.stored},
            moved,
        )

    def _joins(self, root: int, expression: _Expression, alone: _Group, group: _Group) -> bool:
        """Whether it reads what the kernel has at hand, where the kernel has it."""
        read = [member for member in group.members if member in expression.reads]
        if any(member in expression.moved for member in read):
            return False
        if group.nodes + len(expression.inside) > MOST_NODES:
            return False
        specs = self.program.specs
        if alone.kind == "rows":
            return group.kind == "rows" and group.parts == alone.parts == 1 and _same_rows(group, alone)
        size = specs[root].size
        if group.kind == "rows":
            rows = specs[group.members[0]].size
            if size == rows:
                return True
            return group.parts == 1 and _without_ones(specs[root].shape) == _without_ones(group.shape)
        return group.kind in ("map", "product") and all(specs[member].size == size for member in read)

    # -- what kernels do

    def _kernels_of(self, group: _Group, claimed: set[int]) -> list[Kernel]:
        """One kernel; for what comes in pieces one for each, and a second one where rows were cut into parts."""
        inside: dict[int, float] = {}
        reads: dict[int, float] = {}
        for member in group.members:
            expression = self.expressions[member]
            for into, more in ((inside, expression.inside), (reads, expression.reads)):
                for node, count in more.items():
                    into[node] = max(into.get(node, 0.0), count)
        for member in group.members:
            reads.pop(member, None)
            inside[member] = self.program.specs[member].size
        kernel = self._kernel(group.members, inside, reads, claimed)
        if group.kind == "pieces":
            return self._pieces(group.members[0], kernel)
        if group.parts == 1:
            return [kernel]
        size = self.program.specs[group.members[0]].size
        nbytes = 4 * size * group.parts
        joining = Kernel("reduce", nbytes, nbytes, size, 0, 0, kernel.wide, (), (), ())
        return [kernel, joining]

    def _pieces(self, root: int, kernel: Kernel) -> list[Kernel]:
        """One for each, and the work in the first. What was measured of such operations is of two pieces."""
        nothing = Kernel("movement", 0.0, 0, 0, 0, 0, kernel.wide, (), (), ())
        return [kernel, *[nothing] * (len(self.program.nodes[root].inputs) - 2)]

    def _kernel(
        self, members: list[int], inside: Mapping[int, float], reads: Mapping[int, float], claimed: set[int]
    ) -> Kernel:
        """The work of one kernel: its class, amounts, memory traffic and the nodes that it computes.

        `inside` has how many elements of each node are computed in it, `reads` how many of each stored value are read;
        a value that is read more often than it has elements costs an operation for each further read. Nodes in
        `claimed` count in an earlier kernel; those that are new are added to it.
        """
        program, specs = self.program, self.program.specs
        stored = self._written(members)
        traffic = sum(specs[each].nbytes for each in members if each in self.needed)
        functions = others = amount = 0.0
        for node, count in reads.items():
            spec = specs[node]
            traffic += int(min(spec.nbytes, count * spec.nbytes / max(spec.size, 1)))
            # What is read more than once is near, but has to be read.
            others += max(0.0, count - spec.size)
        main: Cost | None = None
        longer = 1.0
        for node, count in inside.items():
            if program.nodes[node].op.is_source and node not in members:
                continue
            cost = self.costs[node]
            share = count / max(specs[node].size, 1)
            if cost.kind == "transcendental":
                functions += cost.flops * weight_of(program.nodes[node].op, specs[node]) * share
            elif cost.kind == "elementwise":
                others += cost.flops * share
            elif cost.kind == "reduce":
                # Of a sum of values that are made on the way, as much as if they had been read.
                amount = max(amount, cost.flops * 4.0 * share)
                main = cost if main is None else main
            elif main is None or main.kind in ("movement", "reduce"):
                main, longer = cost, convolution_factor(program.nodes[node].op)
        kind: OperationClass = main.kind if main is not None else "elementwise"
        if kind == "movement" and functions + others:
            kind = "elementwise"
        if kind in ("elementwise", "movement", "indexing", "reduce", "scan", "creation"):
            amount = max(amount, float(traffic))
        elif main is not None:
            amount = amount_of(main) * longer
        elements = max((int(count) for count in inside.values()), default=0)
        own = sorted({*members, *inside} - (claimed - set(members)))
        claimed.update(own)
        wide = any(is_wide(program, node) for node in (*members, *inside))
        return Kernel(
            kind, amount, traffic, elements, int(functions), int(others), wide, tuple(own), tuple(reads), stored
        )

    def _written(self, members: Iterable[int]) -> tuple[int, ...]:
        """The values, and the results that are views of them."""
        found = dict.fromkeys(member for member in members if member in self.needed)
        for output, base in self.base.items():
            if base in found and output != base:
                found[output] = None
        return tuple(sorted(found))


def _base_of(program: Program, output: int) -> int:
    """The value that a result is: a reshape of it needs no kernel."""
    while isinstance(program.nodes[output].op, p.Reshape):
        output = program.nodes[output].inputs[0]
    return output


def _is_shifting(op: p.Primitive) -> bool:
    """Whether what it reads is at other positions than what it gives."""
    return op.is_shifting or not (op.is_elementwise or op.is_view or isinstance(op, p.Reduce))


def _parts(program: Program, root: int) -> int:
    """Into how many parts the rows of a reduction are cut, about."""
    op, inputs = program.nodes[root]
    rows, length = row_sizes(program, root)
    shape = program.specs[inputs[0]].shape
    last = last_long_axis(shape)
    if isinstance(op, p.Reduce) and last not in op.axes and rows > 1:
        return max(1, min(length // 64, 256)) if rows < _FEW_COLUMNS and length >= _LONG_COLUMN else 1
    return max(1, length // (_LONG_ROW // 2)) if rows < _FEW_ROWS and length >= _LONG_ROW else 1


def _same_rows(one: _Group, other: _Group) -> bool:
    return (one.shape, one.axes) == (other.shape, other.axes)


def _without_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(length for length in shape if length > 1)
