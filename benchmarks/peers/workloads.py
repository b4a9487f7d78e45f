"""What the workloads are called with, and what is said of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np

Make = Callable[[np.random.Generator], tuple[Any, ...]]


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    #: What readers of the page see, and how much there is to do.
    title: str
    size: str
    make: Make


def _options(rng: np.random.Generator) -> tuple[Any, ...]:
    count = 1_000_000
    return rng.uniform(5, 30, count), rng.uniform(1, 100, count), rng.uniform(0.25, 10, count)


def _normal(*shapes: tuple[int, ...]) -> Make:
    return lambda rng: tuple(rng.standard_normal(shape, np.float32) for shape in shapes)


def _points(rng: np.random.Generator) -> tuple[Any, ...]:
    points = rng.standard_normal((300_000, 3), np.float32)
    return points, points[:7].copy()


def _image(rng: np.random.Generator) -> tuple[Any, ...]:
    y, x = np.mgrid[0:1000, 0:1200]
    disc = (x - 600) ** 2 + (y - 500) ** 2 < 300**2
    return ((disc + 0.1 * rng.random(disc.shape)).astype(np.float32),)


def _bodies(rng: np.random.Generator) -> tuple[Any, ...]:
    return rng.normal(size=(700, 3)), rng.normal(size=(700, 3)) * 0.1, rng.uniform(0.5, 2, 700)


def _signals(rng: np.random.Generator) -> tuple[Any, ...]:
    time = np.arange(3001) / 1000.0
    return (np.sin(2 * np.pi * 20 * time) + 0.5 * rng.normal(size=(300, time.size)),)


def _plane(rng: np.random.Generator) -> tuple[Any, ...]:
    x, y = np.linspace(-2, 0.7, 501), np.linspace(-1.2, 1.2, 401)
    return (x[None, :] + 1j * y[:, None],)


WORKLOADS = (
    Workload(name="black_scholes", title="option prices", size="10⁶ options, float64", make=_options),
    Workload(name="softmax", title="softmax of rows", size="4000 × 1000, float32", make=_normal((4000, 1000))),
    Workload(
        name="distances",
        title="pairwise distances",
        size="1200 × 1200 points of 8, float32",
        make=_normal((1200, 8), (1200, 8)),
    ),
    Workload(name="kmeans", title="k-means step", size="300,000 × 3, 7 centres, float32", make=_points),
    Workload(name="edges", title="blur and Sobel", size="1000 × 1200 pixels, float32", make=_image),
    Workload(name="nbody", title="n-body step", size="700 bodies, float64", make=_bodies),
    Workload(
        name="perceptron",
        title="two layers with tanh",
        size="2000 × 512 → 512 → 64, float32",
        make=lambda rng: tuple(
            scale * each
            for scale, each in zip((1, 0.05, 0.05), _normal((2000, 512), (512, 512), (512, 64))(rng), strict=True)
        ),
    ),
    Workload(
        name="statistics",
        title="statistics of columns",
        size="200,000 × 10, float64",
        make=lambda rng: (rng.gamma(2.0, size=(200_000, 10)),),
    ),
    Workload(name="low_pass", title="Fourier filter", size="300 signals of 3001, float64", make=_signals),
    Workload(name="mandelbrot", title="Mandelbrot set", size="401 × 501, 30 steps, complex128", make=_plane),
    Workload(
        name="small",
        title="100 numbers standardised",
        size="a call of microseconds, float64",
        make=lambda rng: (rng.normal(size=100),),
    ),
)
