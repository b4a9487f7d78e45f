"""Random programs: the same seed makes the same program on every machine."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from anygpu.base.typing import HostArray
from anygpu.engines.numpy import lowering
from anygpu.program.graph import Program
from anygpu.testing.random_programs import random_inputs, random_program
from anygpu.testing.random_programs.error_bounds import disagreement
from anygpu.verify.cases import Case, Check, Comparison, ProgramCase
from anygpu.verify.subject import Subject

#: How many programs are tried, with the seeds from 0 on.
PROGRAMS = 500


def program_of(seed: int) -> ProgramCase:
    """The program of a seed, with its inputs."""
    rng = random.Random(seed)
    program = random_program(rng)
    return ProgramCase(f"program {seed}", seed, program, tuple(random_inputs(program, rng)), _compare)


def _compare(
    program: Program, inputs: Sequence[HostArray], results: Sequence[HostArray], lacking: set[int]
) -> Comparison:
    sentence = disagreement(lowering.run(program, list(inputs)), list(results), program)
    return Comparison(wrong=sentence or "")


def programs(count: int = PROGRAMS, *, first: int = 0) -> Check:
    def cases(subject: Subject) -> Iterator[Case]:
        yield from (program_of(seed) for seed in range(first, first + count))

    return Check("programs", "Random programs give what NumPy gives.", 0.38, lambda subject: count, cases)
