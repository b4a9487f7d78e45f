"""Parts of neural networks, and one step of training a small one."""

from __future__ import annotations

from typing import Any

import numpy as np

from anygpu.base.typing import HostArray
from benchmarks.workloads.workload import Workload, normal, rows_of

HIDDEN, CLASSES = 64, 10


def softmax(x: Any) -> Any:
    shares = np.exp(x - np.max(x, axis=1, keepdims=True))
    return shares / np.sum(shares, axis=1, keepdims=True)


def layer_norm(x: Any, scale: Any, shift: Any) -> Any:
    distance = x - np.mean(x, axis=1, keepdims=True)
    variance = np.mean(distance * distance, axis=1, keepdims=True)
    return distance / np.sqrt(variance + 1e-5) * scale + shift


def mlp_step(x: Any, wanted: Any, w1: Any, b1: Any, w2: Any, b2: Any) -> tuple[Any, Any, Any, Any]:
    """Forward through two layers, the gradient by hand, and the update."""
    rate = 0.05
    hidden = np.tanh(x @ w1 + b1)
    error = (hidden @ w2 + b2 - wanted) / x.shape[0]
    behind = (error @ w2.T) * (1 - hidden * hidden)
    return (
        w1 - rate * (x.T @ behind),
        b1 - rate * np.sum(behind, axis=0),
        w2 - rate * (hidden.T @ error),
        b2 - rate * np.sum(error, axis=0),
    )


def _rows(size: int, rng: np.random.Generator) -> tuple[HostArray, ...]:
    return (normal(rng, *rows_of(size, 1024)),)


def _rows_and_scales(size: int, rng: np.random.Generator) -> tuple[HostArray, ...]:
    rows, columns = rows_of(size, 1024)
    return normal(rng, rows, columns), normal(rng, columns), normal(rng, columns)


def _batch(size: int, rng: np.random.Generator) -> tuple[HostArray, ...]:
    rows, features = rows_of(size, 128)
    weights = normal(rng, features, HIDDEN) / 8, np.zeros(HIDDEN, np.float32)
    last = normal(rng, HIDDEN, CLASSES) / 8, np.zeros(CLASSES, np.float32)
    return normal(rng, rows, features), normal(rng, rows, CLASSES), *weights, *last


LEARNING = (
    Workload(name="softmax", stages=(softmax,), make=_rows),
    Workload(name="layer norm", stages=(layer_norm,), make=_rows_and_scales),
    Workload(name="training step", stages=(mlp_step,), make=_batch),
)
