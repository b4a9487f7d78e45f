"""The workloads with Numba: loops over elements, whose outermost one runs on all cores."""

from __future__ import annotations

import math
from typing import Any

import numba
import numpy as np
from numba import njit, prange


@njit
def _normal_distribution(x: Any) -> Any:
    t = 1 / (1 + 0.2316419 * abs(x))
    poly = t * (0.319381530 + t * (-0.356563782 + t * (1.781477937 + t * (-1.821255978 + t * 1.330274429))))
    tail = math.exp(-x * x / 2) / math.sqrt(2 * math.pi) * poly
    return 1 - tail if x >= 0 else tail


@njit(parallel=True)
def black_scholes(price: Any, strike: Any, years: Any, rate: float = 0.02, volatility: float = 0.3) -> Any:
    call, put = np.empty_like(price), np.empty_like(price)
    for i in prange(price.size):
        spread = volatility * math.sqrt(years[i])
        d1 = (math.log(price[i] / strike[i]) + (rate + volatility**2 / 2) * years[i]) / spread
        discounted = strike[i] * math.exp(-rate * years[i])
        call[i] = price[i] * _normal_distribution(d1) - discounted * _normal_distribution(d1 - spread)
        put[i] = call[i] - price[i] + discounted
    return call, put


@njit(parallel=True)
def softmax(x: Any) -> Any:
    result = np.empty_like(x)
    for i in prange(x.shape[0]):
        greatest = x[i].max()
        total = np.float32(0)
        for j in range(x.shape[1]):
            result[i, j] = math.exp(x[i, j] - greatest)
            total += result[i, j]
        for j in range(x.shape[1]):
            result[i, j] /= total
    return result


@njit(parallel=True)
def distances(x: Any, y: Any) -> Any:
    result = np.empty((x.shape[0], y.shape[0]), x.dtype)
    for i in prange(x.shape[0]):
        for j in range(y.shape[0]):
            squared = np.float32(0)
            for k in range(x.shape[1]):
                apart = x[i, k] - y[j, k]
                squared += apart * apart
            result[i, j] = math.sqrt(squared)
    return result


@njit(parallel=True)
def kmeans(points: Any, centres: Any) -> Any:
    count, width = points.shape
    number = centres.shape[0]
    nearest = np.empty(count, np.int64)
    parts = numba.get_num_threads()
    sums, members = np.zeros((parts, number, width)), np.zeros((parts, number))
    for part in prange(parts):
        for i in range(part * count // parts, (part + 1) * count // parts):
            least, best = np.float32(np.inf), 0
            for j in range(number):
                squared = np.float32(0)
                for k in range(width):
                    apart = points[i, k] - centres[j, k]
                    squared += apart * apart
                if squared < least:
                    least, best = squared, j
            nearest[i] = best
            members[part, best] += 1
            for k in range(width):
                sums[part, best, k] += points[i, k]
    moved = np.empty_like(centres)
    for j in range(number):
        for k in range(width):
            moved[j, k] = sums[:, j, k].sum() / max(members[:, j].sum(), 1)
    return moved, nearest


@njit(parallel=True)
def edges(image: Any, threshold: float = 0.5) -> Any:
    height, width = image.shape
    outer, inner, middle = np.float32(1 / 16), np.float32(4 / 16), np.float32(6 / 16)
    rows, blurred, strength = np.empty_like(image), np.empty_like(image), np.empty_like(image)
    for i in prange(height):
        a, b, d, e = max(i - 2, 0), max(i - 1, 0), min(i + 1, height - 1), min(i + 2, height - 1)
        for j in range(width):
            rows[i, j] = (
                outer * (image[a, j] + image[e, j]) + inner * (image[b, j] + image[d, j]) + middle * image[i, j]
            )
        for j in range(width):
            a, b, d, e = max(j - 2, 0), max(j - 1, 0), min(j + 1, width - 1), min(j + 2, width - 1)
            blurred[i, j] = outer * (rows[i, a] + rows[i, e]) + inner * (rows[i, b] + rows[i, d]) + middle * rows[i, j]
    for i in prange(height):
        above, below = abs(i - 1), (i + 1 if i + 1 < height else height - 2)
        for j in range(width):
            left, right = abs(j - 1), (j + 1 if j + 1 < width else width - 2)
            across = blurred[above, right] + 2 * blurred[i, right] + blurred[below, right]
            across -= blurred[above, left] + 2 * blurred[i, left] + blurred[below, left]
            down = blurred[below, left] + 2 * blurred[below, j] + blurred[below, right]
            down -= blurred[above, left] + 2 * blurred[above, j] + blurred[above, right]
            strength[i, j] = math.hypot(across, down)
    limit = np.float32(threshold) * strength.max()
    marked = np.empty(image.shape, np.uint8)
    for i in prange(height):
        for j in range(width):
            marked[i, j] = 255 if strength[i, j] > limit else 0
    return strength, marked


@njit(parallel=True)
def _accelerate(position: Any, velocity: Any, mass: Any, dt: float, softening: float) -> Any:
    result = np.empty_like(velocity)
    for i in prange(position.shape[0]):
        x = y = z = 0.0
        for j in range(position.shape[0]):
            dx = position[j, 0] - position[i, 0]
            dy = position[j, 1] - position[i, 1]
            dz = position[j, 2] - position[i, 2]
            squared = dx * dx + dy * dy + dz * dz + softening * softening
            pull = mass[j] / (squared * math.sqrt(squared))
            x += dx * pull
            y += dy * pull
            z += dz * pull
        result[i, 0] = velocity[i, 0] + x * dt
        result[i, 1] = velocity[i, 1] + y * dt
        result[i, 2] = velocity[i, 2] + z * dt
    return result


@njit
def nbody(position: Any, velocity: Any, mass: Any, dt: float = 0.01, softening: float = 0.05) -> Any:
    velocity = _accelerate(position, velocity, mass, dt / 2, softening)
    position = position + velocity * dt
    velocity = _accelerate(position, velocity, mass, dt / 2, softening)
    return position, velocity, 0.5 * np.sum(mass * (velocity * velocity).sum(axis=1))


@njit(parallel=True)
def perceptron(x: Any, first: Any, second: Any) -> Any:
    return np.tanh(np.tanh(x @ first) @ second)


@njit(parallel=True)
def statistics(x: Any) -> Any:
    count, width = x.shape
    parts = numba.get_num_threads()
    sums, least = np.zeros((parts, width)), np.full((parts, width), np.inf)
    greatest = np.full((parts, width), -np.inf)
    for part in prange(parts):
        for i in range(part * count // parts, (part + 1) * count // parts):
            for j in range(width):
                sums[part, j] += x[i, j]
                least[part, j] = min(least[part, j], x[i, j])
                greatest[part, j] = max(greatest[part, j], x[i, j])
    mean = sums.sum(axis=0) / count
    squares, cubes = np.zeros((parts, width)), np.zeros((parts, width))
    for part in prange(parts):
        for i in range(part * count // parts, (part + 1) * count // parts):
            for j in range(width):
                apart = x[i, j] - mean[j]
                squares[part, j] += apart * apart
                cubes[part, j] += apart * apart * apart
    result = np.empty((5, width))
    for j in range(width):
        deviation = math.sqrt(squares[:, j].sum() / count)
        result[0, j], result[1, j] = mean[j], deviation
        result[2, j], result[3, j] = least[:, j].min(), greatest[:, j].max()
        result[4, j] = cubes[:, j].sum() / count / deviation**3
    return result


@njit(parallel=True)
def mandelbrot(c: Any, steps: int = 30) -> Any:
    escaped_after = np.zeros(c.shape, np.int32)
    for i in prange(c.shape[0]):
        for j in range(c.shape[1]):
            z = 0j
            for _ in range(steps):
                if z.real * z.real + z.imag * z.imag > 4:
                    break
                z = z * z + c[i, j]
                escaped_after[i, j] += 1
    return escaped_after


@njit
def small(x: Any) -> Any:
    """Without threads: a hundred numbers are too few for them."""
    return (x - x.mean()) / x.std()


def function(name: str) -> Any:
    return globals()[name]
