"""One argument has 64 bits, and nobody wanted that: corrected."""

import numpy as np

import anygpu as ag


@ag.offload(on="opencl")
def standardised(x, mean, deviation):
    return np.tanh((x - mean) / deviation)


x = np.random.default_rng(0).random((2000, 1000)).astype(np.float32)
mean, deviation = np.full(1000, 0.5, np.float32), np.full(1000, 0.3, np.float32)
for _ in range(80):
    x *= np.float32(0.999)
    y = standardised(x, mean, deviation)
print(y.sum(dtype=np.float64).round(-2))
