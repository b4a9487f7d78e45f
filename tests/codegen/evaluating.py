"""Evaluates the kernel form with NumPy: what a kernel would compute, without a device."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from anygpu.base.typing import HostArray
from anygpu.engines.codegen.index import Atom, Index, IndexVariable, Quotient, Remainder
from anygpu.engines.codegen.kernel_ir import Apply, Call, Choose, Expr, Let, Literal, Load, Name, Position
from anygpu.engines.codegen.target import ComputeType

NUMPY_TYPES: dict[ComputeType, type[np.generic]] = {
    "bool": np.bool_,
    "i32": np.int32,
    "u32": np.uint32,
    "i64": np.int64,
    "u64": np.uint64,
    "f32": np.float32,
    "f64": np.float64,
}
#: Functions whose name in NumPy is another one.
_RENAMED = {
    "asin": "arcsin",
    "acos": "arccos",
    "atan": "arctan",
    "asinh": "arcsinh",
    "acosh": "arccosh",
    "atanh": "arctanh",
    "atan2": "arctan2",
}


class Lets:
    """A namer: keeps the values that it is asked to name, in order."""

    def __init__(self) -> None:
        self.statements: list[Let] = []

    def __call__(self, hint: str, value: Expr) -> Name:
        taken = {statement.name for statement in self.statements}
        name, number = hint, 1
        while name in taken:
            number += 1
            name = f"{hint}_{number}"
        self.statements.append(Let(name, value))
        return Name(name, value.type)

    def evaluate(self, results: Sequence[Expr], given: Mapping[str, HostArray]) -> list[HostArray]:
        """The results, of arrays under the names that the expressions use."""
        known = dict(given)
        with np.errstate(all="ignore"):
            for statement in self.statements:
                known[statement.name] = evaluate(statement.value, known)
            return [evaluate(result, known) for result in results]


def evaluate(expr: Expr, known: Mapping[str, HostArray]) -> HostArray:
    """An expression over named arrays, rounded after every step as its types say."""
    match expr:
        case Literal():
            return np.asarray(expr.value, NUMPY_TYPES[expr.type])
        case Name():
            value = known[expr.name]
            if value.dtype != NUMPY_TYPES[expr.type]:
                raise TypeError(f"{expr.name} is {value.dtype}, and the expression takes it for {expr.type}")
            return value
        case Choose():
            condition, yes, no = (evaluate(each, known) for each in (expr.condition, expr.yes, expr.no))
            if condition.dtype != np.bool_ or yes.dtype != no.dtype:
                raise TypeError(f"chooses by {condition.dtype} between {yes.dtype} and {no.dtype}")
            return np.where(condition, yes, no)
        case Apply():
            return _applied(expr, [evaluate(each, known) for each in expr.args])
        case Position():
            return np.asarray(evaluate_index(expr.index, {name: int(value) for name, value in known.items()}))
    raise TypeError(f"{type(expr).__name__} needs a device")


def _applied(expr: Apply, arguments: list[HostArray]) -> HostArray:
    if len({argument.dtype for argument in arguments}) != 1:
        raise TypeError(f"{expr.fn} of {[argument.dtype.name for argument in arguments]}: types must be the same")
    if expr.fn == "opaque":
        return arguments[0]
    function: Callable[..., Any] = getattr(np, _RENAMED.get(expr.fn, expr.fn))
    result = np.asarray(function(*arguments))
    if result.dtype != NUMPY_TYPES[expr.type]:
        raise TypeError(f"{expr.fn} gives {result.dtype}, and the expression says {expr.type}")
    return result


def evaluate_index(index: Index, known: Mapping[str, int]) -> int:
    """A position under an assignment of its variables, by the definitions of its atoms alone."""
    return index.constant + sum(factor * _evaluate_atom(atom, known) for atom, factor in index.terms)


def _evaluate_atom(atom: Atom, known: Mapping[str, int]) -> int:
    if isinstance(atom, IndexVariable):
        return known[atom.name]
    inner = evaluate_index(atom.of, known)
    if isinstance(atom, Quotient | Remainder):
        # Devices round towards zero, Python towards minus infinity: forms must not depend on which.
        if inner < 0:
            raise ValueError(f"{atom.of!r} is {inner}: what is divided must not be negative")
        return inner // atom.by if isinstance(atom, Quotient) else inner % atom.by
    return min(max(inner, atom.low), atom.high)


def subexpressions(expr: Expr) -> Iterator[Expr]:
    """The expression and all those in it, each as often as it would be computed."""
    yield expr
    match expr:
        case Apply() | Call():
            children: tuple[Expr, ...] = expr.args
        case Choose():
            children = (expr.condition, expr.yes, expr.no)
        case Literal() | Name() | Position() | Load():
            children = ()
    for child in children:
        yield from subexpressions(child)
