"""An array is uploaded inside of the loop that uses it."""

import numpy as np

import anygpu as ag

rng = np.random.default_rng(0)
table = rng.random((1000, 3000)).astype(np.float32)
out = []
for k in range(60):
    x = ag.asarray(table, device="opencl")  # finding: upload-again
    out.append(k * np.asarray((x * np.float32(2)).sum(axis=1)))
print(np.sum(out, dtype=np.float64).round(-4))
