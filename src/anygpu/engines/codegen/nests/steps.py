"""The result of scheduling a program for a processor: loop nests and host steps, in order, over numbered slots.

`NestProgram` is the result: slots, `Nest` and `HostStep` in order, outputs and checks. Costs follow: `estimated` counts
the operations of one element, `lanes_of` chooses the lanes of a loop from it, and `grain_of` the size of a part, so
that starting a thread pays.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec

from anygpu.engines.codegen.elementwise import converted
from anygpu.engines.codegen.kernel import Check, Output, Slot
from anygpu.engines.codegen.kernel_ir import (
    Apply,
    Assign,
    Buffer,
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
from anygpu.program.dtypes import ITEMSIZE, KIND, DType, is_inexact, is_integer
from anygpu.program.exactness import constant_exponent
from anygpu.program.functions import FUNCTIONS, BinaryFunction
from anygpu.program.graph import Program
from anygpu.program.primitives import (
    Binary,
    Broadcast,
    Cast,
    Concatenate,
    Constant,
    Contract,
    Flip,
    Pad,
    Permute,
    Primitive,
    Reduce,
    Reshape,
    Scan,
    Select,
    Unary,
    product,
)

if TYPE_CHECKING:
    from anygpu.engines.codegen.nests.layout import NestStorage
    from anygpu.engines.codegen.nests.roots import Root


# -- the size of the code that a program may become


#: Code-size limit: generated values per node, and a floor for small programs. A thousand values take 0.05 s. Programs
#: written by hand have 2 to 120 per node.
VALUES_OF_NODE = 500
FEWEST_VALUES = 100_000
#: Lines of a module: LLVM takes a second for 20,000 of them.
MOST_LINES = 200_000


class TooMany(Exception):
    """One loop would compute too many values: it names the node that is computed at most places."""

    def __init__(self, node: int) -> None:
        super().__init__(node)
        self.node = node


class NestTooLarge(Exception):
    """The code of a program would be larger than a compiler should be given."""


class Written:
    """The number of values generated for one program, in all of its loops."""

    def __init__(self, nodes: int) -> None:
        self.most = max(FEWEST_VALUES, VALUES_OF_NODE * nodes)
        self.values = 0

    def add_one(self) -> None:
        """Count one more value. Raises `NestTooLarge` beyond the limit."""
        self.values += 1
        if self.values > self.most:
            raise NestTooLarge(f"its loops compute more than {self.most:,} values")


# -- nests and host steps


class Scratch(msgspec.Struct, frozen=True):
    """An array that each call of a nest has for itself."""

    name: str
    dtype: DType
    size: int

    @property
    def nbytes(self) -> int:
        return self.size * ITEMSIZE[self.dtype]


class NestCost(msgspec.Struct, frozen=True):
    """What a step does, for predictions: arithmetic operations, calls of functions, and bytes from and to memory."""

    operations: float = 0.0
    functions: float = 0.0
    bytes: float = 0.0


class Nest(msgspec.Struct, frozen=True, kw_only=True):
    """One loop nest: `count` rounds of its outermost loop, done in parts of `grain`, in any order and on any thread.

    Parts are the same however many threads there are, and so are results.
    """

    name: str
    buffers: tuple[Buffer, ...]
    body: tuple[Statement, ...]
    scratch: tuple[Scratch, ...] = ()
    count: int = 1
    grain: int = 1
    cost: NestCost = NestCost()

    @property
    def parts(self) -> int:
        return -(-self.count // self.grain)


class HostStep(msgspec.Struct, frozen=True, kw_only=True):
    """One node of the program that NumPy computes, from the slots of its operands into its own."""

    node: int
    sources: tuple[int, ...]
    slot: int
    cost: NestCost = NestCost()


Step = Nest | HostStep


class NestProgram(msgspec.Struct, frozen=True, kw_only=True):
    """A program as steps in order. Inputs have the first slots; every slot is contiguous, in C order."""

    slots: tuple[Slot, ...]
    steps: tuple[Step, ...]
    outputs: tuple[Output, ...]
    #: The slot that is cleared before the steps, and has the broken rules after them (see `Check`).
    status: int | None = None
    checks: tuple[Check, ...] = ()


# -- values that a nest checks because NumPy may warn about them and no result shows it, such as a masked NaN
#
# A NaN or an infinity that is carried into a result is seen there. Others are noted where they get lost: before a
# choice, a comparison, or a division by them. Integers are noted where NumPy warns that one does not fit: casts of
# floats, and sums and products of NumPy's scalars, which have no axes.


_ALL_ARE_THERE = (Reshape, Broadcast, Permute, Flip, Concatenate)

_WRAP: frozenset[BinaryFunction] = frozenset(("add", "subtract", "multiply"))
_QUOTIENTS: frozenset[BinaryFunction] = frozenset(("floor_divide", "remainder", "fmod"))
_INTEGERS = ("signed", "unsigned")
#: A margin for results near the limits of 64-bit integers, where floats are not exact.
_NEARLY = 1.0 - 2.0**-50


def noted_nodes(program: Program, ranks: Sequence[int] = ()) -> frozenset[int]:
    """Return the nodes to be checked: floats that may become NaN or infinite, casts and sums of integers.

    `ranks` is the order in which nodes are computed (default: the order of their numbers).
    """
    count = len(program.nodes)
    order = sorted(range(count), key=ranks.__getitem__) if ranks else list(range(count))
    outputs = set(program.outputs)
    #: Whether a NaN, or an infinity, surely reaches a result or a checked node.
    nan_is_seen, infinity_is_seen = ([node in outputs for node in range(count)] for _ in range(2))
    found = set()
    for node in reversed(order):
        op, inputs = program.nodes[node]
        makes_nan, makes_infinity = _makes(program, node)
        if (makes_nan and not nan_is_seen[node]) or (makes_infinity and not infinity_is_seen[node]):
            found.add(node)
            nan_is_seen[node] = infinity_is_seen[node] = True
        elif _may_not_fit(program, node):
            found.add(node)
        for number, each in enumerate(inputs):
            if KIND[program.specs[each].dtype] == "complex" and not _carries_parts(op):
                continue
            carries = _carries(program, node, number)
            infinity_is_seen[each] |= infinity_is_seen[node] and carries
            nan_is_seen[each] |= nan_is_seen[node] and (carries or _carries_nan(op))
    return frozenset(found)


def _makes(program: Program, node: int) -> tuple[bool, bool]:
    """Return whether an operation may turn numbers into NaN, and finite numbers into infinity."""
    op, inputs = program.nodes[node]
    dtype = program.specs[node].dtype
    if not is_inexact(dtype) or not op.may_raise_flags:
        return False, False
    if isinstance(op, Cast):
        source = program.specs[inputs[0]].dtype
        return False, ITEMSIZE[dtype] < ITEMSIZE[source] or (dtype == "float16" and is_integer(source))
    if isinstance(op, Unary | Binary) and KIND[dtype] == "float":
        made = FUNCTIONS[op.fn].makes
        return "nan" in made, "inf" in made
    return True, True


def _carries(program: Program, node: int, operand: int) -> bool:
    """Return whether a NaN or an infinity in this operand surely gives one in the result."""
    op, inputs = program.nodes[node]
    match op:
        case Binary(fn="power"):
            return operand == 0 and (constant_exponent(program, inputs[1]) or 0.0) > 0.0
        case Unary() | Binary():
            keeps = FUNCTIONS[op.fn].keeps
            return keeps == "nan, inf" or (keeps == "nan, inf of the first" and operand == 0)
        case Cast():
            return KIND[op.dtype] in ("float", "complex")
        case Reduce() | Scan():
            return op.fn in ("sum", "prod")
        case Pad():
            return operand == 0
    return isinstance(op, (*_ALL_ARE_THERE, Contract))


#: Functions that never turn a complex number with a NaN or infinite part into a finite one. Others may: the hyperbolic
#: tangent of an infinity is 1, whatever the imaginary part is.
_OF_PARTS = frozenset(("add", "subtract", "multiply", "divide", "negative", "conj", "abs", "sqrt", "rint"))


def _carries_parts(op: Primitive) -> bool:
    """Return whether an operation carries a non-finite part of a complex operand as it carries a real one."""
    return not isinstance(op, Unary | Binary) or op.fn in _OF_PARTS


def _carries_nan(op: Primitive) -> bool:
    """Return whether a NaN in any operand surely gives one in the result."""
    if isinstance(op, Unary | Binary):
        return "nan" in FUNCTIONS[op.fn].keeps
    return isinstance(op, Reduce | Scan) and op.fn in ("max", "min")


def _may_not_fit(program: Program, position: int) -> bool:
    """Return whether NumPy may warn about the integers of a node.

    It warns about casts of floats, divisions, and sums and products of scalars, but not about arrays that wrap around.
    """
    op, inputs = program.nodes[position]
    spec = program.specs[position]
    if KIND[spec.dtype] not in _INTEGERS:
        return False
    if isinstance(op, Cast):
        return KIND[program.specs[inputs[0]].dtype] == "float"
    return isinstance(op, Binary) and (op.fn in _QUOTIENTS or (op.fn in _WRAP and not spec.shape))


def beyond(value: Expr, dtype: DType) -> Expr:
    """Return whether this float is NaN or out of the range of the integer type it is cast to: only NumPy's result
    counts.
    """
    bits = 64 if dtype == "int64" else 65 if dtype == "uint64" else 32
    # NumPy's results for larger numbers as uint32 depend on the memory layout.
    middle, half = (2.0**30, 3 * 2.0**30) if dtype == "uint32" else (0.0, 2.0 ** (bits - 1))
    distance = Apply("subtract", (value, Literal(middle, value.type)), value.type) if middle else value
    fits = Apply("less", (Apply("abs", (distance,), value.type), Literal(half, value.type)), "bool")
    return Apply("bitwise_xor", (fits, Literal(True, "bool")), "bool")


def wraps(fn: str, one: Expr, other: Expr, dtype: DType) -> Expr:
    """Return whether a result does not fit into its type, or is a division by 0.

    64-bit results near the limits count as too large. So does the least number divided by -1, as in NumPy, also for
    remainders.
    """
    if fn in _QUOTIENTS:
        by_zero = Apply("equal", (other, Literal(0, other.type)), "bool")
        if KIND[dtype] == "unsigned":
            return by_zero
        least = Apply("equal", (one, Literal(-(1 << (8 * ITEMSIZE[dtype] - 1)), one.type)), "bool")
        by_minus_one = Apply("equal", (other, Literal(-1, other.type)), "bool")
        return Apply("bitwise_or", (by_zero, Apply("bitwise_and", (least, by_minus_one), "bool")), "bool")
    exact = Apply(fn, (converted(one, "f64"), converted(other, "f64")), "f64")
    bits = 8 * ITEMSIZE[dtype]
    low, high = (0.0, 2.0**bits) if KIND[dtype] == "unsigned" else (-(2.0 ** (bits - 1)), 2.0 ** (bits - 1))
    if bits == 64:
        low, high = low * _NEARLY, high * _NEARLY
    below = Apply("less", (exact, Literal(low, "f64")), "bool")
    return Apply("bitwise_or", (below, Apply("greater_equal", (exact, Literal(high, "f64")), "bool")), "bool")


# -- costs of loops: the operations of one element, and from these the lanes of a loop and the size of a part


#: Instructions of each function, for one vector.
WEIGHTS = {fn: row.instructions for fn, row in FUNCTIONS.items()}
#: Exponents of powers that are a root and a product or two.
_ROOTS = (-1.0, -0.5, 0.5, 1.5, 4.0)
#: A function of this weight or more is called, not inlined.
_CALL = 10.0
#: The weight of a call of a NumPy loop, beside the function itself.
_CALLED_LOOP = 20.0
#: Vectors in one call of a NumPy loop.
_CALLED_VECTORS = 8

#: Operations of a part, so that starting it on another thread (about a microsecond) is lost among them: 30 µs or so.
PART = 100_000.0
#: The average weight of reading and writing a vector, when data is larger than caches.
_MEMORY = 4.0
#: More parts than any machine has threads, several times over, so that they end together.
MOST_PARTS = 256


class LoopEstimate(msgspec.Struct, frozen=True):
    """The estimated work for one element."""

    operations: float = 0.0
    functions: float = 0.0
    #: Bytes of the type that lanes are counted in.
    width: int = 8
    #: Values that are needed again at once, at most.
    live: int = 0
    #: Whether it calls loops of NumPy.
    calls_numpy: bool = False

    @property
    def weight(self) -> float:
        return self.operations + self.functions

    def of_lanes(self, vector_bytes: int) -> float:
        """Return the weight of one element in a vector of them, with its operands read from main memory."""
        return (self.weight + _MEMORY) * self.width / vector_bytes


def estimated(statements: Sequence[Statement]) -> LoopEstimate:
    """Estimate one round of these statements; inner loops count once for each of their rounds."""
    totals = [0.0, 0.0]
    types: set[str] = set()
    called: set[str] = set()

    def look(expr: Expr, times: float) -> None:
        match expr:
            case Apply():
                types.add(expr.type)
                called.add(expr.fn)
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
    calls_numpy = any(fn.startswith("numpy.") for fn in called)
    return LoopEstimate(totals[0], totals[1], _width(types), _live(statements), calls_numpy)


def weight_of(expr: Apply) -> float:
    """Return the instructions of one function, for one vector."""
    if expr.fn in ("opaque", "noted"):
        return 0.0
    if expr.fn == "power" and isinstance(expr.args[1], Literal) and expr.args[1].value in _ROOTS:
        return 8.0
    if expr.fn.startswith("numpy."):
        return _CALLED_LOOP + WEIGHTS[expr.fn.removeprefix("numpy.")]
    return WEIGHTS.get(expr.fn.removeprefix("numpys_"), 1.0)


def _width(types: set[str]) -> int:
    """Return the bytes of a lane: floats decide, the shortest of them, so that their registers are full."""
    if "f32" in types:
        return 4
    return 8 if types & {"f64", "i64", "u64"} else 4


def _live(statements: Sequence[Statement]) -> int:
    """Return the largest number of named values that are needed later, over all statements."""
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
    """Yield the names that a statement's value and condition use."""
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
    """Return the lanes of a vector, and the vectors in a round; more of them hide latency (up to 1.5 times faster).

    A round has two vectors, or four if it does little or has few live values for the registers. Loops that call NumPy's
    take several vectors at once, because a call costs as much as two.
    """
    if estimate.calls_numpy:
        return _CALLED_VECTORS * max(1, vector_bytes // estimate.width), 1
    registers = 32 if vector_bytes >= 64 else 16
    fits = 4 * estimate.live <= registers
    return max(1, vector_bytes // estimate.width), 4 if estimate.weight < 8 or fits else 2


def least_part(weight: float) -> int:
    """Return the smallest part, in rounds of this weight."""
    return max(1, round(PART / max(weight, 0.01)))


def is_little(weight: float) -> bool:
    """Return whether this work is too little to wake another thread."""
    return weight <= PART


def grain_of(weight: float, count: int, multiple: int = 1) -> int:
    """Return the size of a part, in rounds of this weight; it does not depend on the number of threads."""
    least = max(least_part(weight), -(-count // MOST_PARTS))
    if 2 * least > count:
        return count
    return min(count, -(-least // multiple) * multiple)


def own_weight(program: Program, node: int) -> float:
    """Return the weight of one element of a node alone, in vector operations."""
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
    """Return what a power costs: a few products or a root where the exponent is a known constant."""
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
    """Return the estimate of several computations in one loop."""
    return LoopEstimate(
        sum(each.operations for each in estimates),
        sum(each.functions for each in estimates),
        min((each.width for each in estimates), default=8),
        max((each.live for each in estimates), default=0),
        any(each.calls_numpy for each in estimates),
    )


def cost_of(storage: NestStorage, roots: Sequence[Root]) -> NestCost:
    """Return the cost of a nest: its operations on all elements, and the bytes that it reads and writes."""
    touched = {node for root in roots for node, _ in root.reads} | {root.node for root in roots}
    nbytes = sum(storage.program.specs[node].nbytes for node in touched if node in storage.stored)
    return NestCost(
        sum(root.estimate.operations * root.size for root in roots),
        sum(root.estimate.functions * root.size for root in roots),
        float(nbytes),
    )


def host_cost(program: Program, node: int) -> NestCost:
    """Return the cost of a node that NumPy computes."""
    op, inputs = program.nodes[node]
    specs = [program.specs[source] for source in inputs]
    nbytes = program.specs[node].nbytes + sum(spec.nbytes for spec in specs)
    return NestCost(float(op.flops(specs, program.specs[node])), 0.0, float(nbytes))
