"""One step of gradient descent for a softmax classifier, with the loss it had."""

from __future__ import annotations

from typing import Any

import numpy as np


def training_step(x: Any, labels: Any, weights: Any, bias: Any, rate: float = 0.1) -> tuple[Any, Any, Any]:
    scores = x @ weights + bias
    scores = scores - scores.max(axis=1, keepdims=True)
    exponentials = np.exp(scores)
    probabilities = exponentials / exponentials.sum(axis=1, keepdims=True)
    wanted = labels[:, None] == np.arange(weights.shape[1])
    loss = -np.log(np.where(wanted, probabilities, 1)).sum() / x.shape[0]
    gradient = (probabilities - wanted.astype(x.dtype)) / x.shape[0]
    return weights - rate * (x.T @ gradient), bias - rate * gradient.sum(axis=0), loss


def inputs(rng: np.random.Generator) -> list[Any]:
    count, features, classes = 503, 21, 5
    return [
        rng.normal(size=(count, features)).astype(np.float32),
        rng.integers(0, classes, count),
        (0.1 * rng.normal(size=(features, classes))).astype(np.float32),
        np.zeros(classes, np.float32),
    ]


if __name__ == "__main__":
    from examples.compare import compare

    compare(training_step, inputs(np.random.default_rng(0)))
