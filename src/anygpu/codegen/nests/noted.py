"""Values that a nest looks at because NumPy may warn of them and no result shows it: a NaN that is masked, for example.

A NaN or an infinity that becomes one in a result is seen there. Others are noted where they get lost: before a choice,
a comparison, a division by them. Whole numbers are noted where NumPy warns that one does not fit: casts of floats, and
sums and products of NumPy's scalars, which have no axes.
"""

from __future__ import annotations

from anygpu.codegen.elementwise import converted
from anygpu.codegen.kernel_ir import Apply, Expr, Literal
from anygpu.program.dtypes import ITEMSIZE, KIND, DType, is_inexact
from anygpu.program.functions import BinaryFunction, UnaryFunction
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
    Select,
    Unary,
)

#: Of NaN and infinities they give NaN or an infinity.
_CARRY: frozenset[UnaryFunction] = frozenset(
    ("negative", "abs", "floor", "ceil", "trunc", "rint", "sqrt", "cbrt", "log", "log2", "log10", "log1p", "sin", "cos",
     "tan", "asin", "acos", "sinh", "cosh", "asinh", "acosh", "atanh", "conj")
)  # fmt: skip
#: The same for both operands, and for the first one.
_CARRY_BOTH: frozenset[BinaryFunction] = frozenset(("add", "subtract", "multiply", "hypot", "complex"))
_CARRY_FIRST: frozenset[BinaryFunction] = frozenset(
    ("divide", "floor_divide", "remainder", "fmod", "copysign", "ldexp")
)
_ALL_ARE_THERE = (Reshape, Broadcast, Permute, Flip, Concatenate)
_WRAP: frozenset[BinaryFunction] = frozenset(("add", "subtract", "multiply"))
_INTEGERS = ("signed", "unsigned")
#: Near the largest numbers of 64 bits a float is less exact than this.
_NEARLY = 1.0 - 2.0**-50


def noted_nodes(program: Program) -> frozenset[int]:
    """The nodes that are to be looked at: results of floats, and casts and sums of whole numbers."""
    specs = program.specs
    may_raise: list[bool] = []
    for position, (op, inputs) in enumerate(program.nodes):
        carried = any(may_raise[each] and _carries(op, number) for number, each in enumerate(inputs))
        may_raise.append(is_inexact(specs[position].dtype) and (op.may_raise_flags or carried))
    is_seen = [False] * len(program.nodes)
    for output in program.outputs:
        is_seen[output] = True
    found = set()
    for position in range(len(program.nodes) - 1, -1, -1):
        op, inputs = program.nodes[position]
        if isinstance(op, Unary | Binary | Select | Cast):
            unseen = may_raise[position] and not is_seen[position]
            if unseen or _may_not_fit(program, position):
                found.add(position)
            is_seen[position] |= unseen
        if is_seen[position]:
            for number, each in enumerate(inputs):
                is_seen[each] |= _carries(op, number)
    return frozenset(found)


def _carries(op: Primitive, operand: int) -> bool:
    """Whether a NaN or an infinity in this operand surely gives one in the result."""
    match op:
        case Unary():
            return op.fn in _CARRY
        case Binary():
            return op.fn in _CARRY_BOTH or (op.fn in _CARRY_FIRST and operand == 0)
        case Cast():
            return KIND[op.dtype] in ("float", "complex")
        case Reduce() | Scan():
            return op.fn in ("sum", "prod")
        case Pad():
            return operand == 0
    return isinstance(op, (*_ALL_ARE_THERE, Contract))


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
