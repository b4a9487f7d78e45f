"""Compiles the functions of `codegen.functions`, written in a restricted C, to LLVM IR for any number of lanes.

A condition is a truth value in each lane; both sides of a ternary are computed and one is selected. An `if` is left
out when no lane takes it. Functions whose operands decide how often a loop runs are computed lane by lane.

A definition is inlined at each call, or becomes a function of its own where it is long. `CValue` is a value with its
type in C, which decides about signedness; `Compiler` writes calls for as many lanes as its operands have. Branches that
depend on data become selections, so that all lanes take the same way.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

from anygpu.engines.codegen.dialects.llvm.values import FLOATS, NativeTarget, Type, Value, Writer, constant, whole
from anygpu.engines.codegen.functions import c_syntax as c
from anygpu.engines.codegen.functions.source import Template, expanded, file_text, polynomials, templates
from anygpu.errors import InvalidProgram

#: The element types of C's, and their order in conversions.
ELEMENT = {
    **{"bool": "i1", "char": "i8", "uchar": "i8", "short": "i16", "ushort": "i16", "int": "i32", "uint": "i32"},
    **{"long": "i64", "ulong": "i64", "float": "float", "double": "double"},
}


_RANK = {"int": 0, "uint": 1, "long": 2, "ulong": 3, "float": 4, "double": 5}


UNSIGNED = frozenset(("bool", "uchar", "ushort", "uint", "ulong"))


#: How definitions of functions are named that are written for several types.
SHORT = {"int": "i32", "uint": "u32", "long": "i64", "ulong": "u64", "float": "f32", "double": "f64", "bool": "bool"}


C_NAME = {short: name for name, short in SHORT.items()}


_ARITHMETIC = {"+": "add", "-": "sub", "*": "mul", "&": "and", "|": "or", "^": "xor"}


_OF_FLOATS = {"+": "fadd", "-": "fsub", "*": "fmul", "/": "fdiv"}


#: Operators that compare.
TESTS = {"==": "eq", "!=": "ne", "<": "lt", "<=": "le", ">": "gt", ">=": "ge"}


#: The sum with it has a whole number in its lowest bits.
_UNIT = 6755399441055744.0


_UNIT_BITS = 0x4338000000000000


class CValue(NamedTuple):
    """A value with its type in C."""

    c: str
    value: Value


def literal(text: str) -> CValue:
    """A number as it is written in C."""
    if "." in text and not text.startswith("0x"):
        single = text.endswith("f")
        return CValue(
            "float" if single else "double", constant(float(text.rstrip("f")), Type("float" if single else "double"))
        )
    digits = text.rstrip("uUlL")
    suffix = text[len(digits) :].lower()
    type = {"": "int", "u": "uint", "l": "long", "ul": "ulong"}[suffix]
    return CValue(type, constant(int(digits, 0), Type(ELEMENT[type])))


def converted(writer: Writer, number: CValue, to: str) -> CValue:
    """A conversion between C's types of numbers."""
    source, value = number
    elem = ELEMENT[to]
    if source == to:
        return number
    known = whole(value) if value.type.elem != "i1" else None
    if known is not None and to != "bool":
        if source in UNSIGNED:
            known &= (1 << (32 if value.type.elem == "i32" else 64)) - 1
        return CValue(to, constant(known, Type(elem)))
    was = value.type.elem
    if to == "bool":
        return CValue(to, writer.compare("une" if was in FLOATS else "ne", value, constant(0, value.type)))
    if was == elem:
        return CValue(to, value)
    if was in FLOATS:
        if elem in FLOATS:
            name = "fpext" if elem == "double" else "fptrunc"
        else:
            # To LLVM a number out of range is poison, which would make all that is computed from it undefined.
            cut = writer.convert("fptoui" if to in UNSIGNED else "fptosi", value, elem)
            return CValue(to, writer.op(f"freeze {cut}", cut.type))
    elif elem in FLOATS:
        name = "uitofp" if source in UNSIGNED else "sitofp"
    else:
        wider = was == "i1" or int(elem[1:]) > int(was[1:])
        name = ("zext" if source in UNSIGNED else "sext") if wider else "trunc"
    return CValue(to, writer.convert(name, value, elem))


def bits_as(writer: Writer, number: CValue, to: str) -> CValue:
    """The same bits as another type."""
    return CValue(to, writer.convert("bitcast", number.value, ELEMENT[to]))


def test(op: str, type: str) -> str:
    """The name of a comparison of values of a type of C."""
    name = TESTS[op]
    if type in ("float", "double"):
        return "une" if op == "!=" else f"o{name}"
    return name if op in ("==", "!=") else f"{'u' if type in UNSIGNED else 's'}{name}"


def instruction(op: str, type: str) -> str:
    """The instruction of an operator of numbers."""
    if type in ("float", "double"):
        return _OF_FLOATS[op]
    if op in "/%":
        return ("u" if type in UNSIGNED else "s") + ("div" if op == "/" else "rem")
    return _ARITHMETIC[op]


def alike(w: Writer, *numbers: CValue) -> list[CValue]:
    """Converted as C converts operands of different types, and in equally many lanes."""
    truths = len(numbers) > 1 and all(each.c == "bool" for each in numbers)
    to = "bool" if truths else max((each.c if each.c in _RANK else "int" for each in numbers), key=_RANK.__getitem__)
    same = [converted(w, each, to) for each in numbers]
    return [CValue(to, each) for each in w.fitted([each.value for each in same])]


def builtin(w: Writer, target: NativeTarget, name: str, args: Sequence[CValue]) -> CValue | None:
    """A function that OpenCL C has and that is a few instructions; `None` for others."""
    if name.startswith("as_"):
        return bits_as(w, args[0], name.removeprefix("as_"))
    if name.startswith("convert_"):
        return _conversion(w, args[0], name.removeprefix("convert_"))
    if len(args) > 1:
        args = alike(w, *args)
    first, type = args[0].value, args[0].c
    match name:
        case "isnan":
            return CValue("bool", w.compare("uno", first, constant(0, first.type)))
        case "isinf":
            return CValue("bool", w.compare("oeq", w.intrinsic("fabs", first), constant(float("inf"), first.type)))
        case "isfinite":
            return CValue("bool", w.compare("one", w.intrinsic("fabs", first), constant(float("inf"), first.type)))
        case "signbit":
            as_integer = w.convert("bitcast", first, "i32" if first.type.elem == "float" else "i64")
            return CValue("bool", w.compare("slt", as_integer, constant(0, as_integer.type)))
        case "fabs":
            return CValue(type, w.intrinsic("fabs", first))
        case "sqrt" | "copysign":
            return CValue(type, w.intrinsic(name, *(each.value for each in args)))
        case "floor" | "ceil" | "trunc" | "rint" if target.rounds:
            return CValue(type, w.intrinsic(name, first))
        case "fma":
            return CValue(type, w.intrinsic("fma", *(each.value for each in args)))
        case "clz":
            return CValue(type, w.intrinsic("ctlz", first, flags="false"))
        case "popcount":
            return CValue(type, w.intrinsic("ctpop", first))
        case "fmin" | "min":
            return _chosen(w, "<", *args)
        case "fmax" | "max":
            return _chosen(w, ">", *args)
        case "clamp":
            return _chosen(w, "<", args[2], _chosen(w, ">", args[1], args[0]))
        case "mul_hi":
            return CValue(type, _high_product(w, first, args[1].value))
    return None


def _chosen(w: Writer, op: str, one: CValue, other: CValue) -> CValue:
    """The first where it compares so with the second, and else the second: NaN in the first is left out."""
    a, b = w.fitted([one.value, other.value])
    return CValue(one.c, w.select(w.compare(test(op, one.c), a, b), a, b))


def _conversion(w: Writer, number: CValue, to: str) -> CValue:
    """What functions convert to integers are whole numbers of ordinary size; of others anything will do."""
    value = number.value
    if value.type.elem == "double" and to == "long":
        bits = w.convert("bitcast", w.binary("fadd", value, constant(_UNIT, value.type)), "i64")
        return CValue(to, w.binary("sub", bits, constant(_UNIT_BITS, bits.type)))
    result = converted(w, number, to)
    if value.type.elem in FLOATS and to in ("int", "uint", "long", "ulong"):
        return CValue(to, w.op(f"freeze {result.value}", result.value.type))
    return result


def _high_product(w: Writer, one: Value, other: Value) -> Value:
    """The upper half of the product of unsigned integers."""
    one, other = w.fitted([one, other])
    if one.type.elem == "i32":
        a, b = (w.convert("zext", each, "i64") for each in (one, other))
        product = w.binary("mul", a, b)
        return w.convert("trunc", w.binary("lshr", product, constant(32, product.type)), "i32")
    low, half = constant(0xFFFFFFFF, one.type), constant(32, one.type)
    (a, b), (x, y) = ((w.binary("lshr", each, half), w.binary("and", each, low)) for each in (one, other))
    carried = w.binary("add", w.binary("mul", a, y), w.binary("lshr", w.binary("mul", b, y), half))
    middle = w.binary("add", w.binary("mul", b, x), w.binary("and", carried, low))
    high = w.binary("add", w.binary("mul", a, x), w.binary("lshr", carried, half))
    return w.binary("add", high, w.binary("lshr", middle, half))


#: Only what the module itself calls, and nothing that it could be asked about at run time.
_ATTRIBUTES = "nounwind"


#: A number, or a struct as its fields.
Operand = CValue | dict[str, CValue]


@cache
def definitions() -> dict[str, str | Template]:
    """All definitions by name, as text or before expansion: OpenCL C's, and here instead of its built-in functions."""
    own = file_text("builtins.cl", os.path.dirname(__file__))
    return {**polynomials("opencl"), **templates("opencl"), **dict(expanded("opencl", 1, own))}


@cache
def definition(name: str) -> c.CFunction | c.StructType:
    found = definitions()[name]
    return c.parsed(found.text() if isinstance(found, Template) else found)


def is_defined(name: str) -> bool:
    return name in definitions()


def function(name: str) -> c.CFunction:
    """The definition of a function of the library. Raises `InvalidProgram` for a struct."""
    found = definition(name)
    if isinstance(found, c.StructType):
        raise InvalidProgram(f"{name}: is not a function.")
    return found


def inlined_number(compiler: Compiler, name: str, args: Sequence[CValue]) -> Value:
    """Return the number that a function of the library gives, computed in the function that is being written."""
    made = compiler.inlined(function(name), args)
    if not isinstance(made, CValue):
        raise InvalidProgram(f"{name}: gives no number.")
    return made.value


class Compiler:
    """Compiles calls into one function that is being written."""

    def __init__(self, writer: Writer, target: NativeTarget) -> None:
        self.w = writer
        self.target = target

    # -- calls

    def call(self, name: str, args: Sequence[CValue]) -> CValue:
        """A call of a function from a kernel: of one that LLVM puts into its place, written once."""
        lanes = max((each.value.type.lanes for each in args), default=1)
        return self.outside(name, args, lanes, "alwaysinline")

    def outside(self, name: str, args: Sequence[CValue], lanes: int, how: str) -> CValue:
        """A call of a function that stands in the module for itself; of structs it has none."""
        made = function(self._suited(name))
        own_rounds = c.has_own_rounds(made)
        full = f"@{made.name}" if lanes == 1 else f"@{made.name}x{lanes}"
        if full not in self.w.declared:
            self.w.declared[full] = ""  # A place before those that call it; functions of C do not call themselves.
            text = _lane_by_lane if own_rounds and lanes > 1 else _text
            how = "noinline" if own_rounds else how
            self.w.declared[full] = text(full, made, lanes, how, self.w, self.target)
        given = [converted(self.w, x, type).value for x, (type, _) in zip(args, made.parameters, strict=True)]
        result = Type(ELEMENT[made.result], lanes)
        operands = ", ".join(str(self.w.fit(each, lanes)) for each in given)
        return CValue(made.result, self.w.op(f"call {result} {full}({operands})", result))

    def _suited(self, name: str) -> str:
        """The function that the processor has instructions for."""
        return f"long_{name}" if name == "fmod_f64" and not self.target.fuses else name

    def inlined(self, made: c.CFunction, args: Sequence[Operand]) -> Operand:
        """The value of a function, computed here."""
        scope: dict[str, Operand] = {}
        for value, (type, name) in zip(args, made.parameters, strict=True):
            scope[name] = converted(self.w, value, type) if isinstance(value, CValue) else value
        result = _Body(self, made.contract).run(made.body, scope)
        if result is None:
            raise InvalidProgram(f"{made.name}: returns nothing.")
        return converted(self.w, result, made.result) if isinstance(result, CValue) else result

    def named(self, name: str, args: Sequence[Operand], *, rare: bool = False) -> Operand:
        """A call of a function of the C text, by its name there."""
        numbers = [each for each in args if isinstance(each, CValue)]
        if name not in definitions() and numbers:
            found = builtin(self.w, self.target, name, numbers)
            if found is not None:
                return found
            name = self._suited(f"{name}_{SHORT[numbers[0].c]}")
        made = function(name)
        lanes = max((each.value.type.lanes for each in numbers), default=1)
        simple = len(numbers) == len(args) and made.result in ELEMENT
        if simple and (c.has_own_rounds(made) or rare):
            return self.outside(name, numbers, lanes, "noinline")
        return self.inlined(made, args)


class _Body:
    """The statements of one C function, as they are compiled into the function that is being written."""

    def __init__(self, compiler: Compiler, contract: bool, rare: bool = False) -> None:
        """Writes a function's body.

        `contract` lets products and sums be rounded once; `rare` marks branches as unlikely.
        """
        self.compiler = compiler
        self.w = compiler.w
        self.contract = contract
        self.rare = rare

    def run(self, statements: tuple[c.CStatement, ...], scope: dict[str, Operand]) -> Operand | None:
        """What the statements return; `None` when they end without."""
        for number, each in enumerate(statements):
            match each:
                case c.Declare():
                    scope[each.name] = self.declared(each, scope)
                case c.Set():
                    self.set(each, scope)
                case c.Return():
                    return self.value(each.value, scope)
                case c.CIf() if isinstance(each.body[-1], c.Return):
                    condition = self.condition(each.condition, scope)
                    yes = self.run(each.body, dict(scope))
                    no = self.run(statements[number + 1 :], scope)
                    if not isinstance(yes, CValue) or not isinstance(no, CValue):
                        raise InvalidProgram("a function returns numbers on one way only.")
                    return self.select(condition, yes, no)
                case c.CIf():
                    self.conditional(each, scope)
                case c.CLoop():
                    self.loop(each, scope)
        return None

    def declared(self, statement: c.Declare, scope: dict[str, Operand]) -> Operand:
        """The value of a variable that is declared, in the declared type; a struct literal gets its type from there."""
        value, type = statement.value, statement.type
        if isinstance(value, c.Struct) and not value.type:
            value = c.Struct(type, value.fields)
        made = self.value(value, scope)
        # Truth values keep their type until they are used in arithmetic.
        return converted(self.w, made, type) if isinstance(made, CValue) and made.c != "bool" else made

    def set(self, statement: c.Set, scope: dict[str, Operand]) -> None:
        """Assign to a variable, or to a field of one: a new value takes the name in this scope."""
        value, old = self.number(statement.value, scope), scope[statement.name]
        if isinstance(old, CValue):
            scope[statement.name] = converted(self.w, value, old.c)
        else:
            scope[statement.name] = old | {statement.field: converted(self.w, value, old[statement.field].c)}

    def conditional(self, statement: c.CIf, scope: dict[str, Operand]) -> None:
        """Skipped where it holds in no lane; where it holds in some, only those get new values."""
        condition = self.condition(statement.condition, scope)
        names = sorted(assigned) if (assigned := c.assigned_in(statement.body)) else []
        lanes = condition.type.lanes
        old = [each for name in names for each in _flat(scope[name])]
        old = [CValue(each.c, self.w.fit(each.value, max(lanes, each.value.type.lanes))) for each in old]

        def inside() -> list[Value]:
            inner = dict(scope)
            _Body(self.compiler, self.contract, rare=True).run(statement.body, inner)
            new = [each for name in names for each in _flat(inner[name])]
            return [
                self.w.select(condition, self.w.fit(each.value, before.value.type.lanes), before.value)
                for each, before in zip(new, old, strict=True)
            ]

        made = self.w.when(self.w.any_lane(condition), inside, [each.value for each in old], rare=True)
        _unflatten(names, [CValue(each.c, value) for each, value in zip(old, made, strict=True)], scope)

    def loop(self, statement: c.CLoop, scope: dict[str, Operand]) -> None:
        """A loop of as many rounds in all lanes."""
        inner = dict(scope)
        self.run(statement.start, inner)
        names = sorted(c.assigned_in((*statement.body, *statement.step)))
        lanes = max(each.value.type.lanes for name in scope for each in _flat(scope[name]))
        counters = {each.name for each in statement.start if isinstance(each, c.Declare)}
        old = [
            CValue(each.c, each.value if name in counters else self.w.fit(each.value, lanes))
            for name in names
            for each in _flat(inner[name])
        ]

        def round_of(now: Sequence[Value]) -> tuple[Sequence[Value], Value]:
            here = dict(inner)
            _unflatten(names, [CValue(each.c, value) for each, value in zip(old, now, strict=True)], here)
            self.run(statement.body, here)
            self.run(statement.step, here)
            after = [each for name in names for each in _flat(here[name])]
            return [each.value for each in after], self.condition(statement.condition, here)

        enter = self.condition(statement.condition, inner)
        made = self.w.while_loop([each.value for each in old], round_of, enter)
        _unflatten(names, [CValue(each.c, value) for each, value in zip(old, made, strict=True)], inner)
        scope.update({name: inner[name] for name in names if name in scope})

    # -- expressions

    def number(self, expression: c.Expression, scope: dict[str, Operand]) -> CValue:
        """The value of an expression that must be a number. Raises `InvalidProgram` for structs."""
        found = self.value(expression, scope)
        if not isinstance(found, CValue):
            raise InvalidProgram(f"a struct stands where a number is expected: {expression}")
        return found

    def condition(self, expression: c.Expression, scope: dict[str, Operand]) -> Value:
        return converted(self.w, self.number(expression, scope), "bool").value

    def value(self, expression: c.Expression, scope: dict[str, Operand]) -> Operand:
        """Writes an expression of C; returns its value, or a structure of values."""
        match expression:
            case c.CNumber():
                return literal(expression.text)
            case c.Name():
                return scope[expression.name]
            case c.CField():
                of = self.value(expression.of, scope)
                if isinstance(of, CValue):
                    raise InvalidProgram(f"a number has no field: {expression}")
                return of[expression.name]
            case c.Call():
                args = [self.value(each, scope) for each in expression.args]
                return self.compiler.named(expression.name, args, rare=self.rare)
            case c.CCast():
                return converted(self.w, self.number(expression.of, scope), expression.type)
            case c.Struct():
                return self.struct(expression, scope)
            case c.CUnary():
                return self.unary(expression.op, self.number(expression.of, scope))
            case c.CBinary():
                return self.binary(expression, scope)
            case c.Ternary():
                condition = self.condition(expression.condition, scope)
                return self.select(condition, self.number(expression.yes, scope), self.number(expression.no, scope))

    def struct(self, expression: c.Struct, scope: dict[str, Operand]) -> Operand:
        """The fields of a struct literal by name, each in its declared type.

        Raises `InvalidProgram` for what is none.
        """
        made = definition(expression.type)
        if isinstance(made, c.CFunction):
            raise InvalidProgram(f"{expression.type}: is not a struct.")
        return {
            name: converted(self.w, self.number(each, scope), type)
            for (name, type), each in zip(made.fields.items(), expression.fields, strict=True)
        }

    def unary(self, op: str, of: CValue) -> CValue:
        """Writes `!`, `~` or `-` of a value, promoted as C does."""
        if op == "!":
            value = converted(self.w, of, "bool").value
            return CValue("bool", self.w.binary("xor", value, constant(True, value.type)))
        (of,) = alike(self.w, of)
        if op == "~":
            return CValue(of.c, self.w.binary("xor", of.value, constant(-1, of.value.type)))
        if of.c in ("float", "double"):
            if of.value.text.startswith("0x") and of.value.type.lanes == 1:
                sign = int(of.value.text, 16) ^ (1 << 63)
                return CValue(of.c, Value(f"0x{sign:016X}", of.value.type))
            return CValue(of.c, self.w.op(f"fneg {of.value}", of.value.type))
        return CValue(of.c, self.w.binary("sub", constant(0, of.value.type), of.value))

    def select(self, condition: Value, yes: CValue, no: CValue) -> CValue:
        """One of two numbers in their common type, lane by lane."""
        yes, no = alike(self.w, yes, no)
        lanes = max(condition.type.lanes, yes.value.type.lanes)
        return CValue(yes.c, self.w.select(condition, self.w.fit(yes.value, lanes), self.w.fit(no.value, lanes)))

    def binary(self, expression: c.CBinary, scope: dict[str, Operand]) -> CValue:
        """Writes a binary operator; fuses a product into a sum where contraction is on."""
        op = expression.op
        if self.contract and op in ("+", "-"):
            fused = self.fused(expression, scope)
            if fused is not None:
                return fused
        one, other = self.number(expression.one, scope), self.number(expression.other, scope)
        if op in ("&&", "||"):
            truths = [converted(self.w, each, "bool").value for each in (one, other)]
            return CValue("bool", self.w.binary("and" if op == "&&" else "or", *self.w.fitted(truths)))
        if op in ("<<", ">>"):
            return self.shift(op, one, other)
        one, other = alike(self.w, one, other)
        if op in TESTS:
            return CValue("bool", self.w.compare(test(op, one.c), one.value, other.value))
        if one.c == "bool":
            one, other = (converted(self.w, each, "int") for each in (one, other))
        return CValue(one.c, self.w.binary(instruction(op, one.c), one.value, other.value))

    def shift(self, op: str, one: CValue, other: CValue) -> CValue:
        """By less than the width of the type, whatever is asked for: as OpenCL C defines it."""
        (one,) = alike(self.w, one)
        by = converted(self.w, other, one.c).value
        if whole(by) is None:
            by = self.w.binary("and", by, constant(8 * (4 if one.value.type.elem == "i32" else 8) - 1, by.type))
        value, by = self.w.fitted([one.value, by])
        name = "shl" if op == "<<" else "lshr" if one.c in UNSIGNED else "ashr"
        return CValue(one.c, self.w.binary(name, value, by))

    def fused(self, expression: c.CBinary, scope: dict[str, Operand]) -> CValue | None:
        """A product with a sum, rounded once where the processor can."""
        one, other = expression.one, expression.other
        first = isinstance(one, c.CBinary) and one.op == "*"
        product, rest = (one, other) if first else (other, one)
        if not isinstance(product, c.CBinary) or product.op != "*":
            return None
        a, b, d = (self.number(each, scope) for each in (product.one, product.other, rest))
        a, b, d = alike(self.w, a, b, d)
        if a.c not in ("float", "double"):
            return None
        if expression.op == "-":
            a, d = (a, self.unary("-", d)) if first else (self.unary("-", a), d)
            a, d = (CValue(each.c, self.w.fit(each.value, b.value.type.lanes)) for each in (a, d))
        return CValue(a.c, self.w.intrinsic("fmuladd", a.value, b.value, d.value))


def _flat(operand: Operand) -> list[CValue]:
    return [operand] if isinstance(operand, CValue) else list(operand.values())


def _unflatten(names: Sequence[str], numbers: Sequence[CValue], scope: dict[str, Operand]) -> None:
    """Puts numbers back to where `_flat` took them from."""
    left = iter(numbers)
    for name in names:
        old = scope[name]
        scope[name] = next(left) if isinstance(old, CValue) else {field: next(left) for field in old}


def _text(full: str, made: c.CFunction, lanes: int, how: str, writer: Writer, target: NativeTarget) -> str:
    """A function of the module."""
    inner = Writer(writer.declared)
    parameters = [CValue(type, Value(f"%{name}", Type(ELEMENT[type], lanes))) for type, name in made.parameters]
    result = Compiler(inner, target).inlined(made, parameters)
    if not isinstance(result, CValue):
        raise InvalidProgram(f"{full}: a function of a kernel returns a number.")
    return _finished(inner, full, parameters, inner.fit(result.value, lanes), how, target)


def _lane_by_lane(full: str, made: c.CFunction, lanes: int, how: str, writer: Writer, target: NativeTarget) -> str:
    """A function of the module that calls the one for single numbers."""
    inner = Writer(writer.declared)
    compiler = Compiler(inner, target)
    parameters = [CValue(type, Value(f"%{name}", Type(ELEMENT[type], lanes))) for type, name in made.parameters]
    results = []
    for lane in range(lanes):
        given = [CValue(each.c, inner.lane(each.value, lane)) for each in parameters]
        results.append(compiler.outside(made.name, given, 1, how).value)
    return _finished(inner, full, parameters, inner.gathered(results), how, target)


def _finished(
    inner: Writer, full: str, parameters: Sequence[CValue], result: Value, how: str, target: NativeTarget
) -> str:
    """The text of a function with its attributes."""
    taken = ", ".join(str(each.value) for each in parameters)
    attributes = f"{how} {_ATTRIBUTES} {attributes_of(target)}"
    return inner.text(f"internal {result.type} {full}({taken}) {attributes}", f"ret {result}")


def attributes_of(target: NativeTarget) -> str:
    """Whole registers, also where LLVM thinks that half of one is better."""
    return f'"prefer-vector-width"="{8 * target.vector_bytes}"'
