"""Random programs in nests, against NumPy: in parts that are as small as can be, done from either end."""

from __future__ import annotations

import random

import pytest

from anygpu.engines.codegen.nests import steps
from anygpu.engines.codegen.nests.schedule import nests
from anygpu.engines.numpy.lowering import run
from tests.support.nest_interpreter import interpreted
from tests.support.random_programs import random_inputs, random_program
from tests.support.random_programs.error_bounds import disagreement


@pytest.mark.parametrize("first", range(0, 240, 20))
def test_nests_compute_what_numpy_computes(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "PART", 60.0 if first % 40 else 1e5)
    for seed in range(first, first + 20):
        program = random_program(seed, max_elements=400)
        inputs = random_inputs(program, random.Random(seed))
        got = interpreted(nests(program), program, inputs, parts_backwards=seed % 2 == 0)
        assert disagreement(run(program, inputs), got, program) is None, f"seed {seed}"


@pytest.mark.parametrize(
    "seed",
    [
        # A sum over rows, in pieces, whose terms wait in scratch.
        5591,
        # A piece of one row, which reads what it has written.
        11306,
    ],
)
def test_programs_that_were_once_computed_wrongly(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "PART", 1060.0)
    program = random_program(seed, max_elements=3400)
    inputs = random_inputs(program, random.Random(seed))
    got = interpreted(nests(program), program, inputs)
    assert disagreement(run(program, inputs), got, program) is None
