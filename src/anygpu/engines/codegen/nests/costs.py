"""Costs of loops: the operations of one element, and from these the lanes of a loop and the size of a part."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec

from anygpu.engines.codegen.kernel_ir import (
    Apply,
    Assign,
    Choose,
    Expr,
    Let,
    Literal,
    Load,
    Loop,
    Name,
    Report,
    Statement,
    Store,
)
from anygpu.engines.codegen.kernel_ir import Variable as Changing
from anygpu.engines.codegen.lower import single_value
from anygpu.engines.codegen.nests.steps import NestCost
from anygpu.program.functions import FUNCTIONS
from anygpu.program.graph import Program
from anygpu.program.primitives import (
    Binary,
    Broadcast,
    Cast,
    Constant,
    Contract,
    Reduce,
    Reshape,
    Select,
    Unary,
    product,
)

if TYPE_CHECKING:
    from anygpu.engines.codegen.nests.roots import Root
    from anygpu.engines.codegen.nests.storage import NestStorage

#: Instructions of each function, for one vector.
WEIGHTS = {fn: row.instructions for fn, row in FUNCTIONS.items()}
#: Exponents of powers that are a root and a product or two.
_ROOTS = (-1.0, -0.5, 0.5, 1.5, 4.0)
#: What weighs as much is a call of a function.
_CALL = 10.0

#: Operations of a part, so that starting it on another thread (about a microsecond) is lost among them: 30 µs or so.
PART = 100_000.0
#: What reading and writing a vector takes on average, when data is larger than caches.
_MEMORY = 4.0
#: More parts than any machine has threads, several times over, so that they end together.
MOST_PARTS = 256


class LoopEstimate(msgspec.Struct, frozen=True):
    """What computing one element takes."""

    operations: float = 0.0
    functions: float = 0.0
    #: Bytes of the type that lanes are counted in.
    width: int = 8
    #: Values that are needed again at once, at most.
    live: int = 0

    @property
    def weight(self) -> float:
        return self.operations + self.functions

    def of_lanes(self, vector_bytes: int) -> float:
        """The weight of one element where a vector of them is computed at once, and what it reads comes from afar."""
        return (self.weight + _MEMORY) * self.width / vector_bytes


def estimated(statements: Sequence[Statement]) -> LoopEstimate:
    """Of one round of these statements; loops in them are counted once for each of their rounds."""
    totals = [0.0, 0.0]
    types: set[str] = set()

    def look(expr: Expr, times: float) -> None:
        match expr:
            case Apply():
                types.add(expr.type)
                weight = weight_of(expr)
                totals[weight >= _CALL] += times * weight
                for each in expr.args:
                    look(each, times)
            case Choose():
                totals[0] += times
                for each in (expr.condition, expr.yes, expr.no):
                    look(each, times)
            case Load():
                types.add(expr.type)
                totals[0] += 0.5 * times

    def walk(statement: Statement, times: float) -> None:
        match statement:
            case Let() | Changing() | Assign():
                look(statement.value, times)
            case Store():
                totals[0] += 0.5 * times
                types.add(statement.value.type)
                look(statement.value, times)
            case Report():
                look(statement.condition, times)
            case Loop():
                rounds = statement.stop if isinstance(statement.stop, int) else 1
                for each in statement.body:
                    walk(each, times * rounds)

    for each in statements:
        walk(each, 1.0)
    return LoopEstimate(totals[0], totals[1], _width(types), _live(statements))


def weight_of(expr: Apply) -> float:
    """Instructions of one function, for one vector."""
    if expr.fn in ("opaque", "noted"):
        return 0.0
    if expr.fn == "power" and isinstance(expr.args[1], Literal) and expr.args[1].value in _ROOTS:
        return 8.0
    return WEIGHTS.get(expr.fn, 1.0)


def _width(types: set[str]) -> int:
    """Bytes of a lane: floats decide, and the shorter ones of them, so that their registers are full."""
    if "f32" in types:
        return 4
    return 8 if types & {"f64", "i64", "u64"} else 4


def _live(statements: Sequence[Statement]) -> int:
    """How many of the values that statements name are needed later, at the statement where these are most."""
    last: dict[str, int] = {}
    for number, statement in enumerate(statements):
        for name in _names_in(statement):
            last[name] = number
    most, now = 0, 0
    ends: dict[int, int] = {}
    for number, statement in enumerate(statements):
        now -= ends.pop(number, 0)
        if isinstance(statement, Let) and statement.name in last:
            now += 1
            ends[last[statement.name]] = ends.get(last[statement.name], 0) + 1
        most = max(most, now)
    return most


def _names_in(statement: Statement) -> Iterator[str]:
    waiting: list[object] = [getattr(statement, "value", None), getattr(statement, "condition", None)]
    while waiting:
        match waiting.pop():
            case Name(name=name):
                yield name
            case Apply(args=args):
                waiting += args
            case Choose() as choice:
                waiting += (choice.condition, choice.yes, choice.no)


def lanes_of(estimate: LoopEstimate, vector_bytes: int) -> tuple[int, int]:
    """Lanes of a vector, and vectors in a round: up to 1.5 times over one, by the latency that they hide.

    More than two where little is done, or where four of every value that is alive fit into the registers.
    """
    registers = 32 if vector_bytes >= 64 else 16
    fits = 4 * estimate.live <= registers
    return max(1, vector_bytes // estimate.width), 4 if estimate.weight < 8 or fits else 2


def least_part(weight: float) -> int:
    """The least rounds of a part, for rounds of this weight."""
    return max(1, round(PART / max(weight, 0.01)))


def is_little(weight: float) -> bool:
    """Whether all of this is not worth waking another thread."""
    return weight <= PART


def grain_of(weight: float, count: int, multiple: int = 1) -> int:
    """Rounds of a part, for rounds of this weight: the same however many threads there are."""
    least = max(least_part(weight), -(-count // MOST_PARTS))
    if 2 * least > count:
        return count
    return min(count, -(-least // multiple) * multiple)


def own_weight(program: Program, node: int) -> float:
    """Of one element of a node alone, in operations of a vector."""
    op, inputs = program.nodes[node]
    match op:
        case Unary() | Binary():
            if op.fn == "power":
                return _power_weight(program, inputs[1])
            return WEIGHTS.get(op.fn, 1.0)
        case Select() | Cast():
            return 1.0
        case Reduce():
            shape = program.specs[inputs[0]].shape
            return float(_product(shape[axis] for axis in op.axes))
        case Contract():
            shape = program.specs[inputs[0]].shape
            return 2.0 * _product(shape[axis] for axis in op.left)
    return 0.0


def _power_weight(program: Program, exponent: int) -> float:
    op, inputs = program.nodes[exponent]
    while isinstance(op, Broadcast | Reshape):
        op, inputs = program.nodes[inputs[0]]
    value = single_value(op) if isinstance(op, Constant) else None
    if value is None:
        return WEIGHTS["power"]
    return 2.0 if value in (1, 2, 3, 4) else 8.0 if value in _ROOTS else WEIGHTS["power"]


def _product(numbers: Iterable[int]) -> int:
    return product(tuple(numbers))


def combined(estimates: Sequence[LoopEstimate]) -> LoopEstimate:
    """Of what is computed in one loop."""
    return LoopEstimate(
        sum(each.operations for each in estimates),
        sum(each.functions for each in estimates),
        min((each.width for each in estimates), default=8),
        sum(each.live for each in estimates),
    )


def cost_of(storage: NestStorage, roots: Sequence[Root]) -> NestCost:
    """Of a nest: its operations on all elements, and the bytes of what it reads from memory and writes to it."""
    touched = {node for root in roots for node, _ in root.reads} | {root.node for root in roots}
    nbytes = sum(storage.program.specs[node].nbytes for node in touched if node in storage.stored)
    return NestCost(
        sum(root.estimate.operations * root.size for root in roots),
        sum(root.estimate.functions * root.size for root in roots),
        float(nbytes),
    )


def host_cost(program: Program, node: int) -> NestCost:
    """Of one node that NumPy computes."""
    op, inputs = program.nodes[node]
    specs = [program.specs[source] for source in inputs]
    nbytes = program.specs[node].nbytes + sum(spec.nbytes for spec in specs)
    return NestCost(float(op.flops(specs, program.specs[node])), 0.0, float(nbytes))
