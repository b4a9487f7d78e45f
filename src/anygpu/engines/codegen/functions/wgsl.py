"""Respells the restricted C of the files of functions in WGSL: one definition, read by `c_syntax` and written anew.

Values keep their types and expressions their order of operations. A condition is a truth value in WGSL, also where C
declares an integer for it, so that vectors can be chosen by it; what is counted or added is 1 or 0 then. A pair is a
vector of two components. What would need an implicit conversion between two types of numbers is refused: such a text
is written twice, with `#ifdef WGSL`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from anygpu.engines.codegen.functions import c_syntax as c

#: The types of C that values have in functions.
TYPES = {
    **{"bool": "bool", "int": "i32", "uint": "u32", "long": "i64", "ulong": "u64"},
    **{"float": "f32", "double": "f64"},
}
_SIGNED, _UNSIGNED = ("int", "long"), ("uint", "ulong")
_COMPARISONS = ("==", "!=", "<", "<=", ">", ">=")
_LOGIC = ("&&", "||")
#: Operators that WGSL reads as C does where they stand beside each other; all others are put in brackets.
_ARITHMETIC = {"+": 1, "-": 1, "*": 2, "/": 2, "%": 2}

#: Functions of OpenCL C by their names in WGSL.
_BUILTINS = {
    **{name: name for name in ("min", "max", "clamp", "sqrt", "floor", "ceil", "trunc")},
    **{"fabs": "abs", "fmin": "min", "fmax": "max", "rint": "round"},
}
#: Those of ours that are built into OpenCL C, for every type.
_TESTS = ("isnan", "isinf", "isfinite", "signbit")
_OURS = ("copysign", "fmod", "mul_hi")


def respelled(word: str) -> str:
    """A type or a number as WGSL has it: floats take the type of what is beside them, and a suffix is turned."""
    if word in TYPES:
        return TYPES[word]
    if word.endswith("ul"):
        return word.removesuffix("ul") + "lu"
    return word.rstrip("f") if "." in word else word


def type_in_c(spelled: str) -> str:
    """The type in C that a type of WGSL stands for."""
    if spelled.startswith("vec2<"):
        return f"Pair_{spelled.removeprefix('vec2<').removesuffix('>')}"
    return next((type for type, known in TYPES.items() if known == spelled), spelled)


def in_wgsl(text: str, result_of: Callable[[str], str]) -> str:
    """A definition in WGSL. `result_of` gives the type in C of what a function of ours returns."""
    comment = [line for line in text.splitlines() if line.startswith("//")]
    made = c.parsed(text)
    if isinstance(made, c.StructType):
        fields = [f"    {name}: {TYPES[type]}," for name, type in made.fields.items()]
        lines = [f"struct {made.name} {{", *fields, "}"]
    else:
        lines = _Writer(made, result_of).lines()
    return "\n".join([*comment, *lines])


def _spelled(type: str) -> str:
    if type.startswith("Pair_"):
        return f"vec2<{type.removeprefix('Pair_')}>"
    return TYPES.get(type, type)


class _Writer:
    """Writes one function. Types are those of C; that of a number without a suffix is "", for it adapts."""

    def __init__(self, function: c.CFunction, result_of: Callable[[str], str]) -> None:
        self.function = function
        self.result_of = result_of
        self.types = {name: type for type, name in function.parameters}

    def lines(self) -> list[str]:
        made = self.function
        parameters = ", ".join(f"{name}: {_spelled(type)}" for type, name in made.parameters)
        head = f"fn {made.name}({parameters}) -> {_spelled(made.result)} {{"
        return [head, *self.block(made.body), "}"]

    # -- statements

    def block(self, statements: Sequence[c.CStatement]) -> list[str]:
        """The lines of statements, indented."""
        variables = c.assigned_in(tuple(each for each in statements if not isinstance(each, c.Declare)))
        return [f"    {line}" for each in statements for line in self.statement(each, variables)]

    def statement(self, each: c.CStatement, variables: set[str]) -> list[str]:
        match each:
            case c.Declare():
                return [f"{self.declared(each, each.name in variables)};"]
            case c.Set():
                return [f"{self.assigned(each)};"]
            case c.Return():
                return [f"return {self.value(each.value, self.function.result)};"]
            case c.CIf():
                return [f"if ({self.condition(each.condition)}) {{", *self.block(each.body), "}"]
            case c.CLoop():
                return self.loop(each)

    def loop(self, loop: c.CLoop) -> list[str]:
        if not loop.start:
            return [f"while ({self.condition(loop.condition)}) {{", *self.block(loop.body), "}"]
        (start,), (step,) = loop.start, loop.step
        if not isinstance(start, c.Declare) or not isinstance(step, c.Set):
            raise SyntaxError(f"{self.function.name}: a loop declares one counter and changes it.")
        first = self.declared(start, True)
        head = f"for ({first}; {self.condition(loop.condition)}; {self.assigned(step)}) {{"
        return [head, *self.block(loop.body), "}"]

    def declared(self, each: c.Declare, changes: bool) -> str:
        value = each.value
        if isinstance(value, c.Struct):
            value = c.Struct(each.type, value.fields)
        kind = self.type(value)
        self.types[each.name] = "bool" if kind == "bool" else each.type
        typed = f": {_spelled(each.type)}" if not kind else ""
        return f"{'var' if changes else 'let'} {each.name}{typed} = {self.value(value, self.types[each.name])}"

    def assigned(self, each: c.Set) -> str:
        of: c.Expression = c.CField(c.Name(each.name), each.field) if each.field else c.Name(each.name)
        return f"{self.text(of)} = {self.value(each.value, self.type(of))}"

    # -- types

    def type(self, each: c.Expression) -> str:
        """The type in C of a value; "" for a number that adapts, "bool" for a condition whatever C declares."""
        match each:
            case c.CNumber():
                return "ulong" if each.text.endswith("ul") else "uint" if each.text.endswith("u") else ""
            case c.Name():
                return self.types[each.name]
            case c.CField():
                return self.field_type(self.type(each.of), each.name)
            case c.CCast() | c.Struct():
                return each.type
            case c.CUnary():
                return "bool" if each.op == "!" else self.type(each.of)
            case c.Ternary():
                return self.common(each.yes, each.no)
            case c.CBinary():
                if self.is_count(each):
                    return "int"
                if each.op in _COMPARISONS or each.op in _LOGIC:
                    return "bool"
                return self.type(each.one) if each.op in ("<<", ">>") else self.common(each.one, each.other)
            case c.Call():
                return self.call_type(each)

    def is_count(self, each: c.CBinary) -> bool:
        """Whether it is a condition `& 1`, which is 1 or 0 in C also where the condition is one of a vector."""
        return each.op == "&" and each.other == c.CNumber("1") and self.type(each.one) == "bool"

    def field_type(self, of: str, name: str) -> str:
        kind = next(type for type, spelled in TYPES.items() if of.endswith(f"_{spelled}"))
        return "int" if name == "quadrant" else kind

    def call_type(self, call: c.Call) -> str:
        if call.name.startswith(("as_", "convert_")):
            return call.name.partition("_")[2]
        if call.name in _TESTS:
            return "bool"
        if call.name in _BUILTINS or call.name in _OURS:
            return self.common(*call.args)
        return self.result_of(call.name)

    def common(self, *several: c.Expression) -> str:
        """The type of operands. A condition among numbers counts as one of them."""
        found = {kind for each in several if (kind := self.type(each))}
        numbers = found - {"bool"}
        if len(numbers) > 1:
            raise SyntaxError(f"{self.function.name}: {' and '.join(sorted(numbers))} do not go together in WGSL.")
        return (numbers or found or {""}).pop() if numbers or len(found) == 1 else ""

    # -- expressions

    def condition(self, each: c.Expression) -> str:
        return self.text(each) if self.type(each) == "bool" else f"{self.nested(each)} != 0"

    def value(self, each: c.Expression, wanted: str) -> str:
        """A value where one of a type is wanted: of a condition 1 or 0."""
        kind = self.type(each)
        if kind == "bool" and wanted not in ("bool", ""):
            return f"select({TYPES[wanted]}(0), {TYPES[wanted]}(1), {self.text(each)})"
        if kind not in ("", wanted) and wanted:
            raise SyntaxError(f"{self.function.name}: {kind} is no {wanted} in WGSL without a conversion.")
        return self.text(each)

    def text(self, each: c.Expression) -> str:
        match each:
            case c.CNumber():
                return respelled(each.text)
            case c.Name():
                return each.name
            case c.CField():
                return f"{self.nested(each.of)}.{each.name}"
            case c.CUnary():
                return f"{each.op}{self.nested(each.of)}"
            case c.Ternary():
                kind = self.type(each)
                no, yes = self.value(each.no, kind), self.value(each.yes, kind)
                return f"select({no}, {yes}, {self.condition(each.condition)})"
            case c.Struct():
                return f"{_spelled(each.type)}({', '.join(map(self.text, each.fields))})"
            case c.CCast():
                return self.cast(each.type, each.of)
            case c.Call():
                return self.call(each)
            case c.CBinary():
                return self.binary(each)

    def nested(self, each: c.Expression) -> str:
        text = self.text(each)
        return f"({text})" if isinstance(each, c.CBinary) else text

    def binary(self, each: c.CBinary) -> str:
        op, one, other = each
        if self.is_count(each):
            return f"select(0, 1, {self.text(one)})"
        if op in ("<<", ">>"):
            adapts = self.type(other) in ("", "uint")
            return f"{self.nested(one)} {op} {self.nested(other) if adapts else f'u32({self.text(other)})'}"
        wanted = "" if op in _COMPARISONS or op in _LOGIC else self.common(one, other)
        texts = []
        for operand, least in ((one, _ARITHMETIC.get(op, 0)), (other, _ARITHMETIC.get(op, 0) + 1)):
            text = self.condition(operand) if op in _LOGIC else self.value(operand, wanted)
            is_bare = not isinstance(operand, c.CBinary) or self._is_bare(operand, op, least)
            texts.append(text if is_bare or text.startswith("select(") else f"({text})")
        self.common(one, other)
        return f"{texts[0]} {op} {texts[1]}"

    def _is_bare(self, operand: c.CBinary, op: str, least: int) -> bool:
        """Whether an operation needs no brackets as an operand of another one."""
        if op in _LOGIC:
            return operand.op in _COMPARISONS
        if op in _COMPARISONS:
            return operand.op in _ARITHMETIC
        return op in _ARITHMETIC and _ARITHMETIC.get(operand.op, 0) >= least

    def cast(self, to: str, of: c.Expression) -> str:
        kind = self.type(of)
        if kind == to:
            return self.nested(of)
        if kind == "bool":
            return self.value(of, to)
        sizes = {**dict.fromkeys(("int", "uint"), 32), **dict.fromkeys(("long", "ulong"), 64)}
        is_whole = kind in sizes and to in sizes
        if is_whole and sizes[kind] == sizes[to]:
            return f"bitcast<{TYPES[to]}>({self.text(of)})"
        return f"{TYPES[to]}({self.text(of)})"

    def call(self, call: c.Call) -> str:
        name, args = call
        if name.startswith("as_"):
            return f"bitcast<{TYPES[name.removeprefix('as_')]}>({self.text(args[0])})"
        if name.startswith("convert_"):
            return self.cast(name.removeprefix("convert_"), args[0])
        if name in _BUILTINS:
            spelled = _BUILTINS[name]
        elif name in _TESTS or name in _OURS:
            spelled = f"{name}_{TYPES[self.common(*args)]}"
        else:
            spelled = name
        return f"{spelled}({', '.join(map(self.text, args))})"
