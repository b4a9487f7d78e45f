"""Functions as libraries have them: image filters, iterations, steps of estimators. None of them knows of anygpu.

`FUNCTIONS` maps a name to a function and to what makes its arguments of a size and a seed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Array = Any
Rng = np.random.Generator
FUNCTIONS: dict[str, tuple[Callable[..., Any], Callable[..., tuple[Any, ...]]]] = {}


def _with(make: Callable[[Rng, int], tuple[Any, ...]]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        FUNCTIONS[function.__name__] = (function, lambda side, seed=0: make(np.random.default_rng(seed), side))
        return function

    return add


def _image(rng: Rng, side: int) -> tuple[Any, ...]:
    return (rng.random((16 * side, 16 * side)),)


def _colours(rng: Rng, side: int) -> tuple[Any, ...]:
    return (rng.random((12 * side, 12 * side, 3)),)


def _signal(rng: Rng, side: int) -> tuple[Any, ...]:
    return (rng.standard_normal(256 * side * side // 4),)


def _two_signals(rng: Rng, side: int) -> tuple[Any, ...]:
    return rng.random(64 * side * side), rng.random(64 * side * side)


def _points(rng: Rng, side: int) -> tuple[Any, ...]:
    return (rng.standard_normal((100 * side, 8)),)


def _is_image(image: Array) -> Array:
    image = np.asarray(image)
    if image.ndim < 2:
        raise ValueError(f"an image has two axes or more, not {image.ndim}")
    return image.astype(float) if image.dtype.kind in "iu" else image


# -- images


@_with(_image)
def sobel(image: Array) -> Array:
    image = _is_image(image)
    out = np.zeros_like(image)
    h = image[2:, :-2] + 2 * image[2:, 1:-1] + image[2:, 2:] - image[:-2, :-2] - 2 * image[:-2, 1:-1] - image[:-2, 2:]
    v = image[:-2, 2:] + 2 * image[1:-1, 2:] + image[2:, 2:] - image[:-2, :-2] - 2 * image[1:-1, :-2] - image[2:, :-2]
    out[1:-1, 1:-1] = np.sqrt(h * h + v * v) / np.sqrt(2)
    return out


@_with(_image)
def unsharp(image: Array, amount: float = 1.5) -> Array:
    image = _is_image(image)
    low, high = image.min(), image.max()
    if high <= low:
        return image.copy()
    smooth = (np.roll(image, 1, 0) + np.roll(image, -1, 0) + np.roll(image, 1, 1) + np.roll(image, -1, 1) + image) / 5
    return np.clip(image + amount * (image - smooth), low, high)


@_with(_image)
def adjust_sigmoid(image: Array, cutoff: float = 0.5, gain: float = 10) -> Array:
    image = _is_image(image)
    if np.any(image < 0):
        raise ValueError("images have no negative values")
    return 1 / (1 + np.exp(gain * (cutoff - image)))


@_with(_image)
def rescale(image: Array, bottom: float = 0.0, top: float = 1.0) -> Array:
    image = _is_image(image)
    low, high = float(image.min()), float(image.max())
    if low == high:
        return np.clip(image, bottom, top)
    return np.clip((image - low) / (high - low), 0, 1) * (top - bottom) + bottom


@_with(_image)
def threshold_isodata(image: Array) -> Array:
    threshold = image.mean()
    for _ in range(30):
        above = image > threshold
        count = above.sum()
        high = np.where(above, image, 0).sum() / max(count, 1)
        low = np.where(above, 0, image).sum() / max(image.size - count, 1)
        new = (low + high) / 2
        if abs(new - threshold) < 1e-6:
            break
        threshold = new
    return image > threshold, threshold


@_with(_image)
def total_variation(image: Array, weight: float = 0.1, tolerance: float = 2e-3) -> Array:
    out, before = image.copy(), None
    for number in range(20):
        dx = np.roll(out, -1, 1) - out
        dy = np.roll(out, -1, 0) - out
        size = np.sqrt(dx * dx + dy * dy + 1e-6)
        px, py = dx / size, dy / size
        step = px - np.roll(px, 1, 1) + py - np.roll(py, 1, 0)
        out = out + 0.1 * (weight * step + image - out)
        energy = ((out - image) ** 2).sum() + weight * size.sum()
        if before is not None and abs(before - energy) < tolerance * before:
            return out, number
        before = energy
    return out, -1


@_with(_colours)
def grey(image: Array) -> Array:
    image = _is_image(image)
    if image.shape[-1] not in (3, 4):
        raise ValueError("the last axis has three or four channels")
    return 0.2125 * image[..., 0] + 0.7154 * image[..., 1] + 0.0721 * image[..., 2]


@_with(_colours)
def to_lab(image: Array) -> Array:
    linear = np.where(image > 0.04045, ((image + 0.055) / 1.055) ** 2.4, image / 12.92)
    x = (0.412453 * linear[..., 0] + 0.357580 * linear[..., 1] + 0.180423 * linear[..., 2]) / 0.95047
    y = 0.212671 * linear[..., 0] + 0.715160 * linear[..., 1] + 0.072169 * linear[..., 2]
    z = (0.019334 * linear[..., 0] + 0.119193 * linear[..., 1] + 0.950227 * linear[..., 2]) / 1.08883
    f = [np.where(each > 0.008856, np.cbrt(each), 7.787 * each + 16 / 116) for each in (x, y, z)]
    return np.stack([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])], axis=-1)


# -- signals and statistics


@_with(_signal)
def zscore(x: Array) -> Array:
    x = np.asarray(x)
    spread = x.std()
    if spread == 0:
        return np.zeros_like(x)
    return (x - x.mean()) / spread


@_with(_signal)
def skewness(x: Array) -> Array:
    centred = x - x.mean()
    m2 = (centred**2).mean()
    if m2 < 1e-15:
        return 0.0
    return (centred**3).mean() / m2**1.5


@_with(_signal)
def softmax(x: Array) -> Array:
    e = np.exp(x - np.max(x))
    return e / e.sum()


@_with(_signal)
def gausspulse(t: Array, centre: float = 5.0, width: float = 0.5) -> Array:
    if centre < 0 or width <= 0:
        raise ValueError("a pulse has a frequency and a width")
    a = -((np.pi * centre * width) ** 2) / (4.0 * np.log(0.5))
    envelope = np.exp(-a * t * t)
    return envelope * np.cos(2 * np.pi * centre * t), envelope * np.sin(2 * np.pi * centre * t), envelope


@_with(_signal)
def power_to_db(x: Array, floor: float = 1e-10, top: float = 80.0) -> Array:
    power = x * x
    db = 10.0 * np.log10(np.maximum(floor, power))
    db -= 10.0 * np.log10(np.maximum(floor, power.max()))
    if top is not None:
        db = np.maximum(db, db.max() - top)
    return db


@_with(_two_signals)
def correlation(x: Array, y: Array) -> Array:
    if x.shape != y.shape:
        raise ValueError("as many of both")
    dx, dy = x - x.mean(), y - y.mean()
    norm = np.sqrt((dx * dx).sum() * (dy * dy).sum())
    return float((dx * dy).sum() / norm) if norm > 0 else np.nan


@_with(_two_signals)
def huber(x: Array, y: Array, delta: float = 0.2) -> Array:
    residual = np.abs(x - y)
    small = residual <= delta
    loss = np.where(small, 0.5 * residual**2, delta * (residual - 0.5 * delta))
    return loss.mean(), small.mean()


@_with(_signal)
def biweight(x: Array, c: float = 6.0, tolerance: float = 1e-9) -> Array:
    centre = x.mean()
    for _ in range(15):
        distance = x - centre
        u = distance / (c * np.abs(distance).mean())
        weight = np.where(np.abs(u) < 1, (1 - u * u) ** 2, 0)
        new = (weight * x).sum() / weight.sum()
        if abs(new - centre) < tolerance:
            return new
        centre = new
    return centre


# -- iterations


@_with(_two_signals)
def newton(x: Array, y: Array, tolerance: float = 1e-10) -> Array:
    z = x + y + 1
    for number in range(40):
        f = z**3 - x * z - (y + 1)
        step = f / (3 * z * z - x)
        z = z - step
        if np.abs(step).max() < tolerance:
            return z, number
    return z, -1


@_with(_two_signals)
def bisection(x: Array, y: Array) -> Array:
    low, high = np.zeros_like(x), np.full_like(x, 2.0)
    while (high - low).max() > 1e-6:
        middle = 0.5 * (low + high)
        above = middle * np.exp(middle * x) > y
        low, high = np.where(above, low, middle), np.where(above, middle, high)
    return 0.5 * (low + high)


@_with(_image)
def heat(u: Array) -> Array:
    u = u.copy()
    for number in range(25):
        change = u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2] - 4 * u[1:-1, 1:-1]
        u[1:-1, 1:-1] += 0.2 * change
        if np.abs(change).max() < 0.2:
            return u, number
    return u, -1


@_with(_image)
def mandelbrot(seed: Array) -> Array:
    real, imaginary = 3 * seed - 2, 2.4 * seed.T - 1.2
    x, y, steps = np.zeros_like(real), np.zeros_like(real), np.zeros_like(real)
    for number in range(30):
        xx, yy = x * x, y * y
        inside = xx + yy <= 4
        if not inside.any():
            break
        x, y = np.where(inside, xx - yy + real, x), np.where(inside, 2 * x * y + imaginary, y)
        steps = np.where(inside, number, steps)
    return steps


@_with(_two_signals)
def adaptive_heun(x: Array, y: Array, tolerance: float = 1e-4) -> Array:
    t, step, z = 0.0, 0.1, x
    while t < 1:
        slope = y - z * z
        euler = z + step * slope
        heun = z + step / 2 * (slope + y - euler * euler)
        error = float(np.abs(heun - euler).max())
        if error <= tolerance * 50:
            z, t = heun, t + step
        step *= min(2.0, max(0.3, 0.9 * (tolerance * 50 / max(error, 1e-12)) ** 0.5))
    return z


# -- estimators


@_with(_points)
def standard_scale(points: Array) -> Array:
    mean, spread = points.mean(axis=0), points.std(axis=0)
    spread = np.where(spread == 0, 1, spread)
    return (points - mean) / spread


@_with(_points)
def logistic_step(points: Array) -> Array:
    weights = np.zeros_like(points[0])
    target = (points[:, 0] > 0) * 1.0
    for _ in range(15):
        p = 1 / (1 + np.exp(-(points @ weights)))
        gradient = points.T @ (p - target) / len(points)
        weights = weights - 2.0 * gradient
        if np.sqrt((gradient**2).sum()) < 1e-4:
            break
    return weights


@_with(_points)
def rbf_rows(points: Array, gamma: float = 0.1) -> Array:
    some = points[:64]
    squares = (points**2).sum(axis=1)[:, None] + (some**2).sum(axis=1)[None, :] - 2 * points @ some.T
    return np.exp(-gamma * np.maximum(squares, 0))
