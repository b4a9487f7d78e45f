"""A product of matrices, without anygpu."""

import numpy as np

x = np.random.default_rng(0).random((1400, 1400))
for _ in range(6):
    y = x @ x  # hot
    z = y.sum()
