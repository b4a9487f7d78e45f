"""Positions in lanes, and loads and stores of buffers there.

A `Place` is a position as LLVM sees it: a value that all lanes share, and a constant distance for each lane. From these
`LaneMemory` knows whether lanes lie side by side (a vector load), are the same (one load for all), or are apart.
`Multiple` keeps what divides a position, for alignment.
"""

from __future__ import annotations

from collections import Counter as Counts
from collections.abc import Callable, Sequence
from math import gcd
from typing import NamedTuple

from anygpu.engines.codegen.dialects.llvm.functions import Compiler, CValue
from anygpu.engines.codegen.dialects.llvm.values import (
    BYTES,
    FLOATS,
    I64,
    Type,
    Value,
    Writer,
    constant,
    constants,
    i64,
    whole,
)
from anygpu.engines.codegen.index import Clamped, Index, IndexVariable, Quotient, Remainder
from anygpu.engines.codegen.kernel import BEYOND, HIDDEN, RESULT, WRAPPED
from anygpu.program.dtypes import DType

# -- positions in lanes
#
# Where the first lane is, what is known beforehand that each lane adds, and the rest.
#
# Neighbours along the variable of the lanes are most often a whole step apart. Quotients and remainders stay known
# beforehand as long as it is known where a multiple of the divisor falls among the lanes, because the loop begins at
# one and does a multiple in every round. Only what is left is computed in every lane.


class Multiple(NamedTuple):
    """A whole number that is `rest` more than a multiple of `of`; of 0 it is the number itself."""

    of: int = 1
    rest: int = 0

    def __add__(self, other: object) -> Multiple:
        """The multiples that a sum surely is."""
        if not isinstance(other, Multiple):
            return NotImplemented
        of = gcd(self.of, other.of)
        rest = self.rest + other.rest
        return Multiple(of, rest % of if of else rest)

    def times(self, factor: int) -> Multiple:
        """The multiples that a product with a constant surely is."""
        return Multiple(
            abs(factor) * self.of, factor * self.rest % (abs(factor) * self.of) if self.of else factor * self.rest
        )

    def modulo(self, by: int) -> int | None:
        """The rest of a division by `by`, where it is known."""
        return self.rest % by if self.of % by == 0 else None


#: Nothing is known about it.
ANY = Multiple()


class Counter(NamedTuple):
    """The value of a variable in the first lane, what it is a multiple of, and its steps from lane to lane."""

    value: Value
    multiple: Multiple = ANY
    step: int = 0


class Place(NamedTuple):
    """A position in each lane: `first` + `offsets[lane]`, and `more` in this lane.

    Neighbours in memory have the same `first`, so that what they share is computed once.
    """

    first: Value
    offsets: tuple[int, ...]
    #: What is known about `first`.
    multiple: Multiple = ANY
    more: Value | None = None

    @property
    def is_uniform(self) -> bool:
        return self.more is None and len(set(self.offsets)) == 1

    @property
    def step(self) -> int | None:
        """The distance between neighbours; `None` when they are not evenly spaced."""
        if self.more is not None:
            return None
        if len(self.offsets) == 1:
            return 0
        start, step = self.offsets[0], self.offsets[1] - self.offsets[0]
        return step if all(each == start + step * lane for lane, each in enumerate(self.offsets)) else None


class Places:
    """Computes positions where some variables are known, in a number of lanes."""

    def __init__(
        self,
        writer: Writer,
        counters: dict[str, Counter],
        named: Callable[[IndexVariable], Value],
        lanes: int,
        around: Places | None = None,
    ) -> None:
        """Positions as values of LLVM, in terms of the loops' counters.

        `named` gives the value of any other variable. What loops around have computed for the same number of lanes is
        known here, too.
        """
        self.w = writer
        self.counters = counters
        #: The value of a variable that is not a counter, in one lane or in all.
        self.named = named
        self.lanes = lanes
        #: What has been computed in this block; what the blocks around it have computed is known here, too.
        self._known: list[dict[Index, Place]] = [{}]
        if around is not None and around.lanes == lanes:
            self._known = [*around._known, {}]

    def uniform(self, value: Value, multiple: Multiple = ANY) -> Place:
        return Place(value, (0,) * self.lanes, multiple)

    def each(self, values: Value) -> Place:
        """Of positions that are computed in every lane."""
        return Place(i64(0), (0,) * self.lanes, Multiple(0, 0), values)

    def place(self, index: Index) -> Place:
        """The place of a position, computed once here and in the loops around."""
        for known in self._known:
            if index in known:
                return known[index]
        found = self._known[-1][index] = self._sum(index)
        return found

    def _sum(self, index: Index) -> Place:
        """The place of a sum of terms: the first lane, what each lane adds, and the rest."""
        parts = [(self._atom(atom), factor) for atom, factor in index.terms]
        first, multiple = i64(0), Multiple(0, 0)
        offsets = [index.constant] * self.lanes
        more: Value | None = None
        # What changes least comes first: LLVM keeps it out of the inner loops.
        for part, factor in sorted(parts, key=lambda each: -abs(each[1])):
            first = self.w.add(first, self.w.times(part.first, factor))
            multiple += part.multiple.times(factor)
            offsets = [each + factor * one for each, one in zip(offsets, part.offsets, strict=True)]
            if part.more is not None:
                scaled = part.more
                if factor != 1:
                    scaled = self.w.binary("mul", scaled, constant(factor, scaled.type))
                more = scaled if more is None else self.w.binary("add", more, scaled)
        return Place(first, tuple(offsets), multiple, more)

    def _atom(self, atom: IndexVariable | Quotient | Remainder | Clamped) -> Place:
        """The place of a variable, a quotient or a remainder."""
        match atom:
            case IndexVariable():
                return self._variable(atom)
            case Quotient():
                return self._divided("udiv", self.place(atom.of), atom.by)
            case Remainder():
                return self._divided("urem", self.place(atom.of), atom.by)
            case Clamped():
                return self._clamped(self.place(atom.of), atom.low, atom.high)

    def _variable(self, atom: IndexVariable) -> Place:
        """The place that a variable stands for: a counter with its step in each lane, or a value of the body."""
        counter = self.counters.get(atom.name)
        if counter is not None:
            known = whole(counter.value) or 0
            offsets = tuple(known + counter.step * lane for lane in range(self.lanes))
            return Place(i64(0), offsets, Multiple(0, 0)) if known else Place(counter.value, offsets, counter.multiple)
        value = self.w.convert("sext", self.named(atom), "i64")
        return self.uniform(value) if value.type.lanes == 1 else self.each(value)

    def _divided(self, name: str, of: Place, by: int) -> Place:
        """The quotient (`udiv`) or the remainder (`urem`) of what is never negative."""
        if of.more is not None:
            values = self.lanes_of(of)
            return self.each(self.w.binary(name, values, constant(by, values.type)))
        start = self.w.add(of.first, i64(of.offsets[0]))
        offsets = tuple(each - of.offsets[0] for each in of.offsets)
        multiple = of.multiple + Multiple(0, of.offsets[0])
        rest = multiple.modulo(by)
        if rest is not None:
            if name == "udiv":
                return Place(self.w.divided(name, start, by), tuple((rest + each) // by for each in offsets))
            return Place(i64(0), tuple((rest + each) % by for each in offsets), Multiple(0, 0))
        # Lanes between two multiples of a common divisor are between two multiples of `by`.
        common = gcd(multiple.of, by)
        if all(0 <= multiple.rest % common + each < common for each in offsets):
            if name == "udiv":
                return self.uniform(self.w.divided(name, start, by))
            return Place(self.w.divided(name, start, by), offsets, Multiple(common, multiple.rest % common))
        if of.is_uniform:
            return self.uniform(self.w.divided(name, start, by))
        values = self.lanes_of(of)
        return self.each(self.w.binary(name, values, constant(by, values.type)))

    def _clamped(self, of: Place, low: int, high: int) -> Place:
        """A place between two bounds, in every lane."""
        values = self.lanes_of(of)
        if values.type.lanes == 1:
            return self.uniform(self.w.minimum(self.w.maximum(values, i64(low)), i64(high)))
        bounded = self.w.intrinsic("smax", values, constant(low, values.type))
        return self.each(self.w.intrinsic("smin", bounded, constant(high, values.type)))

    def lanes_of(self, place: Place) -> Value:
        """The positions as they are: one, or one for each lane."""
        return self.number(place, "i64")

    def number(self, place: Place, elem: str) -> Value:
        """The same as numbers of another width."""
        first = self.w.convert("trunc", place.first, elem)
        if place.is_uniform:
            return self.w.add(first, constant(place.offsets[0], first.type))
        values = None if place.more is None else self.w.convert("trunc", place.more, elem)
        if any(place.offsets) or values is None:
            offsets = constants(place.offsets, elem)
            values = offsets if values is None else self.w.binary("add", values, offsets)
        if first.text != "0":
            values = self.w.binary("add", self.w.fit(first, self.lanes), values)
        return values


# -- loads and stores of buffers
#
# One element, neighbours, evenly spaced ones, and lane by lane what remains.
#
# What lies between two elements of a buffer is in the buffer: evenly spaced elements are loaded with all between them
# and picked apart, and what is read beyond the last one must be known to be inside.


#: How elements lie in memory.
_STORED: dict[DType, str] = {
    **{"bool": "i8", "int8": "i8", "uint8": "i8", "int16": "i16", "uint16": "i16", "int32": "i32", "uint32": "i32"},
    **{"int64": "i64", "uint64": "i64", "float16": "half", "bfloat16": "i16", "float32": "float", "float64": "double"},
}
#: Whole numbers of as many bits.
_BITS = {"double": "i64", "float": "i32"}
#: The chains that collect whether floats are finite. Each takes a register throughout a loop.
_CHAINS = 2
#: The longest distance of neighbours that are loaded together with all between them.
_APART = 8


def stored_type(dtype: DType, halves: bool) -> str:
    """The element type in memory; without instructions for float16 it is an integer there."""
    return "i16" if dtype == "float16" and not halves else _STORED[dtype]


class Region(NamedTuple):
    """Memory of a nest: where it begins, what is in it, and whether nobody writes to it."""

    pointer: str
    dtype: DType
    size: int
    constant: bool
    #: Whether it is noted that a NaN or an infinity was stored there.
    watched: bool = False


class LaneMemory:
    """Reads and writes elements in the types that are computed with."""

    def __init__(self, writer: Writer, compiler: Compiler, regions: dict[str, Region], *, notes: bool = False) -> None:
        """Memory of a nest by regions. With `notes`, what is stored is looked at for NaN and infinity."""
        self.w = writer
        self.compiler = compiler
        self.regions = regions
        #: Whether anything is noted beside what is stored.
        self.notes = notes
        #: The variable of each chain, by the kind of note and the type.
        self._marks: dict[tuple[int, Type, int], str] = {}
        #: The number of checked floats of each kind and type, which take turns in the chains.
        self._looked_at: Counts[tuple[int, Type]] = Counts()

    # -- one instruction each

    def _at(self, region: Region, elem: str, first: Value, offset: int) -> str:
        """The address of an element; a distance that is known beforehand becomes part of the instruction."""
        start = self.w.address(elem, Value(region.pointer, Type("ptr")), first)
        return self.w.address(elem, start, i64(offset)).text

    def _read(self, region: Region, first: Value, offset: int, lanes: int) -> Value:
        """Lanes side by side from a region. Regions that nothing writes are marked as constant for LLVM."""
        elem = stored_type(region.dtype, self.compiler.target.halves)
        type = Type(elem, lanes)
        text = f"load {type}, ptr {self._at(region, elem, first, offset)}, align {BYTES[elem]}"
        return self.w.op(f"{text}, !invariant.load !0", type) if region.constant else self.w.new(text, type)

    def _write(self, region: Region, first: Value, offset: int, value: Value) -> None:
        elem = value.type.elem
        self.w.add_line(f"store {value}, ptr {self._at(region, elem, first, offset)}, align {BYTES[elem]}")

    # -- elements as values

    def load(self, name: str, index: Index, places: Places) -> Value:
        """Elements at a position in each lane; one value where it is the same in all."""
        region, place = self.regions[name], places.place(index)
        if place.more is not None:
            raw = self._scattered(region, place, places)
        else:
            raw = self._known_places(region, index, place)
        return self._computed(region.dtype, raw)

    def _scattered(self, region: Region, place: Place, places: Places) -> Value:
        at = places.lanes_of(place)
        return self.w.gathered([self._read(region, self.w.lane(at, lane), 0, 1) for lane in range(places.lanes)])

    def _known_places(self, region: Region, index: Index, place: Place) -> Value:
        """Where it is known beforehand how far apart lanes are."""
        offsets = place.offsets
        low, high = min(offsets), max(offsets)
        if low == high:
            return self._read(region, place.first, low, 1)
        step = place.step
        if step is not None and 1 < abs(step) <= _APART:
            window = self._window(region, index, place, abs(step))
            if window is not None:
                return window
        span = high - low + 1
        lanes = len(offsets)
        if span <= lanes or (step is None and span <= 2 * lanes):
            wide = self._read(region, place.first, low, span)
            return self.w.shuffle(wide, [each - low for each in offsets])
        if step is not None and abs(step) <= _APART // 2:
            return self._exact(region, place, abs(step))
        singles = {each: self._read(region, place.first, each, 1) for each in sorted(set(offsets))}
        return self.w.gathered([singles[each] for each in offsets])

    def _window(self, region: Region, index: Index, place: Place, step: int) -> Value | None:
        """All elements from a multiple of the step on, so that others of a group of `step` are in the same load."""
        lanes = len(place.offsets)
        low = min(place.offsets)
        before = (place.multiple.rest + low) % step if place.multiple.of % step == 0 else 0
        if index.low - before < 0 or index.high + (step - 1 - before) >= region.size:
            return None
        parts = [self._read(region, place.first, low - before + number * lanes, lanes) for number in range(step)]
        picked = self._picked(parts, before)
        return picked if place.offsets[0] == low else self.w.shuffle(picked, range(lanes)[::-1])

    def _picked(self, parts: Sequence[Value], which: int) -> Value:
        """Of vectors after each other, as many as elements are apart, every element number `which`.

        Where their number is even, the even or the odd elements of two neighbours are one instruction.
        """
        lanes, step = parts[0].type.lanes, len(parts)
        if step % 2:
            return self.w.shuffle(self.w.joined(parts), range(which, step * lanes, step))
        pairs = zip(parts[::2], parts[1::2], strict=True)
        halves = [self.w.shuffle(one, range(which % 2, 2 * lanes, 2), other) for one, other in pairs]
        return self._picked(halves, which // 2)

    def _exact(self, region: Region, place: Place, step: int) -> Value:
        """The same without anything before the first or after the last: the last load begins earlier."""
        lanes, low = len(place.offsets), min(place.offsets)
        span = step * (lanes - 1) + 1
        starts = [min(start, span - lanes) for start in range(0, span, lanes)]
        wide = self.w.joined([self._read(region, place.first, low + start, lanes) for start in starts])
        numbers = [(each - low) // lanes for each in place.offsets]
        order = [
            number * lanes + each - low - starts[number] for number, each in zip(numbers, place.offsets, strict=True)
        ]
        return self.w.shuffle(wide, order)

    def store(self, name: str, index: Index, value: Value, places: Places) -> None:
        """Writes a store of lanes: to one element, to neighbours, or lane by lane."""
        region, place = self.regions[name], places.place(index)
        raw = self._stored(region.dtype, value)
        if place.is_uniform:
            last = self.w.lane(raw, raw.type.lanes - 1)
            self._watch(region, last)
            self._write(region, place.first, place.offsets[0], last)
            return
        lanes = places.lanes
        raw = self.w.fit(raw, lanes)
        self._watch(region, raw)
        if place.step == 1:
            self._write(region, place.first, place.offsets[0], raw)
        elif place.step == -1:
            self._write(region, place.first, place.offsets[-1], self.w.shuffle(raw, range(lanes)[::-1]))
        elif place.more is None:
            for lane, offset in enumerate(place.offsets):
                self._write(region, place.first, offset, self.w.lane(raw, lane))
        else:
            at = places.lanes_of(place)
            for lane in range(lanes):
                self._write(region, self.w.lane(at, lane), 0, self.w.lane(raw, lane))

    def store_group(self, name: str, index: Index, values: Sequence[Value], places: Places) -> None:
        """Values of neighbouring elements, as many as lanes are apart: the parts of complex numbers, or of colours."""
        region, place, lanes = self.regions[name], places.place(index), places.lanes
        parts = [self.w.fit(self._stored(region.dtype, each), lanes) for each in values]
        for part in parts:
            self._watch(region, part)
        self._write(region, place.first, place.offsets[0], self._mixed(parts))

    # -- what is not finite

    def _watch(self, region: Region, raw: Value) -> None:
        """Note whether a value that is stored is finite."""
        if region.watched:
            self._look(RESULT, raw)

    def note(self, value: Value, condition: Value | None = None) -> None:
        """Note that the condition holds, of a float or of a whole number; without one, that a float is not finite."""
        if not self.notes:
            return
        is_float = value.type.elem in FLOATS
        if condition is None:
            if is_float:
                self._look(HIDDEN, value)
            return
        held = self.w.fit(condition, value.type.lanes)
        self._mark(BEYOND if is_float else WRAPPED, self.w.convert("sext", held, _BITS.get(value.type.elem, "i32")))

    def _look(self, what: int, raw: Value) -> None:
        """Note whether a value is finite: 0 times it is 0 then, and otherwise NaN, which a sum keeps."""
        type = raw.type
        if type.elem not in _BITS or not self.compiler.target.fuses:
            self._mark(what, self._unfinite(raw))
            return
        # A sum takes some cycles, and the next one in its chain waits for it.
        mark = self._mark_of(what, type, self._looked_at[what, type] % _CHAINS)
        self._looked_at[what, type] += 1
        before = self.w.new(f"load {type}, ptr {mark}", type)
        self.w.add_line(f"store {self.w.intrinsic('fma', raw, constant(0.0, type), before)}, ptr {mark}")

    def _unfinite(self, raw: Value) -> Value:
        """A whole number that is 0 if the value is finite: then it minus itself is 0, of which no bit is set."""
        bits = raw.type.of(_BITS.get(raw.type.elem, "i16"))
        if raw.type.elem in FLOATS:
            return self.w.op(f"bitcast {self.w.binary('fsub', raw, raw)} to {bits}", bits)
        exponent = constant(0x7C00, bits)
        largest = self.w.compare("eq", self.w.binary("and", raw, exponent), exponent)
        return self.w.convert("zext", largest, bits.elem)

    def _mark(self, what: int, rest: Value) -> None:
        """Collect the bits of a number that is 0 where there is nothing to note."""
        bits, mark = rest.type, self._mark_of(what, rest.type)
        before = self.w.new(f"load {bits}, ptr {mark}", bits)
        self.w.add_line(f"store {self.w.binary('or', before, rest)}, ptr {mark}")

    def _mark_of(self, what: int, type: Type, chain: int = 0) -> str:
        """Return the variable that collects a kind of note, which starts at 0."""
        if (what, type, chain) not in self._marks:
            mark = self._marks[what, type, chain] = f"%noted{what}.{type.elem}.{type.lanes}.{chain}"
            self.w.first.append(f"  {mark} = alloca {type}")
            self.w.first.append(f"  store {constant(0, type)}, ptr {mark}")
        return self._marks[what, type, chain]

    def noted(self) -> Value | None:
        """At the end of a nest: all that was noted, as bits; `None` if nothing is looked at."""
        found: Value | None = None
        for (what, type, _), name in self._marks.items():
            mark = self.w.new(f"load {type}, ptr {name}", type)
            is_set = self.w.compare("uno" if type.elem in FLOATS else "ne", mark, constant(0, type))
            is_set = is_set if type.lanes == 1 else self.w.intrinsic("vector.reduce.or", is_set, result=Type("i1"))
            number = self.w.select(is_set, constant(what, I64), constant(0, I64))
            found = number if found is None else self.w.binary("or", found, number)
        return found

    def _mixed(self, parts: Sequence[Value]) -> Value:
        """The first elements of all, then the second ones, and so on."""
        lanes, count = parts[0].type.lanes, len(parts)
        if count == 1:
            return parts[0]
        if count % 2:
            order = [part * lanes + lane for lane in range(lanes) for part in range(count)]
            return self.w.shuffle(self.w.joined(parts), order)
        one, other = self._mixed(parts[::2]), self._mixed(parts[1::2])
        half = one.type.lanes
        return self.w.shuffle(one, [place for each in range(half) for place in (each, half + each)], other)

    # -- conversions

    def _computed(self, dtype: DType, raw: Value) -> Value:
        """An element as it is computed with."""
        match dtype:
            case "bool":
                return self.w.compare("ne", raw, constant(0, raw.type))
            case "int8" | "int16":
                return self.w.convert("sext", raw, "i32")
            case "uint8" | "uint16":
                return self.w.convert("zext", raw, "i32")
            case "float16" if self.compiler.target.halves:
                return self.w.convert("fpext", raw, "float")
            case "float16" | "bfloat16":
                bits = CValue("uint", self.w.convert("zext", raw, "i32"))
                fn = "f16_from_bits" if dtype == "float16" else "bf16_from_bits"
                return self.compiler.call(fn, [bits]).value
        return raw

    def _stored(self, dtype: DType, value: Value) -> Value:
        """A value as it lies in memory."""
        if value.type.elem == "i1":
            return self.w.convert("zext", value, _STORED[dtype])
        match dtype:
            case "int8" | "uint8" | "int16" | "uint16":
                return self.w.convert("trunc", value, _STORED[dtype])
            case "float16" if self.compiler.target.halves:
                return self.w.as_half(value)
            case "float16" | "bfloat16":
                fn = "f16_to_bits" if dtype == "float16" else "bf16_to_bits"
                return self.w.convert("trunc", self.compiler.call(fn, [CValue("float", value)]).value, "i16")
        return value
