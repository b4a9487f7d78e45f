"""The lines of OpenCL C that begin with #, carried out: what is left is exactly what a compiler would see.

A guarded kernel is written from these words and not from the user's text, so that no macro can hide anything from the
checks.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from anygpu.engines.codegen.custom.reflected import CONDITIONS, ConstantNumber, evaluate, evaluate_exactly
from anygpu.engines.codegen.custom.tokens import MOST_TOKENS, Edit, KernelToken, Unreadable, edited, tokens_of

_DEEPEST = 100

_ALWAYS = {
    "__OPENCL_VERSION__": 120,
    "__OPENCL_C_VERSION__": 120,
    "CL_VERSION_1_0": 100,
    "CL_VERSION_1_1": 110,
    "CL_VERSION_1_2": 120,
    "__ENDIAN_LITTLE__": 1,
    "cl_khr_fp64": 1,
    "cl_khr_fp16": 1,
}


class Macro(NamedTuple):
    """A macro as `#define` gives it."""

    name: KernelToken
    #: `None` for one that takes none.
    parameters: tuple[str, ...] | None
    body: tuple[KernelToken, ...]


class Preprocessed(NamedTuple):
    """The tokens that a compiler would see."""

    #: Without directives, but for pragmas; the last one is of kind "end". Each is at the place where the user wrote it,
    #: or the macro that stands for it.
    tokens: list[KernelToken]
    #: Macros that are plain numbers.
    constants: dict[str, ConstantNumber]


def preprocessed(source: str) -> Preprocessed:
    return _Preprocessor(source).result()


def with_defines(source: str, given: Mapping[str, ConstantNumber]) -> str:
    """The text with other values behind its #defines; each stays in its own line."""
    edits: list[Edit] = []
    found: set[str] = set()
    known: list[str] = []
    for token in tokens_of(source, "opencl"):
        words = _words(token) if token.kind == "directive" else []
        if len(words) < 2 or words[0].text != "define" or _is_function(words):
            continue
        name = words[1]
        known.append(name.text)
        if name.text not in given:
            continue
        found.add(name.text)
        start = name.stop
        stop = words[-1].stop if len(words) > 2 else start
        lines = "\\\n" * source.count("\n", start, stop)
        edits.append(Edit(start, stop, f" {_spelled(name, words[2:], given[name.text])}{lines and ' ' + lines}"))
    for name_ in given:
        if name_ not in found:
            raise Unreadable(f"there is no #define {name_!r} to set; available: {', '.join(known) or 'none'}.")
    return edited(source, edits)


def _spelled(name: KernelToken, before: Sequence[KernelToken], value: ConstantNumber) -> str:
    """A constant as OpenCL C writes it, with the suffix that its type needs."""
    if isinstance(value, bool):
        return "1" if value else "0"
    if isinstance(value, int):
        if not -(1 << 63) <= value < 1 << 64:
            raise Unreadable(f"{value} fits into no number of a kernel.", name)
        text = f"{value}u" if any(each.text.endswith(("u", "U")) for each in before) and value >= 0 else str(value)
        if any(each.kind == "number" and each.text.lower().endswith("f") and "." in each.text for each in before):
            text = f"{float(value)!r}f"
    elif isinstance(value, float):
        if value != value or value in (float("inf"), float("-inf")):
            raise Unreadable(f"{name.text} cannot be {value}: use INFINITY or NAN in the text.", name)
        double = any(
            each.kind == "number" and "." in each.text and not each.text.lower().endswith("f") for each in before
        )
        text = f"{value!r}" if double else f"{value!r}f"
    else:
        raise Unreadable(f"{name.text} is a number, not {value!r}.", name)
    return f"({text})" if text.startswith("-") else text


def _words(directive: KernelToken) -> list[KernelToken]:
    """The words after #, at their places in the whole text.

    Joined lines are one line: a # at the beginning of a later one begins no directive.
    """
    inner = directive.text[1:].replace("\\\r\n", "   ").replace("\\\n", "  ")
    found: list[KernelToken] = []
    line_start = directive.start - directive.column + 1
    breaks = [line_start] + [directive.start + place + 1 for place, each in enumerate(directive.text) if each == "\n"]
    for token in tokens_of(inner, "opencl")[:-1]:
        start = directive.start + 1 + token.start
        row = bisect_right(breaks, start) - 1
        found.append(KernelToken(token.kind, token.text, start, directive.line + row, start - breaks[row] + 1))
        if token.kind == "directive":
            raise Unreadable("a # here begins no line. Write each directive in a line of its own.", found[-1])
    return found


def _is_function(words: Sequence[KernelToken]) -> bool:
    return len(words) > 2 and words[2].text == "(" and words[2].start == words[1].stop


class _Preprocessor:
    """Carries out directives and expands macros, with the state of both."""

    def __init__(self, source: str) -> None:
        """The tokens of an OpenCL C source, and the macros that every compiler defines."""
        self.tokens = tokens_of(source, "opencl")
        self.macros: dict[str, Macro] = {}
        for name, value in _ALWAYS.items():
            word = KernelToken("name", name, 0, 1, 1)
            self.macros[name] = Macro(word, None, (KernelToken("number", str(value), 0, 1, 1),))
        #: For each open conditional: whether its branch is active, and whether one of its branches has been.
        self.open: list[tuple[bool, bool, KernelToken]] = []
        self.count = 0

    def result(self) -> Preprocessed:
        """All tokens after preprocessing; raises `Unreadable` for an `#if` that is never closed."""
        done: list[KernelToken] = []
        plain: list[KernelToken] = []
        for token in self.tokens:
            if token.kind == "directive":
                # A macro's arguments may go over several lines, but no directive may be among them.
                done += self._expanded(plain)
                plain = []
                if self._directive(token):
                    done.append(token._replace(text="#" + " ".join(word.text for word in _words(token))))
            elif token.kind == "end":
                done += self._expanded(plain)
                if self.open:
                    raise Unreadable("this condition is never closed. Write #endif where it ends.", self.open[-1][2])
                done.append(token)
            elif self._counts():
                plain.append(token)
        for token in done:
            # Once macros are expanded: these words are what is compiled.
            if token.text in ("#", "##", "\\", "@", "$", "`"):
                raise Unreadable(f"{token.text!r} means nothing here.", token)
            if token.text.startswith("anygpu_"):
                raise Unreadable("names that begin with anygpu_ are reserved. Use another name.", token)
        return Preprocessed(done, self._constants())

    def _constants(self) -> dict[str, ConstantNumber]:
        """Macros that are constant numbers, by name: sizes of arrays and groups may be written with them."""
        found: dict[str, ConstantNumber] = {}
        for name, macro in self.macros.items():
            if macro.parameters is None and macro.body and name not in _ALWAYS:
                try:
                    found[name] = evaluate(self._expanded(macro.body), {})
                except Unreadable:
                    continue
        return found

    # -- directives

    def _counts(self) -> bool:
        return all(counts for counts, _, _ in self.open)

    def _directive(self, token: KernelToken) -> bool:
        """Whether the line stays in the text."""
        words = _words(token)
        if not words:
            return False
        first, rest = words[0].text, words[1:]
        if first in ("if", "ifdef", "ifndef", "elif", "else", "endif"):
            self._condition(first, rest, token)
            return False
        if not self._counts():
            return False
        match first:
            case "define":
                self._define(words)
            case "undef":
                if rest:
                    self.macros.pop(rest[0].text, None)
            case "pragma":
                # `unroll`, and extensions: nothing else is known to be harmless.
                return bool(rest) and rest[0].text in ("OPENCL", "unroll")
            case "error":
                raise Unreadable(f"the text says #error{token.text.partition('error')[2]}", token)
            case "include":
                raise Unreadable("#include is not possible: a kernel is one text. Put everything into it.", token)
            case "warning":
                return False
            case _:
                raise Unreadable(f"#{first} is not understood here. Remove it.", token)
        return False

    def _condition(self, first: str, rest: list[KernelToken], token: KernelToken) -> None:
        """Carries out #if, #ifdef, #ifndef, #elif, #else and #endif."""
        if first in ("if", "ifdef", "ifndef"):
            counts = self._counts() and self._holds(first, rest, token)
            # Inside of what does not count, nothing does.
            self.open.append((counts, counts or not self._counts(), token))
            return
        if not self.open:
            raise Unreadable(f"#{first} without #if before it.", token)
        _, before, opening = self.open.pop()
        if first == "endif":
            return
        outer = self._counts()
        counts = outer and not before and (first == "else" or self._holds("if", rest, token))
        self.open.append((counts, before or counts, opening))

    def _holds(self, first: str, rest: list[KernelToken], token: KernelToken) -> bool:
        """Whether the condition of an #if, #ifdef, #ifndef or #elif is true."""
        if not rest:
            raise Unreadable(f"#{first} needs something to look at.", token)
        if first in ("ifdef", "ifndef"):
            return (rest[0].text in self.macros) == (first == "ifdef")
        asked: list[KernelToken] = []
        place = 0
        while place < len(rest):
            if rest[place].text == "defined":
                bracket = place + 1 < len(rest) and rest[place + 1].text == "("
                name = place + (2 if bracket else 1)
                if name >= len(rest):
                    raise Unreadable("defined needs a name.", rest[place])
                asked.append(rest[place]._replace(kind="number", text=str(int(rest[name].text in self.macros))))
                place = name + (2 if bracket else 1)
                continue
            asked.append(rest[place])
            place += 1
        expanded = [
            each._replace(kind="number", text="0") if each.kind == "name" else each for each in self._expanded(asked)
        ]
        return bool(evaluate_exactly(expanded, {}, CONDITIONS))

    def _define(self, words: list[KernelToken]) -> None:
        """Notes a macro; refuses reserved names and parameters that are not understood."""
        if len(words) < 2 or words[1].kind != "name":
            raise Unreadable("#define needs a name.", words[0])
        name = words[1]
        if name.text.startswith("anygpu_"):
            raise Unreadable("names that begin with anygpu_ are reserved. Use another name.", name)
        if not _is_function(words):
            self.macros[name.text] = Macro(name, None, tuple(words[2:]))
            return
        closing = next((place for place, each in enumerate(words) if each.text == ")"), None)
        if closing is None:
            raise Unreadable(f"the parameters of {name.text} are never closed.", name)
        inner = words[3:closing]
        parameters = tuple(each.text for each in inner[::2])
        if any(each.kind != "name" for each in inner[::2]) or any(each.text != "," for each in inner[1::2]):
            raise Unreadable(f"the parameters of {name.text} are not understood.", name)
        self.macros[name.text] = Macro(name, parameters, tuple(words[closing + 1 :]))

    # -- macros

    def _expanded(
        self, tokens: Sequence[KernelToken], hidden: frozenset[str] = frozenset(), depth: int = 0
    ) -> list[KernelToken]:
        """The tokens with macros expanded, except those in `hidden`, which are being expanded already."""
        if depth > _DEEPEST and tokens:
            raise Unreadable("macros are nested too deeply here.", tokens[0])
        result: list[KernelToken] = []
        place = 0
        while place < len(tokens):
            token = tokens[place]
            place += 1
            macro = self.macros.get(token.text) if token.kind == "name" and token.text not in hidden else None
            if macro is None:
                result.append(token)
                self.count += 1
                if self.count > MOST_TOKENS:
                    raise Unreadable("macros make this text too long.", token)
                continue
            if macro.parameters is None:
                body = self._pasted(macro, {}, token)
            elif place < len(tokens) and tokens[place].text == "(":
                arguments, place = _arguments(tokens, place, token)
                if macro.parameters == () and arguments == [[]]:
                    arguments = []
                if len(arguments) != len(macro.parameters):
                    raise Unreadable(f"{token.text} takes {len(macro.parameters)} values, not {len(arguments)}.", token)
                body = self._pasted(macro, dict(zip(macro.parameters, arguments, strict=True)), token, hidden, depth)
            else:
                result.append(token)
                continue
            # The tokens after it could be arguments of a macro that the expansion ends in; kernels need no such thing.
            result += self._expanded(body, hidden | {token.text}, depth + 1)
        return result

    def _pasted(
        self,
        macro: Macro,
        given: Mapping[str, Sequence[KernelToken]],
        at: KernelToken,
        hidden: frozenset[str] = frozenset(),
        depth: int = 0,
    ) -> list[KernelToken]:
        """The macro's body with the arguments in it, all at the place of the call."""
        result: list[KernelToken] = []
        joins = False
        for place, token in enumerate(macro.body):
            if token.text == "##":
                joins = True
                continue
            if token.text == "#":
                raise Unreadable("# in a macro is not possible: kernels have no strings.", token)
            beside = joins or (place + 1 < len(macro.body) and macro.body[place + 1].text == "##")
            words: Sequence[KernelToken] = (token,)
            if token.text in given:
                words = given[token.text] if beside else self._expanded(given[token.text], hidden, depth + 1)
            moved = [each._replace(line=at.line, column=at.column, start=at.start) for each in words]
            if joins and result and moved:
                both = result.pop().text + moved[0].text
                again = tokens_of(both, "opencl")
                if len(again) != 2 or again[0].kind not in ("name", "number", "mark"):
                    raise Unreadable(f"## makes {both!r}, which is not a word.", at)
                moved[0] = moved[0]._replace(kind=again[0].kind, text=both)
            result += moved
            joins = False
        return result


def _arguments(tokens: Sequence[KernelToken], place: int, at: KernelToken) -> tuple[list[list[KernelToken]], int]:
    """The arguments of a macro call, and the place after it."""
    arguments: list[list[KernelToken]] = [[]]
    depth = 0
    while place < len(tokens):
        token = tokens[place]
        place += 1
        if token.text in ("(", "[", "{"):
            depth += 1
            if depth == 1:
                continue
        elif token.text in (")", "]", "}"):
            depth -= 1
            if depth == 0:
                return arguments, place
        if token.text == "," and depth == 1:
            arguments.append([])
        else:
            arguments[-1].append(token)
    raise Unreadable(f"the values of {at.text} are never closed.", at)
