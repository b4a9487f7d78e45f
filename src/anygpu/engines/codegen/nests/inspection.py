"""Finished nests as text, for people and tests, and as numbers of instructions and bytes, for predictions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from anygpu.engines.codegen.index import Atom, Index, IndexVariable, Quotient, Remainder
from anygpu.engines.codegen.kernel_ir import (
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
from anygpu.engines.codegen.kernel_ir import Variable as Changing
from anygpu.engines.codegen.nests.steps import HostStep, Nest, NestProgram, weight_of

# -- text


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
    """Statements as lines of text, those inside of loops and conditions indented."""
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
    """The head of a loop as text: its range, step, lanes, and the sums that it carries."""
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
    """A position as text, a sum of its terms."""
    words = [_term(atom, factor) for atom, factor in index.terms]
    if index.constant or not words:
        words.append(str(index.constant))
    return " + ".join(words)


def _term(atom: Atom, factor: int) -> str:
    return _atom(atom) if factor == 1 else f"{factor} * {_atom(atom)}"


def _atom(atom: Atom) -> str:
    """An atom of a position as text, in Python's operators."""
    if isinstance(atom, IndexVariable):
        return atom.name
    inner = position(atom.of)
    if isinstance(atom, Quotient):
        return f"(({inner}) // {atom.by})"
    if isinstance(atom, Remainder):
        return f"(({inner}) % {atom.by})"
    return f"clamp({inner}, {atom.low}, {atom.high})"


# -- instructions of the processor, and bytes of its buffers
# An instruction is one of a full vector, or of a single number where a loop has no lanes. Nothing is compiled for that.


_BYTES = {"f64": 8, "i64": 8, "u64": 8}
#: How much longer functions of 64-bit numbers are.
_LONGER = 1.5
#: Instructions for each element that is not beside the one before.
_APART = 1.0


class NestWork(NamedTuple):
    """Of one step, on all threads together."""

    instructions: float
    bytes: float


def work_of(nest: Nest, vector_bytes: int) -> NestWork:
    """What a nest does, where registers have so many bytes."""
    counted = _Counted(vector_bytes)
    counted.statements(nest.body, 1.0, None, 1)
    return NestWork(counted.instructions, float(sum(buffer.nbytes for buffer in nest.buffers)))


class _Counted:
    """Counts the instructions that statements take, in vectors where loops have lanes."""

    def __init__(self, vector_bytes: int) -> None:
        self.vector_bytes = vector_bytes
        self.instructions = 0.0

    def statements(self, body: Sequence[Statement], times: float, lane: str | None, lanes: int) -> None:
        """So many times, in so many lanes along a variable."""
        for statement in body:
            match statement:
                case Loop():
                    self._loop(statement, times, lane, lanes)
                case Let() | Changing() | Assign():
                    self._expr(statement.value, times, lane, lanes)
                case Store():
                    self._access(statement.index, statement.value.type, times, lane, lanes)
                    self._expr(statement.value, times, lane, lanes)
                case Report():
                    self._expr(statement.condition, times, lane, lanes)

    def _loop(self, loop: Loop, times: float, lane: str | None, lanes: int) -> None:
        """Count a loop's body for each vector of its lanes, or for each round."""
        rounds = rounds_of(loop)
        if loop.vector > 1 and lanes == 1:
            # The last vectors are full as well: they do some rounds again.
            at_once = min(loop.vector * loop.unroll, 1 << max(rounds.bit_length() - 1, 0))
            vectors = -(-rounds // at_once) * max(1, at_once // loop.vector)
            self.statements(loop.body, times * vectors, loop.variable, min(loop.vector, at_once))
        else:
            self.statements(loop.body, times * rounds, lane, lanes)
            self.instructions += times * rounds

    def _expr(self, expr: Expr, times: float, lane: str | None, lanes: int) -> None:
        """Count an expression. Functions weigh what the table of functions says, and more in float64."""
        match expr:
            case Apply():
                weight = weight_of(expr)
                if weight > 1 and expr.type == "f64":
                    weight *= _LONGER
                self.instructions += times * weight * self._registers(expr.type, lanes)
                for each in expr.args:
                    self._expr(each, times, lane, lanes)
            case Choose():
                self.instructions += times * self._registers(expr.type, lanes)
                for each in (expr.condition, expr.yes, expr.no):
                    self._expr(each, times, lane, lanes)
            case Load():
                self._access(expr.index, expr.type, times, lane, lanes)
            case Call():
                for each in expr.args:
                    self._expr(each, times, lane, lanes)

    def _access(self, index: Index, type: str, times: float, lane: str | None, lanes: int) -> None:
        """Count a load or store: half an instruction for a vector of neighbours, several for each lane apart."""
        if lane is not None and lanes > 1 and index.steps_with(lane) not in (0, 1):
            self.instructions += times * _APART * lanes
        else:
            self.instructions += times * 0.5 * self._registers(type, lanes)

    def _registers(self, type: str, lanes: int) -> float:
        """Of a value: more than one where lanes are of a shorter type."""
        return max(1.0, lanes * _BYTES.get(type, 4) / self.vector_bytes)


def rounds_of(loop: Loop) -> int:
    """How often a loop goes round in all parts of its nest together."""
    found = next((each for index in _indices(loop.body) for each in _variables(index, loop.variable)), None)
    if isinstance(loop.stop, int) and isinstance(loop.start, Literal):
        low, high = int(loop.start.value), loop.stop
    elif found is not None:
        low, high = found.low, found.high + 1
    else:
        low, high = 0, 1
    if isinstance(loop.start, Position):
        # What is left over when several rows at a time have been done.
        for atom, _ in loop.start.index.terms:
            if isinstance(atom, Quotient):
                return (high - low) % atom.by
    return max(0, -(-(high - low) // loop.step))


def _variables(index: Index, name: str) -> Iterator[IndexVariable]:
    """The variables of this name in a position, also those inside of quotients and the like."""
    for atom, _ in index.terms:
        if isinstance(atom, IndexVariable):
            if atom.name == name:
                yield atom
        else:
            yield from _variables(atom.of, name)


def _indices(body: Sequence[Statement]) -> Iterator[Index]:
    """All positions of loads and stores."""
    for statement in body:
        match statement:
            case Loop():
                yield from _indices(statement.body)
            case Store():
                yield statement.index
                yield from _of_expr(statement.value)
            case Let() | Changing() | Assign():
                yield from _of_expr(statement.value)


def _of_expr(expr: Expr) -> Iterator[Index]:
    """The positions that an expression loads from or has as its value."""
    match expr:
        case Load() | Position():
            yield expr.index
        case Apply() | Call():
            for each in expr.args:
                yield from _of_expr(each)
        case Choose():
            for each in (expr.condition, expr.yes, expr.no):
                yield from _of_expr(each)
