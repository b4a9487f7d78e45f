"""Records of a user's kernel: what its text says of itself, the form that a driver takes, and a compiler's messages.

Constant expressions come first: `evaluate` works out sizes of groups and arrays, and what the preprocessor compares,
with C's precedence and Python's integers. The records follow: `Reflected` is what a source declares, `Prepared` the
text that a driver compiles, and `Complaint` the place and words of a compiler's message.
"""

from __future__ import annotations

import operator
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

import msgspec
import numpy as np

from anygpu.engines.codegen.custom.tokens import KernelToken, Unreadable
from anygpu.program.ops.custom import Language, Parameter, Scalar, Three

# -- constant expressions of kernels, worked out: sizes of groups and arrays, and what the preprocessor compares


ConstantNumber = int | float | bool

_LEVELS: tuple[tuple[str, ...], ...] = (
    ("||",), ("&&",), ("|",), ("^",), ("&",), ("==", "!="), ("<", ">", "<=", ">="), ("<<", ">>"), ("+", "-"),
    ("*", "/", "%"),
)  # fmt: skip
_JOINED = {("<", "<"): "<<", (">", ">"): ">>", ("<", "="): "<=", (">", "="): ">="}
_WHOLE = ("i32", "u32", "i64", "u64", "int", "uint", "long", "ulong", "size_t", "short", "ushort", "char", "uchar")
_REAL = ("f32", "f16", "f64", "float", "double", "half")
_LARGEST = 1 << 64
_DEEPEST = 100

#: Whole numbers that every language of kernels computes with alike, whatever their types: where each number, each
#: constant and each intermediate result is among them, nothing wraps, no sign is lost and no comparison turns round.
PLAIN = range(1 << 31)
#: Whole numbers of the preprocessor, which has one signed and one unsigned type.
CONDITIONS = range(-(1 << 63), 1 << 63)
_WHOLE_NUMBER = re.compile(r"(?:0[xX][0-9a-fA-F]+|[0-9]+)(?:[uU]?[lL]{0,2}|[lL]{1,2}[uU]|[iI])")


def evaluate(tokens: Sequence[KernelToken], known: Mapping[str, ConstantNumber]) -> ConstantNumber:
    """The value. Names that are not known, and everything that is no plain arithmetic, are `Unreadable`."""
    return _Evaluation(tokens, known, None).value()


def evaluate_exactly(tokens: Sequence[KernelToken], known: Mapping[str, ConstantNumber], within: range = PLAIN) -> int:
    """The value that a compiler finds, too: what depends on the types of a language is `Unreadable`."""
    return int(_Evaluation(tokens, known, within).value())


def number_of(token: KernelToken) -> ConstantNumber:
    """The value of a literal, with the suffixes of its language."""
    text = token.text.lower().replace("'", "")
    try:
        if text.startswith("0x"):
            if "p" in text or "." in text:
                return float.fromhex(text.rstrip("fhl"))
            return int(text.rstrip("uil"), 16)
        plain = text.rstrip("uilfhn")
        if any(each in plain for each in ".e") or text[-1] in "fh":
            return float(plain)
        # A C compiler reads a leading zero as octal.
        return int(plain, 8) if len(plain) > 1 and plain.startswith("0") else int(plain)
    except (ValueError, OverflowError):
        raise Unreadable(f"{token.text} is not a number that a constant can have.", token) from None


class _Evaluation:
    """Evaluates one constant expression by recursive descent over its tokens."""

    def __init__(
        self, tokens: Sequence[KernelToken], known: Mapping[str, ConstantNumber], within: range | None
    ) -> None:
        """Evaluate tokens with the values of `known` names.

        `within` is the range of integers that results must stay in, or `None` for any.
        """
        self.tokens = _joined(tokens)
        self.known = known
        self.within = within
        self.at = 0
        self.depth = 0
        #: A number without a sign, and whether one is below 0: a compiler turns the second into the first.
        self.unsigned: KernelToken | None = None
        self.is_negative = False

    def value(self) -> ConstantNumber:
        """The value of all tokens. Raises `Unreadable` where they are no constant expression.

        An unsigned number beside a negative one is refused: C and WGSL would convert it without a word.
        """
        if not self.tokens:
            raise Unreadable("a value is missing here.")
        result = self._choice()
        if self.at < len(self.tokens):
            raise Unreadable("this is not a constant expression.", self.tokens[self.at])
        if self.unsigned is not None and self.is_negative:
            raise _by_type(self.unsigned)
        return result

    def _kept(self, value: ConstantNumber, at: KernelToken) -> ConstantNumber:
        """The value, if it is one that a compiler finds, too."""
        if self.within is None:
            return value
        if isinstance(value, float) or int(value) not in self.within:
            raise _by_type(at)
        self.is_negative |= value < 0
        return value

    def _text(self) -> str:
        return self.tokens[self.at].text if self.at < len(self.tokens) else ""

    def _here(self) -> KernelToken:
        return self.tokens[min(self.at, len(self.tokens) - 1)]

    def _choice(self) -> ConstantNumber:
        """The value of `condition ? yes : no`, or of a binary expression without it."""
        condition = self._level(0)
        if self._text() != "?":
            return condition
        self.at += 1
        yes = self._choice()
        self._expect(":")
        no = self._choice()
        return yes if condition else no

    def _level(self, level: int) -> ConstantNumber:
        """Evaluates binary operators of this precedence, which associate to the left."""
        if level == len(_LEVELS):
            return self._unary()
        left = self._level(level + 1)
        while self._text() in _LEVELS[level]:
            mark = self._here()
            self.at += 1
            right = self._level(level + 1)
            if self.within is not None and mark.text in ("<<", ">>"):
                most = self.within.stop.bit_length() - 1
                if left < 0 or not 0 <= right < most:
                    raise _by_type(mark)
            left = self._kept(_applied(mark, left, right), mark)
        return left

    def _unary(self) -> ConstantNumber:
        """Evaluates a value with its sign, `!` or `~` before it; nesting is bounded."""
        mark = self._here()
        self.depth += 1
        if self.depth > _DEEPEST:
            raise Unreadable("this expression is nested too deeply.", mark)
        try:
            if self._text() not in ("-", "+", "!", "~"):
                return self._single()
            self.at += 1
            operand = self._unary()
        finally:
            self.depth -= 1
        match mark.text:
            case "-":
                return self._kept(-operand, mark)
            case "+":
                return operand
            case "!":
                return not operand
        if isinstance(operand, float):
            raise Unreadable("~ takes a whole number.", mark)
        return self._kept(~int(operand), mark)

    def _single(self) -> ConstantNumber:
        """Evaluates a number, a named constant, a call or an expression in parentheses."""
        if self.at >= len(self.tokens):
            raise Unreadable("a value is missing here.", self._here())
        token = self._here()
        self.at += 1
        if token.kind == "number":
            if self.within is not None and _WHOLE_NUMBER.fullmatch(token.text) is None:
                raise _by_type(token)
            if token.text[-1] in "uU" or token.text.lower().endswith(("ul", "ull")):
                self.unsigned = token
            return self._kept(number_of(token), token)
        if token.text == "(":
            if self._text() in (*_WHOLE, *_REAL) and self._after() == ")":
                if self.within is not None:
                    raise _by_type(token)
                cast = self._text()
                self.at += 2
                return _cast(cast, self._unary(), token)
            value = self._choice()
            self._expect(")")
            return value
        if token.kind == "name":
            if token.text in ("true", "false"):
                return token.text == "true"
            if token.text in self.known:
                return self._kept(self.known[token.text], token)
            if token.text in (*_WHOLE, *_REAL, "bool", "min", "max") and self._text() == "(":
                return self._call(token)
        raise Unreadable(f"{token.text} is not a constant that is known here.", token)

    def _after(self) -> str:
        return self.tokens[self.at + 1].text if self.at + 1 < len(self.tokens) else ""

    def _call(self, function: KernelToken) -> ConstantNumber:
        """Evaluates a built-in function of constants, such as `min`, or a conversion to a type."""
        self._expect("(")
        values = [self._choice()]
        while self._text() == ",":
            self.at += 1
            if self._text() == ")":
                break
            values.append(self._choice())
        self._expect(")")
        if function.text in ("min", "max"):
            return min(values) if function.text == "min" else max(values)
        if len(values) != 1:
            raise Unreadable(f"{function.text} takes one value here.", function)
        return self._kept(_cast(function.text, values[0], function), function)

    def _expect(self, text: str) -> None:
        """Go on behind this text. Raises `Unreadable` where it is missing."""
        if self._text() != text:
            raise Unreadable(f"{text} is missing here.", self._here())
        self.at += 1


def _by_type(at: KernelToken) -> Unreadable:
    """The refusal of an expression whose value depends on the language's integer types."""
    return Unreadable(
        f"the value of this depends on the types of the language, at {at.text!r}. Write the number itself.", at
    )


def _joined(tokens: Sequence[KernelToken]) -> list[KernelToken]:
    """Joins the halves of shifts and comparisons, which are single tokens in WGSL."""
    result: list[KernelToken] = []
    for token in tokens:
        if result:
            last = result[-1]
            both = _JOINED.get((last.text, token.text))
            if both is not None and last.stop == token.start:
                result[-1] = last._replace(text=both)
                continue
        result.append(token)
    return result


def _cast(type: str, value: ConstantNumber, at: KernelToken) -> ConstantNumber:
    """The number in a type of the language. Raises `Unreadable` where an infinite number or NaN is to be an integer."""
    if type == "bool":
        return bool(value)
    if type in _REAL:
        return float(value)
    try:
        return int(value)
    except (ValueError, OverflowError):
        raise Unreadable(f"{value} is not a whole number.", at) from None


def _applied(at: KernelToken, left: ConstantNumber, right: ConstantNumber) -> ConstantNumber:
    """The result of a binary operator; raises `Unreadable` at the operator for a division by zero or an overflow."""
    fractional = isinstance(left, float) or isinstance(right, float)
    apply = (_OF_FLOATS if fractional else _OF_INTEGERS).get(at.text)
    if apply is None:
        raise Unreadable(f"{at.text} takes whole numbers.", at)
    if at.text in ("<<", ">>") and not 0 <= right < 64:
        raise Unreadable("a shift is by 0 to 63 places.", at)
    try:
        result = apply(float(left), float(right)) if fractional else apply(int(left), int(right))
    except (ZeroDivisionError, OverflowError, ValueError):
        raise Unreadable("this has no value that a kernel could use.", at) from None
    if isinstance(result, int) and not -_LARGEST < result < _LARGEST:
        raise Unreadable("this is larger than any number that a kernel has.", at)
    return result


def _quotient(left: int, right: int) -> int:
    """As C divides: towards zero."""
    return abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)


def _remainder(left: int, right: int) -> int:
    return abs(left) % abs(right) * (-1 if left < 0 else 1)


_Operators = dict[str, Callable[[Any, Any], ConstantNumber]]

_OF_ALL: _Operators = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    ">": operator.gt,
    "<=": operator.le,
    ">=": operator.ge,
    "&&": lambda left, right: bool(left) and bool(right),
    "||": lambda left, right: bool(left) or bool(right),
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
}
_OF_FLOATS: _Operators = {**_OF_ALL, "/": operator.truediv}
_OF_INTEGERS: _Operators = {
    **_OF_ALL,
    "/": _quotient,
    "%": _remainder,
    "<<": operator.lshift,
    ">>": operator.rshift,
    "&": operator.and_,
    "|": operator.or_,
    "^": operator.xor,
}


ScalarType = Literal["int32", "uint32", "int64", "uint64", "float16", "float32", "float64"]


class ScalarParameter(msgspec.Struct, frozen=True):
    """A number that the kernel takes; `anygpu.program.ops.custom.Scalar` is this with a value."""

    name: str
    dtype: ScalarType


class Length(msgspec.Struct, frozen=True):
    """The lengths that a buffer may have: any multiple of a number, or exactly that number."""

    multiple: int = 1
    exactly: int | None = None


class NamedFunction(Protocol):
    """A function in a text, of either language."""

    @property
    def name(self) -> KernelToken: ...


_Function = TypeVar("_Function", bound=NamedFunction)


def entry_among(kernels: Sequence[_Function], entry: str | None, mark: str, example: str) -> _Function:
    """The kernel of this name, or the only one; raises `Unreadable` otherwise.

    `mark` is what the language writes before kernels, and `example` says how.
    """
    names = ", ".join(each.name.text for each in kernels) or "none"
    if entry is not None:
        chosen = next((each for each in kernels if each.name.text == entry), None)
        if chosen is None:
            raise Unreadable(f"there is no {mark} function {entry!r}; available: {names}.")
        return chosen
    if not kernels:
        raise Unreadable(f"no function is marked with {mark}. Write {example}.")
    if len(kernels) > 1:
        raise Unreadable(f"the source has several {mark} functions ({names}). Choose one with entry=.", kernels[1].name)
    return kernels[0]


class Reflected(msgspec.Struct, frozen=True, kw_only=True):
    """The facts about a kernel that its text states."""

    language: Language
    #: The function in the text.
    entry: str
    #: With the values of the constants in it. Lines are those of the user's own text.
    source: str
    #: Its buffers: in WGSL by their binding, in OpenCL C in the order of the parameters.
    parameters: tuple[Parameter, ...]
    scalars: tuple[ScalarParameter, ...]
    #: The names of all of them in the order in which a call gives them.
    order: tuple[str, ...]
    #: Invocations of a group; `None` where the text leaves it open (OpenCL C without reqd_work_group_size).
    group: Three | None
    #: Every constant that a call may choose, with the value that it has now.
    constants: dict[str, ConstantNumber]
    #: For buffers that do not take every length.
    lengths: dict[str, Length]
    #: Whether a grid of more groups than one dimension of the device has can be run all the same.
    foldable: bool
    #: Bytes that the invocations of a group share.
    group_memory: int = 0


# -- a user's kernel in the form in which a driver takes it
#
# Text, and where its numbers come from.


class Word(NamedTuple):
    """A word of the status: which array it is about, and how long that is; `None` for a buffer's own length."""

    array: str
    length: int | None


class Taken(NamedTuple):
    """A number of the kernel: where it is from, and at which byte of the block of numbers it is."""

    kind: Literal["length", "scalar", "first_word", "groups", "row"]
    name: str
    place: int
    nbytes: int = 4


class Prepared(NamedTuple):
    """Independent of lengths, values and grids, so that it is compiled once."""

    source: str
    #: The words of the status that it writes to; none when nothing is checked, and then there is no status either.
    words: tuple[Word, ...]
    numbers: tuple[Taken, ...]
    #: The size of the numbers, a multiple of 4.
    nbytes: int
    #: The fewest elements of buffers that are used in vectors; those may also be empty.
    least: tuple[tuple[str, int], ...] = ()
    #: Bytes of the arrays that each invocation has for itself, as far as they are looked at.
    private: int = 0


def number_words(
    prepared: Prepared,
    lengths: Mapping[str, int],
    scalars: Mapping[str, Scalar],
    first_word: int,
    groups: Three,
    row: int,
) -> tuple[int, ...]:
    """The numbers of one launch as 32-bit words."""
    data = bytearray(prepared.nbytes)
    for kind, name, place, _ in prepared.numbers:
        match kind:
            case "length":
                packed = struct.pack("<I", lengths[name])
            case "scalar":
                packed = np.array(scalars[name].value, scalars[name].dtype).tobytes()
            case "first_word":
                packed = struct.pack("<I", first_word)
            case "groups":
                packed = struct.pack("<I", groups["xyz".index(name)])
            case "row":
                packed = struct.pack("<I", row)
        data[place : place + len(packed)] = packed
    return struct.unpack(f"<{len(data) // 4}I", data)


# -- parses compilers' messages on a user's text
#
# The first place that they name, and their own words.
#
# Neither library tells it other than in words. This is the one place that knows what these look like.


#: naga draws the place under its message: "┌─ wgsl:3:11".
_NAGA_PLACE = re.compile(r"┌─ [^\n]*?:(\d+):(\d+)")
_NAGA_HEAD = re.compile(r"^Shader (?:'[^\n]*?' )?(?:parsing|validation) error: ", re.MULTILINE)
#: Clang: "file.cl:2:11: error: expected expression"; through PoCL: "error: file.cl:2:11: expected expression".
_CLANG = re.compile(
    r"^(?:(?P<path>[^\n:]*):(?P<line>\d+):(?P<column>\d+): (?:fatal )?error: |"
    r"(?:fatal )?error: (?P<path2>[^\n:]*):(?P<line2>\d+):(?P<column2>\d+): )(?P<words>[^\n]*)$",
    re.MULTILINE,
)
#: No message needs to be longer for a person.
_MOST_WORDS = 4000


class Complaint(NamedTuple):
    """A compiler's message: the place that it names, if any, and its words."""

    line: int | None
    column: int | None
    words: str


def of_naga(words: str) -> Complaint:
    """The place and the words of a message of naga, the compiler in wgpu; without a place where it names none."""
    head = _NAGA_HEAD.search(words)
    said = words[head.end() :] if head is not None else words
    place = _NAGA_PLACE.search(said)
    said = said.rstrip()[:_MOST_WORDS]
    if place is None:
        return Complaint(None, None, said)
    return Complaint(int(place[1]), int(place[2]), said)


def of_clang(words: str) -> Complaint:
    """The first error gives the place; all of them are told, each with its own."""
    found = list(_CLANG.finditer(words))
    if not found:
        return Complaint(None, None, words.strip()[:_MOST_WORDS])
    lines = []
    for each in found:
        path = each["path"] or each["path2"] or ""
        line, column = each["line"] or each["line2"], each["column"] or each["column2"]
        said = each["words"].replace(path, "the kernel") if path else each["words"]
        lines.append(f"{line}:{column}: {said}")
    first = found[0]
    words = "\n".join(lines) if len(lines) > 1 else lines[0].partition(": ")[2]
    return Complaint(
        int(first["line"] or first["line2"]), int(first["column"] or first["column2"]), words[:_MOST_WORDS]
    )
