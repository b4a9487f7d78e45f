"""Loops over neighbours, cut into strips."""

from __future__ import annotations

from typing import NamedTuple

from anygpu.codegen.dialects.printer import Printer
from anygpu.codegen.dialects.vector_syntax import VectorSyntax
from anygpu.codegen.index import Index, constant
from anygpu.codegen.index import Variable as Counter
from anygpu.codegen.kernel_ir import Assign, Expr, Literal, Loop, Position
from anygpu.codegen.target import ComputeType


class Strips(NamedTuple):
    """The strips of a loop: their number, and the position `base` of the first."""

    base: Index
    number: int | str
    #: Whether nothing is left behind the last of them.
    exact: bool
    #: The number of invocations that share them.
    lanes: int

    @property
    def high(self) -> int:
        return max(self.number - 1, 0) if isinstance(self.number, int) else (1 << 31) - 1


def strip_name(loop: Loop) -> str:
    return loop.variable.replace("column", "strip") if "column" in loop.variable else f"{loop.variable}_strip"


def strips_of(printer: Printer, syntax: VectorSyntax, loop: Loop) -> Strips | None:
    start = as_index(loop.start)
    if start is None:
        return None
    lanes = loop.step
    if lanes > 1:
        found = [(atom, factor) for atom, factor in start.terms if isinstance(atom, Counter) and atom.name == "lane"]
        if [factor for _, factor in found] != [1]:
            return None
        start = start - Index(0, found)
    stop = constant(loop.stop) if isinstance(loop.stop, int) else as_index(loop.stop)
    if stop is not None and (stop - start).is_constant:
        length = (stop - start).constant
        return Strips(start, length // syntax.width, length % syntax.width == 0, lanes)
    if isinstance(loop.stop, int):
        return None
    base = printer.position(start)
    base = f"({base})" if " " in base else base
    return Strips(start, f"({printer.expression(loop.stop)} - {base}) / {syntax.width}", False, lanes)


def as_index(expr: Expr) -> Index | None:
    match expr:
        case Literal():
            return constant(int(expr.value))
        case Position():
            return expr.index
    return None


def types_of_sums(loop: Loop) -> dict[str, ComputeType] | None:
    """The type of every accumulator; `None` when something else is assigned to."""
    wanted = dict(loop.sums)
    types = {each.name: each.value.type for each in loop.body if isinstance(each, Assign)}
    return types if types.keys() == wanted.keys() else None


def neutral(fn: str, syntax: VectorSyntax, printer: Printer, type: ComputeType, name: str) -> str:
    """The initial accumulator: the identity of the reduction if it has one, else the loop's start value."""
    if fn in ("add", "multiply") and type != "bool":
        return syntax.broadcast(type, printer.literal(Literal(0 if fn == "add" else 1, type)))
    return syntax.broadcast(type, name)
