"""What a nest loops over: axes that become one loop where all that is read allows it, and loops cut into pieces."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

import msgspec

from anygpu.codegen.index import Atom, Index, unflat
from anygpu.codegen.index import Variable as Counter
from anygpu.codegen.nests.lowering import ranged
from anygpu.program.primitives import MAX_DIMENSIONS, product

#: Loops are cut into no more pieces than this: each is code of its own.
MOST_PIECES = 9


class Domain(msgspec.Struct, frozen=True):
    """The axes of a shape, in runs that are one loop each."""

    shape: tuple[int, ...]
    runs: tuple[tuple[int, ...], ...]

    @property
    def lengths(self) -> tuple[int, ...]:
        return tuple(product(tuple(self.shape[axis] for axis in run)) for run in self.runs)

    def positions(self, indices: Sequence[Index]) -> tuple[Index, ...]:
        """Along each axis, of one index for each run."""
        found: list[Index] = []
        for run, index in zip(self.runs, indices, strict=True):
            found += unflat(index, [self.shape[axis] for axis in run])
        return tuple(found)

    def cuts_of(self, run: int, cuts: Mapping[int, Iterable[int]]) -> set[int]:
        """Cuts of the run's loop, of those of its axes: only its first axis may have any."""
        axes = self.runs[run]
        step = product(tuple(self.shape[axis] for axis in axes[1:]))
        return {cut * step for cut in cuts.get(axes[0], ())} if axes else set()


def axis_name(axis: int) -> str:
    return f"axis_{axis}"


def merged(shape: Sequence[int], forms: Iterable[Index], cuts: Mapping[int, object]) -> Domain:
    """As few loops as possible: neighbouring axes are one where every position steps through both alike.

    Worth 2 to 10 times for short last axes, and all of the cost of a row's begin for elementwise programs.
    """
    forms = list(forms)
    axes = [axis for axis in range(len(shape)) if shape[axis] > 1]
    runs: list[list[int]] = []
    for axis in axes:
        if runs and axis not in cuts and all(_together(form, runs[-1][-1], axis, shape[axis]) for form in forms):
            runs[-1].append(axis)
        else:
            runs.append([axis])
    return Domain(tuple(shape), tuple(map(tuple, _with_single_axes(runs, shape))))


def _with_single_axes(runs: list[list[int]], shape: Sequence[int]) -> list[list[int]]:
    """Axes of length 1 belong to the run before them."""
    if not runs:
        return [list(range(len(shape)))] if shape else []
    begins = [0, *(run[0] for run in runs[1:]), len(shape)]
    return [list(range(begin, end)) for begin, end in pairwise(begins)]


def _together(form: Index, outer: int, inner: int, length: int) -> bool:
    one, other = form.steps_with(axis_name(outer)), form.steps_with(axis_name(inner))
    return one is not None and other is not None and one == length * other


def pieces(low: int, high: int, cuts: Iterable[int]) -> list[tuple[int, int]]:
    """A loop in pieces that begin at its cuts; in one where there would be too many."""
    inside = sorted({cut for cut in cuts if low < cut < high})
    if len(inside) >= MOST_PIECES:
        return [(low, high)]
    ends = [low, *inside, high]
    return list(pairwise(ends))


def longest(found: Sequence[tuple[int, int]]) -> tuple[int, int]:
    return max(found, key=lambda piece: piece[1] - piece[0])


def axis_variable(axis: int, low: int, high: int) -> Index:
    return ranged(axis_name(axis), low, high)


def counter(name: str, high: int) -> Index:
    """A given number from 0 to `high`, both included."""
    return Index(0, [(Counter(name, 0, high), 1)])


def shifted(form: Index, lead: int) -> Index:
    """A position over axes that are counted from another one on; those before it are taken for constant."""
    names = {axis_name(axis): axis_name(axis - lead) for axis in range(lead, lead + MAX_DIMENSIONS)}
    before = {axis_name(axis) for axis in range(lead)}
    terms: list[tuple[Atom, int]] = []
    for atom, factor in form.terms:
        if not isinstance(atom, Counter):
            within = shifted(atom.of, lead)
            terms.append((atom._replace(of=within), factor))
        elif atom.name not in before:
            terms.append((atom._replace(name=names.get(atom.name, atom.name)), factor))
    return Index(form.constant, terms)
