"""A device's results beside NumPy's for one call, and what NumPy warned of in it; this needs no planner."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from anygpu.agreement.analysis import Flag, flags_of
from anygpu.agreement.comparison import Judgement, judge
from anygpu.array.core.structure import flatten
from anygpu.codegen.kernel import HIDDEN
from anygpu.engines.numpy import lowering
from anygpu.placement.trust import Sample, Trust, is_finite, may_warn
from anygpu.program.dtypes import is_inexact
from anygpu.program.graph import Program
from anygpu.program.primitives import Cast


def compared(sample: Sample, results: Sequence[Any], usual: Sequence[float] = ()) -> Judgement:
    """A device's results with what NumPy had for the same inputs."""
    program = sample.traced.program
    arrays = [np.asarray(each) for each in results]
    if sample.is_ours:
        expected = tuple(np.asarray(each) for each in lowering.run(program, sample.inputs))
        return judge(program, sample.inputs, expected, arrays, tuple, usual=usual)
    return judge(program, sample.inputs, sample.expected, arrays, sample.traced.rebuild, usual=usual)


def quiet_lines(traced: Any) -> frozenset[tuple[str, int]]:
    """Lines on which the function itself has told NumPy to be quiet."""
    found: frozenset[tuple[str, int]] = getattr(traced, "quiet_lines", frozenset())
    return found


def learn_flags(trust: Trust, sample: Sample, known: frozenset[Flag] | None = None) -> None:
    """Remember what NumPy warned of with these inputs; the user saw the warning at that call."""
    program, quiet = sample.traced.program, quiet_lines(sample.traced)
    if known is None:
        if not may_warn_at_all(program, quiet):
            return
        with contextlib.suppress(Exception):  # in the background, where nothing may be raised
            known = flags_of(program, sample.inputs)
    heard = frozenset(flag for flag in known or () if flag.line not in quiet)
    if heard:
        trust.flags |= heard
    elif known is not None and not is_finite([leaf for leaf in flatten(sample.expected)[0] if _is_number(leaf)]):
        if is_finite(sample.inputs):
            trust.makes_quietly = True
        else:
            trust.carries_quietly = True


def may_hide(program: Program, quiet: frozenset[tuple[str, int]]) -> bool:
    """Whether NumPy could warn of anything that need not leave a NaN or an infinity in a result."""
    return any(
        op.may_raise_flags and program.lines[position] not in quiet
        for position, (op, _) in enumerate(program.nodes)
        if is_inexact(program.specs[position].dtype) or isinstance(op, Cast)
    )


def learn_silence(trust: Trust, noted: int) -> None:
    """Remember that NumPy said nothing of what native code has noted and no result shows."""
    if noted & HIDDEN and not trust.flags:
        trust.hides_quietly = True


def _is_number(leaf: Any) -> bool:
    return isinstance(leaf, np.ndarray | np.generic | float | complex)


def may_warn_at_all(program: Program, quiet: frozenset[tuple[str, int]]) -> bool:
    """Whether NumPy could warn at all, also of a NaN that is masked later or cast to a whole number."""
    return may_warn(program, quiet) or any(
        spec.dtype not in ("bool",) and program.lines[position] not in quiet
        for position, spec in enumerate(program.specs)
        if position >= program.input_count
    )
