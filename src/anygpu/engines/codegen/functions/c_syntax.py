"""Reads the restricted C of `anygpu.engines.codegen.functions`: one definition as a tree.

There are functions of numbers and of structs of numbers, with local values, ternaries, loops and conditions. There
are no pointers, no arrays and no memory.
"""

from __future__ import annotations

import re
from typing import NamedTuple


class CNumber(NamedTuple):
    text: str


class Name(NamedTuple):
    name: str


class CField(NamedTuple):
    of: Expression
    name: str


class Call(NamedTuple):
    name: str
    args: tuple[Expression, ...]


class CCast(NamedTuple):
    type: str
    of: Expression


class Struct(NamedTuple):
    """A struct of its fields, in order; the type is "" where the declaration has it."""

    type: str
    fields: tuple[Expression, ...]


class CUnary(NamedTuple):
    op: str
    of: Expression


class CBinary(NamedTuple):
    """Two operands and the operator between them."""

    op: str
    one: Expression
    other: Expression


class Ternary(NamedTuple):
    """A choice between two values."""

    condition: Expression
    yes: Expression
    no: Expression


Expression = CNumber | Name | CField | Call | CCast | Struct | CUnary | CBinary | Ternary


class Declare(NamedTuple):
    """A variable with its type and first value."""

    type: str
    name: str
    value: Expression


class Set(NamedTuple):
    """A new value of a name, or of a field of it."""

    name: str
    field: str
    value: Expression


class Return(NamedTuple):
    value: Expression


class CIf(NamedTuple):
    condition: Expression
    body: tuple[CStatement, ...]


class CLoop(NamedTuple):
    """`step` is done after each round; of a `while` loop there is none, and no `start`."""

    start: tuple[CStatement, ...]
    condition: Expression
    step: tuple[CStatement, ...]
    body: tuple[CStatement, ...]


CStatement = Declare | Set | Return | CIf | CLoop


class CFunction(NamedTuple):
    """A function of the restricted C, read."""

    name: str
    result: str
    #: Types and names.
    parameters: tuple[tuple[str, str], ...]
    body: tuple[CStatement, ...]
    #: Whether a product and a sum may be rounded once.
    contract: bool


class StructType(NamedTuple):
    """A struct: its fields' types by name."""

    name: str
    #: Types by name, in order.
    fields: dict[str, str]


_TOKEN = re.compile(
    r"\s+|//.*|#pragma.*|(?P<number>0[xX][0-9a-fA-F]+[uUlL]*|\d+\.\d*(?:e[-+]?\d+)?f?|\d+[uUlL]*)|(?P<word>\w+)"
    r"|(?P<sign><<=|>>=|<<|>>|<=|>=|==|!=|&&|\|\||\+\+|[-+*/%&|^]=|.)"
)
_TYPES = frozenset(
    ("bool", "char", "uchar", "short", "ushort", "int", "uint", "long", "ulong", "float", "double", "void")
)
_BINDS = {
    **{"||": 1, "&&": 2, "|": 3, "^": 4, "&": 5, "==": 6, "!=": 6, "<": 7, "<=": 7, ">": 7, ">=": 7},
    **{"<<": 8, ">>": 8, "+": 9, "-": 9, "*": 10, "/": 10, "%": 10},
}


def parsed(text: str) -> CFunction | StructType:
    """The tree of one definition."""
    return _Parser(text).definition()


class _Parser:
    """Reads one definition by recursive descent; anything that is not in the restricted C is a `SyntaxError`."""

    def __init__(self, text: str) -> None:
        """The tokens of one definition; comments are left out."""
        self.contract = "FP_CONTRACT ON" in text
        self.tokens = [found.group() for found in _TOKEN.finditer(text) if found.lastgroup is not None]
        self.at = 0

    def next(self) -> str:
        self.at += 1
        return self.tokens[self.at - 1]

    def peek(self, ahead: int = 0) -> str:
        place = self.at + ahead
        return self.tokens[place] if place < len(self.tokens) else ""

    def take(self, token: str) -> bool:
        """Whether this token stands here; if so, go on behind it."""
        if self.peek() == token:
            self.at += 1
            return True
        return False

    def expect(self, token: str) -> None:
        """Go on behind this token. Raises `SyntaxError` where another one stands here."""
        found = self.next()
        if found != token:
            raise SyntaxError(f"{token} expected, not {found}: {' '.join(self.tokens)}")

    def definition(self) -> CFunction | StructType:
        """A struct or a function."""
        if self.take("struct"):
            name, fields = self.next(), {}
            self.expect("{")
            while not self.take("}"):
                type = self.type()
                fields[self.next()] = type
                self.expect(";")
            return StructType(name, fields)
        self.expect("static")
        result, name = self.type(), self.next()
        self.expect("(")
        parameters = []
        while not self.take(")"):
            type = self.type()
            if type != "void":
                parameters.append((type, self.next()))
            self.take(",")
        return CFunction(name, result, tuple(parameters), self.block(), self.contract)

    def type(self) -> str:
        """The name of a type, without `const` and `struct`."""
        self.take("const")
        self.take("struct")
        return self.next()

    def is_type(self, ahead: int = 0) -> bool:
        return self.peek(ahead) in _TYPES or self.peek(ahead) == "struct"

    # -- statements

    def block(self) -> tuple[CStatement, ...]:
        """The statements in braces."""
        self.expect("{")
        statements = []
        while not self.take("}"):
            statements.append(self.statement())
        return tuple(statements)

    def statement(self) -> CStatement:
        """One statement: a return, a condition, a loop, a declaration or an assignment."""
        if self.take("return"):
            value = self.expression()
            self.expect(";")
            return Return(value)
        if self.take("if"):
            self.expect("(")
            condition = self.expression()
            self.expect(")")
            return CIf(condition, self.block())
        if self.take("while"):
            self.expect("(")
            condition = self.expression()
            self.expect(")")
            return CLoop((), condition, (), self.block())
        if self.take("for"):
            self.expect("(")
            start = self.simple()
            self.expect(";")
            condition = self.expression()
            self.expect(";")
            step = self.simple()
            self.expect(")")
            return CLoop((start,), condition, (step,), self.block())
        result = self.simple()
        self.expect(";")
        return result

    def simple(self) -> CStatement:
        """A declaration or an assignment, without its end."""
        if self.peek() == "const" or self.is_type():
            type, name = self.type(), self.next()
            self.expect("=")
            return Declare(type, name, self.struct("") if self.peek() == "{" else self.expression())
        name = self.next()
        field = self.next() if self.take(".") else ""
        sign = self.next()
        if sign == "++":
            return Set(name, field, CBinary("+", Name(name), CNumber("1")))
        value = self.expression()
        return Set(name, field, value if sign == "=" else CBinary(sign[:-1], Name(name), value))

    # -- expressions

    def expression(self) -> Expression:
        """An expression, with `?:` as its weakest operator."""
        condition = self.operation(1)
        if not self.take("?"):
            return condition
        yes = self.expression()
        self.expect(":")
        return Ternary(condition, yes, self.expression())

    def operation(self, binds: int) -> Expression:
        """Operators that bind at least so tightly, from left to right."""
        result = self.unary()
        while _BINDS.get(self.peek(), 0) >= binds:
            op = self.next()
            result = CBinary(op, result, self.operation(_BINDS[op] + 1))
        return result

    def unary(self) -> Expression:
        """A sign, a negation, a cast, a struct literal, or what binds more tightly."""
        if self.peek() in ("-", "~", "!"):
            return CUnary(self.next(), self.unary())
        if self.peek() == "(" and self.is_type(1):
            self.next()
            type = self.type()
            self.expect(")")
            return self.struct(type) if self.peek() == "{" else CCast(type, self.unary())
        return self.postfix()

    def struct(self, type: str) -> Struct:
        """The fields of a struct literal in braces, in order."""
        self.expect("{")
        fields = []
        while not self.take("}"):
            fields.append(self.expression())
            self.take(",")
        return Struct(type, tuple(fields))

    def postfix(self) -> Expression:
        """A number, a name, a call or an expression in parentheses, and the fields that are picked from it."""
        token = self.next()
        result: Expression
        if token == "(":
            result = self.expression()
            self.expect(")")
        elif token[0].isdigit():
            return CNumber(token)
        elif self.take("("):
            args = []
            while not self.take(")"):
                args.append(self.expression())
                self.take(",")
            result = Call(token, tuple(args))
        else:
            result = Name(token)
        while self.take("."):
            result = CField(result, self.next())
        return result


def names_in(expression: Expression) -> set[str]:
    """The names whose values an expression needs."""
    match expression:
        case Name():
            return {expression.name}
        case CNumber():
            return set()
    children = [part for part in expression if not isinstance(part, str)]
    parts = [part for child in children for part in (child if type(child) is tuple else (child,))]
    return set().union(*(names_in(part) for part in parts)) if parts else set()


def depends_on_data(loop: CLoop) -> bool:
    """Whether values decide about the number of rounds, so that each lane has its own."""
    counters = {each.name for each in loop.start if isinstance(each, Declare) and isinstance(each.value, CNumber)}
    return not names_in(loop.condition) <= counters


def has_own_rounds(function: CFunction) -> bool:
    """Whether a function has a loop of as many rounds as its operands say."""
    return any(isinstance(each, CLoop) and depends_on_data(each) for each in function.body)


def assigned_in(statements: tuple[CStatement, ...]) -> set[str]:
    """The names that get a new value, without those that are declared there."""
    names: set[str] = set()
    for each in statements:
        match each:
            case Set():
                names.add(each.name)
            case CIf():
                names |= assigned_in(each.body)
            case CLoop():
                names |= assigned_in((*each.body, *each.step))
    return names - {each.name for each in statements if isinstance(each, Declare)}
