"""Every call has another shape."""

import numpy as np

import anygpu as ag

rng = np.random.default_rng(0)


@ag.offload(on="jax")
def levels(x):
    return np.log1p(np.abs(x)) * 3.0


total = 0.0
for length in range(1000, 1400, 20):
    x = rng.random(length).astype(np.float32)
    total += float(levels(x).sum())  # finding: recompile
print(round(total, 1))
