"""An array of ones makes 64-bit numbers of everything."""

import numpy as np

import anygpu as ag


@ag.offload(on="opencl")
def weighted(x):
    window = np.hanning(x.shape[1])
    y = x * window  # finding: float64
    return np.exp(-y * y) * np.sin(y)


x = np.random.default_rng(0).random((1500, 1500)).astype(np.float32)
for _ in range(25):
    x *= np.float32(0.999)
    y = weighted(x)
print(y.sum(dtype=np.float64).round(-2))
