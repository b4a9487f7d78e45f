"""The ten examples at any size, in the types in which the examples have them."""

from __future__ import annotations

import math

import numpy as np

from anygpu.base.typing import HostArray
from benchmarks.workloads.workload import Workload, normal
from examples.black_scholes import black_scholes
from examples.edges import edges
from examples.fft_filter import low_pass
from examples.kalman import kalman
from examples.kmeans import kmeans_step
from examples.life import life
from examples.mandelbrot import mandelbrot
from examples.nbody import nbody_step
from examples.pca import pca
from examples.softmax_regression import training_step

SIGNAL = 3001
CENTRES = 7
FEATURES, CLASSES = 21, 5
COLUMNS = 11


def _options(size: int, rng: np.random.Generator) -> tuple[HostArray, ...]:
    count = max(1, round(size / 3))
    return rng.uniform(5, 30, count), rng.uniform(1, 100, count), rng.uniform(0.25, 10, count)


def _image(size: int, rng: np.random.Generator) -> tuple[HostArray, ...]:
    height, width = _about_square(size)
    y, x = np.mgrid[0:height, 0:width]
    disc = (x - width / 2) ** 2 + (y - height / 2) ** 2 < (height / 3) ** 2
    return ((disc + 0.1 * rng.random((height, width))).astype(np.float32),)


def _signals(size: int, rng: np.random.Generator) -> tuple[HostArray, ...]:
    length = min(SIGNAL, max(8, size // 9))
    time = np.arange(length) / 1000.0
    return (np.sin(2 * np.pi * 20 * time) + 0.5 * rng.normal(size=(max(1, round(size / length)), length)),)


def _positions(size: int, rng: np.random.Generator) -> tuple[HostArray, ...]:
    time = np.arange(max(2, size // 2)) * 0.1
    path = np.stack([3 * time, np.sin(time)], axis=1)
    return (path + 0.3 * rng.normal(size=path.shape),)


def _points(size: int, rng: np.random.Generator) -> tuple[HostArray, ...]:
    points = normal(rng, max(CENTRES, round(size / 3)), 3)
    return points, points[:CENTRES].copy()


def _board(size: int, rng: np.random.Generator) -> tuple[HostArray, ...]:
    return ((rng.random(_about_square(size)) < 0.3).astype(np.uint8),)


def _plane(size: int, rng: np.random.Generator) -> tuple[HostArray, ...]:
    height, width = _about_square(size)
    x, y = np.linspace(-2, 0.7, width), np.linspace(-1.2, 1.2, height)
    return (x[None, :] + 1j * y[:, None],)


def _bodies(size: int, rng: np.random.Generator) -> tuple[HostArray, ...]:
    """The work is that of all pairs: so many bodies that they have `size` pairs."""
    count = max(2, math.isqrt(size))
    return rng.normal(size=(count, 3)), rng.normal(size=(count, 3)) * 0.1, rng.uniform(0.5, 2, count)


def _observations(size: int, rng: np.random.Generator) -> tuple[HostArray, ...]:
    count = max(COLUMNS + 1, round(size / COLUMNS))
    return (rng.normal(size=(count, 3)) @ rng.normal(size=(3, COLUMNS)) + 0.1 * rng.normal(size=(count, COLUMNS)),)


def _labelled(size: int, rng: np.random.Generator) -> tuple[HostArray, ...]:
    count = max(2, round(size / FEATURES))
    weights = 0.1 * normal(rng, FEATURES, CLASSES)
    return normal(rng, count, FEATURES), rng.integers(0, CLASSES, count), weights, np.zeros(CLASSES, np.float32)


def _about_square(size: int) -> tuple[int, int]:
    """Height and width of a picture that is a third wider than high."""
    height = max(5, round(math.sqrt(size * 0.75)))
    return height, max(5, round(size / height))


EXAMPLES = (
    Workload(name="Black–Scholes", stages=(black_scholes,), make=_options),
    Workload(name="edges of an image", stages=(edges,), make=_image),
    Workload(name="low-pass filter", stages=(low_pass,), make=_signals),
    Workload(
        name="Kalman filter",
        stages=(kalman,),
        make=_positions,
        largest=10_000,
        why_largest="it loops over measurements in Python: its program would have a million operations or more",
        grows=True,
    ),
    Workload(name="k-means step", stages=(kmeans_step,), make=_points),
    Workload(name="game of life", stages=(life,), make=_board),
    Workload(
        name="Mandelbrot set",
        stages=(mandelbrot,),
        make=_plane,
        largest=1_000_000,
        why_largest="NumPy itself takes more than 3 s for 30 steps of 10 million complex numbers",
    ),
    Workload(name="n-body step", stages=(nbody_step,), make=_bodies),
    Workload(name="principal components", stages=(pca,), make=_observations),
    Workload(name="softmax regression", stages=(training_step,), make=_labelled),
)
