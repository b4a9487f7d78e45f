"""Which kernels a program becomes, roughly and quickly: enough to predict time and memory, not to generate code.

An engine that does not fuse has one kernel for each operation. One that fuses stores few values: results, what matrix
products, sums, sorts and the like make, and what these need whole. Everything else is computed inside of the kernels
that use it. The rules here are those of `anygpu.codegen` (`materialise`, `grouping`) without looking at positions. The
rules there need a target and take several times as long, and predictions are made before anything is compiled.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

from anygpu.plan.calibration import amount_of
from anygpu.program import primitives as p
from anygpu.program.costs import Cost, OperationClass, node_costs
from anygpu.program.dtypes import ITEMSIZE, KIND
from anygpu.program.graph import Program
from anygpu.program.primitives import Primitive

#: A matrix product reads its operands many times: more than this many operations are not done again each time.
_OPERATIONS_IN_AN_OPERAND = 2
#: Sums of fewer elements are done on the way to something else.
_SHORT = 4
_MOST_NODES = 160

#: Kernels compute with words of 32 bits, and what they keep for one another is stored as that.
_WORD = 4

#: How much longer than `tanh` functions take on processors of all kinds, roughly; what is not here takes about as long.
_WEIGHTS: dict[str, float] = {
    "sqrt": 0.5,
    "sin": 1.5,
    "cos": 1.5,
    "tan": 2.0,
    "sinh": 1.5,
    "atan2": 2.0,
    "power": 3.0,
    "hypot": 4.0,
    "fmod": 12.0,
    "remainder": 12.0,
    "floor_divide": 16.0,
    "gcd": 16.0,
}
_MOST_OF_INTEGERS = 3.0
#: Choosing one of two values by itself, element by element, is hard to foresee for a processor.
_WEIGHT_OF_A_SELECTION = 4.0


class Kernel(NamedTuple):
    """The work of one kernel."""

    #: The class of what it is there for, and how much of that it does (see `amount_of`).
    kind: OperationClass
    amount: float
    #: Bytes that it reads from memory and writes there.
    traffic: int
    #: Elements of the largest value that it computes.
    elements: int
    #: Operations that it does besides: functions such as `exp`, and everything else that is elementwise.
    functions: int
    others: int
    #: Whether it computes in 64-bit types.
    wide: bool
    nodes: tuple[int, ...]
    #: The values that it finds in memory, inputs among them, and those that it leaves there.
    reads: tuple[int, ...]
    stored: tuple[int, ...]


class Structure(NamedTuple):
    """A program as kernels, in an order in which they can run."""

    kernels: tuple[Kernel, ...]
    #: Bytes that cross to the device and back, if inputs and results live elsewhere.
    bytes_in: int
    bytes_out: int
    #: The most that is held at once: inputs, results and tables all the time, what is between while it is needed.
    peak_bytes: int


@lru_cache(maxsize=1024)
def structure_of(program: Program, *, fuses: bool) -> Structure:
    kernels = _Fused(program).kernels() if fuses else _one_by_one(program)
    bytes_in = sum(spec.nbytes for spec in program.inputs)
    bytes_out = sum(spec.nbytes for spec in program.results)
    ends = bytes_in + bytes_out + sum(spec.nbytes for spec in tables_of(program))
    return Structure(kernels, bytes_in, bytes_out, ends + most_at_once(temporaries_of(program, kernels)))


def tables_of(program: Program) -> list[p.Spec]:
    """Constants that are more than a number; they stay on the device with the program."""
    pairs = zip(program.nodes, program.specs, strict=True)
    return [spec for node, spec in pairs if isinstance(node.op, p.Constant) and spec.size > 1]


class Temporary(NamedTuple):
    """Memory that is needed from one kernel to another, by their numbers."""

    nbytes: int
    first: int
    last: int


def temporaries_of(program: Program, kernels: Sequence[Kernel]) -> list[Temporary]:
    """The values between inputs and results, in words as kernels compute with them."""
    outputs = set(program.outputs)
    last: dict[int, int] = {}
    for number, kernel in enumerate(kernels):
        for value in kernel.reads:
            last[value] = number
    found: list[Temporary] = []
    for number, kernel in enumerate(kernels):
        found += [
            Temporary(_words(program.specs[value]), number, last.get(value, number))
            for value in kernel.stored
            if value not in outputs
        ]
        for node in kernel.nodes:
            passing = _passing(program, node)
            if passing:
                found.append(Temporary(passing, number, number))
    return found


def most_at_once(blocks: Iterable[tuple[int, int, int]]) -> int:
    """The most bytes that are held at one moment, of blocks that are each held from a first moment to a last."""
    changes: dict[int, int] = {}
    for nbytes, first, last in blocks:
        changes[first] = changes.get(first, 0) + nbytes
        changes[last + 1] = changes.get(last + 1, 0) - nbytes
    held = most = 0
    for moment in sorted(changes):
        held += changes[moment]
        most = max(most, held)
    return most


def _passing(program: Program, node: int) -> int:
    """The temporary memory of an operation that goes over its values several times."""
    op, inputs = program.nodes[node]
    # Several updates of one element are sorted by their places first, or put into copies that are joined later.
    largest = inputs[2] if isinstance(op, p.Scatter) else node
    return op.scratch_copies * _words(program.specs[largest])


def _words(spec: p.Spec) -> int:
    return spec.size * max(ITEMSIZE[spec.dtype], _WORD)


def _one_by_one(program: Program) -> tuple[Kernel, ...]:
    #: For each value the one that was computed, which it is or looks at. Views cost nothing, even as results.
    behind: list[int] = []
    found = []
    for position, cost in enumerate(node_costs(program)):
        op, inputs = program.nodes[position]
        is_view = op.is_view
        behind.append(behind[inputs[0]] if is_view else position)
        if is_view or isinstance(op, p.Input | p.Constant):
            continue
        traffic = cost.bytes_read + cost.bytes_written
        amount = amount_of(cost) * _weight(op, program.specs[position], _WEIGHT_OF_A_SELECTION)
        wide = is_wide(program, position)
        elements = program.specs[position].size
        reads = tuple(behind[source] for source in inputs)
        found.append(Kernel(cost.kind, amount, traffic, elements, 0, 0, wide, (position,), reads, (position,)))
    return tuple(found)


def _weight(op: Primitive, spec: p.Spec, of_a_selection: float = 1.0) -> float:
    if isinstance(op, p.Unary | p.Binary):
        weight = _WEIGHTS.get(op.fn, 1.0)
        return weight if KIND[spec.dtype] in ("float", "complex") else min(weight, _MOST_OF_INTEGERS)
    return of_a_selection if isinstance(op, p.Select) else 1.0


def is_wide(program: Program, position: int) -> bool:
    """Whether an operation is one of 64-bit numbers."""
    op, inputs = program.nodes[position]
    # Positions are 64-bit integers, whatever is sorted or searched.
    return _is_wide(program.specs[inputs[0] if op.gives_positions else position])


def _is_wide(spec: p.Spec) -> bool:
    return ITEMSIZE[spec.dtype] == (16 if KIND[spec.dtype] == "complex" else 8)


class _Group:
    """A kernel in the making."""

    __slots__ = ("is_read", "kind", "length", "level", "members", "rows", "size")

    def __init__(self, kind: str, first: int, level: int, size: int, rows: int = 0, length: int = 0) -> None:
        #: map, rows, product or other.
        self.kind = kind
        self.members = [first]
        #: More than that of every group that it reads, so that joining it cannot close a circle.
        self.level = level
        self.size = size
        self.rows = rows
        self.length = length
        #: Whether another group reads what it stores: then its level stays.
        self.is_read = False


class _Fused:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.costs = node_costs(program)
        self.sizes = [spec.size for spec in program.specs]
        #: For each value what it is a view of, and whether it has its elements elsewhere.
        self.behind: list[int] = []
        self.moved: list[bool] = []
        self.home: list[_Group | None] = []
        self.groups: list[_Group] = []

    def kernels(self) -> tuple[Kernel, ...]:
        outputs = set(self.program.outputs)
        for position, (op, inputs) in enumerate(self.program.nodes):
            is_view = op.is_view
            self.behind.append(self.behind[inputs[0]] if is_view else position)
            self.moved.append(is_view and (self.moved[inputs[0]] or op.is_shifting))
            self.home.append(self.home[inputs[0]] if is_view else None)
            if is_view:
                if position in outputs:
                    self._store_view(position, inputs[0])
            elif not op.is_source:
                self._place(position, op, inputs)
            elif isinstance(op, p.Iota) and position in outputs:
                self._start(_Group("map", position, 0, self.sizes[position]), ())
        return self._finished(outputs)

    def _store_view(self, position: int, source: int) -> None:
        """A view that is a result is written by the kernel that makes its values, or by one of its own."""
        home = self.home[source]
        if home is None or (self.moved[position] and home.kind != "map") or self.sizes[position] > home.size:
            self._start(_Group("map", position, self._level((source,)), self.sizes[position]), (source,))
            self.moved[position], self.behind[position] = False, position

    def _place(self, position: int, op: Primitive, inputs: tuple[int, ...]) -> None:
        size = self.sizes[position]
        if isinstance(op, p.Reduce):
            length = self.sizes[inputs[0]] // max(size, 1)
            if length > _SHORT:
                self._place_reduction(position, inputs[0], size, length)
                return
        elif isinstance(op, p.Contract):
            if not _is_short(self.program, position, op):
                cheap = [each for each in inputs if self._is_cheap(each)]
                self._start_with(_Group("product", position, 0, size), inputs, cheap)
                return
        elif op.has_own_kernels:
            self._start_with(_Group("other", position, 0, size), inputs, inputs)
            return
        # What is not elementwise takes elements from other positions, so it never ends another kernel.
        self._place_map(position, inputs, shifting=not op.is_elementwise)

    def _place_reduction(self, position: int, source: int, rows: int, length: int) -> None:
        group = self.home[source]
        same = group is not None and group.kind == "rows" and (group.rows, group.length) == (rows, length)
        if group is not None and same and not self.moved[source]:
            self._join(group, position)
            return
        self._start_with(_Group("rows", position, 0, rows * length, rows, length), (source,), (source,))

    def _place_map(self, position: int, inputs: tuple[int, ...], *, shifting: bool) -> None:
        size = self.sizes[position]
        around: list[_Group] = []
        joinable: list[_Group] = []
        for source in inputs:
            group = self.home[source]
            if group is None or group in around:
                continue
            around.append(group)
            if len(group.members) > _MOST_NODES or group.kind == "other":
                continue
            if group.kind == "map" or (not shifting and not self.moved[source] and _ends(group, size)):
                joinable.append(group)
        for home in sorted(joinable, key=lambda group: -group.level):
            rest = [group for group in around if group is not home]
            kept = [group for group in rest if not (group.kind == "map" and group in joinable and not group.is_read)]
            level = max((group.level + 1 for group in kept), default=0)
            if level <= home.level or not home.is_read:
                home.level = max(home.level, level)
                for group in rest:
                    if group in kept:
                        group.is_read = True
                    else:
                        self._absorb(home, group)
                self._join(home, position)
                home.size = max(home.size, size)
                return
        self._start(_Group("map", position, self._level(inputs), size), inputs)

    def _is_cheap(self, source: int) -> bool:
        group = self.home[source]
        if group is None or group.kind != "map" or len(group.members) > _OPERATIONS_IN_AN_OPERAND:
            return False
        return all(self.costs[member].kind != "transcendental" for member in group.members)

    def _level(self, inputs: tuple[int, ...]) -> int:
        return max((group.level + 1 for each in inputs if (group := self.home[each]) is not None), default=0)

    def _start_with(self, group: _Group, inputs: tuple[int, ...], inside: tuple[int, ...] | list[int]) -> None:
        """A new kernel, which itself computes those of its inputs that no kernel stores."""
        for source in inside:
            below = self.home[source]
            if below is not None and below.kind == "map" and not below.is_read:
                group.level = max(group.level, below.level)
                self._absorb(group, below)
        group.level = max(group.level, self._level_without(group, inputs))
        self._start(group, inputs)

    def _level_without(self, own: _Group, inputs: tuple[int, ...]) -> int:
        homes = [self.home[each] for each in inputs]
        return max((home.level + 1 for home in homes if home is not None and home is not own), default=0)

    def _start(self, group: _Group, inputs: tuple[int, ...]) -> None:
        for source in inputs:
            below = self.home[source]
            if below is not None and below is not group:
                below.is_read = True
        self.groups.append(group)
        self.home[group.members[0]] = group

    def _join(self, group: _Group, position: int) -> None:
        group.members.append(position)
        self.home[position] = group

    def _absorb(self, group: _Group, other: _Group) -> None:
        group.members += other.members
        for position, home in enumerate(self.home):
            if home is other:
                self.home[position] = group
        if other in self.groups:
            self.groups.remove(other)

    # -- what they do

    def _finished(self, outputs: set[int]) -> tuple[Kernel, ...]:
        stored: dict[int, None] = dict.fromkeys(output for output in outputs)
        reads: dict[int, dict[int, int]] = {id(group): {} for group in self.groups}
        nodes, specs = self.program.nodes, self.program.specs
        for group in self.groups:
            own = reads[id(group)]
            for member in group.members:
                for source in nodes[member].inputs:
                    behind = self.behind[source]
                    home = self.home[behind]
                    if home is group or (home is None and isinstance(nodes[behind].op, p.Iota)):
                        continue
                    own[behind] = max(own.get(behind, 0), min(specs[source].nbytes, specs[behind].nbytes))
                    if home is not None:
                        stored[behind] = None
        by_group: dict[int, list[int]] = {}
        for position in stored:
            home = self.home[position]
            if home is not None:
                by_group.setdefault(id(home), []).append(position)
        ordered = sorted(self.groups, key=lambda group: group.level)
        return tuple(
            self._kernel(group, reads[id(group)], tuple(sorted(by_group.get(id(group), ()))))
            for group in ordered
            if id(group) in by_group
        )

    def _kernel(self, group: _Group, reads: dict[int, int], stored: tuple[int, ...]) -> Kernel:
        traffic = sum(reads.values()) + sum(self.program.specs[each].nbytes for each in stored)
        main: Cost | None = None
        functions = others = 0
        amount = 0.0
        for member in group.members:
            cost = self.costs[member]
            if cost.kind == "transcendental":
                functions += int(cost.flops * _weight(self.program.nodes[member].op, self.program.specs[member]))
            elif cost.kind == "elementwise":
                others += cost.flops
            elif cost.kind == "reduce":
                # Of a sum of values that are made on the way, as much as if they had been read.
                amount = max(amount, float(cost.flops * 4))
                main = cost if main is None else main
            elif main is None or main.kind in ("movement", "reduce"):
                main = cost
        kind: OperationClass = main.kind if main is not None else "elementwise"
        if kind == "movement" and functions + others:
            kind = "elementwise"
        if kind in ("elementwise", "movement", "indexing", "reduce", "scan", "creation"):
            amount = max(amount, float(traffic))
        elif main is not None:
            amount = amount_of(main)
        wide = any(is_wide(self.program, member) for member in group.members)
        nodes = tuple(sorted(group.members))
        return Kernel(kind, amount, traffic, group.size, functions, others, wide, nodes, tuple(reads), stored)


def _ends(group: _Group, size: int) -> bool:
    """Whether something of that size can be the end of a kernel."""
    return size in ((group.rows, group.size) if group.kind == "rows" else (group.size,))


def _is_short(program: Program, position: int, op: p.Contract) -> bool:
    inputs = program.nodes[position].inputs
    shape = program.specs[inputs[0]].shape
    length = p.product(tuple(shape[axis] for axis in op.left))
    smaller = min(program.specs[each].size for each in inputs) // max(length, 1)
    return length <= 32 and smaller <= 4 and length * smaller <= 64
