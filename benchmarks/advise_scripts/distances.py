"""Distances between many points, and the nearest of each."""

import numpy as np


def nearest(points, others):
    squared = (points**2).sum(axis=1)[:, None] + (others**2).sum(axis=1)[None, :] - 2.0 * points @ others.T
    return np.sqrt(np.maximum(squared, 0.0)).min(axis=1)


rng = np.random.default_rng(3)
a, b = rng.random((3000, 16)).astype(np.float32), rng.random((2000, 16)).astype(np.float32)
total = 0.0
for _ in range(4):
    total += float(nearest(a, b).sum())
print(f"{total:.1f}")
