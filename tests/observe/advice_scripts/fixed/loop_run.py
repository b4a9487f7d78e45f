"""Points are transformed one by one, with `run`: corrected."""

import numpy as np

import anygpu as ag

points = np.random.default_rng(0).random((2000, 3)).astype(np.float32)
turn = np.array([[0, -1, 0], [1, 0, 0], [0, 0, 1]], np.float32)


def turned(point, matrix):
    return point @ matrix.T


made = ag.run(turned, points, turn, on="opencl").value
print(made.sum(axis=0).round(2))
