"""Blur an image, then find its edges with Sobel's filters."""

from __future__ import annotations

from typing import Any

import numpy as np


def blur(image: Any) -> Any:
    """Each pixel as the weighted mean of its 5×5 neighbourhood, first along rows, then along columns."""
    weights = (1 / 16, 4 / 16, 6 / 16, 4 / 16, 1 / 16)
    padded: Any = np.pad(image, 2, mode="edge")
    height, width = image.shape
    rows: Any = sum(weight * padded[k : k + height, :] for k, weight in enumerate(weights))
    return sum(weight * rows[:, k : k + width] for k, weight in enumerate(weights))


def sobel(image: Any) -> Any:
    padded = np.pad(image, 1, mode="reflect")
    above, middle, below = padded[:-2], padded[1:-1], padded[2:]
    across = above + 2 * middle + below
    horizontal = across[:, 2:] - across[:, :-2]
    down = below - above
    vertical = down[:, :-2] + 2 * down[:, 1:-1] + down[:, 2:]
    return np.hypot(horizontal, vertical)


def edges(image: Any, threshold: float = 0.5) -> tuple[Any, Any]:
    strength = sobel(blur(image))
    return strength, np.where(strength > threshold * strength.max(), 255, 0).astype(np.uint8)


def inputs(rng: np.random.Generator) -> list[Any]:
    y, x = np.mgrid[0:241, 0:319]
    disc = ((x - 160) ** 2 + (y - 120) ** 2 < 70**2).astype(np.float32)
    return [(disc + 0.1 * rng.random(disc.shape)).astype(np.float32)]


if __name__ == "__main__":
    from examples.compare import compare

    compare(edges, inputs(np.random.default_rng(0)))
