"""Whether two engines agree on a program: the published tolerances, applied."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from anygpu.agreement.elementwise import tolerance_of
from anygpu.base.typing import HostArray
from anygpu.program.dtypes import REAL_PART, is_inexact
from anygpu.program.graph import Program
from anygpu.testing.random_programs.error_bounds import bounds_of


def tolerance(program: Program, output: int) -> tuple[float, float]:
    """The relative and the absolute difference that two right answers may have in one output.

    Both are 0 where there is only one right answer. They hold for inputs as `random_inputs` makes them; where a program
    leaves the domain in which that says something, they are what one function may add, once for each node.
    """
    return tolerances(program)[output]


def tolerances(program: Program) -> list[tuple[float, float]]:
    """`tolerance` of every output."""
    bounds = bounds_of(program)
    found = []
    for output in program.outputs:
        dtype = program.specs[output].dtype
        relative, absolute = bounds[output].relative, bounds[output].absolute
        if not math.isfinite(absolute):
            relative = absolute = len(program.nodes) * tolerance_of("function", dtype)
        if absolute or relative:
            absolute += float(np.finfo(REAL_PART.get(dtype, dtype)).tiny)  # below, some engines have only 0
        found.append((relative, absolute))
    return found


def disagreement(expected: Sequence[HostArray], got: Sequence[HostArray], program: Program) -> str | None:
    """`None` when all outputs agree, or a sentence about the first element that does not."""
    if len(expected) != len(program.outputs) or len(got) != len(program.outputs):
        return f"the program has {len(program.outputs)} outputs; {len(expected)} were expected, {len(got)} came."
    for number, (relative, absolute) in enumerate(tolerances(program)):
        sentence = _difference(expected[number], got[number], relative, absolute)
        if sentence is not None:
            return f"output {number} ({program.results[number]}) {sentence}"
    return None


def _difference(expected: HostArray, got: HostArray, relative: float, absolute: float) -> str | None:
    if got.shape != expected.shape or got.dtype != expected.dtype:
        return f"is {got.dtype.name}{list(got.shape)}, not {expected.dtype.name}{list(expected.shape)}."
    agree = expected == got
    if is_inexact(expected.dtype.name):  # type: ignore[arg-type]
        agree |= np.isnan(expected) & np.isnan(got)
        if absolute or relative:
            # Wider than any type compared here, so that nothing is lost in comparing.
            wide = np.complex128 if expected.dtype.kind == "c" else np.float64
            one, other = expected.astype(wide), got.astype(wide)
            with np.errstate(all="ignore"):
                agree |= np.abs(one - other) <= absolute + relative * np.abs(one)
    if agree.all():
        return None
    index = tuple(int(each[0]) for each in np.nonzero(np.atleast_1d(~agree)))[: expected.ndim]
    allowed = f"{absolute + relative * abs(expected[index]):.2g}"
    many = f" ({np.count_nonzero(~agree)} of {agree.size} differ)"
    return f"at {index}: {expected[index]} expected, {got[index]} came; {allowed} is allowed{many}."
