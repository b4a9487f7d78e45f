"""A bilateral filter, by shifting the image."""

import numpy as np


def bilateral(image, radius, sigma):
    total = np.zeros_like(image)
    weight = np.zeros_like(image)
    for dy in range(-radius, radius + 1):
        for dx in range(-radius, radius + 1):
            moved = np.roll(np.roll(image, dy, axis=0), dx, axis=1)
            w = np.exp(-((moved - image) ** 2) / (2 * sigma * sigma) - (dy * dy + dx * dx) / 8.0)
            total += w * moved
            weight += w
    return total / weight


image = np.random.default_rng(2).random((400, 500)).astype(np.float32)
for _ in range(3):
    image = bilateral(image, 2, 0.2)
print(f"{image.mean():.4f}")
