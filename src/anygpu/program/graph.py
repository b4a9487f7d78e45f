"""A program: an immutable graph of primitives in the order in which they can be computed, its cost, and its text.

`Program` is checked when it is made: every node fits its inputs. `Recorder` builds one, with equal nodes recorded once.
Then come costs before a program runs, lifetimes of values, and the program as text.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from anygpu.base.events import drawn
from anygpu.base.lazy import cached_property
from anygpu.base.own_files import blake2b
from anygpu.base.printable import printable
from anygpu.errors import InvalidProgram
from anygpu.program.dtypes import FORMATS, ITEMSIZE, REAL_PART, DType
from anygpu.program.ops.source import Constant, Input
from anygpu.program.primitive import OperationClass as OperationClass
from anygpu.program.primitive import Primitive, Shape, Spec

#: The user's own line that a node comes from: file name and line number.
Line = tuple[str, int]


class Node(NamedTuple):
    """One primitive, applied to the values of earlier nodes, given by their positions."""

    op: Primitive
    inputs: tuple[int, ...] = ()


class Program:
    """An immutable, hashable graph with one or more results.

    Nodes stand in topological order, and the inputs come first. Two programs that compute the same thing by the same
    nodes are equal and have the same `key`, in every process and on every machine.
    """

    __slots__ = ("__dict__", "lines", "nodes", "outputs", "specs")

    nodes: tuple[Node, ...]
    outputs: tuple[int, ...]
    #: Shape and type of every node.
    specs: tuple[Spec, ...]
    #: For each node the user's line, where it is known. No part of the program's identity.
    lines: tuple[Line | None, ...]

    def __init__(
        self, nodes: Iterable[Node], outputs: Sequence[int], *, lines: Sequence[Line | None] | None = None
    ) -> None:
        """A program of nodes, checked.

        `outputs` are positions of nodes, `lines` the user's line of each node. Raises `InvalidProgram` where a node
        does not fit its inputs, or where there is nothing to return.
        """
        self.nodes = tuple(nodes)
        self.outputs = tuple(outputs)
        self.specs = tuple(_infer(self.nodes))
        self.lines = tuple(lines) if lines is not None else (None,) * len(self.nodes)
        if not self.outputs:
            raise InvalidProgram("a program returns at least one value.")
        for output in self.outputs:
            if not 0 <= output < len(self.nodes):
                raise InvalidProgram(f"a program of {len(self.nodes)} nodes cannot return node {output}.")
        if len(self.lines) != len(self.nodes):
            raise InvalidProgram(f"{len(self.lines)} lines for {len(self.nodes)} nodes.")

    @classmethod
    def trusted(
        cls, nodes: tuple[Node, ...], outputs: tuple[int, ...], specs: tuple[Spec, ...], lines: tuple[Line | None, ...]
    ) -> Program:
        """From parts that are known to fit, as a recorder has them; nothing is inferred or checked again."""
        program = object.__new__(cls)
        program.nodes, program.outputs, program.specs, program.lines = nodes, outputs, specs, lines
        return program

    @cached_property
    def input_count(self) -> int:
        return sum(isinstance(node.op, Input) for node in self.nodes)

    @property
    def inputs(self) -> tuple[Spec, ...]:
        return self.specs[: self.input_count]

    @property
    def results(self) -> tuple[Spec, ...]:
        return tuple(self.specs[output] for output in self.outputs)

    @cached_property
    def key(self) -> str:
        """A hash of the content, the same in every process and on every machine."""
        return blake2b(msgspec.msgpack.encode((self.nodes, self.outputs)), digest_size=16).hexdigest()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Program):
            return NotImplemented
        # By its bytes: numbers that are equal, such as 0.0 and -0.0, need not be the same.
        return self is other or self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __len__(self) -> int:
        return len(self.nodes)

    def __repr__(self) -> str:
        ends = ", ".join(map(str, self.inputs)), ", ".join(map(str, self.results))
        return f"<Program {self.key[:8]}: ({ends[0]}) -> ({ends[1]}), {len(self.nodes)} nodes>"

    def __str__(self) -> str:
        return to_text(self)

    def _repr_html_(self) -> str | None:
        return drawn(self)


class Recorder:
    """Builds a program node by node; a node that is already there is not added again."""

    def __init__(self) -> None:
        self._nodes: list[Node] = []
        self._specs: list[Spec] = []
        self._lines: list[Line | None] = []
        self._known: dict[Node, int] = {}

    def spec(self, position: int) -> Spec:
        return self._specs[position]

    def input(self, spec: Spec) -> int:
        """A new input; two of the same shape and type are still two."""
        if self._nodes and not isinstance(self._nodes[-1].op, Input):
            raise InvalidProgram("inputs come before everything else.")
        return self._append(Node(Input(*spec)), spec, None)

    def add(self, op: Primitive, *inputs: int, spec: Spec | None = None, line: Line | None = None) -> int:
        """The position of `op(*inputs)`; its spec is inferred unless the caller has it already."""
        node = Node(op, inputs)
        known = self._known.get(node)
        if known is not None:
            return known
        if spec is None:
            spec = op.infer(*(self._specs[position] for position in inputs))
        position = self._append(node, spec, line)
        self._known[node] = position
        return position

    def _append(self, node: Node, spec: Spec, line: Line | None) -> int:
        self._nodes.append(node)
        self._specs.append(spec)
        self._lines.append(line)
        return len(self._nodes) - 1

    def program(self, outputs: Sequence[int]) -> Program:
        return Program.trusted(tuple(self._nodes), tuple(outputs), tuple(self._specs), tuple(self._lines))


def _infer(nodes: Sequence[Node]) -> Iterator[Spec]:
    """The spec of each node.

    Raises `InvalidProgram` where a node uses a later one, or where inputs do not come first.
    """
    specs: list[Spec] = []
    inputs_are_over = False
    for position, (op, inputs) in enumerate(nodes):
        for earlier in inputs:
            if not 0 <= earlier < position:
                raise InvalidProgram(f"node {position} ({op.name}) uses node {earlier}, which does not come before it.")
        if isinstance(op, Input):
            if inputs_are_over:
                raise InvalidProgram(f"node {position} is an input; inputs come before everything else.")
        else:
            inputs_are_over = True
        specs.append(op.infer(*(specs[earlier] for earlier in inputs)))
    yield from specs


# -- the cost of a program before it runs: arithmetic, memory traffic, and the memory that it needs at once
#
# The figures are those of the graph as it stands, each node on its own. They assume:
#
# - Reshape, permute, broadcast, slice, flip and windows are views: they cost nothing, own no memory, and keep alive
#   what they look at. Who reads a view reads no more than there is behind it. A view that is a result is written out.
# - The caller holds the inputs, so they are counted throughout. Everything else is let go after its last use, in the
#   order of the nodes; while a node runs, its inputs and its result are there together.
# - Of a decomposition, the first part pays for all.
# - An engine that fuses does less traffic than this, and never more arithmetic.
#
# All figures are integers and exact for what they count, whatever the sizes.


class Cost(msgspec.Struct, frozen=True):
    """The cost of one node, or of all nodes of one class. A transcendental function counts as one operation."""

    flops: int
    bytes_read: int
    bytes_written: int
    kind: OperationClass


class ProgramCost(msgspec.Struct, frozen=True):
    """The cost of a whole program, and the memory that it needs."""

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
    """The cost of a program: sums over its nodes in all and by class, and the peak of its memory."""
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
    """The most bytes that are held at once, when nodes run in order and values go after their last use."""
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
    """The cost of one node: nothing for inputs and views, and only the writing where another part has paid."""
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


# -- a program as text that a person can read: one line for each node


#: A constant of more elements is shown by its first ones.
MOST_ELEMENTS = 8
#: Lines are padded up to here, so that types stand in one column but one long line does not push all others away.
WIDEST_COLUMN = 48
#: A longer list of inputs has a line for each.
WIDEST_HEADER = 100


def to_text(program: Program, name: str = "program") -> str:
    """The whole program; `t3` is node 3, as in messages of errors."""
    names = value_names(program)
    steps = [
        (f"{names[position]} = {_step(program, position, names)}", str(program.specs[position]), position)
        for position in range(program.input_count, len(program))
    ]
    left = max((len(step) for step, _, _ in steps if len(step) <= WIDEST_COLUMN), default=0)
    right = max((len(spec) for _, spec, _ in steps if len(spec) <= WIDEST_COLUMN), default=0)
    lines = [_header(program, printable(name), names)]
    for step, spec, position in steps:
        line = line_of(program, position)
        lines.append(f"  {step:<{left}} : " + (f"{spec:<{right}}  # {line}" if line else spec))
    lines.append("  return " + ", ".join(names[output] for output in program.outputs))
    return "\n".join(lines)


def _header(program: Program, name: str, names: Sequence[str]) -> str:
    inputs = [f"{names[position]}: {spec}" for position, spec in enumerate(program.inputs)]
    header = f"{name}({', '.join(inputs)}):"
    return header if len(header) <= WIDEST_HEADER else f"{name}(\n  " + ",\n  ".join(inputs) + "\n):"


def value_names(program: Program) -> list[str]:
    """The name of each value: a, b, c … for inputs, or x0, x1 … when there are many; the others by position."""
    count = program.input_count
    inputs = [chr(ord("a") + i) if count <= 26 else f"x{i}" for i in range(count)]
    return inputs + [f"t{position}" for position in range(count, len(program))]


def line_of(program: Program, position: int) -> str:
    """`score.py:12`, or nothing when the user's line is not known."""
    line: Line | None = program.lines[position]
    if line is None:
        return ""
    file = line[0].replace("\\", "/").rpartition("/")[2]
    return f"{printable(file)}:{line[1]}"


def constant_text(op: Constant) -> str:
    """The values of a constant, or the first of them when there are many."""
    count = math.prod(op.shape)
    shown = _numbers(op.data[: MOST_ELEMENTS * ITEMSIZE[op.dtype]], op.dtype)
    if count > MOST_ELEMENTS:
        return f"[{', '.join(shown)}, … {count:,} in all]"
    return _nested(shown, op.shape)


def _step(program: Program, position: int, names: Sequence[str]) -> str:
    """A node as text: its label, operands and attributes."""
    op, inputs = program.nodes[position]
    if isinstance(op, Constant):
        return f"constant {constant_text(op)}"
    operands = ", ".join(names[source] for source in inputs)
    attributes = op.details([program.specs[source] for source in inputs])
    return " ".join(part for part in (op.label, operands, attributes) if part)


def _numbers(data: bytes, dtype: DType) -> list[str]:
    """Elements as text, each as short as it can be read back."""
    if dtype in REAL_PART:
        parts = _numbers(data, REAL_PART[dtype])
        return [
            f"{real}{'' if imag.startswith('-') else '+'}{imag}j"
            for real, imag in zip(parts[::2], parts[1::2], strict=True)
        ]
    if dtype == "bfloat16":  # the upper half of a float32
        halves = [data[i : i + 2] for i in range(0, len(data), 2)]
        return [_shortest(struct.unpack("<f", b"\0\0" + half)[0], "bfloat16") for half in halves]
    values = [value for (value,) in struct.iter_unpack("<" + FORMATS[dtype], data)]
    return [_shortest(value, dtype) for value in values] if dtype.startswith("float") else list(map(str, values))


def _shortest(value: float, dtype: DType) -> str:
    """The fewest digits that mean the same number in its type: 0.1 and not 0.10000000149011612."""
    if dtype == "float64" or not math.isfinite(value):
        return repr(value)
    for digits in range(1, 10):
        short = float(f"{value:.{digits}g}")
        if _rounded(short, dtype) == value:
            return repr(short)
    return repr(value)


def _rounded(value: float, dtype: DType) -> float:
    """The nearest number of a type; infinite beyond the largest."""
    try:
        if dtype == "bfloat16":
            (bits,) = struct.unpack("<I", struct.pack("<f", value))
            bits += 0x7FFF + (bits >> 16 & 1)
            return float(struct.unpack("<f", struct.pack("<I", bits & 0xFFFF0000))[0])
        code = "<" + FORMATS[dtype]
        return float(struct.unpack(code, struct.pack(code, value))[0])
    except (OverflowError, struct.error):  # rounded up past the largest number of the type
        return math.inf


def _nested(values: Sequence[str], shape: Shape) -> str:
    """The values as nested lists, in the shape of the constant."""
    if not shape:
        return values[0]
    if 0 in shape:
        return "[]"
    step = len(values) // shape[0]
    return f"[{', '.join(_nested(values[i * step : (i + 1) * step], shape[1:]) for i in range(shape[0]))}]"
