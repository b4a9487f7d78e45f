"""One step of k-means: assign each point to its nearest centre, then move the centres."""

from __future__ import annotations

from typing import Any

import numpy as np


def kmeans_step(points: Any, centres: Any) -> tuple[Any, Any]:
    distances = ((points[:, None, :] - centres[None, :, :]) ** 2).sum(axis=2)
    nearest = distances.argmin(axis=1)
    member = nearest[:, None] == np.arange(centres.shape[0])
    counts = np.maximum(member.sum(axis=0), 1)
    moved = member.T.astype(points.dtype) @ points / counts[:, None].astype(points.dtype)
    return moved, nearest


def inputs(rng: np.random.Generator) -> list[Any]:
    points = rng.normal(size=(2003, 3)).astype(np.float32)
    return [points, points[:7].copy()]


if __name__ == "__main__":
    from examples.compare import compare

    compare(kmeans_step, inputs(np.random.default_rng(0)))
