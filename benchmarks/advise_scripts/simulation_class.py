"""A simulation as a class, whose state its methods change."""

import numpy as np


class Waves:
    def __init__(self, n):
        self.now = np.zeros((n, n), np.float32)
        self.now[n // 2, n // 2] = 1.0
        self.before = self.now.copy()

    def laplacian(self, u):
        return np.roll(u, 1, axis=0) + np.roll(u, -1, axis=0) + np.roll(u, 1, axis=1) + np.roll(u, -1, axis=1) - 4.0 * u

    def step(self):
        following = 2.0 * self.now - self.before + 0.2 * self.laplacian(self.now)
        self.before, self.now = self.now, following


waves = Waves(600)
for _ in range(20):
    waves.step()
print(f"{np.abs(waves.now).sum():.4f}")
