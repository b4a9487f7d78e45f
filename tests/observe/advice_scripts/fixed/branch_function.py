"""A function asks for a value, so it stays on NumPy: corrected."""

import numpy as np

import anygpu as ag


@ag.offload(on="opencl", fallback="allow")
def clipped(x):
    x = np.where(x.mean() > 0.4, x - 0.4, x)
    return np.arctan(x) * np.log1p(np.abs(x)) + np.tanh(x) * np.arcsinh(x) + np.cbrt(x) * np.expm1(-x)


x = np.random.default_rng(0).random((2000, 2000)).astype(np.float32)
for _ in range(80):
    x *= np.float32(0.999)
    y = clipped(x)
print(y.sum(dtype=np.float64).round(-2))
