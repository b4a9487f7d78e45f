"""The workloads with JAX: each function compiled as a whole, in the precision that NumPy has."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

# NumPy computes float64 in float64.
jax.config.update("jax_enable_x64", True)


def _normal_distribution(x: Any) -> Any:
    t = 1 / (1 + 0.2316419 * jnp.abs(x))
    poly = t * (0.319381530 + t * (-0.356563782 + t * (1.781477937 + t * (-1.821255978 + t * 1.330274429))))
    tail = jnp.exp(-x * x / 2) / jnp.sqrt(2 * jnp.pi) * poly
    return jnp.where(x >= 0, 1 - tail, tail)


def black_scholes(price: Any, strike: Any, years: Any, rate: float = 0.02, volatility: float = 0.3) -> Any:
    spread = volatility * jnp.sqrt(years)
    d1 = (jnp.log(price / strike) + (rate + volatility**2 / 2) * years) / spread
    discounted = strike * jnp.exp(-rate * years)
    call = price * _normal_distribution(d1) - discounted * _normal_distribution(d1 - spread)
    return call, call - price + discounted


def softmax(x: Any) -> Any:
    return jax.nn.softmax(x, axis=1)


def distances(x: Any, y: Any) -> Any:
    return jnp.sqrt(((x[:, None, :] - y[None, :, :]) ** 2).sum(axis=-1))


def kmeans(points: Any, centres: Any) -> Any:
    nearest = ((points[:, None, :] - centres[None, :, :]) ** 2).sum(axis=2).argmin(axis=1)
    member = jax.nn.one_hot(nearest, centres.shape[0], dtype=points.dtype)
    return member.T @ points / jnp.maximum(member.sum(axis=0), 1)[:, None], nearest


def edges(image: Any, threshold: float = 0.5) -> Any:
    height, width = image.shape
    weights = (1 / 16, 4 / 16, 6 / 16, 4 / 16, 1 / 16)
    padded = jnp.pad(image, 2, mode="edge")
    rows: Any = sum(weight * padded[k : k + height, :] for k, weight in enumerate(weights))
    blurred = sum(weight * rows[:, k : k + width] for k, weight in enumerate(weights))
    padded = jnp.pad(blurred, 1, mode="reflect")
    above, middle, below = padded[:-2], padded[1:-1], padded[2:]
    across, down = above + 2 * middle + below, below - above
    strength = jnp.hypot(across[:, 2:] - across[:, :-2], down[:, :-2] + 2 * down[:, 1:-1] + down[:, 2:])
    return strength, jnp.where(strength > threshold * strength.max(), 255, 0).astype(jnp.uint8)


def _acceleration(position: Any, mass: Any, softening: float = 0.05) -> Any:
    apart = position[None, :, :] - position[:, None, :]
    squared = (apart**2).sum(axis=-1) + softening**2
    return (apart * (mass[None, :] / squared**1.5)[:, :, None]).sum(axis=1)


def nbody(position: Any, velocity: Any, mass: Any, dt: float = 0.01) -> Any:
    velocity = velocity + _acceleration(position, mass) * (dt / 2)
    position = position + velocity * dt
    velocity = velocity + _acceleration(position, mass) * (dt / 2)
    return position, velocity, 0.5 * jnp.sum(mass * jnp.sum(velocity * velocity, axis=1))


def perceptron(x: Any, first: Any, second: Any) -> Any:
    return jnp.tanh(jnp.tanh(x @ first) @ second)


def statistics(x: Any) -> Any:
    mean, deviation = x.mean(axis=0), x.std(axis=0)
    skewness = (((x - mean) / deviation) ** 3).mean(axis=0)
    return jnp.stack([mean, deviation, x.min(axis=0), x.max(axis=0), skewness])


def low_pass(signal: Any, rate: float = 1000.0, cutoff: float = 60.0) -> Any:
    spectrum = jnp.fft.rfft(signal)
    gain = 1 / jnp.sqrt(1 + (jnp.fft.rfftfreq(signal.shape[-1], 1 / rate) / cutoff) ** 8)
    smooth = jnp.fft.irfft(spectrum * gain, n=signal.shape[-1])
    return smooth, jnp.mean(jnp.abs(spectrum) ** 2, axis=0)


def mandelbrot(c: Any, steps: int = 30) -> Any:
    def step(_: int, state: Any) -> Any:
        z, escaped_after = state
        inside = jnp.abs(z) <= 2
        return jnp.where(inside, z * z + c, z), escaped_after + inside

    return lax.fori_loop(0, steps, step, (jnp.zeros_like(c), jnp.zeros(c.shape, jnp.int32)))[1]


def small(x: Any) -> Any:
    return (x - x.mean()) / x.std()


def function(name: str) -> Any:
    compiled = jax.jit(globals()[name])
    return lambda *arguments: jax.block_until_ready(compiled(*arguments))


def own_array(value: Any) -> Any:
    return jnp.asarray(value)
