"""Positions as sums of whole multiples: the arithmetic by which views cost nothing.

A position inside of a kernel is `constant + sum(factor * atom)`. Atoms are loop variables, whose range is known, and
quotients and remainders that could not be resolved. Reshaping, slicing, flipping and the like are sums, products,
quotients and remainders of positions; because ranges are known, most quotients and remainders disappear, and reading
through a view becomes reading at a sum.

Every form that is divided is never negative: what might be is clamped first (see `clamped`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import gcd
from typing import Any, NamedTuple


class IndexVariable(NamedTuple):
    """A number that the kernel knows by name, between `low` and `high`, both included."""

    name: str
    low: int
    high: int
    #: Its value, when it is not a loop variable: an expression of `anygpu.engines.codegen.kernel_ir`.
    meaning: Any = None


class Quotient(NamedTuple):
    """A position divided by a constant, rounded down. The position is never negative."""

    of: Index
    by: int
    #: Named tuples of equal fields are equal; this keeps the kinds of atoms apart.
    kind: str = "quotient"

    @property
    def low(self) -> int:
        return self.of.low // self.by

    @property
    def high(self) -> int:
        return self.of.high // self.by


class Remainder(NamedTuple):
    """The rest of a position divided by a constant. The position is never negative."""

    of: Index
    by: int
    kind: str = "remainder"

    @property
    def low(self) -> int:
        return 0

    @property
    def high(self) -> int:
        return min(self.by - 1, self.of.high)


class Clamped(NamedTuple):
    """Moved into the range when it is outside: how a position stays safe where its value is not used."""

    of: Index
    low: int
    high: int
    kind: str = "clamped"


Atom = IndexVariable | Quotient | Remainder | Clamped


class Index:
    """An immutable position. Equal forms are equal and have the same hash."""

    __slots__ = ("_hash", "constant", "high", "low", "terms")

    def __init__(self, constant: int, terms: Iterable[tuple[Atom, int]] = ()) -> None:
        """A constant plus terms; the range follows from those of the atoms."""
        self.constant = constant
        self.terms: tuple[tuple[Atom, int], ...] = tuple(terms)
        self.low = constant + sum(f * (a.low if f > 0 else a.high) for a, f in self.terms)
        self.high = constant + sum(f * (a.high if f > 0 else a.low) for a, f in self.terms)
        self._hash = hash((constant, frozenset(self.terms)))

    @property
    def is_constant(self) -> bool:
        return not self.terms

    def factor(self, atom: Atom) -> int:
        """The factor of the atom; quotients and remainders of it do not count."""
        return next((factor for each, factor in self.terms if each == atom), 0)

    def depends_on(self, name: str) -> bool:
        return any(_mentions(atom, name) for atom, _ in self.terms)

    def steps_with(self, name: str) -> int | None:
        """The distance between neighbours along a variable; `None` when they are not evenly spaced."""
        step = 0
        for atom, factor in self.terms:
            if isinstance(atom, IndexVariable) and atom.name == name:
                step += factor
            elif _mentions(atom, name):
                return None
        return step

    def __eq__(self, other: object) -> bool:
        """Whether both are the same sum, whatever the order of its terms."""
        if not isinstance(other, Index):
            return NotImplemented
        return self.constant == other.constant and frozenset(self.terms) == frozenset(other.terms)

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        parts = [f"{factor}*{_shown(atom)}" for atom, factor in self.terms]
        return " + ".join([*parts, str(self.constant)])

    def __add__(self, other: Index | int) -> Index:
        """The sum, with equal atoms joined, and quotients with their remainders put together again."""
        if isinstance(other, int):
            return Index(self.constant + other, self.terms)
        factors: dict[Atom, int] = dict(self.terms)
        for atom, factor in other.terms:
            factors[atom] = factors.get(atom, 0) + factor
        return Index(self.constant + other.constant, _rejoined(factors))

    def __sub__(self, other: Index | int) -> Index:
        return self + (-other if isinstance(other, int) else other * -1)

    def __mul__(self, number: int) -> Index:
        """The position times a number."""
        if number == 0:
            return ZERO
        return Index(self.constant * number, ((atom, factor * number) for atom, factor in self.terms))

    def __floordiv__(self, by: int) -> Index:
        """The quotient by a constant, rounded down, without a division where ranges allow it.

        Multiples of the divisor are taken out first; of the rest, common factors. A quotient of a quotient is a single
        one.
        """
        if by == 1:
            return self
        if self.low // by == self.high // by:
            return Index(self.low // by)
        whole, rest = self._split(by)
        if rest.low >= 0 and rest.high < by:
            return whole
        smaller = rest._shortened(by)
        if smaller is not None:
            form, factor = smaller
            return whole + form // (by // factor)
        if len(rest.terms) == 1 and rest.constant == 0 and rest.terms[0][1] == 1:
            atom = rest.terms[0][0]
            if isinstance(atom, Quotient):
                return whole + atom.of // (atom.by * by)
            if isinstance(atom, Remainder) and atom.by % by == 0:
                return whole + (atom.of // by) % (atom.by // by)
        return whole + Index(0, [(Quotient(rest, by), 1)])

    def __mod__(self, by: int) -> Index:
        """The remainder by a constant, without a division where ranges allow it; see `__floordiv__`."""
        if by == 1:
            return ZERO
        _, rest = self._split(by)
        if rest.low // by == rest.high // by:
            return rest - by * (rest.low // by)
        smaller = rest._shortened(by)
        if smaller is not None:
            form, factor = smaller
            return (form % (by // factor)) * factor + (rest - form * factor)
        if len(rest.terms) == 1 and rest.constant == 0 and rest.terms[0][1] == 1:
            atom = rest.terms[0][0]
            if isinstance(atom, Remainder) and atom.by % by == 0:
                return atom.of % by
        return Index(0, [(Remainder(rest, by), 1)])

    def _split(self, by: int) -> tuple[Index, Index]:
        """`whole * by + rest`, with all surely whole multiples in `whole`, and a rest that is not negative."""
        rest = Index(self.constant % by, ((atom, f) for atom, f in self.terms if f % by))
        # A flipped axis keeps its constant: `7 - i` may be divided, `1 - i` may not.
        kept = max(0, -(rest.low // by))
        whole = Index(self.constant // by - kept, ((atom, f // by) for atom, f in self.terms if f % by == 0))
        return whole, rest + kept * by

    def _shortened(self, by: int) -> tuple[Index, int] | None:
        """`form, factor` with self = form * factor + something in 0 … factor - 1, and a factor that divides `by`."""
        for factor in sorted({gcd(f, by) for _, f in self.terms} - {1}, reverse=True):
            form, rest = self._split(factor)
            if rest.low >= 0 and rest.high < factor:
                return form, factor
        return None


def _mentions(atom: Atom, name: str) -> bool:
    """Whether an atom depends on a variable."""
    if isinstance(atom, IndexVariable):
        return atom.name == name
    return atom.of.depends_on(name)


def _shown(atom: Atom) -> str:
    """The atom as people read it."""
    match atom:
        case IndexVariable():
            return atom.name
        case Quotient():
            return f"({atom.of})//{atom.by}"
        case Remainder():
            return f"({atom.of})%{atom.by}"
    return f"clamp({atom.of}, {atom.low}, {atom.high})"


def _rejoined(factors: dict[Atom, int]) -> list[tuple[Atom, int]]:
    """A quotient and a remainder of the same position become the position again."""
    for atom, factor in list(factors.items()):
        if not isinstance(atom, Remainder) or not factor:
            continue
        # The quotient as it is written when it stands alone: that of a quotient is one quotient.
        quotient = atom.of // atom.by
        if atom.of.constant or quotient.constant or [times for _, times in quotient.terms] != [1]:
            continue
        found = quotient.terms[0][0]
        if factors.get(found) == factor * atom.by:
            del factors[atom], factors[found]
            for each, times in atom.of.terms:
                factors[each] = factors.get(each, 0) + times * factor
            return _rejoined(factors)
    return [(atom, factor) for atom, factor in factors.items() if factor]


ZERO = Index(0)


def constant(number: int) -> Index:
    return Index(number)


def variable(name: str, length: int) -> Index:
    """Counts from 0 to length - 1."""
    return Index(0, [(IndexVariable(name, 0, length - 1), 1)]) if length > 1 else ZERO


def clamped(index: Index, length: int) -> Index:
    """A position that is surely inside of an axis."""
    if index.low >= 0 and index.high < length:
        return index
    return Index(0, [(Clamped(index, 0, length - 1), 1)])


def strides(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides of the axes in elements, in C order."""
    steps = []
    step = 1
    for length in reversed(shape):
        steps.append(step)
        step *= length
    return tuple(reversed(steps))


def flat(positions: Sequence[Index], shape: Sequence[int]) -> Index:
    """The position in C order."""
    total = ZERO
    for position, step in zip(positions, strides(shape), strict=True):
        total = total + position * step
    return total


def unflat(position: Index, shape: Sequence[int]) -> tuple[Index, ...]:
    """Positions along each axis, of a position in C order."""
    result = []
    for length, step in zip(shape, strides(shape), strict=True):
        along = position // step if length > 1 else ZERO
        result.append(along % length if length > 1 and along.high >= length else along)
    return tuple(result)


def reshaped(positions: Sequence[Index], old: Sequence[int], new: Sequence[int]) -> tuple[Index, ...]:
    """Positions in an array of shape `new`, of positions in its reshaping to `old`; equal leading axes stay."""
    same = 0
    while same < min(len(old), len(new)) and old[same] == new[same]:
        same += 1
    rest = flat(positions[same:], old[same:])
    return (*positions[:same], *unflat(rest, new[same:]))


def last_long_axis(shape: Sequence[int]) -> int:
    """The last axis with more than one element, along which neighbours lie in memory; -1 where there is none."""
    return next((axis for axis in range(len(shape) - 1, -1, -1) if shape[axis] > 1), -1)
