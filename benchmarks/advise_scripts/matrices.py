"""Products of float64 matrices, which NumPy's BLAS does well."""

import numpy as np


def gram(x):
    return x.T @ x


x = np.random.default_rng(8).random((1200, 800))
for _ in range(5):
    g = gram(x)
print(f"{g.trace():.2f}")
