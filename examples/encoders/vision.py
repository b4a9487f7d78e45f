"""A small vision transformer: an image in patches, four layers of attention, and one vector of it.

Its weights are random numbers from a fixed seed: it shows how models share a device, and recognises nothing.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from anygpu import nn
from examples.encoders.minilm import Weights

#: Images are 96 × 96 pixels of three colours, patches 16 × 16.
SIDE = 96
PATCH = 16
HEADS = 6
WIDTH = 192


def random_weights(layers: int = 4, seed: int = 7) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    patches = (SIDE // PATCH) ** 2
    weights: dict[str, np.ndarray] = {}

    def matrix(name: str, outputs: int, inputs: int) -> None:
        spread = rng.normal(scale=1 / math.sqrt(inputs), size=(outputs, inputs))
        weights[f"{name}.weight"] = spread.astype(np.float32)
        weights[f"{name}.bias"] = rng.normal(scale=0.02, size=outputs).astype(np.float32)

    def norm(name: str) -> None:
        weights[f"{name}.weight"] = np.ones(WIDTH, np.float32)
        weights[f"{name}.bias"] = np.zeros(WIDTH, np.float32)

    matrix("patches", WIDTH, PATCH * PATCH * 3)
    weights["positions"] = rng.normal(scale=0.02, size=(patches, WIDTH)).astype(np.float32)
    for layer in range(layers):
        norm(f"{layer}.before_attention")
        matrix(f"{layer}.attention", 3 * WIDTH, WIDTH)
        matrix(f"{layer}.attended", WIDTH, WIDTH)
        norm(f"{layer}.before_wide")
        matrix(f"{layer}.wide", 4 * WIDTH, WIDTH)
        matrix(f"{layer}.narrow", WIDTH, 4 * WIDTH)
    norm("last")
    return weights


def encode(images: Any, weights: Weights) -> Any:
    """From float32 images [images, 96, 96, 3], 0 to 1, to one vector of each: [images, 192]."""
    images = images * 2 - 1
    count, across = images.shape[0], SIDE // PATCH
    cut = images.reshape(count, across, PATCH, across, PATCH, 3).transpose(0, 1, 3, 2, 4, 5)
    x = _linear(cut.reshape(count, across * across, PATCH * PATCH * 3), weights, "patches") + weights["positions"]
    for layer in range(sum(name.endswith(".wide.weight") for name in weights)):
        x = x + _attended(_norm(x, weights, f"{layer}.before_attention"), weights, layer)
        wide = nn.gelu(_linear(_norm(x, weights, f"{layer}.before_wide"), weights, f"{layer}.wide"))
        x = x + _linear(wide, weights, f"{layer}.narrow")
    return nn.mean_pool(_norm(x, weights, "last"))


def _attended(x: Any, weights: Weights, layer: int) -> Any:
    count, patches, _ = x.shape
    mixed = _linear(x, weights, f"{layer}.attention").reshape(count, patches, 3, HEADS, WIDTH // HEADS)
    q, k, v = (mixed[:, :, each].transpose(0, 2, 1, 3) for each in range(3))
    seen = nn.attention(q, k, v).transpose(0, 2, 1, 3).reshape(count, patches, WIDTH)
    return _linear(seen, weights, f"{layer}.attended")


def _linear(x: Any, weights: Weights, name: str) -> Any:
    return nn.linear(x, weights[f"{name}.weight"], weights[f"{name}.bias"])


def _norm(x: Any, weights: Weights, name: str) -> Any:
    return nn.layer_norm(x, weights[f"{name}.weight"], weights[f"{name}.bias"], eps=1e-6)
