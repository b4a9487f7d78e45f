"""How many steps each point of the plane stays near zero: the Mandelbrot set."""

from __future__ import annotations

from typing import Any

import numpy as np


def mandelbrot(c: Any, steps: int = 30) -> Any:
    z = np.zeros_like(c)
    escaped_after = np.zeros(c.shape, dtype=np.int32)
    for _ in range(steps):
        inside = np.abs(z) <= 2
        z = np.where(inside, z * z + c, z)
        escaped_after = escaped_after + inside
    return escaped_after


def inputs(rng: np.random.Generator) -> list[Any]:
    x, y = np.linspace(-2, 0.7, 161), np.linspace(-1.2, 1.2, 121)
    return [x[None, :] + 1j * y[:, None]]


if __name__ == "__main__":
    from examples.compare import compare

    compare(mandelbrot, inputs(np.random.default_rng(0)))
