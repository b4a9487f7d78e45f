"""Nests as text, for people and for tests."""

from __future__ import annotations

from collections.abc import Sequence

from anygpu.codegen.index import Atom, Index, Quotient, Remainder, Variable
from anygpu.codegen.kernel_ir import (
    Apply,
    Assign,
    Call,
    Choose,
    Expr,
    If,
    Let,
    Literal,
    Load,
    Loop,
    Name,
    Position,
    Report,
    Statement,
    Store,
)
from anygpu.codegen.kernel_ir import Variable as Changing
from anygpu.codegen.nests.steps import HostStep, Nest, NestProgram

_SIGNS = {
    "add": "+",
    "subtract": "-",
    "multiply": "*",
    "divide": "/",
    "less": "<",
    "less_equal": "<=",
    "greater": ">",
    "greater_equal": ">=",
    "equal": "==",
    "not_equal": "!=",
    "bitwise_and": "&",
    "bitwise_or": "|",
    "bitwise_xor": "^",
}


def to_text(nests: NestProgram) -> str:
    """The steps in order."""
    lines: list[str] = []
    for step in nests.steps:
        lines += _host(step) if isinstance(step, HostStep) else nest_lines(step)
    results = ", ".join(f"slot {output.slot}: {output.spec}" for output in nests.outputs)
    return "\n".join([*lines, f"results {results}", ""])


def _host(step: HostStep) -> list[str]:
    sources = ", ".join(f"slot {slot}" for slot in step.sources)
    return [f"numpy: node {step.node} of {sources or 'nothing'} into slot {step.slot}"]


def nest_lines(nest: Nest) -> list[str]:
    """One nest: its size, its scratch, its statements."""
    parts = f"{nest.count} in {nest.parts} parts of {nest.grain}" if nest.parts > 1 else f"{nest.count}"
    lines = [f"nest {nest.name} ({parts})"]
    lines += [f"  scratch {each.name}: {each.dtype}[{each.size}]" for each in nest.scratch]
    return lines + statement_lines(nest.body, "  ")


def statement_lines(statements: Sequence[Statement], indent: str) -> list[str]:
    lines: list[str] = []
    for statement in statements:
        match statement:
            case Let():
                lines.append(f"{indent}{statement.name} = {expression(statement.value)}")
            case Changing():
                lines.append(f"{indent}var {statement.name} = {expression(statement.value)}")
            case Assign():
                lines.append(f"{indent}{statement.name} := {expression(statement.value)}")
            case Store():
                lines.append(
                    f"{indent}{statement.buffer}[{position(statement.index)}] := {expression(statement.value)}"
                )
            case Report():
                lines.append(f"{indent}report {statement.number} if {expression(statement.condition)}")
            case If():
                lines.append(f"{indent}if {expression(statement.condition)}")
                lines += statement_lines(statement.body, indent + "  ")
            case Loop():
                lines.append(f"{indent}{_loop(statement)}")
                lines += statement_lines(statement.body, indent + "  ")
            case _:
                lines.append(f"{indent}{statement}")
    return lines


def _loop(loop: Loop) -> str:
    stop = loop.stop if isinstance(loop.stop, int) else expression(loop.stop)
    words = [f"for {loop.variable} in {expression(loop.start)} … {stop}"]
    if loop.step != 1:
        words.append(f"by {loop.step}")
    if loop.vector > 1:
        words.append(f"lanes {loop.vector}" + (f" × {loop.unroll}" if loop.unroll > 1 else ""))
    if loop.pairwise:
        words.append("pairwise")
    if loop.sums:
        words.append(", ".join(f"{fn} {name}" for name, fn in loop.sums))
    return " ".join(words)


def expression(value: Expr) -> str:
    """An expression in brackets where it is not a single word."""
    match value:
        case Literal():
            return repr(value.value)
        case Name():
            return value.name
        case Position():
            return position(value.index)
        case Load():
            return f"{value.buffer}[{position(value.index)}]"
        case Apply() if value.fn in _SIGNS and len(value.args) == 2:
            one, other = map(expression, value.args)
            return f"({one} {_SIGNS[value.fn]} {other})"
        case Apply() if value.fn in ("opaque", "noted"):
            return expression(value.args[0])
        case Apply():
            return f"{value.fn}({', '.join(map(expression, value.args))})"
        case Call():
            return f"{value.name}({', '.join(map(expression, value.args))})"
        case Choose():
            return f"({expression(value.yes)} if {expression(value.condition)} else {expression(value.no)})"


def position(index: Index) -> str:
    words = [_term(atom, factor) for atom, factor in index.terms]
    if index.constant or not words:
        words.append(str(index.constant))
    return " + ".join(words)


def _term(atom: Atom, factor: int) -> str:
    return _atom(atom) if factor == 1 else f"{factor} * {_atom(atom)}"


def _atom(atom: Atom) -> str:
    if isinstance(atom, Variable):
        return atom.name
    inner = position(atom.of)
    if isinstance(atom, Quotient):
        return f"(({inner}) // {atom.by})"
    if isinstance(atom, Remainder):
        return f"(({inner}) % {atom.by})"
    return f"clamp({inner}, {atom.low}, {atom.high})"
