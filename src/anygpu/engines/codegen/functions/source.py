"""Reads the files of functions: definitions for both dialects, expanded over types, and which of them call which.

A file is a restricted OpenCL C, which `wgsl` respells in WGSL. Where the two dialects need different texts, both stand
there, as `#ifdef WGSL`, the text in WGSL, `#else`, that in OpenCL C, and `#endif`; one of them may be missing. Lines
that begin with `//:` say how the definitions after them are expanded, once for each line, by replacing words::

    //: N=i32 T=int U=uint M=u32
    //: N=i64 T=long U=ulong M=u64

    static T gcd_N(T x, T y) {
        return (T)gcd_M((U)abs_N(x), (U)abs_N(y));
    }

gives gcd_i32 and gcd_i64; an underscore separates words. In texts in WGSL the words have its types. An indented line
goes on with the one before it, and a bare `//:` ends the expansion. A definition begins at the left margin and ends
with a closing bracket there; the comment right above it belongs to it. Polynomials are numbers, the same for all
dialects. In OpenCL C their products and sums may be rounded once, together: no step of them is worse for it, and on
most devices they are half as many instructions.

Decimal numbers get the `f` of a float when T=float, for 0.5 is a double in C. And what stands below `//::` is written
so that it is right for vectors of OpenCL C as well, where a condition is an integer of the operands' size in each
component: N=f32 T=float I=int ANY= becomes N=f32x8 T=float8 I=int8 ANY=any. In WGSL, which has no such vectors, that I
is always an i32.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import NamedTuple

import msgspec

from anygpu.engines.codegen.functions import c_syntax as c
from anygpu.engines.codegen.target import Dialect

# -- respells the restricted C of the files of functions in WGSL: one definition, read by `c_syntax` and written anew
#
# Values keep their types and expressions their order of operations. A condition is a truth value in WGSL, also where C
# declares an integer for it, so that vectors can be chosen by it; what is counted or added is 1 or 0 then. A pair is a
# vector of two components. What would need an implicit conversion between two types of numbers is refused: such a text
# is written twice, with `#ifdef WGSL`.


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
    """A type of C in WGSL."""
    if type.startswith("Pair_"):
        return f"vec2<{type.removeprefix('Pair_')}>"
    return TYPES.get(type, type)


class _Writer:
    """Writes one function. Types are those of C; that of a number without a suffix is "", for it adapts."""

    def __init__(self, function: c.CFunction, result_of: Callable[[str], str]) -> None:
        """Writes one function in WGSL; `result_of` gives the result type of functions that it calls."""
        self.function = function
        self.result_of = result_of
        self.types = {name: type for type, name in function.parameters}

    def lines(self) -> list[str]:
        """The whole definition."""
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
        """The lines of a statement in WGSL; `variables` are the names that are assigned to again."""
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
        """The lines of a loop. Raises `SyntaxError` for a head that is not one counter."""
        if not loop.start:
            return [f"while ({self.condition(loop.condition)}) {{", *self.block(loop.body), "}"]
        (start,), (step,) = loop.start, loop.step
        if not isinstance(start, c.Declare) or not isinstance(step, c.Set):
            raise SyntaxError(f"{self.function.name}: a loop declares one counter and changes it.")
        first = self.declared(start, True)
        head = f"for ({first}; {self.condition(loop.condition)}; {self.assigned(step)}) {{"
        return [head, *self.block(loop.body), "}"]

    def declared(self, each: c.Declare, changes: bool) -> str:
        """A declaration as `let`, or as `var` where it changes. A condition that C declares as an integer is a bool."""
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
        """The type of a call's result in C, or "bool" for tests."""
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
        """The text of an expression in WGSL, without parentheses around it."""
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
        """The text of an operator, with parentheses only where the order of operations needs them.

        Shifts take an unsigned distance in WGSL, and a truth value that is counted becomes 0 or 1.
        """
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
        """The text of a cast: the bits again between integers of one size, and a conversion otherwise."""
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
        """The text of a call, by WGSL's name of a built-in function."""
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


_FOLDER = os.path.dirname(__file__)
_PART = re.compile(r"#ifdef WGSL\n(.*?)(?:#else\n(.*?))?#endif\n", re.DOTALL)
_BEGINNING = re.compile(r"(?:fn|static (?:struct )?(?P<result>\w+)|struct) (?P<name>\w+)(?:\(| \{)")
_DOUBLE = re.compile(r"\b\d+\.\d+(?:e[-+]?\d+)?(?![\w.])")
_WORD = re.compile(r"\b[A-Za-z_]\w*\b")
#: What is replaced: an underscore separates words.
_PIECE = re.compile(r"[A-Za-z0-9]+")


class Definition(msgspec.Struct, frozen=True):
    """One function or structure, and the names in its text that are definitions too."""

    name: str
    text: str
    uses: tuple[str, ...]


@cache
def defined(dialect: Dialect, width: int = 1) -> dict[str, str | Template]:
    """Every definition of a dialect, by name: for single values, or those for vectors of `width` components.

    Texts are made when they are asked for: to expand all of them takes longer than to compile a program.
    """
    return {**polynomials(dialect, width), **templates(dialect, width)}


@cache
def definition(dialect: Dialect, name: str, width: int = 1) -> Definition:
    """One of them."""
    known = defined(dialect, width)
    found = known[name]
    text = found.text() if isinstance(found, Template) else found
    code = re.sub(r"//.*", "", text)
    uses = dict.fromkeys(word for word in _WORD.findall(code) if word in known and word != name)
    return Definition(name, text, tuple(uses))


def polynomials(dialect: Dialect, width: int = 1) -> dict[str, str]:
    """The texts of the polynomials, by name."""
    import tomllib  # late: many programs call none of these functions

    numbers = tomllib.loads(file_text("polynomials.toml"), parse_float=str)
    return dict(_polynomial(dialect, width, name, **fields) for name, fields in numbers.items())


@cache
def templates(dialect: Dialect, width: int = 1) -> dict[str, Template]:
    """All other definitions, by name."""
    found: dict[str, Template] = {}
    for name in sorted(os.listdir(_FOLDER)):
        if name.endswith(".cl"):
            found.update(expanded(dialect, width, for_dialect(dialect, file_text(name))))
    return found


def for_dialect(dialect: Dialect, text: str) -> str:
    """A text without what is written for the other dialect."""
    return _PART.sub(lambda part: (part[1] if dialect == "wgsl" else part[2]) or "", text)


def file_text(name: str, folder: str = _FOLDER) -> str:
    """The text of a file of functions, by default of one beside this."""
    with open(os.path.join(folder, name), encoding="utf-8") as file:
        return file.read()


def _polynomial(
    dialect: Dialect, width: int, name: str, *, variable: str, meaning: str, error: str, coefficients: list[str]
) -> tuple[str, str]:
    """The name and text of its function."""
    single = name.endswith("_f32")
    numbers = [number + "f" if single and dialect == "opencl" else number for number in coefficients]
    if dialect == "wgsl":
        type = name[-3:]
        head, lines = f"fn {name}({variable}: {type}) -> {type} {{", _in_pairs(type, variable, numbers)
    else:
        words = _widened({"N": name, "T": "float" if single else "double"}, width)
        name, type = words["N"], words["T"]
        head, lines = f"static {type} {name}({type} {variable}) {{", _by_horner(type, variable, numbers)
    return name, "\n".join([f"// {meaning}; error {error}.", head, *lines, "    return p;", "}"])


def _by_horner(type: str, variable: str, coefficients: list[str]) -> list[str]:
    """The lines of a polynomial by Horner's rule, with fused roundings."""
    *lower, highest = coefficients
    lines = ["    #pragma OPENCL FP_CONTRACT ON", f"    {type} p = {highest};"]
    return lines + [f"    p = p * {variable} {_added(number)};" for number in reversed(lower)]


def _in_pairs(type: str, variable: str, coefficients: list[str]) -> list[str]:
    """Horner's rule for the square, with pairs of coefficients.

    By Horner's rule alone every step waits for the one before, and software adapters fuse no multiplication with an
    addition: the waiting took longer than the arithmetic.
    """
    pairs = [coefficients[first : first + 2] for first in range(0, len(coefficients), 2)]
    low, high = (f"{type}({pairs[-1][0]})", pairs[-1][1:])
    lines = [f"    let square = {variable} * {variable};"] if len(pairs) > 1 else []
    lines.append(f"    var p = {f'{high[0]} * {variable} {_added(pairs[-1][0])}' if high else low};")
    for constant, slope in reversed(pairs[:-1]):
        lines.append(f"    p = p * square + ({slope} * {variable} {_added(constant)});")
    return lines


def _added(number: str) -> str:
    return f"{'-' if number.startswith('-') else '+'} {number.lstrip('-')}"


def _widened(words: dict[str, str], width: int) -> dict[str, str]:
    """The words of an expansion for vectors of a width."""
    if width == 1:
        return words
    suffixes = {"N": f"x{width}", "T": str(width), "U": str(width), "I": str(width), "ANY": "any"}
    return {word: text + suffixes.get(word, "") for word, text in words.items()}


class Template(NamedTuple):
    """A definition as it is written, and the words to replace in it."""

    dialect: Dialect
    lines: Sequence[str]
    words: Mapping[str, str]

    def name(self) -> str:
        """What it defines."""
        return _replaced(self._beginning()["name"], self.words)

    def text(self) -> str:
        """The definition in its dialect, with its words replaced."""
        text = _replaced("\n".join(self.lines), self.words)
        if self.dialect == "wgsl":
            return in_wgsl(text, _result_in_c) if _is_c(self._beginning()[0]) else text
        return _DOUBLE.sub(r"\g<0>f", text) if self.words.get("T", "").startswith("float") else text

    def result_in_c(self) -> str:
        """The type of what a function returns; in WGSL, that of C which it stands for."""
        beginning = self._beginning()
        if _is_c(beginning[0]):
            return _replaced(beginning["result"] or "", self.words)
        return type_in_c(_replaced(beginning.string.rpartition("-> ")[2].rstrip(" {"), self.words))

    def _beginning(self) -> re.Match[str]:
        """The line with the definition's name. Raises `ValueError` where there is none."""
        for line in self.lines:
            if found := _BEGINNING.match(line):
                return found
        raise ValueError(f"no definition in: {self.lines}")


def _is_c(beginning: str) -> bool:
    return not beginning.startswith("fn ")


@cache
def _result_in_c(name: str) -> str:
    """The type of what one of our functions returns. The names of polynomials end with it."""
    found = templates("wgsl").get(name)
    return type_in_c(name.rpartition("_")[2]) if found is None else found.result_in_c()


def _replaced(text: str, words: Mapping[str, str]) -> str:
    return _PIECE.sub(lambda found: words.get(found.group(), found.group()), text) if words else text


def expanded(dialect: Dialect, width: int, text: str) -> Iterator[tuple[str, Template]]:
    """The definitions of a file, by name: each as often as it is expanded."""
    expansions: list[dict[str, str]] = [{}]
    listing = vectors = inside = False
    definition: list[str] = []
    for line in text.splitlines():
        if line.startswith("//:"):
            words = dict(word.split("=", 1) for word in line.lstrip("/:").split())
            if line.startswith("//:   "):
                expansions[-1].update(words)
            else:
                expansions = [*expansions, words] if listing else [words]
                vectors = line.startswith("//::")
            listing = True
        elif inside or _BEGINNING.match(line):
            definition.append(line)
            inside = not line.startswith("}")
            if not inside:
                if vectors or width == 1:
                    is_c = _is_c(next(each for each in definition if not each.startswith("//")))
                    for words in expansions:
                        if dialect == "opencl":
                            words = _widened(words, width)
                        elif not is_c:
                            words = {word: respelled(text) for word, text in words.items()}
                        elif vectors:
                            words = {**words, "I": "int"}
                        made = Template(dialect, definition, words)
                        yield made.name(), made
                definition = []
        else:
            listing = False
            definition = [*definition, line] if line.startswith("//") else []
