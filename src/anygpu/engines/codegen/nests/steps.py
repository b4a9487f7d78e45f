"""The result of scheduling a program for a processor: loop nests and host steps, in order, over numbered slots."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from anygpu.engines.codegen.elementwise import converted
from anygpu.engines.codegen.kernel import Check, Output, Slot
from anygpu.engines.codegen.kernel_ir import Apply, Buffer, Expr, Literal, Statement
from anygpu.program.dtypes import ITEMSIZE, KIND, DType, is_inexact
from anygpu.program.functions import FUNCTIONS, BinaryFunction
from anygpu.program.graph import Program
from anygpu.program.primitives import (
    Binary,
    Broadcast,
    Cast,
    Concatenate,
    Contract,
    Flip,
    Pad,
    Permute,
    Primitive,
    Reduce,
    Reshape,
    Scan,
    Unary,
)

# -- the size of the code that a program may become


#: Values that may be looked at and written for a program: so many for each node, and in any case so many. A thousand
#: take 0.05 s. Programs that people wrote have 2 to 120 for a node.
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
    """A program would be more code than a compiler should be given."""


class Written:
    """How many values have been looked at and written for one program, in all of its loops."""

    def __init__(self, nodes: int) -> None:
        self.most = max(FEWEST_VALUES, VALUES_OF_NODE * nodes)
        self.values = 0

    def add_one(self) -> None:
        """One more value; raises `NestTooLarge` where there are too many."""
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


# -- values that a nest looks at because NumPy may warn of them and no result shows it
#
# A NaN that is masked, for example.
#
# A NaN or an infinity that becomes one in a result is seen there. Others are noted where they get lost: before a
# choice, a comparison, a division by them. Whole numbers are noted where NumPy warns that one does not fit: casts of
# floats, and sums and products of NumPy's scalars, which have no axes.


_ALL_ARE_THERE = (Reshape, Broadcast, Permute, Flip, Concatenate)

_WRAP: frozenset[BinaryFunction] = frozenset(("add", "subtract", "multiply"))
_INTEGERS = ("signed", "unsigned")
#: Near the largest numbers of 64 bits a float is less exact than this.
_NEARLY = 1.0 - 2.0**-50


def noted_nodes(program: Program, ranks: Sequence[int] = ()) -> frozenset[int]:
    """The nodes that are to be looked at: functions of floats, and casts and sums of whole numbers.

    Nodes can be computed in the order of their ranks; without these in that of their numbers.
    """
    count = len(program.nodes)
    order = sorted(range(count), key=ranks.__getitem__) if ranks else list(range(count))
    outputs = set(program.outputs)
    #: Whether a NaN, or an infinity, surely reaches a result or a node that is looked at.
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
            carries = _carries(op, number)
            infinity_is_seen[each] |= infinity_is_seen[node] and carries
            nan_is_seen[each] |= nan_is_seen[node] and (carries or _carries_nan(op))
    return frozenset(found)


def _makes(program: Program, node: int) -> tuple[bool, bool]:
    """Whether an operation may give a NaN, and whether it may give an infinity, of finite numbers."""
    op, inputs = program.nodes[node]
    dtype = program.specs[node].dtype
    if not is_inexact(dtype):
        return False, False
    if isinstance(op, Cast):
        return False, ITEMSIZE[dtype] < ITEMSIZE[program.specs[inputs[0]].dtype]
    if isinstance(op, Unary | Binary):
        made = FUNCTIONS[op.fn].makes
        return "nan" in made, "inf" in made
    return False, False


def _carries(op: Primitive, operand: int) -> bool:
    """Whether a NaN or an infinity in this operand surely gives one in the result."""
    match op:
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


def _carries_nan(op: Primitive) -> bool:
    """Whether a NaN in any operand surely gives one in the result."""
    if isinstance(op, Unary | Binary):
        return "nan" in FUNCTIONS[op.fn].keeps
    return isinstance(op, Reduce | Scan) and op.fn in ("max", "min")


def _may_not_fit(program: Program, position: int) -> bool:
    op, inputs = program.nodes[position]
    spec = program.specs[position]
    if KIND[spec.dtype] not in _INTEGERS:
        return False
    if isinstance(op, Cast):
        return KIND[program.specs[inputs[0]].dtype] == "float"
    return isinstance(op, Binary) and op.fn in _WRAP and not spec.shape


def beyond(value: Expr, dtype: DType) -> Expr:
    """Whether NumPy warns when it casts this float: it is NaN, or no number of the type that is cast by."""
    bits = 64 if dtype in ("int64", "uint32") else 65 if dtype == "uint64" else 32
    size = Apply("abs", (value,), value.type)
    fits = Apply("less", (size, Literal(2.0 ** (bits - 1), value.type)), "bool")
    return Apply("bitwise_xor", (fits, Literal(True, "bool")), "bool")


def wraps(fn: str, one: Expr, other: Expr, dtype: DType) -> Expr:
    """Whether a sum, a difference or a product is no number of its type; true also for the very largest of 64 bits."""
    exact = Apply(fn, (converted(one, "f64"), converted(other, "f64")), "f64")
    bits = 8 * ITEMSIZE[dtype]
    low, high = (0.0, 2.0**bits) if KIND[dtype] == "unsigned" else (-(2.0 ** (bits - 1)), 2.0 ** (bits - 1))
    if bits == 64:
        low, high = low * _NEARLY, high * _NEARLY
    below = Apply("less", (exact, Literal(low, "f64")), "bool")
    return Apply("bitwise_or", (below, Apply("greater_equal", (exact, Literal(high, "f64")), "bool")), "bool")
