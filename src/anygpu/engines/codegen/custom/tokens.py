"""The words of a kernel's text, in WGSL or OpenCL C, each with its place: comments and white space are gone."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from anygpu.errors import InvalidKernel
from anygpu.program.ops.custom import Language

TokenKind = Literal["name", "number", "string", "mark", "directive", "end"]

_SPACE = re.compile(r"\s+")
_NAME = re.compile(r"[^\W\d]\w*")
#: With whatever is written behind it: "0x1p-3f", "1e-5", ".5h", "64u".
_NUMBER = re.compile(r"0[xX](?:[\w.]|(?<=[pP])[+-])*|\.?[0-9](?:[\w.]|(?<=[eE])[+-])*")
_ODD_BREAK = re.compile("\r(?!\n)|[\x0b\x0c\x85\u2028\u2029]")
_SINGLE = r"[()\[\]{}<>=+\-*/%&|^!~?:;,.@#$\\`]"
#: WGSL has `<` and `>` in types as well, so there they always stand alone.
_WGSL_MARK = re.compile(rf"->|\+\+|--|==|!=|&&|\|\||[-+*/%&|^]=|{_SINGLE}")
_C_MARK = re.compile(rf"<<=|>>=|\.\.\.|<<|>>|<=|>=|##|{_WGSL_MARK.pattern}")

#: A text that is opened deeper than any person would is not read: what comes after us might not survive it.
MOST_NESTED = 200
MOST_TOKENS = 100_000


class KernelToken(NamedTuple):
    """A word, and where it is: its first character, counted from 0, and its line and column, counted from 1."""

    kind: TokenKind
    text: str
    start: int
    line: int
    column: int

    @property
    def stop(self) -> int:
        return self.start + len(self.text)


class Unreadable(Exception):
    """Why a text is not understood, and at which word. `reflect` makes an `InvalidKernel` of it."""

    def __init__(self, why: str, at: KernelToken | None = None) -> None:
        """`why` is a sentence for the user, `at` the place in the source."""
        super().__init__(why)
        self.why = why
        self.at = at

    def for_kernel(self, title: str) -> InvalidKernel:
        """The error for the user, with the place in the source where it is known."""
        if self.at is None:
            return InvalidKernel(title, self.why)
        return InvalidKernel(title, self.why, line=self.at.line, column=self.at.column)


def first_tokens(source: str, language: Language) -> Iterator[KernelToken]:
    """The tokens up to the first that cannot be read."""
    try:
        yield from _Reader(source, language).tokens()
    except Unreadable:
        return


def tokens_of(source: str, language: Language) -> list[KernelToken]:
    """All of them, and then one of kind "end". In OpenCL C a preprocessor's line is one token, joined lines and all."""
    return list(_Reader(source, language).tokens())


class _Reader:
    """Splits a text into tokens, with the line and column of each."""

    def __init__(self, source: str, language: Language) -> None:
        """At the beginning of a source, whose lines and columns are counted from 1 for messages."""
        self.source = source
        #: A lone carriage return and the like: compilers do not agree on whether a line, and a comment, ends there.
        self.odd = _ODD_BREAK.search(source) if language == "wgsl" else None
        self.is_c = language == "opencl"
        self.at = 0
        self.line = 1
        self.line_start = 0
        #: Whether nothing but white space came before on this line.
        self.fresh = True

    def tokens(self) -> Iterator[KernelToken]:
        """All tokens of the text, and one that marks the end."""
        source, count = self.source, 0
        if self.odd is not None:
            at, line = self.odd.start(), source.count("\n", 0, self.odd.start()) + 1
            token = KernelToken("mark", self.odd[0], at, line, at - source.rfind("\n", 0, at))
            raise Unreadable(f"the character {self.odd[0]!r} may end a line. Use \\n, or \\r\\n.", token)
        while self.at < len(source):
            here = source[self.at]
            if here.isspace():
                space = _SPACE.match(source, self.at)
                self._skip(len(space[0]) if space is not None else 1)
            elif self.is_c and here == "\\" and source[self.at + 1 : self.at + 2] in ("\n", "\r"):
                self._skip(2)
            elif source.startswith("//", self.at):
                self._skip(self._end_of_line() - self.at)
            elif source.startswith("/*", self.at):
                self._skip(self._end_of_comment() - self.at)
            else:
                yield self._token()
                self.fresh = False
                count += 1
                if count > MOST_TOKENS:
                    raise Unreadable(f"a kernel has at most {MOST_TOKENS:,} words.", self._here("mark", here))
        yield KernelToken("end", "", len(source), self.line, self.at - self.line_start + 1)

    def _skip(self, count: int) -> None:
        """Go on by a number of characters, and count the lines among them."""
        end = min(self.at + count, len(self.source))
        lines = self.source.count("\n", self.at, end)
        if lines:
            self.line += lines
            self.line_start = self.source.rfind("\n", self.at, end) + 1
            self.fresh = True
        self.at = end

    def _end_of_line(self) -> int:
        """The end of a line comment; in C, a backslash continues it on the next line."""
        place = self.at
        while True:
            end = self.source.find("\n", place)
            if end < 0:
                return len(self.source)
            if not self.is_c or not self.source[place:end].rstrip("\r").endswith("\\"):
                return end
            place = end + 1

    def _end_of_comment(self) -> int:
        """The place after a block comment; those of WGSL nest."""
        start, place, depth = self._here("mark", "/*"), self.at + 2, 1
        while depth:
            closing = self.source.find("*/", place)
            if closing < 0:
                raise Unreadable("this comment is never closed. Write */ at its end.", start)
            opening = self.source.find("/*", place, closing) if not self.is_c else -1
            depth += 1 if opening >= 0 else -1
            place = (opening if opening >= 0 else closing) + 2
        return place

    def _here(self, kind: TokenKind, text: str) -> KernelToken:
        return KernelToken(kind, text, self.at, self.line, self.at - self.line_start + 1)

    def _token(self) -> KernelToken:
        """The token that begins here."""
        source, start = self.source, self.at
        here = source[start]
        if self.is_c and here == "#" and self.fresh:
            token = self._here("directive", source[start : self._end_of_directive()])
        elif self.is_c and here in "\"'":
            token = self._here("string", source[start : self._end_of_string(here)])
        elif (found := _NAME.match(source, start)) is not None:
            token = self._here("name", found[0])
        elif (found := _NUMBER.match(source, start)) is not None:
            token = self._here("number", found[0])
        elif (found := (_C_MARK if self.is_c else _WGSL_MARK).match(source, start)) is not None:
            token = self._here("mark", found[0])
        else:
            token = self._here("mark", here)
            raise Unreadable(f"the character {here!r} is not valid in a kernel. Remove it.", token)
        self._skip(len(token.text))
        return token

    def _end_of_directive(self) -> int:
        """The place where a directive ends: at a line break that is neither escaped nor inside a comment."""
        place = self.at
        while place < len(self.source):
            if self.source.startswith("/*", place):
                end = self.source.find("*/", place + 2)
                if end < 0:
                    return len(self.source)
                place = end + 2
            elif self.source.startswith("//", place):
                at, self.at = self.at, place
                place = self._end_of_line()
                self.at = at
            elif self.source[place] == "\n" and not self.source[place - 2 : place].rstrip("\r").endswith("\\"):
                return place
            else:
                place += 1
        return place

    def _end_of_string(self, quote: str) -> int:
        """The position behind a string that begins here. Raises `Unreadable` where it is not closed on its line."""
        place = self.at + 1
        while place < len(self.source) and self.source[place] not in (quote, "\n"):
            place += 2 if self.source[place] == "\\" else 1
        if place >= len(self.source) or self.source[place] != quote:
            raise Unreadable(
                "this text is never closed. Write the same quotation mark at its end.", self._here("mark", quote)
            )
        return place + 1


_CLOSING = {"(": ")", "[": "]", "{": "}"}


def partners(tokens: Sequence[KernelToken]) -> dict[int, int]:
    """For each bracket, by its place among the tokens, the one that it belongs to."""
    found: dict[int, int] = {}
    waiting: list[int] = []
    for place, token in enumerate(tokens):
        if token.kind != "mark":
            continue
        if token.text in _CLOSING:
            waiting.append(place)
            if len(waiting) > MOST_NESTED:
                raise Unreadable(f"brackets are nested deeper than {MOST_NESTED} here. Write it in steps.", token)
        elif token.text in _CLOSING.values():
            if not waiting or _CLOSING[tokens[waiting[-1]].text] != token.text:
                raise Unreadable(f"this {token.text} closes nothing. Remove it, or open it before.", token)
            opening = waiting.pop()
            found[opening], found[place] = place, opening
    if waiting:
        opening = waiting[-1]
        text = tokens[opening].text
        raise Unreadable(f"this {text} is never closed. Write {_CLOSING[text]} where it ends.", tokens[opening])
    return found


def separated(
    tokens: Sequence[KernelToken], pairs: Mapping[int, int], start: int, stop: int
) -> Iterator[tuple[KernelToken, ...]]:
    """The parts between commas. A trailing comma is allowed."""
    first = place = start
    while place < stop:
        if tokens[place].text == ",":
            if first == place:
                raise Unreadable("there is nothing before this comma.", tokens[place])
            yield tuple(tokens[first:place])
            first = place + 1
        place = pairs[place] + 1 if tokens[place].text in _CLOSING else place + 1
    if first < stop:
        yield tuple(tokens[first:stop])


def words_in(text: str) -> frozenset[str]:
    return frozenset(text.split())


class Edit(NamedTuple):
    """Another text for some characters."""

    start: int
    stop: int
    text: str


def edited(source: str, edits: Iterable[Edit]) -> str:
    """Every edit at its place. What is put in before a word comes before what replaces it."""
    parts: list[str] = []
    last = 0
    for start, stop, text in sorted(edits, key=lambda each: (each.start, each.stop)):
        parts += (source[last:start], text)
        last = stop
    return "".join((*parts, source[last:]))
