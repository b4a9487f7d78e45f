"""The workloads with numexpr: each chain of operations is one expression, and NumPy does what an expression cannot.

An expression has at most one reduction, a sum, product, minimum or maximum, and that is the last thing it does. It has
no matrix products, no slices and no Fourier transforms. Numbers in it are float64 unless they are arrays, so float32
expressions take their constants as float32.
"""

from __future__ import annotations

from typing import Any

import numexpr as ne
import numpy as np


def black_scholes(price: Any, strike: Any, years: Any, rate: float = 0.02, volatility: float = 0.3) -> tuple[Any, Any]:
    spread = ne.evaluate("volatility * sqrt(years)")
    d1 = ne.evaluate("(log(price / strike) + (rate + volatility**2 / 2) * years) / spread")
    d2 = ne.evaluate("d1 - spread")
    discounted = ne.evaluate("strike * exp(-rate * years)")
    upper, lower = _normal_distribution(d1), _normal_distribution(d2)
    call = ne.evaluate("price * upper - discounted * lower")
    return call, ne.evaluate("call - price + discounted")


def _normal_distribution(x: Any) -> Any:
    t = ne.evaluate("1 / (1 + 0.2316419 * abs(x))")
    root = np.sqrt(2 * np.pi)
    tail = ne.evaluate(
        "exp(-x * x / 2) / root"
        " * t * (0.319381530 + t * (-0.356563782 + t * (1.781477937 + t * (-1.821255978 + t * 1.330274429))))"
    )
    return ne.evaluate("where(x >= 0, 1 - tail, tail)")


def softmax(x: Any) -> Any:
    greatest = x.max(axis=1, keepdims=True)
    shares = ne.evaluate("exp(x - greatest)")
    total = shares.sum(axis=1, keepdims=True)
    return ne.evaluate("shares / total")


def distances(x: Any, y: Any) -> Any:
    a, b = x[:, None, :], y[None, :, :]
    squared = ne.evaluate("sum((a - b) * (a - b), axis=2)")
    return ne.evaluate("sqrt(squared)")


def kmeans(points: Any, centres: Any) -> tuple[Any, Any]:
    a, b = points[:, None, :], centres[None, :, :]
    nearest = ne.evaluate("sum((a - b) * (a - b), axis=2)").argmin(axis=1)
    member = nearest[:, None] == np.arange(centres.shape[0])
    counts = np.maximum(member.sum(axis=0), 1)
    return member.T.astype(points.dtype) @ points / counts[:, None].astype(points.dtype), nearest


def edges(image: Any, threshold: float = 0.5) -> tuple[Any, Any]:
    strength = _sobel(_blur(image))
    return strength, np.where(strength > threshold * strength.max(), 255, 0).astype(np.uint8)


def _blur(image: Any) -> Any:
    padded = np.pad(image, 2, mode="edge")
    height, width = image.shape
    outer, inner, middle = np.float32(1 / 16), np.float32(4 / 16), np.float32(6 / 16)
    weighted = "outer * (a + e) + inner * (b + d) + middle * c"
    a, b, c, d, e = (padded[k : k + height, :] for k in range(5))
    rows = ne.evaluate(weighted)
    a, b, c, d, e = (rows[:, k : k + width] for k in range(5))
    return ne.evaluate(weighted)


def _sobel(image: Any) -> Any:
    padded = np.pad(image, 1, mode="reflect")
    above, middle, below = padded[:-2], padded[1:-1], padded[2:]
    across, down = ne.evaluate("above + 2 * middle + below"), ne.evaluate("below - above")
    left, right = across[:, :-2], across[:, 2:]
    first, second, third = down[:, :-2], down[:, 1:-1], down[:, 2:]
    return ne.evaluate("sqrt((right - left)**2 + (first + 2 * second + third)**2)")


def nbody(position: Any, velocity: Any, mass: Any, dt: float = 0.01) -> tuple[Any, Any, Any]:
    velocity = velocity + _acceleration(position, mass) * (dt / 2)
    position = position + velocity * dt
    velocity = velocity + _acceleration(position, mass) * (dt / 2)
    return position, velocity, 0.5 * np.sum(mass * np.einsum("ij,ij->i", velocity, velocity))


def _acceleration(position: Any, mass: Any, softening: float = 0.05) -> Any:
    here, there = position[:, None, :], position[None, :, :]
    squared = ne.evaluate("sum((there - here)**2, axis=2)")
    pull = ne.evaluate("mass / (squared + softening**2)**1.5")[:, :, None]
    return ne.evaluate("sum((there - here) * pull, axis=1)")


def perceptron(x: Any, first: Any, second: Any) -> Any:
    hidden = x @ first
    hidden = ne.evaluate("tanh(hidden)")
    result = hidden @ second
    return ne.evaluate("tanh(result)")


def statistics(x: Any) -> Any:
    mean = x.mean(axis=0)
    deviation = np.sqrt(ne.evaluate("sum((x - mean)**2, axis=0)") / len(x))
    skewness = ne.evaluate("sum(((x - mean) / deviation)**3, axis=0)") / len(x)
    return np.stack([mean, deviation, x.min(axis=0), x.max(axis=0), skewness])


def low_pass(signal: Any, rate: float = 1000.0, cutoff: float = 60.0) -> tuple[Any, Any]:
    spectrum = np.fft.rfft(signal)
    frequency = np.fft.rfftfreq(signal.shape[-1], 1 / rate)
    filtered = ne.evaluate("spectrum / sqrt(1 + (frequency / cutoff)**8)")
    power = ne.evaluate("sum(real(spectrum)**2 + imag(spectrum)**2, axis=0)") / len(signal)
    return np.fft.irfft(filtered, n=signal.shape[-1]), power


def mandelbrot(c: Any, steps: int = 30) -> Any:
    z = np.zeros_like(c)
    escaped_after = np.zeros(c.shape, dtype=np.int32)
    for _ in range(steps):
        inside = ne.evaluate("real(z)**2 + imag(z)**2 <= 4")
        z = ne.evaluate("where(inside, z * z + c, z)")
        escaped_after += inside
    return escaped_after


def small(x: Any) -> Any:
    mean, deviation = x.mean(), x.std()
    return ne.evaluate("(x - mean) / deviation")


def function(name: str) -> Any:
    return globals()[name]
