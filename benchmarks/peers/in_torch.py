"""The workloads with PyTorch, called operation by operation or compiled."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.nn import functional


def _normal_distribution(x: Any) -> Any:
    t = 1 / (1 + 0.2316419 * torch.abs(x))
    poly = t * (0.319381530 + t * (-0.356563782 + t * (1.781477937 + t * (-1.821255978 + t * 1.330274429))))
    tail = torch.exp(-x * x / 2) / math.sqrt(2 * math.pi) * poly
    return torch.where(x >= 0, 1 - tail, tail)


def black_scholes(price: Any, strike: Any, years: Any, rate: float = 0.02, volatility: float = 0.3) -> Any:
    spread = volatility * torch.sqrt(years)
    d1 = (torch.log(price / strike) + (rate + volatility**2 / 2) * years) / spread
    discounted = strike * torch.exp(-rate * years)
    call = price * _normal_distribution(d1) - discounted * _normal_distribution(d1 - spread)
    return call, call - price + discounted


def softmax(x: Any) -> Any:
    return torch.softmax(x, dim=1)


def distances(x: Any, y: Any) -> Any:
    return torch.cdist(x, y)


def kmeans(points: Any, centres: Any) -> Any:
    nearest = torch.cdist(points, centres).argmin(dim=1)
    member = functional.one_hot(nearest, centres.shape[0]).to(points.dtype)
    return member.T @ points / member.sum(dim=0).clamp(min=1)[:, None], nearest


def edges(image: Any, threshold: float = 0.5) -> Any:
    weights = torch.tensor([1 / 16, 4 / 16, 6 / 16, 4 / 16, 1 / 16])
    smooth, change = torch.tensor([1.0, 2.0, 1.0]), torch.tensor([-1.0, 0.0, 1.0])
    padded = functional.pad(image[None, None], (2, 2, 2, 2), mode="replicate")
    blurred = functional.conv2d(functional.conv2d(padded, weights[None, None, :, None]), weights[None, None, None, :])
    padded = functional.pad(blurred, (1, 1, 1, 1), mode="reflect")
    kernels = torch.stack([torch.outer(smooth, change), torch.outer(change, smooth)])[:, None]
    horizontal, vertical = functional.conv2d(padded, kernels)[0]
    strength = torch.hypot(horizontal, vertical)
    return strength, torch.where(strength > threshold * strength.max(), 255, 0).to(torch.uint8)


def _acceleration(position: Any, mass: Any, softening: float = 0.05) -> Any:
    apart = position[None, :, :] - position[:, None, :]
    squared = (apart**2).sum(dim=-1) + softening**2
    return (apart * (mass[None, :] / squared**1.5)[:, :, None]).sum(dim=1)


def nbody(position: Any, velocity: Any, mass: Any, dt: float = 0.01) -> Any:
    velocity = velocity + _acceleration(position, mass) * (dt / 2)
    position = position + velocity * dt
    velocity = velocity + _acceleration(position, mass) * (dt / 2)
    return position, velocity, 0.5 * torch.sum(mass * torch.sum(velocity * velocity, dim=1))


def perceptron(x: Any, first: Any, second: Any) -> Any:
    return torch.tanh(torch.tanh(x @ first) @ second)


def statistics(x: Any) -> Any:
    deviation, mean = torch.std_mean(x, dim=0, correction=0)
    skewness = (((x - mean) / deviation) ** 3).mean(dim=0)
    return torch.stack([mean, deviation, x.amin(dim=0), x.amax(dim=0), skewness])


def low_pass(signal: Any, rate: float = 1000.0, cutoff: float = 60.0) -> Any:
    spectrum = torch.fft.rfft(signal)
    frequency = torch.fft.rfftfreq(signal.shape[-1], 1 / rate, dtype=signal.dtype)
    smooth = torch.fft.irfft(spectrum / torch.sqrt(1 + (frequency / cutoff) ** 8), n=signal.shape[-1])
    return smooth, torch.mean(torch.abs(spectrum) ** 2, dim=0)


def mandelbrot(c: Any, steps: int = 30) -> Any:
    z = torch.zeros_like(c)
    escaped_after = torch.zeros(c.shape, dtype=torch.int32)
    for _ in range(steps):
        inside = torch.abs(z) <= 2
        z = torch.where(inside, z * z + c, z)
        escaped_after = escaped_after + inside
    return escaped_after


def small(x: Any) -> Any:
    return (x - x.mean()) / x.std(correction=0)


def function(name: str) -> Any:
    return torch.inference_mode()(globals()[name])


def compiled(name: str) -> Any:
    return torch.inference_mode()(torch.compile(globals()[name]))


def own_array(value: Any) -> Any:
    return torch.from_numpy(value)
