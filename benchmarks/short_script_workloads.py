"""Fourteen workloads of one kind each: NumPy is best at half of them, and compiled code at the other half."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.short_script_program import UNRECORDED, Program, program

rng = np.random.default_rng


def _normal(*shape: int) -> Any:
    return lambda seed: (rng(seed).standard_normal(shape, np.float32),)


def _pair(*shape: int) -> Any:
    return lambda seed: tuple(rng([seed, number]).standard_normal(shape, np.float32) for number in (0, 1))


# -- NumPy is best at these


def sorted_rows(x: Any) -> Any:
    return np.sort(x, axis=1)


def matrix_product(x: Any, y: Any) -> Any:
    return x @ y


def running_totals(x: Any) -> Any:
    return np.cumsum(x, axis=1)


def multiply_and_add(x: Any, y: Any) -> Any:
    return x * 2 + y


def histogram(x: Any) -> Any:
    return np.bincount(x, minlength=1000)


def solved(matrices: Any, sides: Any) -> Any:
    """Many small systems of equations."""
    products = np.einsum("nij,nkj->nik", matrices, matrices) + np.eye(matrices.shape[1])
    return np.linalg.solve(products, sides[..., None])[..., 0]


def _systems(seed: int) -> tuple[Any, ...]:
    return rng(seed).normal(size=(250, 20, 20)), rng(seed).normal(size=(250, 20))


def dot(x: Any, y: Any) -> Any:
    return float(x @ y)


# -- Compiled code is faster at these, at most of them several times


def city_block_distances(x: Any, y: Any) -> Any:
    return np.sum(np.abs(x[:, None, :] - y[None, :, :]), axis=-1)


def waves(x: Any) -> Any:
    """A long chain, with transcendental functions in it."""
    value = x
    for frequency in (1.0, 1.7, 2.9, 4.3):
        triangle = np.abs(frequency * value - np.floor(frequency * value + 0.5))
        turned = np.arctan2(triangle, 1 + value * value)
        value = np.clip(2 * triangle - turned, -1, 1) + 0.1 * np.exp(-triangle) * np.hypot(value, 0.5)
    return value


def long_chain(x: Any, factor: float) -> Any:
    """The same in double precision, without a large constant."""
    value = x
    for _ in range(5):
        value = np.cos(factor * value) + np.sqrt(1 + value * value) * np.exp(-np.abs(value)) - np.tanh(value)
    return value


def softmax_rows(x: Any) -> Any:
    shares = np.exp(x - np.max(x, axis=1, keepdims=True))
    return shares / np.sum(shares, axis=1, keepdims=True)


def option_prices(spot: Any, years: Any) -> tuple[Any, Any]:
    """Black and Scholes; the normal distribution by a polynomial, as NumPy has none."""
    strike, rate, volatility = 100.0, 0.03, 0.25
    spot, years = 100 + 10 * spot, 0.1 + np.abs(years)
    width = volatility * np.sqrt(years)
    upper = (np.log(spot / strike) + (rate + volatility * volatility / 2) * years) / width

    def below(x: Any) -> Any:
        near = 1 / (1 + 0.2316419 * np.abs(x))
        tail = np.exp(-x * x / 2) * near * (0.12752 + near * (-0.142248 + near * (0.710706 + near * -0.193)))
        return np.where(x > 0, 1 - tail, tail)

    discounted = strike * np.exp(-rate * years)
    call = spot * below(upper) - discounted * below(upper - width)
    return call, call - spot + discounted


def kernel_density(x: Any, y: Any) -> Any:
    """Of each of `y`, how dense `x` is there."""
    apart = y[:, None] - x[None, :]
    return np.mean(np.exp(-8 * apart * apart), axis=1)


def forces(x: Any, mass: Any) -> Any:
    """Gravity between all pairs of bodies."""
    apart = x[None, :, :] - x[:, None, :]
    near = (np.sum(apart * apart, axis=-1) + 0.01) ** -1.5
    return np.sum(apart * (near * mass[None, :])[..., None], axis=1)


def _bodies(seed: int) -> tuple[Any, ...]:
    return rng(seed).standard_normal((900, 3), np.float32), rng(seed).random(900, np.float32)


WORKLOADS: tuple[Program, ...] = (
    program(sorted_rows, _normal(1000, 1000), 3, "numpy"),
    program(matrix_product, _pair(500, 500), 3, "numpy", "small"),
    program(running_totals, _normal(1500, 1500), 12, "numpy"),
    program(multiply_and_add, _pair(1000, 1000), 1, "numpy", "small"),
    program(histogram, lambda seed: (rng(seed).integers(0, 1000, 500_000),), 1, "numpy", "small", UNRECORDED),
    program(solved, _systems, 4, "numpy", "float64"),
    program(dot, _pair(20_000), 0.01, "numpy", "small", UNRECORDED),
    program(city_block_distances, _pair(1000, 8), 40, "device"),
    program(waves, _normal(1500, 1000), 100, "device", "chain"),
    program(long_chain, lambda seed: (rng(seed).random(1_000_000), 1.1), 150, "device", "chain", "float64"),
    program(softmax_rows, _normal(8000, 512), 13, "device"),
    program(option_prices, _pair(1_600_000), 60, "device", "chain"),
    program(kernel_density, _pair(3000), 45, "device"),
    program(forces, _bodies, 50, "device"),
)
