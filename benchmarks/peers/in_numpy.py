"""The workloads as users write them in NumPy. anygpu runs these very functions, with a decorator and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from examples.black_scholes import black_scholes
from examples.edges import edges
from examples.fft_filter import low_pass
from examples.kmeans import kmeans_step
from examples.mandelbrot import mandelbrot
from examples.nbody import nbody_step


def softmax(x: Any) -> Any:
    shares = np.exp(x - x.max(axis=1, keepdims=True))
    return shares / shares.sum(axis=1, keepdims=True)


def distances(x: Any, y: Any) -> Any:
    """Of each point of `x` to each of `y`."""
    return np.sqrt(((x[:, None, :] - y[None, :, :]) ** 2).sum(axis=-1))


def perceptron(x: Any, first: Any, second: Any) -> Any:
    return np.tanh(np.tanh(x @ first) @ second)


def statistics(x: Any) -> Any:
    """Of each column: mean, standard deviation, least, greatest and skewness."""
    mean, deviation = x.mean(axis=0), x.std(axis=0)
    skewness = (((x - mean) / deviation) ** 3).mean(axis=0)
    return np.stack([mean, deviation, x.min(axis=0), x.max(axis=0), skewness])


def standardise(x: Any) -> Any:
    return (x - x.mean()) / x.std()


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "black_scholes": black_scholes,
    "softmax": softmax,
    "distances": distances,
    "kmeans": kmeans_step,
    "edges": edges,
    "nbody": nbody_step,
    "perceptron": perceptron,
    "statistics": statistics,
    "low_pass": low_pass,
    "mandelbrot": mandelbrot,
    "small": standardise,
}


def function(name: str) -> Any:
    return FUNCTIONS[name]
