"""Reads the files of functions: definitions in a dialect, expanded over types, and which of them call which.

A file is ordinary WGSL or OpenCL C with one addition. Lines that begin with `//:` say how the definitions after them
are expanded, once for each line, by replacing words::

    //: T=i32 U=u32
    //: T=i64 U=u64

    fn gcd_T(x: T, y: T) -> T {
        return bitcast<T>(gcd_U(bitcast<U>(abs_T(x)), bitcast<U>(abs_T(y))));
    }

gives gcd_i32 and gcd_i64; an underscore separates words. An indented line goes on with the one before it, and a bare
`//:` ends the expansion. A definition begins at the left margin and ends with a closing bracket there; the comment
right above it belongs to it. Polynomials are numbers, the same for all dialects. In OpenCL C their products and sums
may be rounded once, together: no step of them is worse for it, and on most devices they are half as many instructions.

OpenCL C has two rules more. Decimal numbers get the `f` of a float when T=float, for 0.5 is a double there. And what
stands below `//::` is written so that it is right for vectors as well, where a condition is an integer of the operands'
size in each component: N=f32 T=float I=int ANY= becomes N=f32x8 T=float8 I=int8 ANY=any.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import NamedTuple

import msgspec

from anygpu.codegen.target import Dialect

_FOLDER = os.path.dirname(__file__)
_SUFFIX: dict[Dialect, str] = {"wgsl": ".wgsl", "opencl": ".cl"}
_BEGINNING: dict[Dialect, re.Pattern[str]] = {
    "wgsl": re.compile(r"(?:fn|struct) (\w+)"),
    "opencl": re.compile(r"(?:static [\w ]+?|struct) (\w+)(?:\(| \{)"),
}
_DOUBLE = re.compile(r"\b\d+\.\d+(?:e[-+]?\d+)?(?![\w.])")
_WORD = re.compile(r"\b[A-Za-z_]\w*\b")
#: What is replaced: an underscore separates words.
_PART = re.compile(r"[A-Za-z0-9]+")


class Definition(msgspec.Struct, frozen=True):
    """One function or structure, and the names in its text that are definitions too."""

    name: str
    text: str
    uses: tuple[str, ...]


@cache
def read(dialect: Dialect, width: int = 1) -> dict[str, Definition]:
    """Every definition of a dialect, by name: for single values, or those for vectors of `width` components."""
    found = texts(dialect, width)
    return {name: Definition(name, text, _uses(name, text, found)) for name, text in found.items()}


def texts(dialect: Dialect, width: int = 1) -> dict[str, str]:
    """The texts of the same."""
    found = polynomials(dialect, width)
    found.update((name, template.text()) for name, template in templates(dialect, width).items())
    return found


def polynomials(dialect: Dialect, width: int = 1) -> dict[str, str]:
    """The texts of the polynomials, by name."""
    import tomllib  # late: many programs call none of these functions

    numbers = tomllib.loads(file_text("polynomials.toml"), parse_float=str)
    return dict(_polynomial(dialect, width, name, **fields) for name, fields in numbers.items())


def templates(dialect: Dialect, width: int = 1) -> dict[str, Template]:
    """All other definitions, by name. Expanding all of their texts takes longer than compiling a program does."""
    found: dict[str, Template] = {}
    for name in sorted(os.listdir(_FOLDER)):
        if name.endswith(_SUFFIX[dialect]):
            found.update(expanded(dialect, width, file_text(name)))
    return found


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
    if width == 1:
        return words
    suffixes = {"N": f"x{width}", "T": str(width), "U": str(width), "I": str(width), "ANY": "any"}
    return {word: text + suffixes.get(word, "") for word, text in words.items()}


def _uses(name: str, text: str, texts: dict[str, str]) -> tuple[str, ...]:
    code = re.sub(r"//.*", "", text)
    return tuple(dict.fromkeys(word for word in _WORD.findall(code) if word in texts and word != name))


class Template(NamedTuple):
    """A definition as it is written, and the words to replace in it."""

    dialect: Dialect
    lines: Sequence[str]
    words: Mapping[str, str]

    def name(self) -> str:
        """What it defines."""
        for line in self.lines:
            if found := _BEGINNING[self.dialect].match(line):
                return _replaced(found.group(1), self.words)
        raise ValueError(f"no definition in: {self.lines}")

    def text(self) -> str:
        """The definition with its words replaced."""
        text = _replaced("\n".join(self.lines), self.words)
        if self.dialect == "opencl" and self.words.get("T", "").startswith("float"):
            text = _DOUBLE.sub(r"\g<0>f", text)
        return text


def _replaced(text: str, words: Mapping[str, str]) -> str:
    return _PART.sub(lambda found: words.get(found.group(), found.group()), text) if words else text


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
        elif inside or _BEGINNING[dialect].match(line):
            definition.append(line)
            inside = not line.startswith("}")
            if not inside:
                if vectors or width == 1:
                    made = [Template(dialect, definition, _widened(words, width)) for words in expansions]
                    yield from ((each.name(), each) for each in made)
                definition = []
        else:
            listing = False
            definition = [*definition, line] if line.startswith("//") else []
