"""The slots of a program's nests: buffers, the rules that their values can break, and transposed copies of matrices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import msgspec

from anygpu.engines.codegen.index import Index, flat
from anygpu.engines.codegen.kernel import Check, Slot
from anygpu.engines.codegen.kernel_ir import Buffer, Loop, Report, Statement, Store, names_used
from anygpu.engines.codegen.lower import Stored, buffer_names, single_value, spec_of_parts
from anygpu.engines.codegen.nests.lowering import NestLowering
from anygpu.engines.codegen.nests.roots import Root, axis_name
from anygpu.engines.codegen.nests.steps import Nest, NestCost, Scratch, Written, noted_nodes
from anygpu.engines.codegen.target import components
from anygpu.program.dtypes import ITEMSIZE, KIND, DType
from anygpu.program.graph import Program
from anygpu.program.primitives import Binary, Broadcast, Constant, Gather, Reshape

if TYPE_CHECKING:
    from anygpu.engines.codegen.nests.plan import NestGroup

SlotRole = Literal["input", "constant", "temporary", "output", "status"]

_FREE = NestCost()
_RESERVED = ("begin", "end", "part", "status", "row", "column")


class NestStorage:
    """Buffers and checks of one program while it is scheduled."""

    def __init__(self, program: Program, written: Written, ranks: Sequence[int] = ()) -> None:
        self.program = program
        self.written = written
        self.ranks = ranks
        self.noted = noted_nodes(program, ranks)
        self.slots: list[Slot] = []
        self.slot_of: dict[int, int] = {}
        self.stored: dict[int, Stored] = {}
        self.buffers: dict[str, Buffer] = {}
        #: Copies of matrices with their axes turned.
        self.turned: dict[int, Stored] = {}
        self.checks: list[Check] = []
        self.status: int | None = None
        self._rules: dict[int, int] = {}
        self._names = buffer_names(program)
        for node, spec in enumerate(program.inputs):
            self.declare(node, "input")
            assert self.slot_of[node] == node, spec

    def declare(self, node: int, role: SlotRole) -> None:
        """A slot for all of a node's values."""
        if node in self.stored:
            return
        op = self.program.nodes[node].op
        data = op.data if isinstance(op, Constant) else None
        dtype, size = spec_of_parts(self.program.specs[node])
        name = self._names[node]
        self.slot_of[node] = self.new_buffer(name, dtype, size, "constant" if data is not None else role, data)
        self.stored[node] = Stored(name, dtype)

    def new_buffer(
        self, name: str, dtype: DType, size: int, role: SlotRole = "temporary", data: bytes | None = None
    ) -> int:
        slot = len(self.slots)
        self.slots.append(Slot(size * ITEMSIZE[dtype], role, data))
        self.buffers[name] = Buffer(name, slot, dtype, size)
        return slot

    # -- rules that values can break

    def rule_of(self, node: int) -> int | None:
        """The number of a node's check, which is planned when it is asked for first; `None` if nothing can happen."""
        if node not in self._rules:
            check = self._check(node)
            if check is None:
                return None
            self._rules[node] = check.number
            self.checks.append(check)
            if self.status is None:
                self.status = self.new_buffer("status", "uint32", 0, "status")
            self.slots[self.status] = Slot(4 * len(self.checks), "status")
            self.buffers["status"] = Buffer("status", self.status, "uint32", len(self.checks))
        return self._rules[node]

    def _check(self, node: int) -> Check | None:
        op, inputs = self.program.nodes[node]
        specs = self.program.specs
        if isinstance(op, Gather) and specs[inputs[1]].size:
            return Check(len(self.checks), "index", specs[inputs[0]].shape[op.axis])
        power = isinstance(op, Binary) and op.fn == "power" and KIND[specs[node].dtype] == "signed"
        if power and not _surely_not_negative(self.program, inputs[1]):
            return Check(len(self.checks), "negative_power")
        return None

    # -- nests

    def lowering(self, without: Sequence[int] = ()) -> NestLowering:
        """For a nest that computes the nodes `without` itself."""
        stored = {node: where for node, where in self.stored.items() if node not in without}
        result = NestLowering(
            self.program,
            stored,
            self.rule_of,
            taken=(*self.buffers, *_RESERVED),
            ranks=self.ranks,
            written=self.written,
            noted=self.noted,
        )
        result.buffers = self.stored
        result.turned = self.turned
        return result

    def nest(
        self,
        name: str,
        body: Sequence[Statement],
        *,
        scratch: Sequence[Scratch] = (),
        count: int = 1,
        grain: int = 1,
        cost: NestCost = _FREE,
    ) -> Nest:
        """A nest of these statements, with the buffers that they use."""
        used, written = names_used(body), _written(body)
        buffers = tuple(
            msgspec.structs.replace(buffer, access="read_write" if buffer.name in written else "read")
            for buffer in self.buffers.values()
            if buffer.name in used
        )
        arrays = tuple(each for each in scratch if each.name in used)
        return Nest(name=name, buffers=buffers, body=tuple(body), scratch=arrays, count=count, grain=grain, cost=cost)


def _written(body: Sequence[Statement]) -> set[str]:
    written: set[str] = set()
    for statement in body:
        match statement:
            case Store():
                written.add(statement.buffer)
            case Report():
                written.add("status")
            case Loop():
                written |= _written(statement.body)
    return written


def _surely_not_negative(program: Program, node: int) -> bool:
    """Whether it is a constant, repeated or not, of 0 or more."""
    op, inputs = program.nodes[node]
    while isinstance(op, Broadcast | Reshape):
        op, inputs = program.nodes[inputs[0]]
    value = single_value(op) if isinstance(op, Constant) else None
    return value is not None and not isinstance(value, complex) and value >= 0


# -- transposed copies, so that lanes find their neighbours beside each other


#: A matrix is turned when each of its elements is read at least so often.
_READ_OFTEN = 4


def worth_turning(storage: NestStorage, group: NestGroup) -> list[int]:
    """Matrices that lanes of the group would read with gaps, again and again.

    Worth 2.7 times for distances between all pairs.
    """
    members = {member.root.node for member in group.members}
    found: dict[int, None] = {}
    for member in group.members:
        root = member.root
        lane = axis_name(_lane_axis(root))
        for node, positions in root.reads:
            spec = storage.program.specs[node]
            if node in members or node not in storage.stored or node in storage.turned:
                continue
            if len(spec.shape) != 2 or components(spec.dtype) > 1 or root.size < _READ_OFTEN * spec.size:
                continue
            step = flat(positions, spec.shape).steps_with(lane)
            if step not in (0, 1) and flat(positions[::-1], spec.shape[::-1]).steps_with(lane) == 1:
                found[node] = None
    return list(found)


def _lane_axis(root: Root) -> int:
    """The last axis that is a loop and longer than 1."""
    last = len(root.shape) - root.tail - 1
    while last > 0 and root.shape[last] == 1:
        last -= 1
    return last


def turning_nest(storage: NestStorage, node: int) -> Nest:
    """A copy of a matrix with its axes turned."""
    rows, columns = storage.program.specs[node].shape
    dtype = storage.stored[node].dtype
    name = f"{storage.stored[node].buffer}_turned"
    lowering = storage.lowering()
    storage.new_buffer(name, dtype, rows * columns)

    def row(index: Index) -> None:
        def column(other: Index) -> None:
            (value,) = lowering.value(node, (other, index))
            lowering.add(Store(name, index * rows + other, value))

        lowering.loop("column", 0, rows, column)

    lowering.loop("row", 0, columns, row)
    storage.turned[node] = Stored(name, dtype)
    return storage.nest(f"turn_{node}", lowering.statements)
