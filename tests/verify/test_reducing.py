"""Wrong programs are made small, whatever it is that makes them wrong."""

from __future__ import annotations

from typing import Any

import numpy as np

from anygpu.array.trace.tracing import record
from anygpu.program.graph import Program
from anygpu.testing.verify import Suspect, operations, part, reduced
from anygpu.testing.verify.values import program_of


def suspect_of(function: Any, *inputs: Any) -> Suspect:
    recorded = record(function, *inputs)
    return Suspect(Program(recorded.nodes, recorded.outputs), inputs)


def has(name: str) -> Any:
    """A device that is wrong wherever it meets the operation."""
    return lambda suspect: name in operations(suspect.program)


def function(x: Any, y: Any) -> Any:
    z = np.tanh(x * 2 + 1) - y
    return z.sum(), np.sort(z * z)[::-1], np.cumsum(y)


X = np.linspace(-1, 1, 9).astype(np.float32)


def test_only_what_is_wrong_is_left() -> None:
    for name in ("tanh", "sort", "sum"):
        small = reduced(suspect_of(function, X, X + 1), has(name), has_time=lambda: True)
        assert operations(small.program) == (name,)
        assert (len(small.program), len(small.inputs)) == (2, 1)


def test_the_inputs_are_what_numpy_computes() -> None:
    small = reduced(suspect_of(function, X, X + 1), has("sort"), has_time=lambda: True)
    np.testing.assert_allclose(small.inputs[0], (np.tanh(X * 2 + 1) - X - 1) ** 2, rtol=1e-6)


def test_what_is_wrong_only_together_stays_together() -> None:
    both = reduced(
        suspect_of(function, X, X + 1),
        lambda suspect: {"tanh", "subtract"} <= set(operations(suspect.program)),
        has_time=lambda: True,
    )
    assert operations(both.program) == ("tanh", "subtract")


def test_without_time_it_is_as_it_was() -> None:
    whole = suspect_of(function, X, X + 1)
    assert reduced(whole, has("sort"), has_time=lambda: False) == whole


def test_what_no_smaller_program_shows_stays_whole() -> None:
    whole = suspect_of(function, X, X + 1)
    assert reduced(whole, lambda suspect: False, has_time=lambda: True) == whole


def test_every_part_of_random_programs_is_a_program() -> None:
    for seed in range(20):
        case = program_of(seed)
        whole = Suspect(case.program, case.inputs)
        for position in range(case.program.input_count, len(case.program)):
            some = part(whole, position, {})
            assert some.program.results == (case.program.specs[position],)
            assert [each.shape for each in some.inputs] == [spec.shape for spec in some.program.inputs]
