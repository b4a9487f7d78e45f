"""An OpenCL C text as declarations: its functions, their parameters, and the arrays that they declare."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from anygpu.engines.codegen.custom.preprocessing import preprocessed
from anygpu.engines.codegen.custom.reflected import ConstantNumber, evaluate_exactly
from anygpu.engines.codegen.custom.tokens import KernelToken, Unreadable, partners, separated, words_in
from anygpu.program.dtypes import ITEMSIZE, DType

TYPES: dict[str, DType] = {
    "char": "int8",
    "uchar": "uint8",
    "short": "int16",
    "ushort": "uint16",
    "int": "int32",
    "uint": "uint32",
    "long": "int64",
    "ulong": "uint64",
    "float": "float32",
    "double": "float64",
    "half": "float16",
}
_WIDTHS = ("2", "3", "4", "8", "16")
_OTHER_TYPES = words_in(
    "void bool size_t ptrdiff_t intptr_t uintptr_t signed unsigned event_t sampler_t image1d_t image2d_t image3d_t "
    "image1d_buffer_t image1d_array_t image2d_array_t atomic_int atomic_uint _Bool va_list struct union enum auto "
    "__int128"
)
SPACES = {
    "__global": "global",
    "global": "global",
    "__local": "local",
    "local": "local",
    "__constant": "constant",
    "constant": "constant",
    "__private": "private",
    "private": "private",
}
QUALIFIERS = words_in(
    "const volatile restrict __restrict __restrict__ __const __volatile__ register static inline __inline __inline__ "
    "extern typedef __read_only read_only __write_only write_only __read_write read_write"
)
KERNEL = ("__kernel", "kernel")
ATTRIBUTE = ("__attribute__", "__attribute")
_TAGGED = ("struct", "union", "enum")
_VECTORS = {f"{name}{width}": (name, int(width)) for name in TYPES for width in _WIDTHS}


class OpenCLParameter(NamedTuple):
    """One of a function, as it is written."""

    tokens: tuple[KernelToken, ...]
    name: KernelToken
    #: "global" and so on; "private" where nothing is said.
    space: str
    #: The words of the type, without qualifiers and the name.
    words: tuple[KernelToken, ...]
    stars: int
    is_const: bool


class OpenCLFunction(NamedTuple):
    """One function of a text, by the places of its tokens."""

    name: KernelToken
    is_kernel: bool
    parameters: tuple[OpenCLParameter, ...]
    #: Places among the tokens: where it begins, the brackets of its parameters, and of its body (-1 for a prototype).
    start: int
    opening: int
    closing: int
    body: int
    end: int


class OpenCLVariable(NamedTuple):
    """Something with a name and a type: a buffer that the kernel takes, an array, or a single value."""

    name: str
    #: The number that it is made of and how many are in one element; `None` for a struct and the like.
    element: tuple[str, int] | None
    #: `None` for a buffer, which has any length, and nothing for a single value.
    lengths: tuple[int, ...] | None
    space: str
    nbytes: int = 0
    alignment: int = 1
    #: Whether it must not be written to.
    is_const: bool = False

    @property
    def is_array(self) -> bool:
        return self.lengths != ()


class Text:
    """The declarations of a text, after the preprocessor."""

    def __init__(self, source: str) -> None:
        """Preprocess a source and read its declarations: functions, types, and variables outside of functions.

        What cannot be read is kept in `problems`, and raised only if the kernel needs it.
        """
        self.tokens, self.constants = preprocessed(source)
        self.partners = partners(self.tokens)
        self.functions: list[OpenCLFunction] = []
        #: Names of types that the text makes, with the words that they stand for.
        self.typedefs: dict[str, tuple[KernelToken, ...]] = {}
        #: Variables outside of functions.
        self.globals: dict[str, OpenCLVariable] = {}
        #: Places of those names, and where their lengths end; and why some could not be read, which only checks mind.
        self.lengths: list[tuple[int, OpenCLVariable, int]] = []
        self.problems: list[Unreadable] = []
        self.enumerators: dict[str, ConstantNumber] = {}
        #: Bytes and alignment of structs and unions, by their keyword and tag.
        self._layouts: dict[str, tuple[int, int]] = {}
        self._read_all()

    # -- at the outermost level

    def _read_all(self) -> None:
        """Reads declarations from the first token to the last."""
        place = 0
        while self.tokens[place].kind != "end":
            token = self.tokens[place]
            if token.text == ";" or token.kind == "directive":
                place += 1
            elif token.text == "typedef":
                place = self._typedef(place)
            else:
                place = self._declaration(place)

    def _typedef(self, place: int) -> int:
        """Notes the name that a typedef declares; returns the place after it."""
        end = self.next_mark(place, ";")
        self._enumerators(place, end)
        words = [self.tokens[each] for each in self.outside(place + 1, end)]
        names = [token for token in words if token.kind == "name"]
        tagged = next((each for each in range(place, end) if self.tokens[each].text in _TAGGED), None)
        if not names or any(token.text in ("(", "[", "*", ",") for token in words):
            raise Unreadable(
                "a typedef here is a name for one type of numbers or a struct. Write arrays and pointers out.",
                self.tokens[place],
            )
        self.typedefs[names[-1].text] = (
            tuple(token for token in names[:-1] if token.text not in QUALIFIERS)
            if tagged is None
            else self._tagged(tagged)[0]
        )
        return end + 1

    def _declaration(self, start: int) -> int:
        """Reads a function or a declaration of variables; returns the place after it."""
        place = start
        while self.tokens[place].kind != "end":
            token = self.tokens[place]
            if token.text == "__attribute__" or token.text == "__attribute":
                place = self.past_attribute(place)
                continue
            if token.text == "(":
                return self._function(start, place)
            if token.text in ("=", "[", ";", ","):
                return self._variables(start)
            if token.text == "{":
                self._enumerators(start, self.partners[place] + 1)
                place = self.partners[place]
            place += 1
        raise Unreadable("';' is missing at the end of this declaration.", self.tokens[start])

    def _enumerators(self, start: int, end: int) -> None:
        """Notes the constants of enums between two places."""
        for place in range(start, end):
            if self.tokens[place].text != "enum":
                continue
            opening = next((each for each in (place + 1, place + 2) if self.tokens[each].text == "{"), None)
            if opening is None:
                continue
            value = -1
            for words in self.separated(opening + 1, self.partners[opening]):
                value = value + 1
                if len(words) > 1:
                    try:
                        value = evaluate_exactly(words[2:], self.enumerators)
                    except Unreadable:
                        return
                self.enumerators[words[0].text] = value

    def _variables(self, start: int) -> int:
        """Read a declaration of variables outside of functions; returns the position behind its semicolon."""
        end = self.next_mark(start, ";")
        try:
            for place, variable, after in self.declared(start, end):
                self.globals[variable.name] = variable
                self.lengths.append((place, variable, after))
        except Unreadable as problem:
            self.problems.append(problem)
        return end + 1

    def _function(self, start: int, opening: int) -> int:
        """Notes a function with its parameters and body; returns the place after it."""
        name = self.tokens[opening - 1]
        if opening == start or name.kind != "name" or self.is_type(name):
            raise Unreadable("this declaration is not understood.", self.tokens[start])
        closing = self.partners[opening]
        place = closing + 1
        place = self.past_attributes(place)
        before = [self.tokens[each] for each in range(start, opening - 1)]
        is_kernel = any(token.text in KERNEL for token in before)
        if any(token.text == "*" for token in before):
            raise Unreadable(f"{name.text} gives back a pointer, which no function of a kernel can.", name)
        body = place if self.tokens[place].text == "{" else -1
        # Parameters of a prototype need no names, and are not used.
        parameters = tuple(self._parameters(opening, closing)) if body >= 0 else ()
        if body < 0 and self.tokens[place].text != ";":
            raise Unreadable(f"the body of {name.text} is missing.", self.tokens[place])
        end = self.partners[place] if body >= 0 else place
        self.functions.append(OpenCLFunction(name, is_kernel, parameters, start, opening, closing, body, end))
        return end + 1

    def _parameters(self, opening: int, closing: int) -> Iterator[OpenCLParameter]:
        """The parameters between two parentheses, each with its type, name and address space."""
        for words in self.separated(opening + 1, closing):
            if [word.text for word in words] == ["void"]:
                continue
            plain = _without_attributes(words)
            names = [word for word in plain if word.kind == "name"]
            if not names or any(word.text in ("(", "...") for word in plain):
                raise Unreadable("this parameter is not understood.", words[0])
            name = names[-1]
            if self.is_type(name) or name.text in QUALIFIERS or name.text in SPACES:
                raise Unreadable("this parameter has no name.", words[0])
            stars = sum(word.text in ("*", "[") for word in plain)
            star = next((place for place, word in enumerate(plain) if word.text == "*"), len(plain))
            pointed = plain[:star] if stars else plain
            yield OpenCLParameter(
                tokens=words,
                name=name,
                space=next((SPACES[word.text] for word in plain if word.text in SPACES), "private"),
                words=tuple(
                    word
                    for word in plain
                    if word.kind == "name"
                    and word is not name
                    and word.text not in QUALIFIERS
                    and word.text not in SPACES
                ),
                stars=stars,
                is_const=any(word.text in ("const", "__const") for word in pointed),
            )

    # -- places

    def next_mark(self, place: int, text: str) -> int:
        """The next such mark outside of brackets."""
        start = place
        while self.tokens[place].text != text:
            if self.tokens[place].kind == "end" or self.tokens[place].text in (")", "]", "}"):
                raise Unreadable(f"{text!r} is missing after this.", self.tokens[start])
            place = self.partners[place] + 1 if self.tokens[place].text in ("(", "[", "{") else place + 1
        return place

    def outside(self, start: int, end: int) -> Iterator[int]:
        """Places outside of curly brackets and attributes."""
        place = start
        while place < end:
            if self.tokens[place].text in ATTRIBUTE:
                place = self.past_attribute(place)
            elif self.tokens[place].text == "{":
                place = self.partners[place] + 1
            else:
                yield place
                place += 1

    def past_attribute(self, place: int) -> int:
        """The position behind an attribute. Raises `Unreadable` where it has no parentheses."""
        if self.tokens[place + 1].text != "(":
            raise Unreadable("this attribute is not understood.", self.tokens[place])
        return self.partners[place + 1] + 1

    def past_attributes(self, place: int) -> int:
        """The position behind all attributes that stand here."""
        while self.tokens[place].text in ATTRIBUTE:
            place = self.past_attribute(place)
        return place

    def separated(self, start: int, stop: int) -> Iterator[tuple[KernelToken, ...]]:
        return separated(self.tokens, self.partners, start, stop)

    # -- types

    def is_type(self, token: KernelToken) -> bool:
        """Whether a token names a type: of the language, or by a typedef of the source."""
        return token.kind == "name" and (
            token.text in TYPES or token.text in _VECTORS or token.text in _OTHER_TYPES or token.text in self.typedefs
        )

    def is_specifier(self, token: KernelToken) -> bool:
        """Whether it is a word before the names of a declaration."""
        return token.kind == "name" and (self.is_type(token) or token.text in QUALIFIERS or token.text in SPACES)

    def begins_statement(self, place: int) -> bool:
        """Whether a statement begins at a token.

        That is behind braces, semicolons, labels, directives and attributes, and in the head of a `for`.
        """
        before = self.tokens[place - 1]
        if before.text == "(" and self.tokens[place - 2].text == "for":
            return True
        if before.text == ")":
            return self.tokens[self.partners[place - 1] - 1].text in ATTRIBUTE
        return before.text in ("{", "}", ";", ":") or before.kind == "directive"

    def begins_declaration(self, place: int) -> bool:
        # A label, or an expression that begins with a cast, does not.
        return self.is_specifier(self.tokens[place]) and self.tokens[place + 1].text not in (":", "(", ".")

    def element(self, words: Sequence[KernelToken], depth: int = 0) -> tuple[str, int] | None:
        """The number that a type is made of, and how many of them; `None` for what is not a number."""
        texts = [word.text for word in words if word.text != "signed"]
        if depth > 20:
            return None
        if "unsigned" in texts:
            texts.remove("unsigned")
            rest = [text for text in texts if text != "int"] or ["int"]
            return (f"u{rest[0]}", 1) if len(rest) == 1 and f"u{rest[0]}" in TYPES else None
        if len(texts) == 2 and "int" in texts and ("long" in texts or "short" in texts):
            texts.remove("int")
        if not texts and words:
            return "int", 1
        if len(texts) != 1:
            return None
        (text,) = texts
        if text in TYPES:
            return text, 1
        if text in _VECTORS:
            return _VECTORS[text]
        if text in self.typedefs:
            return self.element(self.typedefs[text], depth + 1)
        return None

    def nbytes(self, words: Sequence[KernelToken]) -> int:
        """Bytes of one value; an unknown type counts as much as the widest vector."""
        return self._layout(words)[0]

    def _layout(self, words: Sequence[KernelToken], depth: int = 0) -> tuple[int, int]:
        """Bytes and alignment."""
        found = self.element(words)
        if found is not None:
            size = ITEMSIZE[TYPES[found[0]]] * (4 if found[1] == 3 else found[1])
            return size, size
        if len(words) == 1 and words[0].text in self.typedefs and depth < 20:
            return self._layout(self.typedefs[words[0].text], depth + 1)
        return self._layouts.get(" ".join(word.text for word in words), (128, 128))

    def _tagged(self, place: int) -> tuple[tuple[KernelToken, KernelToken], int]:
        """The words that stand for the struct, union or enum that begins here, and the place after it."""
        keyword, after = self.tokens[place], self.past_attributes(place + 1)
        tag = keyword._replace(text=f"at {place}")
        if self.tokens[after].kind == "name":
            tag = self.tokens[after]
            after = self.past_attributes(after + 1)
        if self.tokens[after].text == "{":
            name = f"{keyword.text} {tag.text}"
            found = (8, 8) if keyword.text == "enum" else self._members(after, is_union=keyword.text == "union")
            before = self._layouts.get(name, (0, 1))
            # Blocks may have others of the same name: each counts as the largest.
            self._layouts[name] = max(before[0], found[0]), max(before[1], found[1])
            after = self.partners[after] + 1
        return (keyword, tag), after

    def _members(self, opening: int, *, is_union: bool) -> tuple[int, int]:
        """Bytes and alignment of everything between the brackets."""
        place, size, largest = opening + 1, 0, 1
        try:
            while place < self.partners[opening]:
                end = self.next_mark(place, ";")
                for _, variable, _ in self.declared(place, end):
                    largest = max(largest, variable.alignment)
                    begin = 0 if is_union else -(-size // variable.alignment) * variable.alignment
                    size = max(size, begin + variable.nbytes)
                place = end + 1
        except Unreadable:
            return 128, 128
        return -(-size // largest) * largest, largest

    # -- declarations of variables

    def declared(self, start: int, end: int) -> Iterator[tuple[int, OpenCLVariable, int]]:
        """The variables of a declaration that ends at `end`: place of the name, variable, and end of its lengths."""
        place = start
        words: list[KernelToken] = []
        space = "private"
        is_const = False
        while place < end:
            token = self.tokens[place]
            if token.text in ATTRIBUTE:
                place = self.past_attribute(place)
                continue
            if token.text == "typedef":
                raise Unreadable("typedef is the first word of its declaration.", token)
            follows = self.tokens[place + 1].text
            known = self.is_specifier(token)
            if token.kind == "name" and follows in ("=", "[", ",", ";", "__attribute__") and not known:
                break
            if token.kind == "name" and token.text in _TAGGED:
                tagged, place = self._tagged(place)
                words += tagged
                continue
            if token.kind != "name":
                break
            if not known:
                raise Unreadable(f"{token.text!r} is not understood here.", token)
            space = SPACES.get(token.text, space)
            is_const |= token.text in ("const", "__const")
            if token.text not in QUALIFIERS and token.text not in SPACES:
                words.append(token)
            place += 1
        while place < end:
            name = self.tokens[place]
            if name.kind != "name":
                raise Unreadable(f"{name.text!r} is not understood in this declaration.", name)
            after = place + 1
            lengths: list[int] = []
            element = self.element(words)
            while self.tokens[after].text == "[":
                closing = self.partners[after]
                lengths.append(self._length(after, closing, is_plain=element is not None and element[1] == 1))
                after = closing + 1
            total, alignment = self._layout(words)
            for length in lengths:
                total *= length
            constant = is_const or space == "constant"
            yield place, OpenCLVariable(name.text, element, tuple(lengths), space, total, alignment, constant), after
            while after < end and self.tokens[after].text != ",":
                after = self.partners[after] + 1 if self.tokens[after].text in ("(", "[", "{") else after + 1
            place = after + 1

    def _length(self, opening: int, closing: int, *, is_plain: bool) -> int:
        """The length of an array: its constant expression, or the number of its initial values."""
        inner = self.tokens[opening + 1 : closing]
        if not inner:
            values = closing + 2
            if self.tokens[closing + 1].text == "=" and self.tokens[values].text == "{":
                items = list(self.separated(values + 1, self.partners[values]))
                # Values of vectors, structs and arrays of arrays may stand without brackets of their own.
                if items and is_plain and self.tokens[opening - 1].text != "]" and items[0][0].text not in ("[", "."):
                    return len(items)
            raise Unreadable("the length of this array is missing. Write it as a number.", self.tokens[opening])
        value = evaluate_exactly(inner, self.enumerators)
        if not value:
            raise Unreadable(f"{value} is not a length of an array.", inner[0])
        return value


def _without_attributes(words: Sequence[KernelToken]) -> list[KernelToken]:
    """The words without `__attribute__((…))`."""
    result: list[KernelToken] = []
    depth = 0
    skipping = False
    for word in words:
        if word.text in ATTRIBUTE:
            skipping = True
        elif skipping:
            depth += (word.text == "(") - (word.text == ")")
            skipping = depth > 0
        else:
            result.append(word)
    return result
