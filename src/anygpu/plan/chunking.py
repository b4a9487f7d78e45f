"""Chunks: a program that does not fit into a device's memory is cut so that every piece does.

Only axes that are proved independent are cut (`anygpu.program.independence`). What a piece needs is computed from the
program of that very piece, in blocks as pools make them, and corrected by what earlier pieces were seen to need.
"""

from __future__ import annotations

import msgspec

from anygpu.base.units import readable_bytes
from anygpu.memory.pool import bucket_size
from anygpu.plan.fusion_estimate import most_at_once, structure_of, tables_of, temporaries_of
from anygpu.program.graph import Program
from anygpu.program.independence import Cut, cut, independent_cuts

#: Ways to cut that are looked at. The first one cuts the most bytes, and nearly always is the best.
_MOST_WAYS = 6
#: Steps on the way to the longest piece that fits.
_MOST_STEPS = 12

#: A measured peak may be a little higher the next time.
_MARGIN = 1.05
#: Fusing engines need a part of what is predicted, but never a part of the inputs and results.
_LEAST, _MOST = 0.4, 8.0
#: Another piece length is another program to compile: for less than this nothing changes.
_STILL_THE_SAME = 0.85


class Chunks(msgspec.Struct, frozen=True):
    """Pieces of a program that are run one after the other: `count` of them, all of length `piece` but the last."""

    cut: Cut
    piece: int
    count: int
    #: Predicted for the longest.
    peak_bytes: int


class Refused(msgspec.Struct, frozen=True):
    """Why a program cannot be cut so that it fits."""

    #: One sentence.
    reason: str


def chunks_for(program: Program, budget_bytes: int, *, correction: float = 1.0) -> Chunks | Refused:
    """The fewest pieces of which each needs no more than the budget, times `correction` as `corrected` gives it.

    Pieces of which one program computes all are preferred: others have to be compiled one by one.
    """
    ways = independent_cuts(program)
    if not ways:
        return Refused("no axis of its results is independent: every chunk would need all the inputs at once.")
    found: list[tuple[bool, int, int, Chunks]] = []
    least: int | None = None
    for way in ways[:_MOST_WAYS]:
        one = _peak_of(program, way, 1, correction)
        least = one if least is None else min(least, one)
        if one <= budget_bytes:
            piece = _longest(program, way, budget_bytes, correction)
            count = -(-way.length // piece)
            # As equal as possible: the last one is shorter by less than the number of pieces.
            piece = -(-way.length // count)
            peak = _peak_of(program, way, piece, correction)
            chunks = Chunks(way, piece, -(-way.length // piece), peak)
            found.append((not _is_one_program(program, chunks), chunks.count, peak, chunks))
    if not found:
        return Refused(
            f"even the smallest chunk would need {readable_bytes(least or 0)}, "
            f"and there is room for {readable_bytes(max(budget_bytes, 0))}."
        )
    return min(found, key=lambda each: each[:3])[3]


def corrected(old: float, predicted: int, measured: int) -> float:
    """The correction for the next pieces, when those predicted to need `predicted` bytes with `old` needed `measured`.

    What needs more than was predicted counts at once, with a margin. What needs less counts if it is much less.
    """
    if predicted <= 0 or measured < 0:
        return old
    right = old * measured / predicted
    if measured > predicted:
        return min(right * _MARGIN, _MOST)
    lower = max(right * _MARGIN, _LEAST)
    return lower if lower < old * _STILL_THE_SAME else old


def memory_needed(program: Program) -> int:
    """Bytes that a device holds at once to run it, in blocks as pools make them: no less than fused kernels need, and
    no less than single operations do.

    Inputs, results and tables of constants are there from the beginning to the end.
    """
    ends = sum(bucket_size(spec.nbytes) for spec in (*program.inputs, *program.results, *tables_of(program)))
    between = 0
    for fuses in (False, True):
        temporaries = temporaries_of(program, structure_of(program, fuses=fuses).kernels)
        blocks = [(bucket_size(each.nbytes), each.first, each.last) for each in temporaries]
        between = max(between, most_at_once(blocks))
    return ends + between


def _peak_of(program: Program, way: Cut, piece: int, correction: float) -> int:
    # Not rounded down: a byte too many is too many.
    return int(memory_needed(cut(program, way, 0, piece)) * correction) + 1


def _longest(program: Program, way: Cut, budget: int, correction: float) -> int:
    """The longest piece that fits, when one of length 1 does; or one that is nearly as long.

    What a piece needs is very nearly the larger of straight lines, so the line between a length that fits and one that
    does not gives another that fits.
    """
    low, high = 1, way.length
    below, above = _peak_of(program, way, low, correction), _peak_of(program, way, high, correction)
    if above <= budget:
        return high
    for step in range(_MOST_STEPS):
        if high - low <= max(1, low // 16):
            break
        guess = low + int((high - low) * (budget - below) / (above - below)) if step % 3 < 2 else (low + high) // 2
        middle = min(max(guess, low + 1), high - 1)
        peak = _peak_of(program, way, middle, correction)
        if peak <= budget:
            low, below = middle, peak
        else:
            high, above = middle, peak
    return low


def _is_one_program(program: Program, chunks: Chunks) -> bool:
    """Whether two pieces of the same length are the same program; they are not if their place in the whole matters."""
    piece = chunks.piece
    if 2 * piece > chunks.cut.length:
        return True
    return cut(program, chunks.cut, 0, piece).key == cut(program, chunks.cut, piece, 2 * piece).key
