"""A small part of what `python -m benchmarks.agreement --what engines` tries: random programs agree with NumPy."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from anygpu.engines.numpy import lowering
from anygpu.program.graph import Program
from anygpu.program.ops.linear import Attend
from anygpu.receipts.receipt import host_operations
from anygpu.workers.device_arrays.registry import DeviceRegistry
from tests.support.random_programs import WEIGHTS, random_inputs, random_program
from tests.support.random_programs.error_bounds import disagreement

#: All but torch compile every program, so they get fewer.
COUNTS = {"cpu": 100, "torch": 400, "jax": 60, "webgpu": 10, "opencl": 2}


#: Found by long runs: what once aborted the process (a running sum of complex constants, in XLA) or disagreed
#: (in WGSL: wide integers from narrow ones, a search before its line was sorted, a cast of one number, an unrolled
#: counter).
FOUND = (15453, 169, 352, 460, 1231)


@pytest.mark.parametrize("name", COUNTS)
def test_random_programs_agree_with_numpy(name: str) -> None:
    place = DeviceRegistry().find(name)
    for seed in (*FOUND, *range(1_000_000, 1_000_000 + COUNTS[name])):
        rng = random.Random(seed)
        program = random_program(rng)
        inputs = random_inputs(program, rng)
        expected = lowering.run(program, inputs)
        with host_operations():  # what an engine lacks may run on the host here; the answer must be the same
            results = place.run(program, [place.upload(each) for each in inputs])
        assert disagreement(expected, [place.download(each) for each in results], program) is None, f"seed {seed}"


@pytest.mark.full
@pytest.mark.parametrize("name", COUNTS)
def test_random_programs_with_attention_agree_with_numpy(name: str) -> None:
    place = DeviceRegistry().find(name)
    seeds = iter(range(10_000))
    for _ in range(min(COUNTS[name], 20)):
        program = _with_attention(seeds)
        inputs = random_inputs(program, random.Random(0))
        expected = lowering.run(program, inputs)
        with host_operations():
            results = place.run(program, [place.upload(each) for each in inputs])
        assert disagreement(expected, [place.download(each) for each in results], program) is None, str(program)


def _with_attention(seeds: Iterator[int]) -> Program:
    programs = (random_program(seed, primitives={**WEIGHTS, Attend: 12}, max_nodes=16) for seed in seeds)
    return next(each for each in programs if any(isinstance(op, Attend) for op, _ in each.nodes))
