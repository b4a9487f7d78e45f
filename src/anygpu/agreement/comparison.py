"""A device's results compared with NumPy's: everything that a caller sees, within the published tolerances.

`judge` goes from cheap to expensive and stops at the first answer: type, shape and nesting; what one operation may add;
a sample of a large program; accuracy against double precision (`is_as_accurate`); the analysis of every element. A
result is right if it lies within the bound of what the function returned on NumPy: that is the only reference.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from anygpu.agreement.analysis import (
    LARGE,
    Flag,
    Pieces,
    Positions,
    Rows,
    TooLarge,
    analyse,
    analyse_rows,
    longest_axis,
)
from anygpu.agreement.elementwise import Bound, filled, magnitude_apart, tolerance_of, wide
from anygpu.array.core.structure import Structure, flatten
from anygpu.base.interrupts import float_errors_ignored
from anygpu.base.typing import HostArray
from anygpu.engines.numpy import lowering
from anygpu.program import primitives as p
from anygpu.program.dtypes import is_inexact
from anygpu.program.functions import TRANSCENDENTAL
from anygpu.program.graph import Program
from anygpu.program.ops.custom import Custom
from anygpu.program.transforms import WIDER, in_double_precision

__all__ = ["Bound", "Difference", "Judgement", "Verdict", "judge", "layout"]


# -- a device's results compared with NumPy's
#
# Everything that a caller sees, within the published tolerances.


#: agree: every element is correct. differ: one is not. undecided: the bounds of too many elements say nothing.
Verdict = Literal["agree", "differ", "undecided"]

#: The share of floats that may be undecided and different. Near a tie a few are; of more nothing is known. Whole
#: numbers are undecided where a cast leaves their range, and there the device has to do as NumPy does.
MOST_UNDECIDED = 0.01

#: The part of a piece that is analysed of a large program, and the share of elements that may differ by more than that.
_SAMPLED, _MOST_APART = 16, 0.1

#: In epsilons: a difference that was right before is taken for granted up to this.
MOST_USUAL = 64.0

#: Turns what a program gives into what the function returns.
Rebuild = Callable[[Sequence[Any]], Any]


class Difference(msgspec.Struct, frozen=True):
    """The first place where two results differ."""

    #: Which of the arrays and numbers in the return value, and where in it.
    leaf: int
    index: tuple[int, ...]
    expected: Any
    got: Any
    #: The allowed difference; `None` if it is not about values.
    allowed: float | None
    #: The number of elements that differ.
    count: int
    sentence: str


class Judgement(NamedTuple):
    """The outcome of a comparison: the verdict, and what a caller learns from it."""

    verdict: Verdict
    difference: Difference | None = None
    #: For "undecided".
    why: str = ""
    #: The warnings that NumPy would give; `None` if the program was not analysed.
    flags: frozenset[Flag] | None = None
    #: For each array and number of the return value the largest relative difference that was right.
    usual: tuple[float, ...] = ()


def _differs_outside(wanted: list[Any], structure: Structure, leaves: list[Any], other: Structure) -> Difference | None:
    """Return the first difference that is seen without the numbers: of nesting, types, shapes and what a caller can
    ask.
    """
    if structure != other:
        return Difference(0, (), structure, other, None, 1, f"it is nested as {other}, not as {structure}")
    for number, (one, another) in enumerate(zip(wanted, leaves, strict=True)):
        sentence = _seen_from_outside(one, another)
        if sentence:
            return Difference(number, (), one, another, None, 1, sentence)
    return None


def judge(
    program: Program,
    inputs: Sequence[HostArray],
    expected: Any,
    results: Sequence[HostArray],
    rebuild: Rebuild,
    *,
    usual: Sequence[float] = (),
) -> Judgement:
    """Compare what the function returned on NumPy with what the device's results make of it.

    `expected` may be anything that the function returns; `inputs` are the program's, as they were before the call;
    `rebuild` makes the return value of a program's results. What differs by little more than `usual`, from an earlier
    judgement of the program, is not analysed again. It may take many times as long as the program.
    """
    got = rebuild(results)
    wanted, structure = flatten(expected)
    leaves, other = flatten(got)
    outside = _differs_outside(wanted, structure, leaves, other)
    if outside is not None:
        return Judgement("differ", outside)
    quick = flatten(
        rebuild([np.broadcast_to(q, spec.shape) for q, spec in zip(_quick(program), program.results, strict=True)])
    )[0]
    seen = tuple(usual) if len(usual) == len(wanted) else (0.0,) * len(wanted)
    doubtful = [
        number
        for number, (one, another, q) in enumerate(zip(wanted, leaves, quick, strict=True))
        if not _is_within(one, another, q, seen[number])
    ]
    if not doubtful:
        return Judgement("agree", usual=seen)
    pieces = Pieces.of(program, inputs)
    if [id(each) for each in leaves] == [id(each) for each in results]:
        known = _settled_in_pieces(pieces, wanted, leaves, quick) if pieces is not None else None
        if known is not None:
            return Judgement("agree", usual=known)
        if len(wanted) == len(results) and is_as_accurate(program, inputs, list(map(np.asarray, wanted)), results):
            return Judgement("agree", usual=seen)
    if pieces is None:
        known = _settled_by_rows(program, inputs, wanted, leaves, quick, rebuild)
        if known is not None:
            return Judgement("agree", usual=known)
    try:
        _, bounds, flags = analyse(program, inputs)
    except TooLarge:
        return Judgement("undecided", why="the program is too large to analyse")
    whole = [filled(bound, spec.shape) for bound, spec in zip(bounds, program.results, strict=True)]
    allowed = flatten(rebuild(whole))[0]
    for number in doubtful:
        moved = _is_only_moved(quick[number])
        found = _judged(number, wanted[number], leaves[number], allowed[number], moved=moved)
        if found is not None:
            if found.verdict == "differ" and any(isinstance(node.op, Custom) for node in program.nodes):
                # A user's kernel is checked against its reference by itself, with a tolerance of its own.
                found = Judgement("undecided", why="it uses a custom kernel that is less precise than NumPy")
            return found._replace(flags=flags)
    return Judgement("agree", flags=flags, usual=tuple(map(_relative, wanted, leaves)))


def _settled_in_pieces(
    pieces: Pieces, wanted: Sequence[Any], got: Sequence[Any], quick: Sequence[Any]
) -> tuple[float, ...] | None:
    """Return the usual differences of each output, if a large program agrees; `None` when all of it has to be analysed
    to know.

    A sample of positions shows by how much results differ that are right. The positions that differ by more, such as
    those near a zero of a function, are then analysed by themselves, up to `_MOST_APART` of all. It takes a tenth of
    the time that analysing all takes.
    """
    if any(_is_only_moved(each) for each in quick):
        return None
    count = min(pieces.length, max(1, pieces.piece // _SAMPLED))
    middle = (pieces.length - count) // 2
    # From everywhere, where the program does the same at each position.
    spread = np.linspace(0, pieces.length - 1, count).astype(np.int64)
    sample: Positions = spread if pieces.analyses(spread) else range(middle, middle + count)
    if not _piece_agrees(pieces, wanted, got, sample):
        return None
    usual = [
        _relative(*(pieces.of_output(number, np.asarray(each), sample) for each in pair))
        for number, pair in enumerate(zip(wanted, got, strict=True))
    ]
    apart = [
        pieces.positions(number, ~_near(one, other, relative, usual[number]))
        for number, (one, other, relative) in enumerate(zip(wanted, got, quick, strict=True))
    ]
    doubtful = np.unique(np.concatenate(apart))
    if len(doubtful) > pieces.length * _MOST_APART:
        return None
    for first in range(0, len(doubtful), pieces.piece):
        if not _piece_agrees(pieces, wanted, got, doubtful[first : first + pieces.piece]):
            return None
    return tuple(usual)


def _piece_agrees(pieces: Pieces, wanted: Sequence[Any], got: Sequence[Any], positions: Positions) -> bool:
    """Return whether every element of a piece is right, by an analysis of that piece."""
    found = pieces.analyse(positions)
    if found is None:
        return False
    for number, bound in enumerate(found.bounds):
        one, other = (pieces.of_output(number, np.asarray(each), positions) for each in (wanted[number], got[number]))
        allowed = filled(bound, other.shape)
        if _judged(number, one, other, allowed, moved=False) is not None:
            return False
    return True


def _settled_by_rows(
    program: Program,
    inputs: Sequence[HostArray],
    wanted: Sequence[Any],
    got: Sequence[Any],
    quick: Sequence[Any],
    rebuild: Rebuild,
) -> tuple[float, ...] | None:
    """Judge a large program without an independent axis, such as one that sums over its rows, by some of its rows.

    Rows from all parts of the results are analysed, and every row that differs by more than these do.
    """
    if max(spec.size for spec in program.specs) <= LARGE or any(_is_only_moved(each) for each in quick):
        return None
    different = [_Different.of(one, other) for one, other in zip(wanted, got, strict=True)]
    if None in different:
        return None
    found = [each for each in different if each is not None]
    rows = Rows()
    for each in found:
        if not each.adds_to(rows):
            return None
    try:
        _, bounds, _ = analyse_rows(program, inputs, rows)
    except TooLarge:
        return None
    allowed = flatten(rebuild([filled(bound, spec.shape) for bound, spec in zip(bounds, program.results, strict=True)]))
    usual = []
    for each, bound in zip(found, allowed[0], strict=True):
        known = each.usual(np.asarray(bound), rows)
        if known is None:
            return None
        usual.append(known)
    return tuple(usual)


class _Different(NamedTuple):
    """How far two floats or arrays of floats lie apart."""

    one: HostArray
    other: HostArray
    #: The distance of each two as a share of the first; 0 of two that are equal.
    relative: HostArray

    @classmethod
    @float_errors_ignored
    def of(cls, one: Any, other: Any) -> _Different | None:
        """Return the differences of two results; `None` for a leaf that has no values, or for integers that differ."""
        if not _has_values(one):
            return None
        one, other = np.asarray(one), np.asarray(other)
        if one.dtype.kind not in "fc":
            return cls(one, other, np.zeros(one.shape)) if np.array_equal(one, other) else None
        relative = np.asarray(np.abs(wide(one) - wide(other)))
        relative /= np.abs(one)
        unknown = np.isnan(relative)
        relative[unknown] = np.where(_equal(one[unknown], other[unknown]), 0.0, np.inf)
        return cls(one, other, relative)

    def adds_to(self, rows: Rows) -> bool:
        """Have the rows analysed that differ by more than the sampled ones; return False if these are more than
        `_MOST_APART` of all.
        """
        place = rows.place(self.one.shape)
        usual = _relative(self.one[place], self.other[place])
        if place[0] is ...:
            return True
        axis = longest_axis(self.one.shape)
        worst = self.relative.max(axis=tuple(each for each in range(self.one.ndim) if each != axis))
        positions = np.flatnonzero(worst > usual)
        rows.add(len(worst), positions)
        return len(positions) <= _MOST_APART * len(worst)

    def usual(self, bound: HostArray, rows: Rows) -> float | None:
        """Return the largest relative difference in the chosen rows, if all of them are right and no other row exceeds
        it; else `None`.
        """
        place = rows.place(self.one.shape)
        one, other = self.one[place], self.other[place]
        if not _agree(one, other, bound[place], moved=False).all():
            return None
        usual = _relative(one, other)
        elsewhere = np.array(self.relative)
        elsewhere[place] = 0.0
        return usual if np.max(elsewhere, initial=0.0) <= usual else None


@float_errors_ignored
def _relative(one: Any, other: Any) -> float:
    """Return twice the largest relative difference of two results, and at most `MOST_USUAL` epsilons, for later
    comparisons.
    """
    if not _has_values(one):
        return 0.0
    one, other = np.asarray(one), np.asarray(other)
    if one.dtype.kind not in "fc" or not one.size:
        return 0.0
    size = np.abs(wide(one))
    found = np.max(magnitude_apart(one, other) / size, where=(size > 0) & np.isfinite(size), initial=0.0)
    return float(min(2 * found, MOST_USUAL * np.finfo(one.dtype).eps))


def layout(array: HostArray) -> tuple[int, ...]:
    """Return the axes in the order of memory, the slowest first, without those of length 1; `()` for C order."""
    if array.flags.c_contiguous:
        return ()
    axes = [axis for axis, length in enumerate(array.shape) if length > 1]
    order = tuple(sorted(axes, key=lambda axis: -abs(array.strides[axis])))
    return () if order == tuple(axes) else order


def _seen_from_outside(one: Any, other: Any) -> str:
    """Return a difference in type, dtype or shape, as a sentence."""
    if type(one) is not type(other):
        return f"it is a {type(other).__name__}, not a {type(one).__name__}"
    if isinstance(one, np.ndarray | np.generic) and (one.dtype != other.dtype or one.shape != other.shape):
        return f"it is {other.dtype.name}{list(other.shape)}, not {one.dtype.name}{list(one.shape)}"
    return ""


def _equal(one: Any, other: Any) -> Any:
    """Return where they are the same, NaN included."""
    agree = one == other
    if one.dtype.kind in "fc":
        agree = agree | (np.isnan(one) & np.isnan(other))
    return agree


def _is_within(one: Any, other: Any, relative: Any, usual: float) -> bool:
    """Return whether a leaf agrees, without an analysis; False means that an analysis has to decide.

    `relative` is a difference that the analysis would allow in any case, -1 if even signs of zeros must agree; `usual`
    is what it has allowed before.
    """
    if not _has_values(one):
        return _same(one, other)
    one, other = np.asarray(one), np.asarray(other)
    if one.dtype.kind not in "fc" or not np.size(relative):
        return bool(np.array_equal(one, other))
    if _is_only_moved(relative):
        return bool((_equal(one, other) & _same_sign(one, other)).all())
    return bool(_near(one, other, relative, usual).all())


@float_errors_ignored
def _near(one: Any, other: Any, relative: Any, usual: float) -> Any:
    """Return where two results surely agree: where they are equal, or within the larger of `relative` and `usual`."""
    one, other = np.asarray(one), np.asarray(other)
    agree = _equal(one, other)
    if one.dtype.kind not in "fc" or not np.size(relative) or agree.all():
        return agree
    tolerance = max(float(np.asarray(relative).flat[0]), usual)
    return agree | (magnitude_apart(one, other) <= tolerance * np.abs(one)) if tolerance else agree


def _same_sign(one: HostArray, other: HostArray) -> Any:
    """Return where the signs agree, of zeros too, which only an operation that moves elements is bound to keep. NaN
    counts as equal.
    """
    if one.dtype.kind == "c":
        return _same_sign(one.real, other.real) & _same_sign(one.imag, other.imag)
    return (np.signbit(one) == np.signbit(other)) | np.isnan(one)


def _has_values(leaf: Any) -> bool:
    """Return whether a leaf of a return value is a number or an array of numbers."""
    return isinstance(leaf, np.ndarray | np.generic | float | complex) and np.asarray(leaf).dtype.kind in "biufc"


def _same(one: Any, other: Any) -> bool:
    """Return whether two parts of return values that do not come from the program are the same."""
    if one is other:
        return True
    try:
        return bool(one == other)
    except Exception:  # noqa: BLE001 - an object of the user's own may do anything when it is compared
        return False


@float_errors_ignored
def _judged(number: int, one: Any, other: Any, bound: Any, *, moved: bool) -> Judgement | None:
    """Judge one leaf; return `None` if all of it is right.

    `one` is what the function returned. Elements with an infinite bound are undecided: a share of `MOST_UNDECIDED` is
    accepted among floats, and none among integers.
    """
    if not _has_values(one):
        sentence = f"it is {other!r:.80}, not {one!r:.80}"
        return Judgement("differ", Difference(number, (), one, other, None, 1, sentence))
    one, other, allowed = np.asarray(one), np.asarray(other), np.asarray(bound, np.float64)
    agree = _agree(one, other, allowed, moved=moved)
    undecided = ~agree & np.isinf(allowed)
    wrong = ~agree & ~np.isinf(allowed)
    if wrong.any():
        index = tuple(int(each) for each in np.unravel_index(int(np.argmax(wrong)), wrong.shape))
        count = int(np.count_nonzero(wrong))
        sentence = (
            f"{_place(index)} is {other[index]}, and NumPy has {one[index]}; {allowed[index]:.2g} is allowed "
            f"({count} of {wrong.size} differ)"
        )
        found = Difference(number, index, one[index], other[index], float(allowed[index]), count, sentence)
        return Judgement("differ", found)
    most = MOST_UNDECIDED * undecided.size if one.dtype.kind in "fc" else 0
    if np.count_nonzero(undecided) > most:
        return Judgement("undecided", why="its values depend on ties, or on steps decided by rounding")
    return None


@float_errors_ignored
def _agree(one: HostArray, other: HostArray, allowed: HostArray, *, moved: bool) -> Any:
    """Return where a result is within the allowed distance of what the function returned.

    With `moved` the bits must be the same, signs of zeros included.
    """
    agree = _equal(one, other)
    if moved and one.dtype.kind in "fc":
        return agree & _same_sign(one, other)
    return agree | ((magnitude_apart(one, other) <= allowed) & np.isfinite(allowed))


def _is_only_moved(quick: Any) -> bool:
    """Return whether a leaf was only moved by operations, and must have NumPy's bits."""
    return bool(np.size(quick)) and np.asarray(quick).flat[0].real < 0


def _place(index: tuple[int, ...]) -> str:
    return f"element [{', '.join(map(str, index))}]" if index else "the result"


def _quick(program: Program) -> list[np.float64]:
    """Return the relative difference surely allowed for each output; -1 where even signs of zeros must agree."""
    return [np.float64(_quickly(program, output, {})) for output in program.outputs]


def _quickly(program: Program, position: int, known: dict[int, float]) -> float:
    """Return the relative difference that is surely allowed for one node, found from its inputs; memoised in `known`.

    It is -1 for what only moves elements, the tolerance of one function after a transcendental one, else 0.
    """
    if position not in known:
        op, sources = program.nodes[position]
        dtype = program.specs[position].dtype
        if isinstance(op, p.Input | p.Constant | p.Iota):
            known[position] = -1.0
        elif op.is_movement:
            parts = [_quickly(program, source, known) for source in sources]
            known[position] = min((max(part, 0.0) for part in parts), default=0.0) if max(parts) >= 0 else -1.0
        elif isinstance(op, p.Unary) and is_inexact(dtype) and op.fn in TRANSCENDENTAL:
            # It always rounds, so what one function may add is always allowed.
            known[position] = tolerance_of("function", dtype)
        else:
            known[position] = 0.0
    return known[position]


# -- whether results are as accurate as NumPy's
#
# Judged by the same program in double precision.
#
# The error bounds of `analysis` hold for every input, so that for a softmax behind a product of matrices they allow
# anything, and they take tens of times as long as the program. Where floats have 32 bits or fewer there is another
# way: in 64 bits NumPy gives what is exact by comparison, and both results can be held against that. A result that is
# as near to it as NumPy's is as right as NumPy's.


#: The allowed error: this many times NumPy's, and in any case this many units in the last place.
_TIMES, _UNITS = 4.0, 4.0
#: A relative error of NumPy's own result beyond which comparing errors proves nothing.
_MOST_ERROR = 1e-2
#: Whole numbers that may differ, by 1: as many as twice those that NumPy rounds to the other side, and this share.
_MOST_DIFFERENT = 0.01
_FEW = 8


def is_as_accurate(
    program: Program, inputs: Sequence[HostArray], expected: Sequence[HostArray], results: Sequence[HostArray]
) -> bool:
    """Return whether every result of a device is as near to the exact one as NumPy's; `False` also where that cannot be
    told.

    `expected` and `results` are those of the program, in its order. The exact result is that of the same program in
    double precision on NumPy, so it can only be told for programs of at most 32 bits.
    """
    narrow = [spec.dtype for spec in program.specs if spec.dtype in WIDER]
    if not narrow or any(is_inexact(spec.dtype) and spec.dtype not in WIDER for spec in program.specs):
        return False
    double = in_double_precision(program)
    if double is None:
        return False
    wide = [np.asarray(each, spec.dtype) for each, spec in zip(inputs, double.inputs, strict=True)]
    exact = lowering.run(double, wide)
    return all(map(_is_as_near, exact, expected, results))


@float_errors_ignored
def _is_as_near(exact: HostArray, one: HostArray, other: HostArray) -> bool:
    """Return whether `other` is as near to `exact` as `one` is: its largest error, and that of all but one in a hundred
    elements.

    Both are in units in the last place, and may be `_TIMES` as large plus `_UNITS`. Where NumPy itself is off by more
    than `_MOST_ERROR`, or a value is not finite, nothing is said.
    """
    if one.dtype.kind not in "fc":
        return _are_as_whole(exact, one, other)
    if not one.size:
        return True
    if not (np.isfinite(one).all() and np.isfinite(other).all() and np.isfinite(exact).all()):
        return False
    size = np.abs(exact)
    unit = np.finfo(one.dtype).eps * size + np.finfo(one.dtype).tiny
    ours, theirs = _errors(one, exact) / unit, _errors(other, exact) / unit
    most = float(ours.max())
    if most * np.finfo(one.dtype).eps > _MOST_ERROR:
        return False
    if theirs.max() > _TIMES * most + _UNITS:
        return False
    # The largest error may be that of one element: most are to be as near as most of NumPy's are.
    usual = [float(np.quantile(each, 0.99)) for each in (ours, theirs)]
    return usual[1] <= _TIMES * usual[0] + _UNITS


def _errors(values: HostArray, exact: HostArray) -> npt.NDArray[Any]:
    """Return the absolute errors, in the type of `exact`."""
    found: npt.NDArray[Any] = np.abs(values.astype(exact.dtype) - exact)
    return found


def _are_as_whole(exact: HostArray, one: HostArray, other: HostArray) -> bool:
    """Return whether integers are NumPy's, or its neighbours where rounding decided.

    At most `_MOST_DIFFERENT` of them may differ, each by 1, and no more of them may miss the exact one than twice
    NumPy's own.
    """
    different = one != other
    count = int(np.count_nonzero(different))
    if not count:
        return True
    if one.dtype.kind == "b" or count > _MOST_DIFFERENT * one.size:
        return False
    apart = np.abs(one[different].astype(np.float64) - other[different].astype(np.float64))
    other_side = int(np.count_nonzero(one != exact))
    return bool(apart.max() <= 1) and int(np.count_nonzero(other != exact)) <= 2 * other_side + _FEW
