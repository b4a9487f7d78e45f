"""What a program costs before it runs: arithmetic, memory traffic, and how much memory it needs at once.

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

from typing import Literal

import msgspec

from anygpu.program.attention import Attend
from anygpu.program.custom import Custom, reference_of
from anygpu.program.dtypes import KIND
from anygpu.program.functions import BinaryFunction, UnaryFunction
from anygpu.program.graph import Node, Program
from anygpu.program.primitives import (
    Argsort,
    Binary,
    Broadcast,
    Cast,
    Concatenate,
    Constant,
    Contract,
    Flip,
    Fourier,
    Gather,
    Input,
    Iota,
    Linear,
    Pad,
    Permute,
    Primitive,
    Reduce,
    Reshape,
    Scan,
    Scatter,
    Search,
    Select,
    Slice,
    Sort,
    Spec,
    Unary,
    Update,
    Windows,
    product,
)

#: Operations that run at about the same speed: one rate for each is what a cost model learns.
OperationClass = Literal[
    "input",
    "creation",
    "elementwise",
    "transcendental",
    "reduce",
    "scan",
    "movement",
    "contraction",
    "indexing",
    "sort",
    "fourier",
    "linear",
]

VIEWS = (Reshape, Permute, Broadcast, Slice, Flip, Windows)

_CLASSES: dict[type[Primitive], OperationClass] = {
    Input: "input",
    Constant: "creation",
    Iota: "creation",
    Unary: "elementwise",
    Binary: "elementwise",
    Select: "elementwise",
    Cast: "elementwise",
    Reduce: "reduce",
    Scan: "scan",
    **dict.fromkeys(VIEWS, "movement"),
    Update: "movement",
    Pad: "movement",
    Concatenate: "movement",
    Contract: "contraction",
    Gather: "indexing",
    Scatter: "indexing",
    Sort: "sort",
    Argsort: "sort",
    Search: "sort",
    Fourier: "fourier",
    Linear: "linear",
    Attend: "contraction",
    Custom: "elementwise",
}

#: Functions that take hardware many instructions, or one slow one.
TRANSCENDENTAL: frozenset[UnaryFunction | BinaryFunction] = frozenset(
    {
        "sqrt",
        "cbrt",
        "exp",
        "exp2",
        "expm1",
        "log",
        "log2",
        "log10",
        "log1p",
        "sin",
        "cos",
        "tan",
        "asin",
        "acos",
        "atan",
        "sinh",
        "cosh",
        "tanh",
        "asinh",
        "acosh",
        "atanh",
        "erf",
        "power",
        "atan2",
        "hypot",
        "floor_divide",
        "remainder",
        "fmod",
        "gcd",
    }
)


class Cost(msgspec.Struct, frozen=True):
    """Of one node, or of all nodes of one class. A transcendental function of a number counts as one operation."""

    flops: int
    bytes_read: int
    bytes_written: int
    kind: OperationClass


class ProgramCost(msgspec.Struct, frozen=True):
    flops: int
    #: By all nodes, as they read from and write to the device's memory.
    bytes_read: int
    bytes_written: int
    #: What crosses to the device and back, if inputs and results live elsewhere.
    bytes_in: int
    bytes_out: int
    #: The most that is held at once, inputs and results included.
    peak_bytes: int
    nodes: int
    #: Nodes that do something when the program runs: neither inputs nor constants nor views.
    kernels: int
    by_kind: dict[OperationClass, Cost]


def operation_class(op: Primitive) -> OperationClass:
    if isinstance(op, Unary | Binary) and op.fn in TRANSCENDENTAL:
        return "transcendental"
    return _CLASSES[type(op)]


def node_cost(program: Program, position: int) -> Cost:
    return _cost(program, position, owners_of(program), _is_paid_for(program, position))


def node_costs(program: Program) -> list[Cost]:
    """Of every node, as `node_cost` has it."""
    owners = owners_of(program)
    decomposed: set[Node] = set()
    costs = []
    for position, node in enumerate(program.nodes):
        paid = False
        if isinstance(node.op, Linear | Custom):
            whole = _whole(node)
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
    """For each value the node that uses it last: itself when nobody does, and past the end when it is a result."""
    last = list(range(len(program)))
    for position, node in enumerate(program.nodes):
        for source in node.inputs:
            last[source] = position
    for output in program.outputs:
        last[output] = len(program)
    return last


def last_uses(program: Program) -> list[list[int]]:
    """For each node, the values that nobody needs after it."""
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
        is_view = isinstance(op, VIEWS) and position not in outputs
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


def _whole(node: Node) -> Node:
    """The decomposition, or the launch, that a part belongs to."""
    first = {"result": 0} if isinstance(node.op, Custom) else {"part": 0}
    return Node(msgspec.structs.replace(node.op, **first), node.inputs)


def _is_paid_for(program: Program, position: int) -> bool:
    node = program.nodes[position]
    if not isinstance(node.op, Linear | Custom):
        return False
    whole, kind = _whole(node), type(node.op)
    return any(isinstance(earlier.op, kind) and _whole(earlier) == whole for earlier in program.nodes[:position])


def _cost(program: Program, position: int, owners: list[int], paid: bool) -> Cost:
    op, sources = program.nodes[position]
    result = program.specs[position]
    kind = operation_class(op)
    if isinstance(op, Input) or owners[position] != position:
        return Cost(0, 0, 0, kind)
    inputs = [program.specs[source] for source in sources]
    # What is used twice is read once, and behind a view there may be less than it shows.
    behind = {source: min(program.specs[source].nbytes, program.specs[owners[source]].nbytes) for source in sources}
    read = sum(behind.values())
    if isinstance(op, Gather):
        read = min(read, result.nbytes + behind[sources[1]])
    if isinstance(op, VIEWS):
        read = min(read, result.nbytes)
    if paid:
        return Cost(0, 0, result.nbytes, kind)
    return Cost(_flops(op, inputs, result), read, result.nbytes, kind)


def _flops(op: Primitive, inputs: list[Spec], result: Spec) -> int:
    match op:
        case Unary() | Binary() | Select() | Cast():
            return result.size * _weight(inputs[-1])
        case Reduce() | Scan():
            return inputs[0].size * _weight(inputs[0])
        case Contract():
            inner = product(tuple(inputs[0].shape[axis] for axis in op.left))
            return 2 * result.size * inner * _weight(result)
        case Scatter():
            return inputs[2].size * _weight(inputs[2]) if op.fn != "set" else 0
        case Sort() | Argsort():
            return inputs[0].size * _log2(inputs[0].shape[op.axis])
        case Search():
            return inputs[1].size * _log2(inputs[0].shape[0])
        case Fourier():
            half = 2 if op.fn in ("rfft", "irfft") else 1
            whole = max(inputs[0], result, key=lambda spec: spec.shape[op.axis]).size
            return 5 * whole * _log2(op.length) // half
        case Linear():
            return _linear_flops(op, inputs)
        case Attend():
            scores = inputs[0].size // max(inputs[0].shape[-1], 1) * inputs[1].shape[-2]
            return 2 * scores * (inputs[0].shape[-1] + result.shape[-1]) // (2 if op.causal else 1)
        case Custom() if op.reference:
            return program_cost(reference_of(op)).flops
        case Custom():  # nobody knows: as if each element of each result took an operation
            return sum(product(shape) for shape in op.shapes)
    return 0


def _linear_flops(op: Linear, inputs: list[Spec]) -> int:
    """The usual counts of textbooks (Golub and Van Loan), for matrices of m × n with m ≥ n."""
    *stack, rows, columns = inputs[0].shape
    n, m = sorted((rows, columns))
    each = {
        "cholesky": n**3 // 3,
        "inv": 2 * n**3,
        "solve": 2 * n**3 // 3 + 2 * n**2 * (inputs[-1].shape[-1]),
        "det": 2 * n**3 // 3,
        "slogdet": 2 * n**3 // 3,
        "qr": 4 * m**2 * n if op.full else 4 * m * n**2,
        "svd": 4 * m**2 * n + 22 * n**3 if op.full else 14 * m * n**2 + 8 * n**3,
        "svdvals": 4 * m * n**2,
        "eigh": 9 * n**3,
        "eigvalsh": 4 * n**3 // 3,
        "eig": 25 * n**3,
    }
    return each[op.fn] * product(tuple(stack)) * _weight(inputs[0])


def _weight(spec: Spec) -> int:
    """A multiplication and addition of complex numbers takes four of real ones."""
    return 4 if KIND[spec.dtype] == "complex" else 1


def _log2(length: int) -> int:
    return max(length - 1, 1).bit_length()
