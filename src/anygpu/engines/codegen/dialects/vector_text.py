"""Statements in vectors: one variable stands for neighbours, and what depends on it becomes a vector of values.

Loads and stores side by side are done together, values that are the same for all stay single, and functions that take
no vectors are called for each component. What cannot be done in vectors raises `NotVectorisable`.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from anygpu.engines.codegen.dialects.printer import Printer
from anygpu.engines.codegen.index import Clamped, Index, Quotient, Remainder, constant
from anygpu.engines.codegen.index import IndexVariable as Counter
from anygpu.engines.codegen.kernel_ir import (
    Apply,
    Assign,
    Buffer,
    Choose,
    Expr,
    Let,
    Literal,
    Load,
    Name,
    Position,
    Report,
    Statement,
    Store,
    StoreWord,
)
from anygpu.engines.codegen.target import COMPARISONS, INDENT, LOGIC, OPERATORS, ComputeType, Syntax, indented
from anygpu.program.dtypes import DType

# -- vectors in one dialect: their spelling, and how they are loaded and stored
#
# The rules of working in vectors are in `anygpu.engines.codegen.dialects.vectors`.


#: Buffers whose elements are exactly of a compute type.
EXACT: dict[DType, ComputeType] = {
    "float32": "f32", "float64": "f64", "int32": "i32", "uint32": "u32", "int64": "i64", "uint64": "u64",
}  # fmt: skip


def is_multiple(index: Index, of: int) -> bool:
    """Whether a position surely is a multiple, whatever its variables are."""
    return index.constant % of == 0 and all(factor % of == 0 for _, factor in index.terms)


class VectorSyntax(ABC):
    """Vectors of `width` components in one dialect. Truth values of a vector are a vector, too."""

    syntax: Syntax
    width: int
    #: The number of vectors that one sum is kept in: each addition to a single one would wait for the last.
    chains: int = 1
    #: Whether an array of vectors is kept in registers when its positions are known.
    has_arrays: bool = False
    #: Whether it is worth while to do single components where there is no other way.
    patient: bool = True
    #: The number of loads and stores of whole vectors that have been printed.
    together: int = 0

    def type_name(self, type: ComputeType) -> str:
        return self.syntax.vector(type, self.width)

    def broadcast(self, type: ComputeType, text: str) -> str:
        return self.joined(type, [text])

    def joined(self, type: ComputeType, parts: Sequence[str]) -> str:
        """A vector of single values."""
        return self.syntax.construct(self.type_name(type), parts)

    def let(self, name: str, type: ComputeType, value: str) -> str:
        return self.syntax.let(name, self.type_name(type), value)

    def variable(self, name: str, type: ComputeType, value: str) -> str:
        return self.syntax.variable(name, self.type_name(type), value)

    @abstractmethod
    def load(self, buffer: Buffer, index: Index) -> str | None:
        """Neighbours in a buffer from a position on; `None` where they cannot be had together."""

    @abstractmethod
    def store(self, buffer: Buffer, index: Index, value: str) -> list[str] | None: ...

    @abstractmethod
    def word(self, buffer: Buffer, value: str) -> str | None:
        """Elements that fill a word, as that word."""

    @abstractmethod
    def select(self, type: ComputeType, no: str, yes: str, mask: str) -> str: ...

    @abstractmethod
    def compare(self, fn: str, of: ComputeType, one: str, other: str) -> str: ...

    @abstractmethod
    def logic(self, pattern: str, texts: Sequence[str]) -> str: ...

    @abstractmethod
    def cast(self, of: ComputeType, to: ComputeType, text: str) -> str | None: ...

    @abstractmethod
    def call(self, fn: str, of: ComputeType, result: ComputeType, texts: Sequence[str]) -> str | None:
        """A function that takes vectors; `None` when it is for single values only."""

    def opaque(self, type: ComputeType, text: str) -> str:
        """The same values, hidden from the compiler's algebra."""
        return text

    def component(self, text: str, number: int) -> str:
        return self.syntax.component(text, number)

    def spread(self, buffer: Buffer, index: Index, offsets: Sequence[int]) -> str | None:
        """Elements at fixed distances from a position, as where several numbers share a byte; `None` if one by one."""
        return None

    def halved(self) -> VectorSyntax | None:
        """The same for vectors of half the size, where a vector has halves called `lo` and `hi`."""
        return None


class NotVectorisable(Exception):
    """This cannot be done in vectors."""


class VectorOperand(NamedTuple):
    """The text of an operand, and whether it is a vector."""

    text: str
    #: Whether it is a vector.
    wide: bool


def replaced(index: Index, by: Mapping[str, Index]) -> Index:
    """The position with other positions in place of variables."""
    result = constant(index.constant)
    for atom, factor in index.terms:
        if isinstance(atom, Counter):
            inner = by[atom.name] if atom.name in by else Index(0, [(atom, 1)])
        elif isinstance(atom, Quotient):
            inner = replaced(atom.of, by) // atom.by
        elif isinstance(atom, Remainder):
            inner = replaced(atom.of, by) % atom.by
        else:
            inner = Index(0, [(Clamped(replaced(atom.of, by), atom.low, atom.high), 1)])
        result = result + inner * factor
    return result


class VectorText:
    """Prints statements in which one variable stands for neighbours, of which the first is at `first`."""

    def __init__(self, printer: Printer, syntax: VectorSyntax, variable: str, first: Index) -> None:
        """Statements in vectors, where `variable` counts the components from the position `first` on."""
        self._printer = printer
        self._syntax = syntax
        self._variable = variable
        self.first = first
        #: Other variables whose values are known.
        self.fixed: dict[str, Index] = {}
        self.wide: set[str] = set()
        #: Names of accumulators inside of the loop.
        self.spelled: dict[str, str] = {}
        #: A suffix that keeps the names of this text apart from those of others in the same block.
        self.turn = ""
        self._before: list[str] = []
        self._held = 0

    # -- expressions

    def expression(self, expr: Expr) -> VectorOperand:
        """The text of an expression, and whether it is a vector. Raises `NotVectorisable` where it cannot be one."""
        match expr:
            case Literal():
                return VectorOperand(self._printer.literal(expr), False)
            case Name():
                return VectorOperand(self.spelled.get(expr.name, expr.name), expr.name in self.wide)
            case Load():
                return self._load(expr)
            case Position():
                return self._position(expr)
            case Choose():
                return self._choose(expr)
            case Apply():
                return self._apply(expr)
        raise NotVectorisable

    def vector(self, expr: Expr) -> str:
        """The expression as a vector, also where all its components are the same."""
        return self._widened(self.expression(expr), expr.type)

    def _widened(self, value: VectorOperand, type: ComputeType) -> str:
        return value.text if value.wide else self._syntax.broadcast(type, value.text)

    def _varies(self, index: Index) -> bool:
        return index.depends_on(self._variable) or any(index.depends_on(name) for name in self.wide)

    def _step(self, index: Index) -> int | None:
        """The distance of neighbours; `None` when it is not the same for all."""
        if any(index.depends_on(name) for name in self.wide):
            return None
        return index.steps_with(self._variable)

    def _known(self, index: Index) -> Index:
        return replaced(index, self.fixed) if self.fixed else index

    def _beginning(self, index: Index) -> Index:
        return replaced(index, {**self.fixed, self._variable: self.first})

    def _component(self, index: Index, number: int) -> Index:
        """The position in one component, with components of vectors in place of variables that are vectors."""
        by = {**self.fixed, self._variable: self.first + number}
        for name in self.wide:
            if index.depends_on(name):
                text = self._syntax.component(self.spelled.get(name, name), number)
                by[name] = Index(0, [(Counter(text, *_range_of(index, name)), 1)])
        return replaced(index, by)

    def _load(self, expr: Load) -> VectorOperand:
        """A load: single where its position does not vary, a vector of neighbours, or components one by one."""
        if not self._varies(expr.index):
            return VectorOperand(self._printer.expression(Load(expr.buffer, self._known(expr.index), expr.type)), False)
        buffer = self._printer.buffers.get(expr.buffer)
        if buffer is None:
            raise NotVectorisable
        step = self._step(expr.index)
        if step == 1:
            text = self._syntax.load(buffer, self._beginning(expr.index))
            if text is not None:
                self._syntax.together += 1
                return VectorOperand(text, True)
        spread = self.spread(expr) if step is None else None
        if spread is not None:
            return spread
        if not self._syntax.patient and (step is None or step == 1):
            raise NotVectorisable
        indices = [self._printer.position(self._component(expr.index, each)) for each in range(self._syntax.width)]
        return VectorOperand(
            self._syntax.joined(expr.type, [self._printer.load(buffer, each) for each in indices]), True
        )

    def spread(self, expr: Load) -> VectorOperand | None:
        """Elements whose distances are known, though they are not the same: half of a position, or the rest of it."""
        buffer = self._printer.buffers.get(expr.buffer)
        distances = self._distances(expr.index)
        if buffer is None or distances is None or min(distances) < 0:
            return None
        text = self._syntax.spread(buffer, self._component(expr.index, 0), distances)
        if text is None:
            return None
        self._syntax.together += 1
        return VectorOperand(text, True)

    def _distances(self, index: Index) -> list[int] | None:
        """The distance of each neighbour from the first; `None` where it is not known."""
        if any(index.depends_on(name) for name in self.wide):
            return None
        first = self._component(index, 0)
        distances = [self._component(index, number) - first for number in range(self._syntax.width)]
        return [each.constant for each in distances] if all(each.is_constant for each in distances) else None

    def _position(self, expr: Position) -> VectorOperand:
        """A position as a number or as a vector of them: its first component plus constant distances where possible."""
        if not self._varies(expr.index):
            return VectorOperand(self._printer.position(self._known(expr.index)), False)
        step = self._step(expr.index)
        width = self._syntax.width
        distances = self._distances(expr.index) if step is None else None
        if distances is not None:
            first = self._printer.position(self._component(expr.index, 0))
            return VectorOperand(f"({first} + {self._syntax.joined('i32', [str(each) for each in distances])})", True)
        if step is None:
            if not self._syntax.patient:
                raise NotVectorisable
            parts = [self._printer.position(self._component(expr.index, each)) for each in range(width)]
            return VectorOperand(self._syntax.joined("i32", parts), True)
        steps = self._syntax.joined("i32", [str(each * step) for each in range(width)])
        return VectorOperand(f"({self._printer.position(self._beginning(expr.index))} + {steps})", True)

    def _settled(self, expr: Expr) -> Expr:
        """The same with what is known of variables, and with names as they are spelled inside."""
        match expr:
            case Position():
                return Position(self._known(expr.index))
            case Load():
                return Load(expr.buffer, self._known(expr.index), expr.type)
            case Name():
                return Name(self.spelled.get(expr.name, expr.name), expr.type)
            case Choose():
                return Choose(*(self._settled(each) for each in (expr.condition, expr.yes, expr.no)))
            case Apply():
                return Apply(expr.fn, tuple(self._settled(each) for each in expr.args), expr.type)
        return expr

    def _choose(self, expr: Choose) -> VectorOperand:
        """A choice: by component where the condition is a vector, and between whole vectors where it is single."""
        condition, yes, no = (self.expression(each) for each in (expr.condition, expr.yes, expr.no))
        if not (condition.wide or yes.wide or no.wide):
            return VectorOperand(self._printer.syntax.choose(condition.text, yes.text, no.text), False)
        type = expr.yes.type
        others = self._widened(no, type), self._widened(yes, type)
        if condition.wide:
            return VectorOperand(self._syntax.select(type, *others, condition.text), True)
        return VectorOperand(f"({self._printer.syntax.choose(condition.text, others[1], others[0])})", True)

    def _apply(self, expr: Apply) -> VectorOperand:
        """A function's application, as short as it can be had.

        It is single if all operands are; otherwise an operator of vectors, a call of a function that takes vectors, or
        a call for each component.
        """
        values = [self.expression(each) for each in expr.args]
        if not any(value.wide for value in values):
            return VectorOperand(self._printer.expression(self._settled(expr)), False)
        fn, of, syntax = expr.fn, expr.args[0].type, self._syntax
        texts = [value._replace(text=_operand(value.text)) for value in values]
        vectors = [self._widened(text, arg.type) for text, arg in zip(texts, expr.args, strict=True)]
        if of == "bool" and (fn in LOGIC or fn == "invert"):
            return VectorOperand(syntax.logic(LOGIC.get(fn, "~{0}"), vectors), True)
        if fn in COMPARISONS:
            return VectorOperand(syntax.compare(fn, of, *vectors), True)
        if fn == "opaque":
            return VectorOperand(syntax.opaque(of, vectors[0]), True)
        if fn == "negative":
            zero = syntax.broadcast(of, self._printer.literal(Literal(0, of)))
            wrapped = self._printer.wrapped("subtract", of, zero, vectors[0], syntax.width)
            if wrapped is None:
                wrapped = f"(-{texts[0].text})" if of not in ("u32", "u64") else f"(0 - {vectors[0]})"
            return VectorOperand(wrapped, True)
        if fn in OPERATORS:
            wrapped = self._printer.wrapped(fn, of, vectors[0], vectors[1], syntax.width)
            if wrapped is not None:
                return VectorOperand(wrapped, True)
        if fn in OPERATORS and (fn not in ("bitwise_and", "bitwise_or", "bitwise_xor") or of not in ("f32", "f64")):
            # Numbers beside vectors stay single where all dialects take that.
            plain = [text.text for text in texts] if fn in ("add", "subtract", "multiply", "divide") else vectors
            return VectorOperand(f"({plain[0]} {OPERATORS[fn]} {plain[1]})", True)
        if fn == "invert":
            return VectorOperand(f"(~{vectors[0]})", True)
        text = syntax.cast(of, _cast_type(fn), vectors[0]) if fn.startswith("cast_") else None
        if text is None and not fn.startswith("cast_"):
            text = syntax.call(fn, of, expr.type, vectors)
        return VectorOperand(text if text is not None else self._for_each(expr, values), True)

    def _for_each(self, expr: Apply, values: Sequence[VectorOperand]) -> str:
        """A function for single values, for each component."""
        held = [self._named(value, arg.type) for value, arg in zip(values, expr.args, strict=True)]
        parts = []
        for number in range(self._syntax.width):
            single = [self._syntax.component(each.text, number) if each.wide else each.text for each in held]
            names = tuple(self._name(text, arg.type) for text, arg in zip(single, expr.args, strict=True))
            parts.append(self._printer.expression(Apply(expr.fn, names, expr.type)))
        return self._syntax.joined(expr.type, parts)

    def _name(self, text: str, type: ComputeType) -> Name:
        """A text as an expression; components of a mask in OpenCL C are compared with 0."""
        return Name(
            text if type != "bool" else f"({text} != 0)" if self._printer.target.dialect == "opencl" else text, type
        )

    def _named(self, value: VectorOperand, type: ComputeType) -> VectorOperand:
        """The value under a name, because several components are taken of it."""
        if not value.wide or value.text.replace("[", "").replace("]", "").isidentifier():
            return value
        self._held += 1
        name = f"{self._variable}_value{self.turn}_{self._held}"
        self._before.append(self._syntax.let(name, type, value.text))
        return VectorOperand(name, True)

    # -- statements

    def lines(self, statements: Sequence[Statement], running: Sequence[str] = ()) -> list[str]:
        """The lines of statements without loops; `running` are the values that may be assigned to."""
        result: list[str] = []
        for statement in statements:
            lines = self._statement(statement, running)
            result += [*self.taken(), *lines]
        return result

    def taken(self) -> list[str]:
        """Lines that what was printed last needs before it."""
        before, self._before = self._before, []
        return before

    def _statement(self, statement: Statement, running: Sequence[str]) -> list[str]:
        """The lines of a statement; `running` are the sums that the loop carries.

        Raises `NotVectorisable` for statements that have no form in vectors.
        """
        match statement:
            case Let():
                return [self.let(statement)]
            case Assign() if statement.name in running:
                value = unwrapped(self.vector(statement.value))
                return [f"{self.spelled.get(statement.name, statement.name)} = {value};"]
            case Store():
                return self._store(statement)
            case StoreWord():
                text = self._syntax.word(self._printer.buffers[statement.buffer], self.vector(statement.value))
                if text is not None:
                    self._syntax.together += 1
                    return [text]
            case Report():
                return self._report(statement)
        raise NotVectorisable

    def let(self, statement: Let) -> str:
        """The declaration of a value, as a vector where it is one."""
        value, type = self.expression(statement.value), statement.value.type
        if value.wide:
            self.wide.add(statement.name)
            return self._syntax.let(self.spelled.get(statement.name, statement.name), type, unwrapped(value.text))
        return self._printer.let(statement.name, type, value.text)

    def _store(self, statement: Store) -> list[str]:
        """The lines of a store: neighbours at once, or component by component where the positions are apart."""
        buffer = self._printer.buffers.get(statement.buffer)
        step = self._step(statement.index)
        if buffer is None or not self._varies(statement.index):
            raise NotVectorisable
        value = self.vector(statement.value)
        type = statement.value.type
        if step == 1:
            held = value if value.isidentifier() else self._named(VectorOperand(value, True), type).text
            lines = self._syntax.store(buffer, self._beginning(statement.index), held)
            if lines is not None:
                self._syntax.together += 1
                return lines
        if not self._syntax.patient and (step is None or step == 1):
            raise NotVectorisable
        held = self._named(VectorOperand(value, True), type).text
        result = []
        for number in range(self._syntax.width):
            index = self._printer.position(self._component(statement.index, number))
            single = self._printer.expression(self._name(self._syntax.component(held, number), type))
            result += self._printer.store(buffer, index, single)
        return result

    def _report(self, statement: Report) -> list[str]:
        """The lines of a report: one condition for all components, and each component by itself if any has failed."""
        condition, value = self.expression(statement.condition), self.expression(statement.value)
        if not condition.wide and not value.wide:
            inner = self._printer.report(statement.number, value.text)
            return [f"if ({condition.text}) {{", INDENT + inner, "}"]
        if not self._syntax.patient:
            raise NotVectorisable
        mask = self._named(VectorOperand(self._widened(condition, "bool"), True), "bool").text
        held = self._named(VectorOperand(self._widened(value, "i32"), True), "i32").text
        lines = []
        for number in range(self._syntax.width):
            single = self._printer.report(statement.number, self._syntax.component(held, number))
            lines.append(f"if ({self._syntax.component(mask, number)}) {{ {single} }}")
        return [f"if (any({mask})) {{", *indented(lines), "}"]

    def total(self, fn: str, type: ComputeType, scalar: str, vectors: Sequence[str]) -> list[str]:
        """The components of running values become one number: first the vectors, then their halves, pair by pair."""
        lines: list[str] = []
        whole = vectors[0]
        if len(vectors) > 1:
            whole = f"{scalar}_all"
            lines.append(self._syntax.variable(whole, type, vectors[0]))
            self.wide.update((whole, *vectors))
            for other in vectors[1:]:
                both = Apply(fn, (Name(whole, type), Name(other, type)), type)
                lines.append(f"{whole} = {unwrapped(self.vector(both))};")
        syntax = self._syntax
        while (smaller := syntax.halved()) is not None:
            text = VectorText(self._printer, smaller, self._variable, self.first)
            text.wide.update(halves := (f"{whole}.lo", f"{whole}.hi"))
            whole, syntax = f"{scalar}_{smaller.width}", smaller
            both = Apply(fn, (Name(halves[0], type), Name(halves[1], type)), type)
            lines.append(smaller.let(whole, type, unwrapped(text.vector(both))))
        values: list[Expr] = [self._name(syntax.component(whole, each), type) for each in range(syntax.width)]
        while len(values) > 1:
            half = len(values) // 2
            values = [Apply(fn, (values[each], values[each + half]), type) for each in range(half)]
        lines.append(f"{scalar} = {self._printer.expression(Apply(fn, (Name(scalar, type), values[0]), type))};")
        return lines


def _cast_type(fn: str) -> ComputeType:
    return fn.removeprefix("cast_")  # type: ignore[return-value]


_PRIMARY = re.compile(r"(\(\w+\))?[\w<>]*\(")


def _operand(text: str) -> str:
    """Text that may stand beside an operator: a name, a call, a conversion, or something in parentheses."""
    if text.startswith("-"):
        return f"({text})"
    head = _PRIMARY.match(text)
    if " " not in text or (head is not None and _closes_at_end(text, head.end() - 1)):
        return text
    return f"({text})"


def _closes_at_end(text: str, opened: int) -> bool:
    """Whether the parenthesis that opens here is closed by the last character."""
    depth = 0
    for place in range(opened, len(text)):
        depth += (text[place] == "(") - (text[place] == ")")
        if depth == 0:
            return place == len(text) - 1
    return False


def unwrapped(text: str) -> str:
    """The text without parentheses around all of it."""
    return text[1:-1] if text.startswith("(") and _closes_at_end(text, 0) else text


def _range_of(index: Index, name: str) -> tuple[int, int]:
    """The range of a variable inside of a position. Raises `NotVectorisable` where it does not occur."""
    for atom, _ in index.terms:
        if isinstance(atom, Counter):
            if atom.name == name:
                return atom.low, atom.high
        elif atom.of.depends_on(name):
            return _range_of(atom.of, name)
    raise NotVectorisable
