"""Positions in lanes: where the first lane is, what is known beforehand that each lane adds, and the rest.

Neighbours along the variable of the lanes are most often a whole step apart. Quotients and remainders stay known
beforehand as long as it is known where a multiple of the divisor falls among the lanes, because the loop begins at one
and does a multiple in every round. Only what is left is computed in every lane.
"""

from __future__ import annotations

from collections.abc import Callable
from math import gcd
from typing import NamedTuple

from anygpu.codegen.dialects.llvm.values import Value, Writer, constant, constants, i64, whole
from anygpu.codegen.index import Clamped, Index, Quotient, Remainder, Variable


class Multiple(NamedTuple):
    """A whole number that is `rest` more than a multiple of `of`; of 0 it is the number itself."""

    of: int = 1
    rest: int = 0

    def __add__(self, other: object) -> Multiple:
        if not isinstance(other, Multiple):
            return NotImplemented
        of = gcd(self.of, other.of)
        rest = self.rest + other.rest
        return Multiple(of, rest % of if of else rest)

    def times(self, factor: int) -> Multiple:
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
        named: Callable[[Variable], Value],
        lanes: int,
        around: Places | None = None,
    ) -> None:
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
        for known in self._known:
            if index in known:
                return known[index]
        found = self._known[-1][index] = self._sum(index)
        return found

    def _sum(self, index: Index) -> Place:
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

    def _atom(self, atom: Variable | Quotient | Remainder | Clamped) -> Place:
        match atom:
            case Variable():
                return self._variable(atom)
            case Quotient():
                return self._divided("udiv", self.place(atom.of), atom.by)
            case Remainder():
                return self._divided("urem", self.place(atom.of), atom.by)
            case Clamped():
                return self._clamped(self.place(atom.of), atom.low, atom.high)

    def _variable(self, atom: Variable) -> Place:
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
