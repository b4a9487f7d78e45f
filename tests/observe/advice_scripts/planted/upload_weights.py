"""The weights go to the device with every call."""

import numpy as np

import anygpu as ag

rng = np.random.default_rng(0)
weights = rng.random((2000, 2000)).astype(np.float32)


@ag.offload(on="opencl")
def layer(x, w):
    return np.tanh(x @ w)


total = 0.0
for _ in range(60):
    x = rng.random((8, 2000)).astype(np.float32)
    total += float(layer(x, weights).sum())  # finding: upload-again
print(round(total))
