"""The statements of a nest as instructions, and a program of nests as one module.

The first part spells functions of values as instructions, with C's conversions between numbers. `NestBody` runs
statements within loops, one value for each name; `NestUnit` is one nest as a function of its buffers and the range of
its part. The last functions look at statements: what they read, write and weigh.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import gcd
from typing import NamedTuple

from anygpu.engines.codegen.dialects.llvm import functions
from anygpu.engines.codegen.dialects.llvm.functions import (
    C_NAME,
    Compiler,
    CValue,
    builtin,
    converted,
    instruction,
    test,
)
from anygpu.engines.codegen.dialects.llvm.memory import Counter, LaneMemory, Multiple, Places
from anygpu.engines.codegen.dialects.llvm.numpy_loops import PREFIX, called
from anygpu.engines.codegen.dialects.llvm.values import Type, Value, Writer, constant, i64, whole
from anygpu.engines.codegen.index import Clamped, Index, Quotient, Remainder
from anygpu.engines.codegen.index import IndexVariable as Unknown
from anygpu.engines.codegen.kernel import MINUS_ONE
from anygpu.engines.codegen.kernel_ir import (
    Apply,
    Assign,
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
    Variable,
)
from anygpu.engines.codegen.target import COMPARISONS, LOGIC, OPERATORS, ComputeType
from anygpu.errors import InvalidProgram

# -- numbers as C has them, and functions of values as instructions


# -- functions of values as instructions
#
# Operators, what LLVM has instructions for, and calls of our own functions.


#: The element type that values of each type are computed in.
COMPUTED: dict[ComputeType, str] = {
    **{"bool": "i1", "i32": "i32", "u32": "i32", "i64": "i64", "u64": "i64", "f32": "float", "f64": "double"},
}
_FLOATS = ("f32", "f64")
_UNSIGNED = ("u32", "u64")
#: Functions of floating-point numbers that OpenCL C has, by its name.
_BUILTIN = {
    **{name: name for name in ("floor", "ceil", "trunc", "rint", "sqrt", "copysign", "fma")},
    **{name: name for name in ("isnan", "isinf", "isfinite", "signbit")},
    "abs": "fabs",
}
#: Powers that have functions of their own, by the exponent.
_POWERS = {"0x3FF8000000000000": "power_1_5", "0xBFE0000000000000": "power_minus_0_5", "0x4010000000000000": "power_4"}
_EXTREMES = {"minimum": ("smin", "umin", "<"), "maximum": ("smax", "umax", ">")}
#: A value that changes nothing when it is combined with another one; what is not here repeats the first value.
NEUTRAL = {"add": -0.0, "multiply": 1.0, "bitwise_xor": 0}


def applied(compiler: Compiler, fn: str, args: Sequence[Value], types: Sequence[ComputeType]) -> Value:
    """A function of the kernel form, of operands of these types: in as many lanes as the widest operand has."""
    w, of = compiler.w, types[0]
    if fn == "opaque":
        return args[0]
    if fn.startswith(PREFIX):
        return called(w, compiler.target, fn, args)
    if fn.startswith("cast_"):
        return _cast(compiler, args[0], of, fn.removeprefix("cast_"))
    if fn == "power" and of in _FLOATS and args[1].text in _POWERS:
        fn, args, types = _POWERS[args[1].text], args[:1], types[:1]
    args = w.fitted(args)
    first = args[0]
    if of == "bool" and fn in LOGIC:
        return _logic(compiler, fn, args)
    if fn in COMPARISONS:
        return w.compare(test(COMPARISONS[fn], C_NAME[of]), first, args[1])
    if fn in OPERATORS:
        return w.binary(instruction(OPERATORS[fn], C_NAME[of]), first, args[1])
    if fn == "negative":
        return w.op(f"fneg {first}", first.type) if of in _FLOATS else w.binary("sub", constant(0, first.type), first)
    if fn == "invert":
        return w.binary("xor", first, constant(-1, first.type))
    if fn in _EXTREMES:
        return _extreme(compiler, fn, args, of)
    if of in _UNSIGNED and fn in ("abs", "order_key"):
        return first
    numbers = [CValue(C_NAME[type], value) for value, type in zip(args, types, strict=True)]
    if (of in _FLOATS and fn in _BUILTIN) or (of in _UNSIGNED and fn == "popcount"):
        made = builtin(w, compiler.target, _BUILTIN.get(fn, fn), numbers)
        if made is not None:
            return made.value
    if fn == "round_f16" and compiler.target.halves:
        return w.convert("fpext", w.as_half(first), "float")
    if fn.startswith("numpys_"):
        # A few instructions; LLVM drops the unused ones.
        return functions.inlined_number(compiler, f"{fn}_{of}", numbers)
    name = fn if functions.is_defined(fn) else f"{fn}_{of}"
    if not functions.is_defined(name):
        raise InvalidProgram(f"{fn}: is not defined for {of} on a processor; cast the operands first.")
    return compiler.call(name, numbers).value


def _cast(compiler: Compiler, value: Value, source: ComputeType, wanted: str) -> Value:
    """A value in another compute type, by the library's function where it has one for what is not constant."""
    if source == wanted:
        return value
    name = f"cast_{source}_{wanted}"
    number = CValue(C_NAME[source], value)
    if functions.is_defined(name) and value.text[0] == "%":
        return compiler.call(name, [number]).value
    return converted(compiler.w, number, C_NAME[wanted]).value


def _logic(compiler: Compiler, fn: str, args: Sequence[Value]) -> Value:
    """Of truth values, as `LOGIC` says it."""
    w = compiler.w
    one, other = args
    truth = constant(True, one.type)
    if fn in ("bitwise_xor", "not_equal", "equal"):
        differ = w.binary("xor", one, other)
        return w.binary("xor", differ, truth) if fn == "equal" else differ
    pattern = LOGIC[fn]
    one = w.binary("xor", one, truth) if pattern.startswith("~") else one
    other = w.binary("xor", other, truth) if "~{1}" in pattern else other
    return w.binary("and" if "&" in pattern else "or", one, other)


def _extreme(compiler: Compiler, fn: str, args: Sequence[Value], of: ComputeType) -> Value:
    """The smaller or the larger; NaN is both."""
    w = compiler.w
    one, other = args
    signed, unsigned, op = _EXTREMES[fn]
    if of not in _FLOATS:
        return w.intrinsic(unsigned if of in _UNSIGNED else signed, one, other)
    # Of NaN, the comparison takes the second; where that is the number, the first is taken back.
    taken = w.select(w.compare(f"o{'lt' if op == '<' else 'gt'}", one, other), one, other)
    return w.select(w.compare("uno", one, constant(0, one.type)), one, taken)


def folded(compiler: Compiler, fn: str, value: Value, type: ComputeType) -> Value:
    """All lanes combined, halves with halves."""
    lanes = value.type.lanes
    while lanes > 1:
        half = lanes // 2
        low, high = (compiler.w.shuffle(value, range(at, at + half)) for at in (0, half))
        combined = applied(compiler, fn, (low, high), (type, type))
        if lanes % 2:
            raise InvalidProgram(f"{value.type.lanes} lanes cannot be halved.")
        value, lanes = combined, half
    return value


def spread(compiler: Compiler, fn: str, value: Value, lanes: int) -> Value:
    """An accumulator of one lane as one of many that gives the same when they are combined."""
    if lanes == 1:
        return value
    neutral = NEUTRAL.get(fn)
    if neutral is None:
        return compiler.w.fit(value, lanes)
    type = Type(value.type.elem, lanes)
    return compiler.w.op(f"insertelement {constant(neutral, type)}, {value}, i64 0", type)


#: Statements that may well be written several times.
_LIGHT = 8
#: Neighbours that are stored together.
_APART = 8
_OF_BOUNDS = ("add", "subtract", "multiply", "minimum", "maximum")


class LoopBound(NamedTuple):
    """A number of rounds, or where they begin or end."""

    value: Value
    multiple: Multiple

    @property
    def known(self) -> int | None:
        return whole(self.value)


class NestUnit(NamedTuple):
    """What all blocks of one nest share."""

    writer: Writer
    compiler: Compiler
    memory: LaneMemory
    #: The fewest rounds from `begin` to `end`.
    fewest: int
    #: Writes a loop into a block.
    loop: Callable[[NestBody, Loop], None]


class NestBody:
    """A block of statements while it is being written: what its names mean, in how many lanes."""

    def __init__(
        self,
        unit: NestUnit,
        counters: dict[str, Counter],
        names: dict[str, Value],
        lanes: int = 1,
        around: NestBody | None = None,
    ) -> None:
        """Statements of a nest within loops.

        `around` is the body of the loop around it, whose positions are known here.
        """
        self.unit = unit
        self.w = unit.writer
        self.counters = counters
        self.names = names
        self.lanes = lanes
        outer = around.places if around is not None else None
        self.places: Places = Places(self.w, counters, self._unknown, lanes, outer)

    def inner(self, counters: dict[str, Counter] | None = None, lanes: int | None = None) -> NestBody:
        """A block inside of this one."""
        lanes = self.lanes if lanes is None else lanes
        return NestBody(self.unit, self.counters | (counters or {}), dict(self.names), lanes, self)

    # -- expressions

    def value(self, expr: Expr) -> Value:
        """Writes an expression; returns its value in one lane or in several."""
        match expr:
            case Literal():
                return constant(expr.value, Type(COMPUTED[expr.type]))
            case Name():
                if expr.name in self.names:
                    return self.names[expr.name]
                return self.value(Position(Index(0, [(Unknown(expr.name, 0, 0), 1)]), expr.type))
            case Position():
                return self.places.number(self.places.place(expr.index), COMPUTED[expr.type])
            case Load():
                return self.unit.memory.load(expr.buffer, expr.index, self.places)
            case Apply():
                args = [self.value(each) for each in expr.args]
                if expr.fn == "noted":
                    self.unit.memory.note(*args)
                    return args[0]
                return applied(self.unit.compiler, expr.fn, args, [each.type for each in expr.args])
            case Choose():
                condition, yes, no = self.w.fitted([self.value(each) for each in (expr.condition, expr.yes, expr.no)])
                return self.w.select(condition, yes, no)
        raise InvalidProgram(f"{expr}: is not for processors.")

    def _unknown(self, variable: Unknown) -> Value:
        """The value of a variable that is no counter. Raises `InvalidProgram` where it has not been computed."""
        if variable.meaning is not None:
            return self.value(variable.meaning)
        if variable.name not in self.names:
            raise InvalidProgram(f"{variable.name}: is not known here.")
        return self.names[variable.name]

    def bound(self, expr: Expr | int) -> LoopBound:
        """A bound of a loop, in 64 bits."""
        match expr:
            case int():
                return LoopBound(i64(expr), Multiple(0, expr))
            case Literal():
                return self.bound(int(expr.value))
            case Name() if expr.name in self.counters:
                counter = self.counters[expr.name]
                return LoopBound(counter.value, counter.multiple)
            case Position():
                place = self.places.place(expr.index)
                if place.is_uniform:
                    offset = place.offsets[0]
                    return LoopBound(self.w.add(place.first, i64(offset)), place.multiple + Multiple(0, offset))
            case Apply() if expr.fn in _OF_BOUNDS:
                return self._combined(expr.fn, *(self.bound(each) for each in expr.args))
        value = self.value(expr)
        if value.type.lanes > 1:
            raise InvalidProgram("a bound of a loop differs from lane to lane.")
        return LoopBound(self.w.convert("sext", value, "i64"), Multiple())

    def _combined(self, fn: str, one: LoopBound, other: LoopBound) -> LoopBound:
        """The sum, difference or product of two bounds, with what is known of their multiples."""
        a, b = one.value, other.value
        match fn:
            case "add":
                return LoopBound(self.w.add(a, b), one.multiple + other.multiple)
            case "subtract":
                value = self.w.add(a, self.w.times(b, -1)) if other.known is not None else self.w.binary("sub", a, b)
                return LoopBound(value, one.multiple + other.multiple.times(-1))
            case "multiply":
                factor = one.known if one.known is not None else other.known
                if factor is not None:
                    part = other if one.known is not None else one
                    return LoopBound(self.w.times(part.value, factor), part.multiple.times(factor))
                return LoopBound(self.w.binary("mul", a, b), Multiple())
        value = self.w.minimum(a, b) if fn == "minimum" else self.w.maximum(a, b)
        common = gcd(one.multiple.of, other.multiple.of, one.multiple.rest - other.multiple.rest)
        return LoopBound(value, Multiple(common, one.multiple.rest % common if common else one.multiple.rest))

    # -- statements

    def run(self, statements: Sequence[Statement]) -> None:
        """Writes statements in order; stores that were written with an earlier one are passed over."""
        held: set[int] = set()
        for number, statement in enumerate(statements):
            if number in held:
                continue
            match statement:
                case Let():
                    self.names[statement.name] = self.value(statement.value)
                case Variable() | Assign():
                    self.names[statement.name] = self.w.fit(self.value(statement.value), self.lanes)
                case Store():
                    held |= self._store(statements, number)
                case Loop():
                    self.unit.loop(self, statement)
                case If():
                    self._if(statement)
                case Report():
                    self._report(statement)
                case _:
                    raise InvalidProgram(f"{type(statement).__name__}: is not for processors.")

    def _store(self, statements: Sequence[Statement], number: int) -> set[int]:
        """Stores, together with those after it that fill the gaps between the lanes: the numbers of those."""
        store = statements[number]
        if not isinstance(store, Store):
            return set()
        step = self.places.place(store.index).step or 0
        group = _group(statements, number, step) if 1 < step <= _APART else []
        if not group:
            self.unit.memory.store(store.buffer, store.index, self.value(store.value), self.places)
            return set()
        # What is named between them is needed for their values.
        for between in range(number + 1, group[-1]):
            each = statements[between]
            if isinstance(each, Let):
                self.names[each.name] = self.value(each.value)
        parts = [statements[each] for each in (number, *group)]
        ordered = sorted((each for each in parts if isinstance(each, Store)), key=lambda each: each.index.constant)
        values = [self.value(each.value) for each in ordered]
        self.unit.memory.store_group(store.buffer, ordered[0].index, values, self.places)
        return set(range(number + 1, group[-1] + 1))

    def _if(self, statement: If) -> None:
        """Writes a branch; variables that it assigns are joined after it."""
        condition = self.value(statement.condition)
        if condition.type.lanes > 1:
            raise InvalidProgram("a condition differs from lane to lane.")
        names = [name for name in assigned(statement.body) if name in self.names]

        def inside() -> list[Value]:
            body = self.inner()
            body.run(statement.body)
            return [body.names[name] for name in names]

        made = self.w.when(condition, inside, [self.names[name] for name in names])
        self.names.update(zip(names, made, strict=True))

    def _report(self, statement: Report) -> None:
        """Any of the lanes where the rule is broken is reported."""
        condition, value = self.value(statement.condition), self.value(statement.value)

        def inside() -> list[Value]:
            offending = self._first_of(condition, value)
            minus_one = self.w.compare("eq", offending, constant(-1, offending.type))
            word = self.w.select(
                minus_one,
                constant(MINUS_ONE, offending.type),
                self.w.binary("add", offending, constant(1, offending.type)),
            )
            place = self.w.op(
                f"getelementptr i32, ptr {self.unit.memory.regions['status'].pointer}, i64 {statement.number}",
                Type("ptr"),
            )
            self.w.add_line(f"store atomic {word}, ptr {place.text} monotonic, align 4")
            return []

        self.w.when(self.w.any_lane(condition), inside, rare=True)

    def _first_of(self, condition: Value, value: Value) -> Value:
        """The value of the first lane where a condition holds."""
        lanes = condition.type.lanes
        if lanes == 1 or value.type.lanes == 1:
            return self.w.lane(value, 0)
        result = self.w.lane(value, lanes - 1)
        for lane in reversed(range(lanes - 1)):
            result = self.w.select(self.w.lane(condition, lane), self.w.lane(value, lane), result)
        return result


def _group(statements: Sequence[Statement], number: int, step: int) -> list[int]:
    """The stores after a store that fill the gaps between its lanes; none when they do not all follow at once."""
    first = statements[number]
    if not isinstance(first, Store):
        return []
    wanted = {first.index + offset: offset for offset in range(1 - step, step)}
    found: dict[int, int] = {}
    for place in range(number + 1, len(statements)):
        each = statements[place]
        match each:
            case Store() if each.buffer == first.buffer and each.index in wanted:
                found[wanted[each.index]] = place
            case Let() if first.buffer not in read_by([each]):
                continue
            case _:
                break
        if len(found) == step - 1:
            break
    offsets = sorted((0, *found))
    complete = len(found) == step - 1 and offsets == list(range(offsets[0], offsets[0] + step))
    return sorted(found.values()) if complete else []


def assigned(statements: Iterable[Statement]) -> dict[str, ComputeType]:
    """The names that get new values, those of inner blocks included, in order, and their types."""
    found: dict[str, ComputeType] = {}
    for each in statements:
        match each:
            case Assign():
                found[each.name] = each.value.type
            case Loop() | If():
                found.update(assigned(each.body))
    return found


def read_by(statements: Iterable[Statement]) -> set[str]:
    """The buffers and scratch arrays that statements load from."""
    found: set[str] = set()
    for expr in _expressions(statements):
        if isinstance(expr, Load):
            found.add(expr.buffer)
    return found


def written_by(statements: Iterable[Statement]) -> set[str]:
    """The names of the buffers that statements store to, those inside of loops and conditions included."""
    found: set[str] = set()
    for each in statements:
        match each:
            case Store():
                found.add(each.buffer)
            case Loop() | If():
                found |= written_by(each.body)
    return found


def divides(statements: Iterable[Statement], variable: str) -> bool:
    """Whether a position is made of quotients or remainders of the variable."""
    indices = [each.index for each in stores_in(statements)]
    indices += [each.index for each in _expressions(statements) if isinstance(each, Load | Position)]
    return any(_divides(index, variable) for index in indices)


def weight(statements: Iterable[Statement]) -> int:
    """About how many statements are done, at least one; a loop is heavy."""
    inner = (_LIGHT * weight(each.body) if isinstance(each, Loop | If) else 1 for each in statements)
    return max(1, sum(inner))


def is_light(statements: Sequence[Statement]) -> bool:
    """Whether it is a few loads and operators, with no loop and no function."""
    plain = all(isinstance(each, Let | Assign) for each in statements)
    called = (each.fn for each in _expressions(statements) if isinstance(each, Apply))
    return plain and len(statements) <= _LIGHT and all(fn in OPERATORS or fn in ("opaque", "noted") for fn in called)


def _divides(index: Index, variable: str) -> bool:
    """Whether a position divides something that depends on the variable; such a position has no constant step."""
    for atom, _ in index.terms:
        if isinstance(atom, Quotient | Remainder) and atom.of.depends_on(variable):
            return True
        if isinstance(atom, Clamped) and _divides(atom.of, variable):
            return True
    return False


def stores_in(statements: Iterable[Statement]) -> list[Store]:
    """All stores among statements, those inside of loops and conditions included."""
    found: list[Store] = []
    for each in statements:
        match each:
            case Store():
                found.append(each)
            case Loop() | If():
                found += stores_in(each.body)
    return found


def _expressions(statements: Iterable[Statement]) -> list[Expr]:
    """All expressions, and those that they are made of."""
    waiting: list[Expr] = []
    for each in statements:
        match each:
            case Let() | Variable() | Assign() | Store():
                waiting.append(each.value)
            case Loop():
                waiting += [each.start, *([] if isinstance(each.stop, int) else [each.stop])]
                waiting += _expressions(each.body)
            case If():
                waiting += [each.condition, *_expressions(each.body)]
            case Report():
                waiting += [each.condition, each.value]
    found: list[Expr] = []
    while waiting:
        expr = waiting.pop()
        found.append(expr)
        match expr:
            case Apply():
                waiting += expr.args
            case Choose():
                waiting += [expr.condition, expr.yes, expr.no]
    return found
