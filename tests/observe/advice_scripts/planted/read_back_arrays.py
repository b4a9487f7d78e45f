"""An array leaves its device for an operation that the device could do."""

import numpy as np

import anygpu as ag

x = ag.asarray(np.random.default_rng(0).random((1500, 1500)).astype(np.float32), device="opencl")
for _ in range(30):
    y = x * np.float32(0.5) + np.float32(0.1)
    host = np.asarray(y)  # finding: read-back
    x = ag.asarray(np.clip(host, 0.2, 0.8), device="opencl")
print(np.asarray(x).mean(dtype=np.float64).round(4))
