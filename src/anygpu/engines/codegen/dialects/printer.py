"""Prints kernels: statements, operators and positions, which both dialects spell alike."""

from __future__ import annotations

import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from string import Template
from typing import NamedTuple

import numpy as np

from anygpu.base.interrupts import float_errors_ignored
from anygpu.engines.codegen.functions import library
from anygpu.engines.codegen.index import Clamped, Index, Quotient, Remainder
from anygpu.engines.codegen.kernel import Binding, Kernel
from anygpu.engines.codegen.kernel_ir import (
    Apply,
    Assign,
    Barrier,
    Buffer,
    Call,
    Choose,
    Expr,
    Fold,
    Function,
    If,
    Let,
    Literal,
    Load,
    Loop,
    Name,
    Position,
    Report,
    Shared,
    Statement,
    Store,
    StoreWord,
    Text,
    Variable,
    names_used,
)
from anygpu.engines.codegen.target import COMPARISONS, INDENT, LOGIC, OPERATORS, SYNTAX, ComputeType, Target, indented

_OPERATORS = OPERATORS | COMPARISONS
_LOGIC = {fn: pattern.replace("&", "&&").replace("|", "||").replace("~", "!") for fn, pattern in LOGIC.items()}


def _is_operator(expr: Apply) -> bool:
    return expr.fn in (_LOGIC if expr.args[0].type == "bool" else _OPERATORS)


class Filled(NamedTuple):
    """The text of a function, with placeholders for what is handed on and for the library functions that it calls."""

    text: str
    calls: Mapping[str, tuple[str, ComputeType]]


class Printer(ABC):
    """Prints one kernel: it remembers which library functions and shared arrays the kernel needs."""

    def __init__(self, target: Target) -> None:
        """Prints kernels for a target; buffers are named with `use` first."""
        self.target = target
        self.syntax = SYNTAX[target.dialect]
        self.buffers: dict[str, Buffer] = {}
        self.needed: dict[str, None] = {}
        self.shared: dict[str, Shared] = {}

    # -- what a dialect says in its own way

    @abstractmethod
    def load(self, buffer: Buffer, index: str) -> str: ...

    @abstractmethod
    def store(self, buffer: Buffer, index: str, value: str) -> list[str]: ...

    @abstractmethod
    def declarations(self, numbers: Sequence[str]) -> str:
        """Everything in front of the functions: extensions and, where they are global, bindings."""

    @abstractmethod
    def parameters(self, numbers: Sequence[str]) -> str:
        """The parameters of the kernel function, where buffers are its arguments."""

    @property
    @abstractmethod
    def handed_on(self) -> str:
        """The first arguments of a call of a kernel's function: the buffers, where they are not global."""

    @property
    @abstractmethod
    def taken(self) -> list[str]:
        """The parameters that a function of the kernel has for what is handed on."""

    @abstractmethod
    def group_line(self, groups: int, numbers: Sequence[str]) -> str:
        """Declares `group`, the number of this group."""

    @abstractmethod
    def entry(self, name: str, group_size: int, numbers: Sequence[str], body: Sequence[str]) -> str: ...

    @abstractmethod
    def report(self, number: int, value: str) -> str: ...

    @abstractmethod
    def add_to_word(self, buffer: Buffer, value: str) -> str: ...

    def comparison(self, fn: str, of: ComputeType, one: str, other: str) -> str | None:
        """A replacement for a comparison whose operator drivers get wrong; `None` for the others."""
        return None

    def wrapped(self, fn: str, of: ComputeType, one: str, other: str, width: int = 1) -> str | None:
        """A sum, difference or product of integers that wraps, where the operator does not promise that."""
        if fn not in ("add", "subtract", "multiply"):
            return None
        return self.syntax.wrapping(OPERATORS[fn], of, one, other, width)

    @abstractmethod
    def hides_constants(self, expr: Apply) -> bool:
        """Whether a function of constants alone must be computed when the kernel runs."""

    @abstractmethod
    def must_hide(self, value: float, type: ComputeType) -> bool:
        """Whether a compiler might do with a number of the program what its language leaves undefined."""

    @abstractmethod
    def from_bits(self, bits: int, type: ComputeType) -> str:
        """The number with these bits, which no compiler can know before the kernel runs."""

    def opaque(self, value: str, type: ComputeType) -> str:
        """The same value, hidden from the compiler's algebra."""
        return value

    # -- expressions

    def literal(self, literal: Literal) -> str:
        """A number in the dialect. Infinity and NaN are functions of the library, since no dialect spells them.

        A number that was given by the user, and that compilers would fold wrongly, is hidden from them.
        """
        value, type = literal.value, literal.type
        if type in ("f32", "f64"):
            if literal.given and self.must_hide(float(value), type):
                return self.hidden(literal)
            if not math.isfinite(value):
                sign = "-" if math.copysign(1, value) < 0 else ""
                return f"{sign}{self.library_name('nan' if math.isnan(value) else 'infinity', type)}()"
        return self.syntax.number(value, type)

    def hidden(self, literal: Literal) -> str:
        """A number by its bits, which compilers do not compute with beforehand."""
        value, type = literal.value, literal.type
        if type in ("f32", "f64"):
            number = np.float64(value) if type == "f64" else float_errors_ignored(np.float32)(value)
            return self.from_bits(int.from_bytes(number.tobytes(), sys.byteorder), type)
        width = 64 if type in ("i64", "u64") else 32
        return self.from_bits(int(value) % (1 << width), type)

    def expression(self, expr: Expr) -> str:
        """The text of an expression, without parentheses around it."""
        match expr:
            case Literal():
                return self.literal(expr)
            case Name():
                return expr.name
            case Position():
                return self.position(expr.index)
            case Load():
                return self._load(expr)
            case Choose():
                parts = (self.expression(each) for each in (expr.condition, expr.yes, expr.no))
                return self.syntax.choose(*parts)
            case Call():
                arguments = ", ".join(self.expression(each) for each in expr.args)
                return f"{expr.name}({self.handed_on}{arguments})"
        return self._apply(expr)

    def operand(self, expr: Expr) -> str:
        """An expression that may stand beside an operator."""
        text = self.expression(expr)
        compound = isinstance(expr, Apply) and not text.endswith(")") and not text.isidentifier()
        compound = compound or (isinstance(expr, Position) and not text.isidentifier() and not text.isdigit())
        compound = compound or (isinstance(expr, Apply) and _is_operator(expr))
        return f"({text})" if compound or text.startswith("-") or "?" in text else text

    def _load(self, expr: Load) -> str:
        """The text of a load, from a buffer or from the group's memory."""
        index = self.position(expr.index)
        if expr.buffer in self.shared:
            return f"{expr.buffer}[{index}]"
        return self.load(self.buffers[expr.buffer], index)

    def _apply(self, expr: Apply) -> str:
        """The text of a function's application: an operator of the language, or a call of the library's function.

        Integers wrap around on overflow, also where the language leaves that undefined.
        """
        fn, of = expr.fn, expr.args[0].type
        if fn == "opaque":
            return self.opaque(self.expression(expr.args[0]), of)
        if all(isinstance(each, Literal) for each in expr.args) and self.hides_constants(expr):
            hidden = tuple(Name(self.hidden(each), each.type) for each in expr.args if isinstance(each, Literal))
            return self._apply(Apply(fn, hidden, expr.type))
        if of == "bool" and fn in _LOGIC:
            return _LOGIC[fn].format(*(self.operand(each) for each in expr.args))
        if fn in _OPERATORS and of != "bool":
            one, other = (self.operand(each) for each in expr.args)
            special = self.comparison(fn, of, one, other) or self.wrapped(fn, of, one, other)
            if special is not None:
                return special
            return f"{one} {_OPERATORS[fn]} {other}"
        if fn == "negative":
            zero, operand = self.literal(Literal(0, of)), self.operand(expr.args[0])
            wrapped = self.wrapped("subtract", of, zero, operand)
            if wrapped is not None:
                return wrapped
            return f"-{operand}" if of not in ("u32", "u64") else f"{zero} - {operand}"
        if fn == "invert":
            return f"{'!' if of == 'bool' else '~'}{self.operand(expr.args[0])}"
        name = self.library_name(fn, of)
        return f"{name}({', '.join(self.expression(each) for each in expr.args)})"

    def library_name(self, fn: str, type: ComputeType) -> str:
        """The name of a function in the dialect; its definition will be printed with the kernel."""
        name = library.call(self.target.dialect, fn, type, self.target)
        self.needed[name] = None
        return name

    def position(self, index: Index) -> str:
        """The text of a position: a sum of multiples, the largest factor first, then the constant."""
        parts: list[str] = []
        for atom, factor in sorted(index.terms, key=lambda term: -abs(term[1])):
            if isinstance(atom, Quotient):
                text = f"{self._divided(atom.of)} / {atom.by}"
            elif isinstance(atom, Remainder):
                text = f"{self._divided(atom.of)} % {atom.by}"
            elif isinstance(atom, Clamped):
                text = f"clamp({self.position(atom.of)}, {atom.low}, {atom.high})"
            else:
                text = atom.name
            if abs(factor) != 1:
                text = f"({text}) * {abs(factor)}" if " " in text and "clamp" not in text else f"{text} * {abs(factor)}"
            elif isinstance(atom, Quotient | Remainder) and len(index.terms) > 1:
                text = f"({text})"
            if not parts:
                parts.append(f"-{text}" if factor < 0 else text)
            else:
                parts.append(f"- {text}" if factor < 0 else f"+ {text}")
        if index.constant or not parts:
            sign = "- " if index.constant < 0 else "+ "
            parts.append(f"{sign}{abs(index.constant)}" if parts else str(index.constant))
        return " ".join(parts)

    def _divided(self, of: Index) -> str:
        text = self.position(of)
        return f"({text})" if " " in text else text

    # -- statements

    def let(self, name: str, type: ComputeType, value: str) -> str:
        return self.syntax.let(name, self.syntax.types[type], value)

    def variable(self, name: str, type: ComputeType, value: str) -> str:
        return self.syntax.variable(name, self.syntax.types[type], value)

    def loop_head(self, variable: str, start: str, stop: str, step: int) -> str:
        return self.syntax.loop(variable, start, f"< {stop}", f" += {step}")

    def lines(self, statements: Iterable[Statement]) -> list[str]:
        return [line for statement in statements for line in self.statement(statement)]

    def statement(self, statement: Statement) -> list[str]:
        """The lines of a statement, and of those inside of it."""
        match statement:
            case Let():
                return [self.let(statement.name, statement.value.type, self.expression(statement.value))]
            case Variable():
                return [self.variable(statement.name, statement.value.type, self.expression(statement.value))]
            case Assign():
                return [f"{statement.name} = {self.expression(statement.value)};"]
            case Store():
                return self._store(statement)
            case StoreWord():
                return [self.add_to_word(self.buffers[statement.buffer], self.expression(statement.value))]
            case Loop():
                return self.loop(statement)
            case If():
                head = f"if ({self.expression(statement.condition)}) {{"
                return [head, *indented(self.lines(statement.body)), "}"]
            case Fold():
                return self.fold(statement)
            case Barrier():
                return [self.syntax.barrier]
            case Report():
                inner = self.report(statement.number, self.expression(statement.value))
                return [f"if ({self.expression(statement.condition)}) {{", INDENT + inner, "}"]
            case Text():
                return [statement.line]

    def _store(self, statement: Store) -> list[str]:
        """The lines of a store, to a buffer or to the group's memory."""
        index, value = self.position(statement.index), self.expression(statement.value)
        if statement.buffer in self.shared:
            return [f"{statement.buffer}[{index}] = {value};"]
        return self.store(self.buffers[statement.buffer], index, value)

    def loop(self, loop: Loop) -> list[str]:
        """The lines of a loop."""
        stop = str(loop.stop) if isinstance(loop.stop, int) else self.expression(loop.stop)
        head = self.loop_head(loop.variable, self.expression(loop.start), stop, loop.step)
        return [head, *indented(self.lines(loop.body)), "}"]

    def fold(self, fold: Fold) -> list[str]:
        """A tree in shared memory: half of the lanes take over the other half's values, again and again."""
        size = fold.lanes * fold.rows
        arrays = [f"folded_{name.name}" for name in fold.names]
        for array, name in zip(arrays, fold.names, strict=True):
            self.shared[array] = Shared(array, name.type, size)
        lines = [f"{array}[lane] = {self.as_shared(name)};" for array, name in zip(arrays, fold.names, strict=True)]
        lines.append(self.syntax.barrier)
        column = "lane" if fold.rows == 1 else f"lane % {fold.lanes}"
        lines.append(self.syntax.loop("reach", str(fold.lanes // 2), "> 0", " /= 2"))
        inner = [f"if ({column} < reach) {{"]
        body = [
            self.let(other.name, other.type, self.from_shared(f"{array}[lane + reach]", other.type))
            for array, other in zip(arrays, fold.others, strict=True)
        ]
        body += self.lines(fold.combine)
        body += [f"{array}[lane] = {self.as_shared(name)};" for array, name in zip(arrays, fold.names, strict=True)]
        inner += [*indented(body), "}", self.syntax.barrier]
        lines += [*indented(inner), "}"]
        first = "0" if fold.rows == 1 else f"lane - lane % {fold.lanes}"
        lines += [
            f"{name.name} = {self.from_shared(f'{array}[{first}]', name.type)};"
            for array, name in zip(arrays, fold.names, strict=True)
        ]
        # The arrays are free again only when every lane has read its total.
        lines.append(self.syntax.barrier)
        return lines

    def as_shared(self, name: Name) -> str:
        """Truth values are numbers in shared arrays."""
        if name.type != "bool":
            return name.name
        return self.syntax.choose(name.name, self.literal(Literal(1, "u32")), self.literal(Literal(0, "u32")))

    def from_shared(self, text: str, type: ComputeType) -> str:
        return text if type != "bool" else f"({text} != {self.literal(Literal(0, 'u32'))})"

    # -- whole kernels

    def kernel(
        self,
        name: str,
        *,
        buffers: Sequence[Buffer],
        body: Sequence[Statement],
        groups: int,
        group_size: int,
        shared: Sequence[Shared] = (),
        functions: Sequence[Function] = (),
        templates: Sequence[Filled] = (),
        cuttable: bool = False,
        flops: float = 0.0,
        bytes_moved: float = 0.0,
    ) -> Kernel:
        """A kernel with its text.

        `functions` and `templates` come before the entry point, and of the library only what is used. `groups` of
        `group_size` invocations run it; a `cuttable` kernel may be launched in several parts. `flops` and `bytes_moved`
        are for its prediction.
        """
        numbers = self.use(buffers, shared, cuttable=cuttable)
        self.rehearse(body)
        function_texts = [self.function_text(function) for function in functions]
        function_texts += [self.filled(template) for template in templates]
        inner = self.lines(body)
        lines = [self.group_line(groups, numbers), *inner]
        entry = self.entry(name, group_size, numbers, lines)
        parts = [self.declarations(numbers), self.library_texts(), self.shared_texts(), *function_texts, entry]
        return Kernel(
            name=name,
            source="\n\n".join(part.strip("\n") for part in parts if part.strip()) + "\n",
            bindings=self.bindings(),
            groups=groups,
            group_size=group_size,
            numbers=tuple(numbers),
            flops=flops,
            bytes_moved=bytes_moved,
        )

    def rehearse(self, body: Sequence[Statement]) -> None:  # noqa: B027
        """A look at all statements before the first of them is printed."""

    def function_text(self, function: Function) -> str:
        """The text of a function of kernel statements, with what it returns."""
        types, lines = self.syntax.types, self.lines(function.body)
        parameters = {each.name: types[each.type] for each in function.parameters}
        if function.result is None:
            return self.function(function.name, parameters, None, lines)
        lines.append(f"return {self.expression(function.result)};")
        return self.function(function.name, parameters, types[function.result.type], lines)

    def function(self, name: str, parameters: Mapping[str, str], result: str | None, lines: Sequence[str]) -> str:
        """A function of the kernel, which sees its buffers."""
        return self.syntax.function(name, parameters, result, lines, given=self.taken, inline=True)

    def filled(self, template: Filled) -> str:
        """A function from a template's text."""
        names = {name: self.library_name(fn, type) for name, (fn, type) in template.calls.items()}
        taken = "".join(f"{each}, " for each in self.taken)
        return Template(template.text).safe_substitute({**names, "pass": self.handed_on, "taken": taken})

    def use(self, buffers: Sequence[Buffer], shared: Sequence[Shared] = (), *, cuttable: bool) -> list[str]:
        """Take these buffers, and return the names of the numbers that launches pass: the first group, and offsets."""
        self.buffers = {buffer.name: buffer for buffer in buffers}
        self.shared = {array.name: array for array in shared}
        numbers = ["first_group"] if cuttable else []
        return numbers + [f"offset_{buffer.name}" for buffer in buffers if buffer.has_offset]

    @abstractmethod
    def shared_texts(self) -> str: ...

    def library_texts(self) -> str:
        return library.definitions(self.target.dialect, self.needed).strip()

    def windows(self, buffer: Buffer) -> int:
        """The number of bindings that cover a whole buffer."""
        return max(1, -(-_shown_bytes(buffer) // self.window_bytes))

    @property
    def window_bytes(self) -> int:
        """A power of two, so that the window of an element is found by a shift."""
        return 1 << (self.target.binding_bytes.bit_length() - 1)

    def bindings(self) -> tuple[Binding, ...]:
        """The bindings of all buffers, in order. A buffer that is larger than a binding may be has several windows."""
        result: list[Binding] = []
        for buffer in self.buffers.values():
            count = self.windows(buffer)
            if count == 1:
                result.append(Binding(buffer.slot, buffer.access))
                continue
            for number in range(count):
                first = number * self.window_bytes
                window = (first, min(self.window_bytes, _shown_bytes(buffer) - first))
                result.append(Binding(buffer.slot, buffer.access, window))
        return tuple(result)


#: Data that begin inside of their binding begin before this byte: no device asks for a larger alignment.
LARGEST_OFFSET = 256


def _shown_bytes(buffer: Buffer) -> int:
    return buffer.nbytes + (LARGEST_OFFSET if buffer.has_offset else 0)


def only_used(buffers: Sequence[Buffer], statements: Sequence[Statement]) -> list[Buffer]:
    used = names_used(statements)
    return [buffer for buffer in buffers if buffer.name in used]
