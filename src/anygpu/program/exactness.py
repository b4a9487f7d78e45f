"""Find where the last bit of a float decides a result that is not a float: an integer, a truth value, a position.

Two correct ways to compute `exp`, or to add a million numbers, may differ in the last bit. In a float that is within
the tolerances; rounded, compared or used as an index it gives another result. `judged` finds both ends in a program:
values whose last bit may not be NumPy's, and the operations that depend on it.

Arithmetic, roots, comparisons, casts and running sums follow IEEE 754 and have NumPy's bits. So have sums in NumPy's
own order, which depends on the memory layout, and elementwise functions computed by NumPy's own loops. Everything else
may differ: matrix products, other sums, transforms, decompositions, users' kernels.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import IntEnum
from functools import lru_cache
from typing import Literal, NamedTuple

from anygpu.program.dtypes import FORMATS, ITEMSIZE, KIND, DType, is_inexact
from anygpu.program.functions import COMPARISONS, FUNCTIONS, TESTS, having
from anygpu.program.graph import Node, Program, line_of
from anygpu.program.ops.along_axis import UnorderedReduce
from anygpu.program.ops.custom import Custom
from anygpu.program.ops.elementwise import BitwiseBinary, BitwiseUnary
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
    Linear,
    Pad,
    Permute,
    Primitive,
    Reduce,
    Reshape,
    Scan,
    Scatter,
    Search,
    Slice,
    Sort,
    Unary,
    Windows,
    product,
)

#: How a device rounds. free: it may fuse a product with a sum, and flush subnormal numbers. real: it rounds real
#: numbers as NumPy does, and can call NumPy's loops. complex: it also has NumPy's products and magnitudes of complex
#: numbers.
Rounding = Literal["free", "real", "complex"]

#: Functions of real numbers whose last bit differs between libraries.
NEAR = having("near")
#: Functions of complex numbers that treat each part by itself, or only test them.
_BY_PARTS = frozenset(
    (*COMPARISONS, *TESTS, "negative", "real", "imag", "conj", "rint", "add", "subtract", "minimum", "maximum")
)
#: Functions of complex arrays that native code can compute in NumPy's own steps.
_OF_ARRAYS = ("multiply", "abs")
#: Functions whose result jumps, so that a last bit of an operand changes more than a last bit.
_JUMPS = frozenset(
    (
        *COMPARISONS,
        *TESTS,
        "sign",
        "floor",
        "ceil",
        "trunc",
        "rint",
        "floor_divide",
        "remainder",
        "fmod",
        "mantissa",
        "copysign",
    )
)
#: Dtypes whose NumPy loops give the same bits for any part of an array.
_LOOPED = ("float32", "float64")
#: Up to this many numbers NumPy adds in order, with any memory layout.
_FEW = 2
#: The digits of the float types in which integers are added.
_DIGITS: dict[DType, int] = {"float32": 24, "float64": 53}


class Order(IntEnum):
    """The known memory order of NumPy's own array for a value, if arguments have the memory order that is required."""

    #: Axes may be reversed.
    ANY = 0
    #: No axis is reversed; the axes are in any order.
    FORWARDS = 1
    #: C order, with gaps.
    ROWS = 2
    C = 3


class Decision(NamedTuple):
    """A node whose last bit may not be NumPy's, and the node that depends on it; `None` if it is a bit of a result."""

    cause: int
    decides: int | None


class Judgement(NamedTuple):
    """The conditions for NumPy's bits where they matter."""

    #: The decisions that need NumPy itself; none if the program can run.
    decisions: tuple[Decision, ...]
    #: The nodes of elementwise functions that need NumPy's own loops.
    loops: frozenset[int]
    #: The memory order that arguments must have.
    needs: Order


class _Value(NamedTuple):
    """The node from which a value may have wrong bits, and its memory order."""

    cause: int | None
    order: Order


@lru_cache(maxsize=16)
def judged(program: Program, rounding: Rounding, *, throughout: bool = False) -> Judgement:
    """Judge a program: which last bits decide something, and how to get NumPy's.

    With `throughout` every bit of its results counts.
    """
    values: list[_Value] = []
    nears: list[int] = []
    looped: set[int] = set()
    in_order: set[int] = set()
    decisions: list[Decision] = []
    matters: set[int] = set(program.outputs) if throughout else set()
    for position, node in enumerate(program.nodes):
        given = [values[each] for each in node.inputs]
        cause = next((each.cause for each in given if each.cause is not None), None)
        deciding = [source for source in node.inputs if is_inexact(program.specs[source].dtype)]
        if deciding and _decides(program, position):
            found = next((values[each].cause for each in deciding if values[each].cause is not None), None)
            if found is None and isinstance(node.op, Unary) and node.op.fn == "signbit":
                found = _may_be_nan(program, deciding[0])
            if found is not None:
                decisions.append(Decision(found, position))
                cause = None  # it is reported once
            matters.update(deciding)
        if is_inexact(program.specs[position].dtype):
            match _how(program, position, [each.order for each in given], rounding):
                case "loop":
                    looped.add(position)
                case "order":
                    in_order.add(position)
                case "near":
                    nears.append(position)
                    cause = position if cause is None else cause
        values.append(_Value(cause, _order(program, node, [each.order for each in given])))
    _add_sources(program, matters)
    if throughout:
        decisions = [each for each in decisions if each.cause not in nears]
        decisions += [Decision(position, None) for position in nears if position in matters]
    needs = Order.ANY if matters.isdisjoint(looped) else Order.FORWARDS
    loops = frozenset(each for each in looped if each in matters or _is_complex_product(program, each))
    return Judgement(tuple(decisions), loops, needs if matters.isdisjoint(in_order) else Order.C)


def _is_complex_product(program: Program, position: int) -> bool:
    """Return whether a node is a complex product, which always takes NumPy's steps.

    They decide between NaN and infinity for parts that are too large.
    """
    op = program.nodes[position].op
    return isinstance(op, Binary) and op.fn == "multiply" and KIND[program.specs[position].dtype] == "complex"


def _add_sources(program: Program, found: set[int]) -> None:
    """Add all nodes that these are computed from."""
    for position in range(len(program.nodes) - 1, -1, -1):
        if position in found:
            found.update(program.nodes[position].inputs)


# -- what decides


def _decides(program: Program, position: int) -> bool:
    """Return whether the last bit of a float operand may change the result by more than a last bit."""
    op = program.nodes[position].op
    if isinstance(op, Unary | Binary):
        return op.fn in _JUMPS or not is_inexact(program.specs[position].dtype)
    if isinstance(op, Sort | Argsort | Search):
        return True
    return not is_inexact(program.specs[position].dtype)


def _may_be_nan(program: Program, source: int) -> int | None:
    """Return the node that may give a NaN of undefined sign, or choose between zeros; `None` if none does."""
    op, inputs, position = _behind_views(program, source)
    while isinstance(op, Cast) or (isinstance(op, Unary) and op.fn in ("negative", "abs")):
        op, inputs, position = _behind_views(program, inputs[0])
    return None if op.is_source else position


# -- what rounds as NumPy does


def _how(program: Program, position: int, orders: Sequence[Order], rounding: Rounding) -> str:
    """Return how a float node with exact operands gets NumPy's bits.

    The answer is "exact", "loop" (by NumPy's own loop), "order" (for arguments in C order), or "near" if it does not.
    """
    op, inputs = program.nodes[position]
    spec = program.specs[position]
    sources = [program.specs[source] for source in inputs]
    if op.is_movement or op.is_source or isinstance(op, Gather | Sort):
        return "exact"
    match op:
        case Unary() | Binary():
            return _how_of_function(program, position, op, orders, rounding)
        case Cast():
            if op.dtype == "float16" and sources[0].dtype == "float64":
                return "near"  # by way of float32, and so rounded twice
            exact = rounding != "free" or KIND[sources[0].dtype] not in ("float", "complex")
            return "exact" if exact or ITEMSIZE[op.dtype] >= ITEMSIZE[sources[0].dtype] else "near"
        case Scatter():
            return "exact" if op.fn in ("set", "maximum", "minimum") else "near"
        case Scan():
            known = op.fn in ("max", "min") or (rounding != "free" and spec.dtype in _LOOPED)
            return "exact" if known else "near"
        case Reduce():
            return _how_of_reduction(program, op, inputs[0], orders[0], rounding)
        case Contract() | Linear() | Custom():
            return "near"
    return "exact" if op.is_elementwise else "near"


def _how_of_function(
    program: Program, position: int, op: Unary | Binary, orders: Sequence[Order], rounding: Rounding
) -> str:
    """Return the same as `_how` for an elementwise function."""
    inputs, spec = program.nodes[position].inputs, program.specs[position]
    dtype = program.specs[inputs[0]].dtype
    native = rounding != "free"
    if op.last_bits == "none":
        return "near"
    if KIND[dtype] == "complex" or KIND[spec.dtype] == "complex":
        if op.fn in _OF_ARRAYS and rounding == "complex":
            # NumPy multiplies scalars, and arrays with reversed axes, in other steps.
            known = bool(spec.shape) and all(order > Order.ANY for order in orders)
            return "loop" if known or op.last_bits == "numpy" else "near"
        return "exact" if op.fn in _BY_PARTS | {"complex"} and (native or op.fn not in _ROUNDING) else "near"
    if op.fn not in NEAR:
        return "exact" if native or op.fn not in _ROUNDING else "near"
    if not native:
        return "near"
    if op.last_bits == "numpy":
        return "loop"
    if op.fn == "power":
        exponent = constant_exponent(program, inputs[1])
        if exponent in (1.0, 2.0):
            return "exact"
        is_number = isinstance(_behind_views(program, inputs[1])[0], Input) and _is_repeated(program, inputs[1])
        # NumPy has squares, roots and reciprocals of its own for one exponent of a whole array, and another function
        # for numbers without axes.
        if exponent in (0.5, -1.0, 0.0) or is_number or not spec.shape:
            return "near"
    known = has_loop(op.fn) and dtype in _LOOPED and all(order > Order.ANY for order in orders)
    return "loop" if known else "near"


#: Functions that round their result.
_ROUNDING = (
    frozenset(
        ("add", "subtract", "multiply", "divide", "sqrt", "reciprocal", "remainder", "floor_divide", "fmod", "ldexp")
    )
    | NEAR
)


def has_loop(fn: str) -> bool:
    """Return whether native code can call a NumPy loop for this function."""
    return fn in NEAR and fn != "erf"


def _how_of_reduction(program: Program, op: Reduce, source: int, order: Order, rounding: Rounding) -> str:
    """Return the same as `_how` for a reduction; NumPy's order of a sum is known where it follows the memory."""
    if op.fn not in ("sum", "prod"):
        return "exact"
    shape, dtype = program.specs[source]
    reduced = [axis for axis in op.axes if shape[axis] > 1]
    count = product(tuple(shape[axis] for axis in reduced))
    if rounding == "free" and count > 1:
        return "near"
    if count <= _FEW or (op.fn == "sum" and _adds_whole_numbers(program, source, count)):
        return "exact"
    if op.fn != "sum" or isinstance(op, UnorderedReduce) or dtype not in _LOOPED:
        return "near"
    if isinstance(_behind_views(program, source)[0], Cast):
        return "near"  # NumPy casts and adds piece by piece
    kept = [axis for axis in range(len(shape)) if axis not in op.axes and shape[axis] > 1]
    is_last = not kept or kept[-1] < reduced[0]
    follows = order == Order.C or (order == Order.ROWS and len(reduced) == 1 and not _is_repeated(program, source))
    return "order" if is_last and follows else "near"


def _adds_whole_numbers(program: Program, source: int, count: int) -> bool:
    """Return whether a sum of `count` integers is exact in its float type, in any order."""
    op, inputs, _ = _behind_views(program, source)
    if not isinstance(op, Cast) or op.dtype not in _DIGITS:
        return False
    given = program.specs[inputs[0]].dtype
    bits = 1 if given == "bool" else 8 * ITEMSIZE[given]
    return KIND[given] in ("bool", "signed", "unsigned") and count << bits <= 1 << _DIGITS[op.dtype]


def _behind_views(program: Program, position: int) -> tuple[Primitive, tuple[int, ...], int]:
    """Return the operation whose elements a value shows, its operands, and its position."""
    while program.nodes[position].op.is_view:
        position = program.nodes[position].inputs[0]
    return (*program.nodes[position], position)


def _is_repeated(program: Program, position: int) -> bool:
    """Return whether several elements of a value are one in memory."""
    while program.nodes[position].op.is_view:
        if program.nodes[position].op.is_repeating:
            return True
        position = program.nodes[position].inputs[0]
    return False


def constant_exponent(program: Program, position: int) -> float | None:
    """Return the constant that all elements of a float operand are; `None` if it is not known."""
    op, _, _ = _behind_views(program, position)
    if not isinstance(op, Constant) or product(op.shape) != 1 or op.dtype not in FORMATS:
        return None
    return float(struct.unpack("<" + FORMATS[op.dtype], op.data)[0])


# -- how arrays lie in memory


def _order(program: Program, node: Node, given: Sequence[Order]) -> Order:
    """Return the memory order of NumPy's array for a node, from the orders of its operands."""
    op = node.op
    match op:
        case Input():
            return Order.C
        case Constant():
            return Order.C if len(op.shape) < 2 else Order.FORWARDS
        case Flip():
            return Order.ANY
        case Permute():
            moved = [axis for axis in op.axes if program.specs[node.inputs[0]].shape[axis] > 1]
            return given[0] if moved == sorted(moved) else min(given[0], Order.FORWARDS)
        case Windows():
            return min(given[0], Order.FORWARDS)
        case Broadcast() | Slice():
            same = op.infer(program.specs[node.inputs[0]]).shape == program.specs[node.inputs[0]].shape
            return given[0] if same else min(given[0], Order.ROWS)
        case Reshape():
            return given[0] if given[0] in (Order.C, Order.ANY) else Order.FORWARDS
        case Gather():
            # For an index along any axis but the first, NumPy permutes the axes of the result.
            return Order.C if op.axis == 0 and not op.batch and given[0] >= Order.ROWS else Order.FORWARDS
        case Reduce() | Pad() | Concatenate() | Scan() | Scatter():
            return Order.C if min(given) >= Order.ROWS else Order.FORWARDS
    if op.is_source:
        return Order.C
    return Order.C if min(given, default=Order.ANY) >= Order.ROWS else Order.FORWARDS


def rounds_each_step(program: Program) -> bool:
    """Return whether a program sums float16 numbers: NumPy rounds each step, in an order that depends on memory layout.

    A sum beyond 65,504 then becomes infinite at some step, or at none.
    """
    return any(
        isinstance(op, Reduce) and op.fn in ("sum", "prod") and spec.dtype == "float16"
        for (op, _), spec in zip(program.nodes, program.specs, strict=True)
    )


# -- in words


def why_not(program: Program, rounding: Rounding, *, throughout: bool = False) -> str | None:
    """Return why a program needs NumPy's own bits, as a sentence without its end; `None` if it does not.

    One of several decisions is named; with `throughout` all operations are, and how often each occurs.
    """
    judgement = judged(program, rounding, throughout=throughout)
    if not judgement.decisions:
        return None
    first, *more = judgement.decisions
    if not throughout:
        rest = f", and {len(more)} more" if more else ""
        return f"the last bit of {cause_name(program, first.cause)} decides {_decided(program, first.decides)}{rest}"
    counts: dict[str, int] = {}
    for each in judgement.decisions:
        name = cause_name(program, each.cause)
        counts[name] = counts.get(name, 0) + 1
    listed = ", ".join(name if count == 1 else f"{name} ({count} times)" for name, count in counts.items())
    return f"exact=True asks for every bit of {listed}"


def cause_name(program: Program, position: int) -> str:
    """Return NumPy's name of the operation whose last bit may differ."""
    op = program.nodes[position].op
    match op:
        case Unary() | Binary():
            return f"np.{FUNCTIONS[op.fn].numpy_name}"
        case Contract():
            return "a product of matrices"
        case Reduce():
            return "a sum" if op.fn == "sum" else "a product"
        case Scatter():
            return "a sum at positions"
        case Cast():
            return f"a cast to {op.dtype}"
        case Linear():
            return f"np.linalg.{op.fn}"
        case Fourier():
            return f"np.fft.{op.fn}"
    return op.name


def _decided(program: Program, position: int | None) -> str:
    """Return the name of the deciding operation, with its line."""
    if position is None:
        return "a result"
    op = program.nodes[position].op
    name = f"astype({op.dtype})" if isinstance(op, Cast) else f"np.{_numpy_name(op)}"
    line = line_of(program, position)
    return f"{name} ({line})" if line else name


def _numpy_name(op: Primitive) -> str:
    if isinstance(op, Unary | Binary):
        return FUNCTIONS[op.fn].numpy_name
    return "searchsorted" if isinstance(op, Search) else op.name


# -- a program that gives NumPy's bits


def with_loops(program: Program, rounding: Rounding, *, throughout: bool = False) -> Program:
    """Return the program with NumPy's own loops for the functions whose last bits matter."""
    loops = judged(program, rounding, throughout=throughout).loops
    if not loops:
        return program
    nodes = [_by_loop(node) if position in loops else node for position, node in enumerate(program.nodes)]
    return Program.trusted(tuple(nodes), program.outputs, program.specs, program.lines)


def _by_loop(node: Node) -> Node:
    """Return the node with NumPy's own loop for the same function."""
    op, inputs = node
    if isinstance(op, Unary):
        return Node(BitwiseUnary(op.fn), inputs)
    return Node(BitwiseBinary(op.fn), inputs) if isinstance(op, Binary) else node
