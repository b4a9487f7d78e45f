"""Random programs as code for ARM, run by qemu: the same results."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from anygpu.engines.cpu.engine import executable
from anygpu.engines.numpy import lowering
from tests.engines.cpu.arm import qemu, run_on_arm
from tests.support.random_programs import random_inputs, random_program
from tests.support.random_programs.error_bounds import disagreement

pytestmark = pytest.mark.skipif(qemu() is None and "CI" not in os.environ, reason="needs qemu-user-static")


def check(count: int, folder: Path) -> None:
    ran = seed = 0
    while ran < count:
        rng = random.Random(seed)
        program = random_program(rng)
        inputs = random_inputs(program, rng)
        results = run_on_arm(program, inputs, folder)
        if results is not None:
            ran += 1
            assert disagreement(lowering.run(program, inputs), results, program) is None, f"seed {seed}"
            here = executable(program)(inputs)
            assert [each.tobytes() for each in results] == [each.tobytes() for each in here], f"seed {seed}"
        seed += 1


def test_programs_for_arm(tmp_path: Path) -> None:
    check(10, tmp_path)


@pytest.mark.full
def test_many_programs_for_arm(tmp_path: Path) -> None:
    check(300, tmp_path)
