"""Fourier transforms on lavapipe and PoCL against NumPy's, which computes in double."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anygpu.base.typing import HostArray
from anygpu.engines.codegen.target import ComputeType, Dialect, Target
from anygpu.engines.codegen.templates import fourier
from anygpu.engines.codegen.templates.fourier import factors_of, steps_of
from anygpu.program.functions import FourierFunction
from tests.codegen.running import NUMPY, TARGETS, load, run, store

SHAPES = [
    (1, 1),
    (3, 2),
    (5, 3),
    (7, 13),
    (3, 17),
    (1, 63),
    (300, 64),
    (2, 65),
    (1, 255),
    (9, 256),
    (1, 257),
    (2, 1023),
]
SHAPES += [(1, 1024), (3, 1025), (1, 5000), (2, 16384), (1, 100_000), (1, 100_003)]
#: All of it where kernels are quick to compile, and a choice where each takes a second.
CASES = [("wgsl", *shape) for shape in SHAPES] + [("opencl", *shape) for shape in [*SHAPES[3::4], (1, 100_000)]]
FUNCTIONS: list[FourierFunction] = ["fft", "ifft", "rfft", "irfft"]


def transformed(dialect: Dialect, fn: FourierFunction, x: HostArray, length: int, component: ComputeType) -> HostArray:
    rows = len(x)
    parts = [x] if fn == "rfft" else [x.real, x.imag]
    accessors = [load(f"load_{k}", part.astype(NUMPY[component])) for k, part in enumerate(parts)]
    of_result = length // 2 + 1 if fn == "rfft" else length
    accessors += [store(f"store_{k}", component, rows, of_result) for k in range(1 if fn == "irfft" else 2)]
    results = run(dialect, fourier.stages(TARGETS[dialect], rows, length, fn, component), accessors)
    return results[0] + 1j * results[1] if len(results) == 2 else results[0]


def check(dialect: Dialect, fn: FourierFunction, rows: int, length: int, component: ComputeType) -> None:
    rng = np.random.default_rng(length)
    given = length // 2 + 1 if fn == "irfft" else length
    x = rng.normal(size=(rows, given)).astype(NUMPY[component])
    if fn != "rfft":
        x = x + 1j * rng.normal(size=(rows, given)).astype(NUMPY[component])
    exact = getattr(np.fft, fn)(x.astype(np.float64 if fn == "rfft" else np.complex128), length)
    eps = float(np.finfo(NUMPY[component]).eps)
    error = np.max(np.abs(transformed(dialect, fn, x, length, component) - exact))
    assert error <= 8 * eps * max(1.0, math.log2(length)) * np.max(np.abs(exact))


@pytest.mark.sampled(gate=9)
@pytest.mark.parametrize(("dialect", "rows", "length"), CASES)
def test_lengths_of_every_kind(dialect: Dialect, rows: int, length: int) -> None:
    check(dialect, "fft", rows, length, "f32")


@pytest.mark.sampled(gate=11)
@pytest.mark.parametrize(
    ("dialect", "fn", "length", "component"),
    [
        *(("wgsl", fn, length, kind) for fn in FUNCTIONS for length in (2, 60, 67, 4096) for kind in ("f32", "f64")),
        *(("opencl", fn, 60, "f64") for fn in FUNCTIONS),
        ("opencl", "ifft", 67, "f64"),
        ("opencl", "irfft", 67, "f32"),
        ("opencl", "rfft", 20000, "f64"),
    ],
)
def test_every_function(dialect: Dialect, fn: FourierFunction, length: int, component: ComputeType) -> None:
    check(dialect, fn, 3, length, component)


@settings(max_examples=5, deadline=None)
@given(length=st.integers(1, 3000), fn=st.sampled_from(FUNCTIONS))
def test_any_length(length: int, fn: FourierFunction) -> None:
    check("wgsl", fn, 2, length, "f32")


@given(length=st.integers(1, 100_000))
def test_steps_multiply_to_the_radix(length: int) -> None:
    if factors_of(length) is not None:
        assert math.prod(steps_of(length)) == length


@given(
    length=st.integers(1, 1 << 24), component=st.sampled_from(["f32", "f64"]), memory=st.sampled_from([16384, 32768])
)
@settings(max_examples=50, deadline=None)
def test_groups_stay_below_what_they_may_share(length: int, component: ComputeType, memory: int) -> None:
    if factors_of(length) is None:
        return
    target = Target(dialect="wgsl", group_memory=memory)
    _, stages = fourier.stages(target, 3, length, "fft", component)
    for stage in stages:
        assert int(stage.values["shared"]) * (8 if component == "f32" else 16) <= memory
    assert math.prod(int(stage.values["radix"]) for stage in stages) == length
