"""Combines values: one rule for loops, for the lanes of a group, and for partial results.

The state of a reduction is one value or, for positions, a value and its place. `identity` begins it, `combined` joins
two states in order, and `finished` makes the result of it.
"""

from __future__ import annotations

from collections.abc import Callable

from anygpu.engines.codegen import complexes
from anygpu.engines.codegen.elementwise import narrowed
from anygpu.engines.codegen.kernel_ir import Apply, Choose, Expr, Literal, Name
from anygpu.engines.codegen.target import ComputeType, components, compute_type
from anygpu.program.dtypes import ITEMSIZE, KIND, DType, is_integer
from anygpu.program.functions import BinaryFunction, ReduceFunction

#: Gives an intermediate value a name: `let hint = value;`.
Namer = Callable[[str, Expr], Name]

FUNCTIONS: dict[str, BinaryFunction] = {
    "sum": "add",
    "prod": "multiply",
    "max": "maximum",
    "min": "minimum",
    "any": "bitwise_or",
    "all": "bitwise_and",
}


def state_types(fn: ReduceFunction, dtype: DType) -> tuple[ComputeType, ...]:
    """The types of an accumulator: the components of a value, and its position for argmax and argmin."""
    types = (compute_type(dtype),) * components(dtype)
    return (*types, "i32") if fn in ("argmax", "argmin") else types


def identity(fn: ReduceFunction, dtype: DType) -> tuple[Expr, ...] | None:
    """The identity of a reduction; `None` where it has to start with the first value."""
    type = compute_type(dtype)
    if fn in ("sum", "any"):
        return tuple(Literal(False if type == "bool" else 0, type) for _ in range(components(dtype)))
    if fn == "all":
        return (Literal(True, type),)
    if fn == "prod":
        # The imaginary part decides about signs of zeros, and no compiler may leave it out.
        return (Literal(1, type), Literal(0, type, given=True))[: components(dtype)]
    if KIND[dtype] == "complex" or fn in ("argmax", "argmin"):
        return None
    if type == "bool":
        return (Literal(fn == "min", type),)
    if is_integer(dtype):
        bits = 8 * ITEMSIZE[dtype]
        low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if KIND[dtype] == "signed" else (0, (1 << bits) - 1)
        return (Literal(low if fn == "max" else high, type),)
    return (Literal(float("-inf") if fn == "max" else float("inf"), type),)


def combined(
    fn: ReduceFunction, dtype: DType, mine: tuple[Expr, ...], other: tuple[Expr, ...], name: Namer
) -> tuple[Expr, ...]:
    """The state of both together. `other` comes later in order, or may come in any order where that does not matter."""
    if fn in ("argmax", "argmin"):
        return _better(fn, dtype, mine, other, name)
    if KIND[dtype] == "complex":
        return complexes.binary(FUNCTIONS[fn], (mine[0], mine[1]), (other[0], other[1]), name)
    type = mine[0].type
    return (Apply(FUNCTIONS[fn], (mine[0], other[0]), type),)


def finished(fn: ReduceFunction, dtype: DType, state: tuple[Expr, ...]) -> tuple[Expr, ...]:
    """The result, as a value of the result's type."""
    if fn in ("argmax", "argmin"):
        return (Apply("cast_i64", (state[-1],), "i64"),)
    if fn == "sum" and state[0].type in ("f32", "f64"):
        # A sum begins with 0, whatever a compiler makes of that: it is never -0.
        state = tuple(Apply("add", (each, Literal(0.0, each.type, given=True)), each.type) for each in state)
    if fn in ("sum", "prod"):
        return tuple(narrowed(each, dtype) if dtype not in ("complex64", "complex128") else each for each in state)
    return state


def _better(
    fn: ReduceFunction, dtype: DType, mine: tuple[Expr, ...], other: tuple[Expr, ...], name: Namer
) -> tuple[Expr, ...]:
    """NaN wins; then the larger (or smaller) value; among equals, the first position."""
    compare: BinaryFunction = "greater" if fn == "argmax" else "less"
    if KIND[dtype] == "complex":
        ((wins,), (loses,)) = (
            complexes.binary(compare, (a[0], a[1]), (b[0], b[1]), name) for a, b in ((other, mine), (mine, other))
        )
        strange = [
            name("strange", Apply("bitwise_or", tuple(Apply("isnan", (part,), "bool") for part in each[:2]), "bool"))
            for each in (mine, other)
        ]
    else:
        wins = Apply(compare, (other[0], mine[0]), "bool")
        loses = Apply(compare, (mine[0], other[0]), "bool")
        strange = []
        if KIND[dtype] == "float":
            strange = [name("strange", Apply("isnan", (each[0],), "bool")) for each in (mine, other)]
    wins, loses = name("wins", wins), name("loses", loses)
    earlier = Apply("less", (other[-1], mine[-1]), "bool")
    take: Expr = Choose(wins, Literal(True, "bool"), Choose(loses, Literal(False, "bool"), earlier))
    if strange:
        first, second = strange
        among = Choose(second, earlier, Literal(False, "bool"))
        take = Choose(first, among, Choose(second, Literal(True, "bool"), take))
    taken = name("take", take)
    return tuple(Choose(taken, new, old) for old, new in zip(mine, other, strict=True))
