"""Random programs with one right answer, for comparing engines and transforms with each other.

Every operation is well defined on what `random_inputs` makes: where an operand could leave a function's domain, a clip
is put before it, and a program whose right answers could lie too far apart is not made (`intervals`).
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from anygpu.base.typing import HostArray
from anygpu.program.dtypes import DTYPES, DType
from anygpu.program.graph import Program
from anygpu.program.primitives import Primitive
from anygpu.testing.random_programs.node_generators import NODE_GENERATORS
from anygpu.testing.random_programs.program_generator import ProgramGenerator, random_values

#: NumPy, the reference, has no bfloat16.
COMMON_DTYPES: tuple[DType, ...] = tuple(dtype for dtype in DTYPES if dtype != "bfloat16")

#: How often each primitive is tried.
WEIGHTS: dict[type[Primitive], float] = {primitive: weight for primitive, (_, weight) in NODE_GENERATORS.items()}


def random_program(
    source: random.Random | int,
    *,
    dtypes: Sequence[DType] = COMMON_DTYPES,
    max_nodes: int = 24,
    max_elements: int = 512,
    primitives: Mapping[type[Primitive], float] | Iterable[type[Primitive]] | None = None,
) -> Program:
    """A program of at most `max_nodes` nodes, no value of which has more than `max_elements`, in these types only.

    `primitives` are weights that take the place of `WEIGHTS`, or a selection from it. Clips and the like are made of
    other primitives, which come along as they are needed.
    """
    rng = random.Random(source) if isinstance(source, int) else source
    if primitives is None:
        weights: Mapping[type[Primitive], float] = WEIGHTS
    elif isinstance(primitives, Mapping):
        weights = primitives
    else:
        weights = {each: WEIGHTS[each] or 1 for each in primitives}
    generators = {primitive: generator for primitive, (generator, _) in NODE_GENERATORS.items()}
    return ProgramGenerator(rng, tuple(dtypes), max_nodes, max_elements).write(weights, generators)


def random_inputs(program: Program, rng: random.Random) -> list[HostArray]:
    """Inputs for a program: small whole numbers, and fractions that are exact in binary."""
    generator = np.random.default_rng(rng.getrandbits(64))
    return [random_values(spec, generator) for spec in program.inputs]
