"""The cost of a program before it runs: arithmetic, memory traffic, and the memory that it needs at once.

The figures are those of the graph as it stands, each node on its own. They assume:

- Reshape, permute, broadcast, slice, flip and windows are views: they cost nothing, own no memory, and keep alive what
  they look at. Who reads a view reads no more than there is behind it. A view that is a result is written out.
- The caller holds the inputs, so they are counted throughout. Everything else is let go after its last use, in the
  order of the nodes; while a node runs, its inputs and its result are there together.
- Of a decomposition, the first part pays for all.
- An engine that fuses does less traffic than this, and never more arithmetic.

All figures are integers and exact for what they count, whatever the sizes.
"""

from __future__ import annotations

import msgspec

from anygpu.program.graph import Node, Program
from anygpu.program.ops.source import Constant, Input
from anygpu.program.primitive import OperationClass as OperationClass


class Cost(msgspec.Struct, frozen=True):
    """The cost of one node, or of all nodes of one class. A transcendental function counts as one operation."""

    flops: int
    bytes_read: int
    bytes_written: int
    kind: OperationClass


class ProgramCost(msgspec.Struct, frozen=True):
    flops: int
    #: By all nodes, as they read from and write to the device's memory.
    bytes_read: int
    bytes_written: int
    #: Bytes that cross to the device and back, if inputs and results live elsewhere.
    bytes_in: int
    bytes_out: int
    #: The most that is held at once, inputs and results included.
    peak_bytes: int
    nodes: int
    #: Nodes that do something when the program runs: neither inputs nor constants nor views.
    kernels: int
    by_kind: dict[OperationClass, Cost]


def node_cost(program: Program, position: int) -> Cost:
    return _cost(program, position, owners_of(program), _is_paid_for(program, position))


def node_costs(program: Program) -> list[Cost]:
    """The costs of all nodes, each as `node_cost` has it."""
    owners = owners_of(program)
    decomposed: set[Node] = set()
    costs = []
    for position, node in enumerate(program.nodes):
        paid = False
        whole = _whole(node)
        if whole is not None:
            paid = whole in decomposed
            decomposed.add(whole)
        costs.append(_cost(program, position, owners, paid))
    return costs


def program_cost(program: Program) -> ProgramCost:
    owners = owners_of(program)
    totals: dict[OperationClass, list[int]] = {}
    kernels = 0
    for position, cost in enumerate(node_costs(program)):
        total = totals.setdefault(cost.kind, [0, 0, 0])
        total[0] += cost.flops
        total[1] += cost.bytes_read
        total[2] += cost.bytes_written
        kernels += owners[position] == position and not isinstance(program.nodes[position].op, Input | Constant)
    totals.pop("input", None)
    return ProgramCost(
        flops=sum(total[0] for total in totals.values()),
        bytes_read=sum(total[1] for total in totals.values()),
        bytes_written=sum(total[2] for total in totals.values()),
        bytes_in=sum(spec.nbytes for spec in program.inputs),
        bytes_out=sum(spec.nbytes for spec in program.results),
        peak_bytes=_peak(program, owners),
        nodes=len(program),
        kernels=kernels,
        by_kind={kind: Cost(total[0], total[1], total[2], kind) for kind, total in totals.items()},
    )


def lifetimes(program: Program) -> list[int]:
    """For each value the node that uses it last: itself when it is unused, and past the end when it is a result."""
    last = list(range(len(program)))
    for position, node in enumerate(program.nodes):
        for source in node.inputs:
            last[source] = position
    for output in program.outputs:
        last[output] = len(program)
    return last


def last_uses(program: Program) -> list[list[int]]:
    """For each node, the values that are not needed after it."""
    return _released(lifetimes(program))


def _released(last: list[int]) -> list[list[int]]:
    result: list[list[int]] = [[] for _ in last]
    for value, position in enumerate(last):
        if position < len(last):
            result[position].append(value)
    return result


def owners_of(program: Program) -> list[int]:
    """For each value the one whose memory it is in: its own, or that of what a view looks at."""
    outputs = set(program.outputs)
    owners: list[int] = []
    for position, (op, inputs) in enumerate(program.nodes):
        is_view = op.is_view and position not in outputs
        owners.append(owners[inputs[0]] if is_view else position)
    return owners


def _peak(program: Program, owners: list[int]) -> int:
    last = lifetimes(program)
    for value, owner in enumerate(owners):
        last[owner] = max(last[owner], last[value])
    released = _released(last)
    held = peak = sum(spec.nbytes for spec in program.inputs)
    for position in range(program.input_count, len(program)):
        if owners[position] == position:
            held += program.specs[position].nbytes
            peak = max(peak, held)
        held -= sum(
            program.specs[value].nbytes
            for value in released[position]
            if owners[value] == value and value >= program.input_count
        )
    return peak


def _whole(node: Node) -> Node | None:
    """The decomposition, or the launch, of which a node is one result; `None` for a node that is all of it."""
    first = node.op.first_result
    return None if first is None else Node(first, node.inputs)


def _is_paid_for(program: Program, position: int) -> bool:
    whole = _whole(program.nodes[position])
    return whole is not None and any(_whole(earlier) == whole for earlier in program.nodes[:position])


def _cost(program: Program, position: int, owners: list[int], paid: bool) -> Cost:
    op, sources = program.nodes[position]
    result = program.specs[position]
    kind = op.operation_class
    if isinstance(op, Input) or owners[position] != position:
        return Cost(0, 0, 0, kind)
    if paid:
        return Cost(0, 0, result.nbytes, kind)
    inputs = [program.specs[source] for source in sources]
    return Cost(op.flops(inputs, result), _read(program, position, owners), result.nbytes, kind)


def _read(program: Program, position: int, owners: list[int]) -> int:
    """Bytes: what is used twice is read once, and behind a view there may be less than it shows."""
    op, sources = program.nodes[position]
    behind = {source: min(program.specs[source].nbytes, program.specs[owners[source]].nbytes) for source in sources}
    most = op.most_read(program.specs[position].nbytes, [behind[source] for source in sources])
    return min(sum(behind.values()), most)
