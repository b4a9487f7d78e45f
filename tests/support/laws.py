"""Laws that hold for every program, as checks: what `vmap`, cutting and simplifying promise, on any engine.

Each check takes a program, a source of chance and a function that runs programs, and gives `None` or a sentence about
what is wrong.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence

import numpy as np

from anygpu.base.typing import HostArray
from anygpu.program.graph import Program
from anygpu.program.independence import Cut, cut, independent_cuts
from anygpu.program.transforms import Evaluate, simplified, vmap
from tests.support.random_programs import random_inputs
from tests.support.random_programs.error_bounds import disagreement

Run = Callable[[Program, Sequence[HostArray]], list[HostArray]]


def broken_by_vmap(program: Program, rng: random.Random, run: Run) -> str | None:
    """The batched program gives, stacked, what single calls give."""
    size = rng.choice((1, 2, 3, 5))
    marks = [rng.random() < 0.7 for _ in program.inputs]
    calls = [random_inputs(program, rng) for _ in range(size)]
    for call in calls[1:]:
        for number, marked in enumerate(marks):
            if not marked:
                call[number] = calls[0][number]
    batched = vmap(program, marks, size)
    stacked = [np.stack([call[n] for call in calls]) if marked else calls[0][n] for n, marked in enumerate(marks)]
    together = run(batched, stacked)
    for number, call in enumerate(calls):
        wrong = disagreement(run(program, call), [each[number] for each in together], program)
        if wrong is not None:
            return f"call {number} of {size}, batched {marks}: {wrong}"
    return None


def broken_by_cutting(program: Program, rng: random.Random, run: Run) -> str | None:
    """Along every axis that is called independent, the pieces make up the whole."""
    inputs = random_inputs(program, rng)
    whole = run(program, inputs)
    for the_cut in independent_cuts(program):
        edges = random_edges(the_cut.length, rng)
        wrong = _broken_by_cut(program, the_cut, edges, inputs, whole, run)
        if wrong is not None:
            return f"{the_cut} at {edges}: {wrong}"
    return None


def random_edges(length: int, rng: random.Random) -> list[int]:
    """Where pieces begin and end: uneven ones, often of one element, sometimes one for each."""
    if rng.random() < 0.1:
        return list(range(length + 1))
    inner = [rng.choice((1, length - 1, rng.randint(0, length))) for _ in range(rng.randint(1, 4))]
    return sorted({0, length, *inner})


def _broken_by_cut(
    program: Program, the_cut: Cut, edges: list[int], inputs: list[HostArray], whole: list[HostArray], run: Run
) -> str | None:
    pieces = []
    for start, stop in itertools.pairwise(edges):
        given = [_part(x, axis, start, stop) for x, axis in zip(inputs, the_cut.inputs, strict=True)]
        pieces.append(run(cut(program, the_cut, start, stop), given))
    for piece in pieces:  # what is not cut is whole in each
        again = [piece[number] if axis is None else whole[number] for number, axis in enumerate(the_cut.outputs)]
        wrong = disagreement(whole, again, program)
        if wrong is not None:
            return wrong
    together = [
        np.concatenate([piece[number] for piece in pieces], axis) if axis is not None else whole[number]
        for number, axis in enumerate(the_cut.outputs)
    ]
    return disagreement(whole, together, program)


def _part(values: HostArray, axis: int | None, start: int, stop: int) -> HostArray:
    return values if axis is None else values[(slice(None),) * axis + (slice(start, stop),)]


def broken_by_simplifying(
    program: Program, rng: random.Random, run: Run, evaluate: Evaluate | None = None
) -> str | None:
    """The simplified program takes and gives the same, has no more nodes, and cannot be simplified again."""
    smaller = simplified(program, evaluate)
    if smaller.inputs != program.inputs or smaller.results != program.results:
        return f"{program!r} became {smaller!r}."
    if len(smaller) > len(program):
        return f"{len(program)} nodes became {len(smaller)}."
    if simplified(smaller, evaluate) != smaller:
        return "what is simplified can be simplified again."
    inputs = random_inputs(program, rng)
    return disagreement(run(program, inputs), run(smaller, inputs), program)
