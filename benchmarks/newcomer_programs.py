"""Nine programs as newcomers write them, for whole processes: they are NumPy alone until somebody decorates them."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from benchmarks.short_script_program import Arguments, program

rng = np.random.default_rng


def asian_price(normals: Any, spot: float, strike: float, rate: float, volatility: float) -> tuple[Any, Any]:
    """Monte Carlo, with random numbers that were drawn before."""
    days = normals.shape[1]
    drift, spread = (rate - volatility**2 / 2) / days, volatility / np.sqrt(days)
    walks = spot * np.exp(np.cumsum(drift + spread * normals, axis=1))
    gains = np.exp(-rate) * np.maximum(walks.mean(axis=1) - strike, 0)
    return gains.mean(), gains.std() / np.sqrt(len(gains))


def _normals(seed: int) -> Arguments:
    return rng(0).standard_normal((16_000, 50)), 100.0, 90.0 + seed, 0.02, 0.25


def graded(image: Any) -> Any:
    """Contrast, sharpening and warm colours, from bytes to bytes."""
    light = np.clip(1.3 * (image.astype(np.float32) / 255 - 0.5) + 0.5, 0, 1) ** 0.9
    padded = np.pad(light, ((1, 1), (1, 1), (0, 0)), mode="edge")
    around = padded[:-2, 1:-1] + padded[2:, 1:-1] + padded[1:-1, :-2] + padded[1:-1, 2:]
    sharp = light + 0.6 * (light - around / 4)
    colours = np.array([[0.9, 0.2, 0.05], [0.1, 0.8, 0.1], [0.05, 0.15, 0.7]], np.float32)
    return np.rint(255 * np.clip(sharp @ colours, 0, 1)).astype(np.uint8)


def _photograph(seed: int) -> Arguments:
    return (rng(seed).integers(0, 256, (500, 700, 3), np.uint8),)


def nearest_labels(known: Any, labels: Any, asked: Any, count: int) -> Any:
    """What most of the nearest neighbours are labelled as."""
    apart = np.sum(asked**2, axis=1)[:, None] + np.sum(known**2, axis=1) - 2 * asked @ known.T
    nearest = np.argpartition(apart, count, axis=1)[:, :count]
    return (2 * labels[nearest].sum(axis=1) > count).astype(np.int64)


def _labelled(seed: int) -> Arguments:
    known = rng(0).normal(size=(4000, 12))
    return known, (known[:, 0] + known[:, 1] > 0).astype(np.int64), rng(seed).normal(size=(300, 12)), 7


def heat_step(plate: Any, rate: float) -> Any:
    """One step on a torus; the script gives its result to the next call."""
    around = np.roll(plate, 1, 0) + np.roll(plate, -1, 0) + np.roll(plate, 1, 1) + np.roll(plate, -1, 1)
    return plate + rate * (around - 4 * plate)


def _plate(seed: int) -> Arguments:
    plate = np.zeros((1000, 1000))
    plate[300:500, 450:700] = 80.0 + seed
    return plate, 0.2


def fourier_blur(image: Any, transfer: Any) -> Any:
    return np.fft.irfft2(np.fft.rfft2(image) * transfer, s=image.shape)


def _blurred(seed: int) -> Arguments:
    across = np.fft.fftfreq(512)[:, None] ** 2 + np.fft.rfftfreq(512)[None, :] ** 2
    return rng(seed).random((512, 512)), np.exp(-200 * across)


def table_features(values: Any) -> Any:
    """Standardised columns with gaps, their squares and their tanh."""
    scores = (values - np.nanmean(values, axis=0)) / np.nanstd(values, axis=0)
    scores = np.clip(np.where(np.isnan(scores), 0.0, scores), -4, 4)
    return np.concatenate([scores, scores**2, np.tanh(scores)], axis=1)


def _gaps(seed: int) -> Arguments:
    values = rng(seed).normal(size=(80_000, 8))
    values[rng(seed).random(values.shape) < 0.03] = np.nan
    return (values,)


def classified(x: Any, layers: list[tuple[Any, Any]]) -> Any:
    """A network with one layer of ReLU, one of GELU, and a softmax."""
    (w1, b1), (w2, b2), (w3, b3) = layers
    hidden = np.maximum(x @ w1 + b1, 0) @ w2 + b2
    hidden = 0.5 * hidden * (1 + np.tanh(0.79788 * (hidden + 0.044715 * hidden**3)))
    scores = hidden @ w3 + b3
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def _digits(seed: int) -> Arguments:
    draw = rng(0)
    sizes = pairwise((784, 400, 400, 10))
    layers = [(draw.normal(0, 0.05, shape).astype(np.float32), np.zeros(shape[1], np.float32)) for shape in sizes]
    return rng(seed).random((1000, 784), np.float32), layers


def rendered(x: Any, y: Any, angle: float) -> Any:
    """A ball beside a ring, by steps along each ray."""
    length = np.sqrt(x**2 + y**2 + 2)
    dx, dy, dz = x / length, y / length, 1.4142 / length
    px, py, pz = 0 * x, 0 * y, 0 * x - 3
    for _ in range(24):
        ball = np.sqrt((px - np.sin(angle)) ** 2 + py**2 + pz**2) - 0.6
        ring = np.sqrt((np.sqrt(px**2 + py**2) - 1.1) ** 2 + pz**2) - 0.2
        near = np.minimum(ball, ring)
        px, py, pz = px + near * dx, py + near * dy, pz + near * dz
    return np.where(near < 0.01, np.exp(-0.5 * (pz + 2)), 0.0)


def _rays(seed: int) -> Arguments:
    x, y = np.meshgrid(np.linspace(-1, 1, 320), np.linspace(-0.75, 0.75, 240))
    return x, y, 0.1 * seed


def _turned(arguments: Arguments, _: Any) -> Arguments:
    x, y, angle = arguments
    return x, y, angle + 0.1


def fitness(genes: Any) -> Any:
    """Two functions with many minima; the script makes the next generation between two calls."""
    waves = np.cos(2 * np.pi * genes)
    rastrigin = np.sum(genes**2 - 10 * waves + 10, axis=1)
    ackley = 22.71828 - 20 * np.exp(-0.2 * np.sqrt(np.mean(genes**2, axis=1))) - np.exp(np.mean(waves, axis=1))
    return rastrigin + ackley


def _genes(seed: int) -> Arguments:
    return (rng(seed).uniform(-5, 5, (10_000, 32)),)


def _next_generation(arguments: Arguments, result: Any) -> Arguments:
    (genes,) = arguments
    draw = rng(int(1000 * result.min()))
    best = genes[np.argsort(result)[: len(genes) // 5]]
    mothers, fathers = (best[draw.integers(0, len(best), len(genes))] for _ in range(2))
    return (np.where(draw.random(genes.shape) < 0.5, mothers, fathers) + draw.normal(0, 0.05, genes.shape),)


NEWCOMERS = (
    program(asian_price, _normals, 10, "newcomer", "float64"),
    program(graded, _photograph, 20, "newcomer", "image"),
    program(nearest_labels, _labelled, 20, "newcomer"),
    program(heat_step, _plate, 8, "newcomer", "float64", following=lambda before, result: (result, before[1])),
    program(fourier_blur, _blurred, 6, "newcomer", "float64"),
    program(table_features, _gaps, 30, "newcomer", "float64"),
    program(classified, _digits, 20, "newcomer"),
    program(rendered, _rays, 35, "newcomer", "float64", "loop", following=_turned),
    program(fitness, _genes, 10, "newcomer", "float64", following=_next_generation),
)
