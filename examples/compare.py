"""Runs a NumPy function on NumPy arrays, then on anygpu arrays on every engine, and compares."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

import anygpu as ag

ENGINES = ("numpy", "torch", "jax", "webgpu", "opencl")

#: Engines sum in different orders, so floats agree to a part of their precision.
TOLERANCE = {"float32": 2e-4, "float64": 1e-9, "complex64": 2e-4, "complex128": 1e-9}


def flat(result: Any) -> list[Any]:
    return list(result) if isinstance(result, tuple | list) else [result]


def difference(expected: Any, got: Any) -> str | None:
    """`None` when both are equal within tolerance, otherwise a sentence."""
    for number, (a, b) in enumerate(zip(flat(expected), flat(got), strict=True)):
        a, b = np.asarray(a), np.asarray(b)
        if a.shape != b.shape or a.dtype != b.dtype:
            return f"result {number} is {b.dtype}{list(b.shape)} instead of {a.dtype}{list(a.shape)}"
        tolerance = TOLERANCE.get(a.dtype.name, 0.0)
        scale = float(np.max(np.abs(a), initial=1.0)) if tolerance else 1.0
        if not np.allclose(a, b, rtol=tolerance, atol=tolerance * scale, equal_nan=True):
            return f"result {number} differs by up to {np.max(np.abs(a - b))}"
    return None


def run_on(device: str, function: Callable[..., Any], inputs: Sequence[Any]) -> list[Any]:
    arrays = [ag.asarray(x, device=device) if isinstance(x, np.ndarray) else x for x in inputs]
    return [np.asarray(result) for result in flat(function(*arrays))]


def compare(function: Callable[..., Any], inputs: Sequence[Any], devices: Iterable[str] = ENGINES) -> None:
    """Print one line a device: how long it took, and whether it agrees with NumPy."""
    begin = time.perf_counter()
    expected = function(*inputs)
    print(f"{'NumPy itself':<16}{(time.perf_counter() - begin) * 1e3:8.1f} ms")
    for device in devices:
        run_on(device, function, inputs)  # the first call compiles
        begin = time.perf_counter()
        got = run_on(device, function, inputs)
        taken = (time.perf_counter() - begin) * 1e3
        verdict = difference(expected, got) or "agrees"
        print(f"{'anygpu ' + device:<16}{taken:8.1f} ms   {verdict}")
