"""Many calls with three numbers each."""

import numpy as np


def rotated(v, angle):
    c, s = np.cos(angle), np.sin(angle)
    return np.array([[c, -s, 0.0], [s, c, 0.0], [0.0, 0.0, 1.0]]) @ v


v = np.array([1.0, 0.0, 0.0])
for _ in range(20_000):
    v = rotated(v, 0.001)
print(np.round(v, 6))
