"""A card is asked for by name, and there is none: corrected."""

import numpy as np

import anygpu as ag


@ag.offload
def power(x):
    return np.tanh(x @ x)


x = np.random.default_rng(0).random((900, 900)).astype(np.float32)
for _ in range(5):
    y = power(x)
print(y.sum(dtype=np.float64).round())
