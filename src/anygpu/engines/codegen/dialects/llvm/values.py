"""Values of LLVM IR, the facts about a processor, and a function while it is being written."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

# -- the facts about a processor that the text of its code depends on


class NativeTarget(msgspec.Struct, frozen=True):
    """A processor: LLVM's triple and data layout, the features that may be used, and the bytes of a register."""

    triple: str
    data_layout: str
    #: As LLVM names them, without a sign: "avx2", "sse4.1".
    features: frozenset[str]
    vector_bytes: int

    @property
    def is_arm(self) -> bool:
        return self.triple.startswith(("aarch64", "arm64"))

    @property
    def rounds(self) -> bool:
        """Whether there are instructions for floor and its like; else LLVM would call a C library."""
        return self.is_arm or "sse4.1" in self.features

    @property
    def fuses(self) -> bool:
        """Whether there are instructions that round a product and a sum once; else LLVM would call a C library."""
        return self.is_arm or "fma" in self.features

    @property
    def halves(self) -> bool:
        """Whether there are instructions that convert float16."""
        return self.is_arm or "f16c" in self.features


# -- values of LLVM IR, and a function while it is being written
#
# A value is a name or a constant with its type: an element, or as many of them as there are lanes. Instructions that
# compute the same from the same are written once: a block knows what the blocks around it have computed.


#: Bytes in memory of each element type.
BYTES = {"i1": 1, "i8": 1, "i16": 2, "i32": 4, "i64": 8, "half": 2, "float": 4, "double": 8}
FLOATS = frozenset(("half", "float", "double"))
_SUFFIX = {"half": "f16", "float": "f32", "double": "f64"}


class Type(NamedTuple):
    """An element type of LLVM and a number of lanes; one lane is the element itself."""

    elem: str
    lanes: int = 1

    def __str__(self) -> str:
        return self.elem if self.lanes == 1 else f"<{self.lanes} x {self.elem}>"

    @property
    def suffix(self) -> str:
        """How names of intrinsics end."""
        elem = _SUFFIX.get(self.elem, self.elem)
        return elem if self.lanes == 1 else f"v{self.lanes}{elem}"

    def of(self, elem: str) -> Type:
        """As many of another type."""
        return Type(elem, self.lanes)


I64 = Type("i64")


class Value(NamedTuple):
    """An operand of LLVM IR: its text and its type."""

    text: str
    type: Type

    def __str__(self) -> str:
        """With its type, as operands are written."""
        return f"{self.type} {self.text}"


def constant(value: float, type: Type) -> Value:
    """A number, the same in all lanes; integers are wrapped into their type."""
    return _filled(literal(value, type.elem), type)


def literal(value: float, elem: str) -> str:
    """The text of a number of an element type."""
    if elem in FLOATS:
        number = float(value)
        if elem == "float" and number == number:
            number = _single(number)
        return f"0x{struct.unpack('<Q', struct.pack('<d', number))[0]:016X}"
    if elem == "i1":
        return "true" if value else "false"
    width = 8 * BYTES[elem]
    whole = int(value) & ((1 << width) - 1)
    return str(whole - (1 << width) if whole >> (width - 1) else whole)


def _single(number: float) -> float:
    """The nearest number that a float holds; infinite where that overflows."""
    try:
        return float(struct.unpack("<f", struct.pack("<f", number))[0])
    except OverflowError:
        return float("inf") if number > 0 else float("-inf")


def _filled(text: str, type: Type) -> Value:
    return Value(text if type.lanes == 1 else f"splat ({type.elem} {text})", type)


def constants(values: Sequence[float], elem: str) -> Value:
    """A number for each lane."""
    type = Type(elem, len(values))
    if len(set(values)) == 1:
        return constant(values[0], type)
    return Value(f"<{', '.join(f'{elem} {literal(each, elem)}' for each in values)}>", type)


def whole(value: Value) -> int | None:
    """The number, when it is an integer that is known."""
    text = value.text
    return int(text) if value.type.lanes == 1 and (text.isdigit() or (text[0] == "-" and text[1:].isdigit())) else None


def i64(number: int) -> Value:
    return Value(str(number), I64)


_COMMUTES = frozenset(("add", "mul", "and", "or", "xor", "fadd", "fmul"))
_NAME = re.compile(r"%[\w.]+")


class _Scope:
    """What has been computed in a block, and the lines in front of it when it is the block of a loop."""

    def __init__(self, before: list[str] | None = None) -> None:
        self.known: dict[str, Value] = {}
        self.before = before


class Writer:
    """The body of one function: instructions in order, in blocks."""

    def __init__(self, declared: dict[str, str] | None = None) -> None:
        """An empty function. `declared` are the intrinsics that the module declares, shared by all of its functions."""
        #: Instructions and labels; lists are filled later.
        self.lines: list[str | list[str]] = []
        #: Lines at the very beginning: memory, and what is loaded once.
        self.first: list[str] = []
        #: Declarations and other functions that the module must have, by name.
        self.declared: dict[str, str] = {} if declared is None else declared
        self._count = 0
        self._block = "entry"
        self._scopes = [_Scope()]
        #: The scope of each value that is not the function's own.
        self._depth: dict[str, int] = {}

    # -- instructions

    def fresh(self, hint: str = "") -> str:
        self._count += 1
        return f"%{hint}{'.' if hint else 'v'}{self._count}"

    def op(self, text: str, type: Type) -> Value:
        """The result of an instruction without effects, which may have been computed before.

        It stands outside of all loops that do not change its operands. Nothing that is written here can fail.
        """
        number = len(self._scopes) - 1
        if self._scopes[number].before is not None:
            depth = max([self._depth.get(name, 0) for name in _NAME.findall(text)], default=0)
            while number > depth and self._scopes[number].before is not None:
                number -= 1
        for scope in self._scopes[: number + 1]:
            found = scope.known.get(text)
            if found is not None:
                return found
        result = Value(self.fresh(), type)
        outside = number < len(self._scopes) - 1
        lines = self._scopes[number + 1].before if outside else None
        (self.lines if lines is None else lines).append(f"  {result.text} = {text}")
        self._depth[result.text] = number
        self._scopes[number].known[text] = result
        return result

    def new(self, text: str, type: Type) -> Value:
        """The result of an instruction that is not the same every time."""
        result = Value(self.fresh(), type)
        self.lines.append(f"  {result.text} = {text}")
        self._depth[result.text] = len(self._scopes) - 1
        return result

    def add_line(self, text: str) -> None:
        self.lines.append(f"  {text}")

    def binary(self, name: str, one: Value, other: Value) -> Value:
        """An instruction of two operands of one type, which have one order where it does not matter."""
        if name in _COMMUTES and other.text < one.text:
            one, other = other, one
        return self.op(f"{name} {one}, {other.text}", one.type)

    def compare(self, test: str, one: Value, other: Value) -> Value:
        kind = "fcmp" if one.type.elem in FLOATS else "icmp"
        return self.op(f"{kind} {test} {one}, {other.text}", one.type.of("i1"))

    def select(self, condition: Value, yes: Value, no: Value) -> Value:
        """One of two values by a condition, lane by lane."""
        if yes == no:
            return yes
        condition = self.fit(condition, yes.type.lanes)
        return self.op(f"select {condition}, {yes}, {no}", yes.type)

    def convert(self, name: str, value: Value, elem: str) -> Value:
        """A value in another element type by an instruction such as `sext`; constants are converted here."""
        to = value.type.of(elem)
        if to == value.type:
            return value
        if name in ("trunc", "sext") and (known := whole(value)) is not None:
            return constant(known, to)
        return self.op(f"{name} {value} to {to}", to)

    def as_half(self, value: Value) -> Value:
        """Floats as halves. Without the fence LLVM may round doubles at once, by a function that is not there."""
        return self.convert("fptrunc", self.intrinsic("arithmetic.fence", value), "half")

    def intrinsic(self, name: str, *args: Value, flags: str = "", result: Type | None = None) -> Value:
        """A call of an intrinsic of the type of its first argument; `flags` are constant arguments at the end."""
        type = args[0].type
        full = f"@llvm.{name}.{type.suffix}"
        made = type if result is None else result
        extra = ["i1"] if flags else []
        if full not in self.declared:
            kinds = [*(str(each.type) for each in args), *extra]
            self.declared[full] = f"declare {made} {full}({', '.join(kinds)})"
        given = [*(str(each) for each in args), *([f"i1 {flags}"] if flags else [])]
        return self.op(f"call {made} {full}({', '.join(given)})", made)

    # -- whole numbers of positions, which are often known

    def add(self, one: Value, other: Value) -> Value:
        """The sum of two integers; constants are added here, and 0 is left out."""
        a, b = whole(one), whole(other)
        if a is not None and b is not None:
            return constant(a + b, one.type)
        if a == 0 or b == 0:
            return other if a == 0 else one
        return self.binary("add", one, other)

    def times(self, one: Value, factor: int) -> Value:
        """An integer times a constant; constants are multiplied here."""
        a = whole(one)
        if a is not None:
            return i64(a * factor)
        return one if factor == 1 else self.op(f"mul {one}, {factor}", one.type)

    def divided(self, name: str, one: Value, by: int) -> Value:
        """The quotient (`udiv`) or the remainder (`urem`) of what is not negative."""
        a = whole(one)
        if a is not None:
            return i64(a // by if name == "udiv" else a % by)
        return self.op(f"{name} {one}, {by}", one.type)

    def address(self, elem: str, pointer: Value, index: Value) -> Value:
        """The address of an element of an array."""
        if index.text == "0":
            return pointer
        return self.op(f"getelementptr {elem}, {pointer}, {index}", pointer.type)

    def minimum(self, one: Value, other: Value) -> Value:
        a, b = whole(one), whole(other)
        return i64(min(a, b)) if a is not None and b is not None else self.intrinsic("smin", one, other)

    def maximum(self, one: Value, other: Value) -> Value:
        a, b = whole(one), whole(other)
        return i64(max(a, b)) if a is not None and b is not None else self.intrinsic("smax", one, other)

    # -- lanes

    def fit(self, value: Value, lanes: int) -> Value:
        """The value in so many lanes, when it was the same for all."""
        if value.type.lanes == lanes:
            return value
        to = Type(value.type.elem, lanes)
        if value.text[0] != "%":
            return _filled(value.text, to)
        first = self.op(f"insertelement {to} poison, {value}, i64 0", to)
        return self.op(f"shufflevector {first}, {to} poison, <{lanes} x i32> zeroinitializer", to)

    def fitted(self, values: Sequence[Value]) -> list[Value]:
        """All in as many lanes as the widest has."""
        found = {each.type.lanes for each in values}
        return list(values) if len(found) == 1 else [self.fit(each, max(found)) for each in values]

    def lane(self, value: Value, number: int) -> Value:
        """One lane of a value."""
        if value.type.lanes == 1:
            return value
        return self.op(f"extractelement {value}, i64 {number}", Type(value.type.elem))

    def shuffle(self, value: Value, places: Sequence[int], other: Value | None = None) -> Value:
        """Lanes of a vector, or of two of one type after each other, in another order; lane -1 is anything."""
        if len(places) == 1:
            return self.lane(value, places[0])
        if other is None and list(places) == list(range(value.type.lanes)):
            return value
        to = Type(value.type.elem, len(places))
        if set(places) == {0}:
            mask = "zeroinitializer"
        else:
            mask = "<" + ", ".join(f"i32 {each if each >= 0 else 'poison'}" for each in places) + ">"
        second = f"{value.type} poison" if other is None else str(other)
        return self.op(f"shufflevector {value}, {second}, <{len(places)} x i32> {mask}", to)

    def gathered(self, values: Sequence[Value]) -> Value:
        """One vector of single values."""
        if len(values) == 1:
            return values[0]
        to = Type(values[0].type.elem, len(values))
        result = Value("poison", to)
        for number, each in enumerate(values):
            result = self.op(f"insertelement {result}, {each}, i64 {number}", to)
        return result

    def joined(self, values: Sequence[Value]) -> Value:
        """Vectors of equal length after each other."""
        parts = list(values)
        while len(parts) > 1:
            if len(parts) % 2:
                parts.append(Value("poison", parts[0].type))
            lanes = 2 * parts[0].type.lanes
            parts = [
                self.gathered([one, other]) if lanes == 2 else self.shuffle(one, range(lanes), other)
                for one, other in zip(parts[::2], parts[1::2], strict=True)
            ]
        return self.shuffle(parts[0], range(sum(each.type.lanes for each in values)))

    def any_lane(self, condition: Value) -> Value:
        """Whether it holds in any lane."""
        if condition.type.lanes == 1:
            return condition
        return self.intrinsic("vector.reduce.or", condition, result=Type("i1"))

    # -- blocks

    def label(self, hint: str) -> str:
        self._count += 1
        return f"{hint}.{self._count}"

    def begin(self, label: str) -> None:
        self.lines.append(f"{label}:")
        self._block = label

    def jump(self, label: str) -> None:
        self.add_line(f"br label %{label}")

    def jump_if(self, condition: Value, yes: str, no: str, hint: str = "") -> None:
        self.add_line(f"br {condition}, label %{yes}, label %{no}{hint}")

    @property
    def block(self) -> str:
        return self._block

    def merged(self, one: Value, one_block: str, other: Value, other_block: str) -> Value:
        """A value that comes from one of two blocks."""
        if one == other:
            return one
        return self.new(f"phi {one.type} [ {one.text}, %{one_block} ], [ {other.text}, %{other_block} ]", one.type)

    def inner(self, write: Callable[[], Sequence[Value]], before: list[str] | None = None) -> list[Value]:
        """What is computed in a block that may not be reached is not known after it."""
        self._scopes.append(_Scope(before))
        try:
            return list(write())
        finally:
            self._scopes.pop()

    def when(
        self,
        condition: Value,
        write: Callable[[], Sequence[Value]],
        otherwise: Sequence[Value] = (),
        *,
        rare: bool = False,
    ) -> list[Value]:
        """Values that are computed where a condition (of one lane) holds, and the others where not."""
        before, inside, after = self._block, self.label("then"), self.label("after")
        self.jump_if(condition, inside, after, ", !prof !1" if rare else "")
        self.begin(inside)
        made = self.inner(write)
        last = self._block
        self.jump(after)
        self.begin(after)
        return [self.merged(old, before, new, last) for old, new in zip(otherwise, made, strict=True)]

    def while_loop(
        self,
        carried: Sequence[Value],
        write: Callable[[Sequence[Value]], tuple[Sequence[Value], Value]],
        enter: Value | None = None,
        hint: str = "",
    ) -> list[Value]:
        """A loop that carries values from round to round and goes on while the last value of a round says so.

        `enter` decides whether there is a first round; without it there always is.
        """
        before, head, after = self._block, self.label("loop"), self.label("after")
        early: list[str] = []
        self.lines.append(early)
        if enter is None:
            self.jump(head)
        else:
            self.jump_if(enter, head, after)
        self.begin(head)
        now = [Value(self.fresh(), each.type) for each in carried]
        self._depth.update((each.text, len(self._scopes)) for each in now)
        place = len(self.lines)
        self.lines += [""] * len(now)
        goes_on: list[Value] = []

        def inside() -> Sequence[Value]:
            after_round, condition = write(now)
            goes_on.append(condition)
            return after_round

        made = self.inner(inside, early)
        last = self._block
        self.jump_if(goes_on[0], head, after, hint)
        for number, (phi, start, end) in enumerate(zip(now, carried, made, strict=True)):
            text = f"phi {phi.type} [ {start.text}, %{before} ], [ {end.text}, %{last} ]"
            self.lines[place + number] = f"  {phi.text} = {text}"
        self.begin(after)
        if enter is None:
            return made
        return [
            self.new(f"phi {start.type} [ {start.text}, %{before} ], [ {end.text}, %{last} ]", start.type)
            for start, end in zip(carried, made, strict=True)
        ]

    def count_loop(
        self,
        start: Value,
        stop: Value,
        step: int,
        carried: Sequence[Value],
        write: Callable[[Value, Sequence[Value]], Sequence[Value]],
        hint: str = "",
        most: int = 1,
    ) -> list[Value]:
        """Rounds with a counter from `start` by `step` while it is less than `stop`: the values carried at the end.

        Up to so many rounds, if they are known, are written one after the other.
        """
        first, last = whole(start), whole(stop)
        enter = None
        if first is None or last is None:
            enter = self.compare("slt", start, stop)
        elif -(-(last - first) // step) <= most:
            made = list(carried)
            for at in range(first, last, step):
                made = list(write(i64(at), made))
            return made

        def round_of(now: Sequence[Value]) -> tuple[Sequence[Value], Value]:
            made = write(now[0], now[1:])
            # A counter never gets near the end of its type.
            after = self.new(f"add nsw {now[0]}, {step}", I64)
            return [after, *made], self.compare("slt", after, stop)

        return self.while_loop([start, *carried], round_of, enter, hint)[1:]

    def text(self, head: str, end: str = "ret void") -> str:
        lines = [line for each in self.lines for line in ([each] if isinstance(each, str) else each)]
        return "\n".join([f"define {head} {{", "entry:", *self.first, *lines, f"  {end}", "}"])
