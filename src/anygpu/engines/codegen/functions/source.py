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
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import NamedTuple

import msgspec

from anygpu.engines.codegen.functions import wgsl
from anygpu.engines.codegen.target import Dialect

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
            return wgsl.in_wgsl(text, _result_in_c) if _is_c(self._beginning()[0]) else text
        return _DOUBLE.sub(r"\g<0>f", text) if self.words.get("T", "").startswith("float") else text

    def result_in_c(self) -> str:
        """The type of what a function returns; in WGSL, that of C which it stands for."""
        beginning = self._beginning()
        if _is_c(beginning[0]):
            return _replaced(beginning["result"] or "", self.words)
        return wgsl.type_in_c(_replaced(beginning.string.rpartition("-> ")[2].rstrip(" {"), self.words))

    def _beginning(self) -> re.Match[str]:
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
    return wgsl.type_in_c(name.rpartition("_")[2]) if found is None else found.result_in_c()


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
                            words = {word: wgsl.respelled(text) for word, text in words.items()}
                        elif vectors:
                            words = {**words, "I": "int"}
                        made = Template(dialect, definition, words)
                        yield made.name(), made
                definition = []
        else:
            listing = False
            definition = [*definition, line] if line.startswith("//") else []
